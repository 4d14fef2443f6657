"""Other sizes for a tensor that lies row by row, without asking FakeTensor.

Takes a fake tensor and sizes; gives the fake view that `aten.view` would, at a small part of
the time: with symbolic sizes FakeTensor compares them one by one. Only what the expressions of
the sizes prove is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._sympy.functions import FloorDiv

_aten = torch.ops.aten
_TARGETS = frozenset({_aten.view.default, _aten.reshape.default})


def size_expression(size: Any) -> Any:
    """A size as an int or a sympy expression, one and the same for `(n * n) // n` and `n`."""
    return _divided(size.node.expr) if isinstance(size, torch.SymInt) else size


@lru_cache(maxsize=4096)
def _divided(expression: Any) -> Any:
    """An expression where divisions that leave nothing over are carried out."""
    return expression.replace(FloorDiv, _quotient) if expression.has(FloorDiv) else expression


def _quotient(of: sympy.Expr, by: sympy.Expr) -> sympy.Expr:
    quotient, rest = sympy.div(of, by, domain="ZZ") if _is_polynomial(of, by) else (None, of)
    return quotient if rest == 0 else FloorDiv(of, by)


def _is_polynomial(*expressions: sympy.Expr) -> bool:
    symbols = set().union(*(expression.free_symbols for expression in expressions))
    return bool(symbols) and all(one.is_polynomial(*symbols) for one in expressions)


def row_major(sizes: Iterable[Any]) -> list[Any]:
    """The strides, as expressions, of a tensor without gaps whose last dim is innermost."""
    strides: list[Any] = [1]
    for size in reversed([*sizes][1:]):
        strides.append(strides[-1] * size_expression(size))
    return strides[::-1]


def is_row_major(value: torch.Tensor) -> bool:
    if value.dim() == 0:
        return True
    return row_major(value.shape) == [size_expression(stride) for stride in value.stride()]


def own_view(mode: FakeTensorMode, target: Any, args: Sequence[Any]) -> FakeTensor | None:
    """`target` called on `args`, where it is a view of all of a row-major tensor as sizes with
    the same product; None for anything else."""
    if target not in _TARGETS or len(args) != 2:
        return None
    value, sizes = args
    if not isinstance(value, FakeTensor) or value.fake_mode is not mode:
        return None
    if value.layout is not torch.strided or value.requires_grad or not sizes:
        return None
    plain = all(isinstance(size, (int, torch.SymInt)) for size in sizes)
    if not plain or not all(map(_is_positive, (*sizes, *value.shape))):
        return None
    if not is_row_major(value) or _product(sizes) != _product(value.shape):
        return None
    strides: list[Any] = [1]
    for size in reversed(sizes[1:]):
        strides.append(strides[-1] * size)
    with torch.no_grad(), in_kernel_invocation_manager(mode):
        memory = torch.as_strided(value, tuple(sizes), strides[::-1], value.storage_offset())
    return FakeTensor(mode, memory, value.device)


def _is_positive(size: Any) -> bool:
    expression = size_expression(size)
    return expression > 0 if isinstance(expression, int) else expression.is_positive is True


def _product(sizes: Iterable[Any]) -> Any:
    product: Any = 1
    for size in sizes:
        product = product * size_expression(size)
    return product
