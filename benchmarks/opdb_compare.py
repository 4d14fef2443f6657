"""How a result differs from eager's.

Takes eager's result and another's; raises `Mismatch`, whose `kind` is one word for what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Of torch.testing, with room for another order of sums.
TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (1e-3, 1e-3),
}
_IN_DOUBLE = (torch.float32, torch.bfloat16, torch.float16)


class Mismatch(Exception):
    """A result is not eager's; `kind` says in what."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def compare(want: Any, got: Any, truth: Callable[[], Any], *, values: bool) -> None:
    """Raises Mismatch where `got` differs in structure, dtype, shape, strides or, with
    `values`, value.

    A value may differ from eager's by the tolerance of its dtype, or be as near to the result
    in float64 (`truth`) as twice eager's distance. Strides of empty tensors and of dims of
    size 1 do not count.
    """
    wanted, spec = pytree.tree_flatten(want)
    found, other = pytree.tree_flatten(got)
    if spec != other:
        raise Mismatch("structure", f"{other} for {spec}")
    for place, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if not isinstance(a, torch.Tensor):
            if type(a) is not type(b) or not _same_number(a, b):
                raise Mismatch("value", f"{b!r} for {a!r}")
            continue
        for kind in ("dtype", "shape", "layout", "device"):
            if getattr(a, kind) != getattr(b, kind):
                raise Mismatch(kind, f"{getattr(b, kind)} for {getattr(a, kind)}")
        if strides_of(a) != strides_of(b):
            raise Mismatch("strides", f"{b.stride()} for {a.stride()}")
        if not values:
            continue
        try:
            _compare_values(a, b)
        except AssertionError as error:
            if not _near_truth(a, b, truth, place):
                raise Mismatch("value", str(error)) from error


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that address an element."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ()
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return tuple(step for step, size in pairs if size != 1)


def _same_number(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def _compare_values(a: torch.Tensor, b: torch.Tensor) -> None:
    rtol, atol = TOLERANCE.get(a.dtype, (1e-5, 1e-5) if a.dtype.is_complex else (0.0, 0.0))
    torch.testing.assert_close(b, a, rtol=rtol, atol=atol, equal_nan=True)


def _near_truth(a: torch.Tensor, b: torch.Tensor, truth: Callable[[], Any], place: int) -> bool:
    if a.dtype not in _IN_DOUBLE or a.layout is not torch.strided:
        return False
    try:
        made = pytree.tree_leaves(truth())
    except Exception:  # the op does not take float64 beside what else it was given
        return False
    if made[place].shape != a.shape:
        return False
    right = made[place].double()
    finite = right.isfinite() & a.isfinite() & b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return False
    eager, ours = ((x.double() - right)[finite].abs() for x in (a, b))
    return bool((ours <= 2 * eager.max() + 1e-12).all()) if finite.any() else True
