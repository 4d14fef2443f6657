"""Worlds that compute in a way tests can rely on.

`ReferenceWorld` gives results that do not depend on layout or blocking: ops whose kernels sum
in some order, or take another code path at the end of a row, are computed in float64 and
rounded once. `WideWorld` computes everything in float64 and never rounds: the truth that
rounding errors are measured against. `LateWorld` rounds where nobody can help it: at products
of matrices. `RecordingWorld` writes down what it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .evaluate import TensorWorld
from .op import GETITEM, Op
from .ops import OpTable
from .products import PRODUCTS

_WIDE = torch.float64

# Pointwise ops that are exactly rounded, or move bits: the same on every code path.
_STEADY = frozenset(
    {
        *("add", "sub", "mul", "div", "neg", "abs", "reciprocal", "relu"),
        *("maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge", "clamp", "cast"),
        *("view", "permute", "expand", "slice", "select", "cat", "stack", "split", "unbind"),
        *("clone", "alias", "detach", "full", "index", "gather", "embedding", "flip", "roll"),
        *("constant_pad_nd", "repeat", "masked_fill", "tril", "triu", "getitem", "arange"),
        *("amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "topk", "sort"),
        *("floor", "ceil", "round", "trunc", "sign", "sgn", "floor_divide", "remainder", "fmod"),
        *("leaky_relu", "leaky_relu_backward", "hardtanh", "hardtanh_backward", "threshold"),
        *("hardswish", "hardsigmoid", "relu6", "clamp_min", "clamp_max"),
        *("isnan", "isinf", "signbit", "copysign", "logical_and", "logical_or", "logical_not"),
        *("logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "square"),
        *("threshold_backward", "diagonal", "slice_scatter", "select_scatter", "index_select"),
    }
)


def is_steady(op: Op) -> bool:
    """Whether kernels of the op give the same bits for every layout and every dtype."""
    return op.name in _STEADY


def is_product(op: Op) -> bool:
    """Whether the op is a product of matrices, a convolution or attention."""
    name = op.name.rpartition(".")[2]  # of torch functions the module goes before
    return name in PRODUCTS or name.startswith(("conv", "scaled_dot_product"))


class ReferenceWorld(TensorWorld):
    """Results independent of layout. Sums and products of matrices add up in index order;
    other ops compute in float64, and `soft` says whether one was met (its float64 results
    may depend on layout, as there is nothing wider to compute in)."""

    soft = False

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        plain = super().emit(op, args)
        if is_steady(op) or _is_multiplication(op, args) or not _any_float(args):
            return plain
        ordered = _ORDERED.get(op.name)
        if ordered is not None and isinstance(plain, torch.Tensor) and _is_small(args):
            return ordered([_widened(arg) for arg in args]).to(plain.dtype)
        self.soft = True
        narrow = not any(isinstance(a, torch.Tensor) and a.dtype is _WIDE for a in args)
        rounded = [_single(arg) if narrow and type(arg) is float else arg for arg in args]
        wide = super().emit(op, [_widened(arg) for arg in rounded])
        return _like(wide, plain)


class WideWorld(TensorWorld):
    """Everything in float64: casts between float dtypes change nothing."""

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        return super().emit(op, _wide_args(op, args))


class LateWorld(WideWorld):
    """Everything in float64, but products of matrices have results of `dtype`: computing these
    wide is no choice that a rule has."""

    def __init__(self, table: OpTable, dtype: torch.dtype) -> None:
        super().__init__(table)
        self._dtype = dtype

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        wide = super().emit(op, args)
        if isinstance(wide, torch.Tensor) and wide.is_floating_point() and is_product(op):
            return wide.to(self._dtype).to(_WIDE)
        return wide


class RecordingWorld(TensorWorld):
    """Keeps a line of Python for every call. `names` maps ids of tensors to variables; the
    tensors are kept alive, so that no id is met twice."""

    def __init__(self, table: OpTable, inputs: Mapping[str, Any], prefix: str) -> None:
        super().__init__(table)
        self.lines: list[str] = []
        self._prefix = prefix
        self._names = {id(value): name for name, value in inputs.items()}
        self._alive: list[Any] = list(inputs.values())

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        target, call_args, kwargs = self.table.call(op, args)
        result = super().emit(op, args)
        name = f"{self._prefix}{len(self.lines)}"
        if op is GETITEM:
            text = f"{self.text(args[0])}[{args[1]}]"
        else:
            shown = [self.text(arg) for arg in call_args]
            shown += [f"{key}={self.text(value)}" for key, value in kwargs.items()]
            text = f"{_callable_text(target)}({', '.join(shown)})"
        self.lines.append(f"{name} = {text}")
        self._names.setdefault(id(result), name)
        self._alive.append(result)
        return result

    def text(self, value: Any) -> str:
        """A value as Python spells it; tensors by their names."""
        if id(value) in self._names and not isinstance(value, (int, float, bool, str)):
            return self._names[id(value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self.text(item) for item in value)}]"
        if isinstance(value, float) and value != value:
            return "float('nan')"
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return f"float('{value}')"
        if isinstance(value, torch.device):
            return repr(value.type)
        return repr(value)


class WideRecordingWorld(RecordingWorld):
    """Writes down what `WideWorld` calls."""

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        return super().emit(op, _wide_args(op, args))


def _wide_args(op: Op, args: Sequence[Any]) -> Sequence[Any]:
    if op is GETITEM:
        return args
    place = op.place("half_to_float")
    args = [_widened(arg) for arg in args]
    return args if place is None else [*args[:place], False, *args[place + 1 :]]


def _callable_text(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    module = getattr(target, "__module__", None) or "torch"
    name = getattr(target, "__qualname__", target.__name__)
    if module == "_operator":
        module = "operator"
    if module == "torch._C._nn":
        module = "torch.nn.functional"
    if isinstance(target, type(torch.Tensor.add)):
        module, name = "torch.Tensor", target.__name__
    return f"{module}.{name}"


def _is_multiplication(op: Op, args: Sequence[Any]) -> bool:
    """Whole powers that eager multiplies out."""
    return op.name == "pow" and isinstance(args[1], (int, float)) and args[1] in (2, 3, -1, -2)


def _is_small(args: Sequence[Any]) -> bool:
    return all(arg.numel() <= 1 << 13 for arg in args if isinstance(arg, torch.Tensor))


def _sum(args: Sequence[Any]) -> torch.Tensor:
    x, dim, keepdim, _ = args
    dims = tuple(range(x.dim()) if dim is None else dim)
    kept = tuple(place for place in range(x.dim()) if place not in dims)
    count = math.prod(x.shape[place] for place in dims)
    rows = x.permute(kept + dims).reshape([*(x.shape[place] for place in kept), count])
    total = torch.zeros(rows.shape[:-1], dtype=x.dtype)
    for place in range(count):
        total = total + rows[..., place]
    shape = [1 if place in dims else length for place, length in enumerate(x.shape)]
    return total.view(shape) if keepdim else total


def _mean(args: Sequence[Any]) -> torch.Tensor:
    x, dim = args[:2]
    places = range(x.dim()) if dim is None else dim
    return torch.div(_sum(args), math.prod(x.shape[place] for place in places))


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`a @ b` for matrices or batches of them, adding in index order from +0.0."""
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    for place in range(a.shape[-1]):
        total = total + a[..., place : place + 1] * b[..., place : place + 1, :]
    return total


def _added(args: Sequence[Any]) -> torch.Tensor:
    c, a, b, beta, alpha = args
    product = torch.mul(_product(a, b), alpha)
    return product if beta == 0 else torch.add(torch.mul(c, beta), product)


def _linear(args: Sequence[Any]) -> torch.Tensor:
    x, w, b = args
    product = _product(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), w.t())
    product = product.view(*x.shape[:-1], w.shape[0])
    return product if b is None else torch.add(product, b)


_ORDERED: Mapping[str, Callable[[Sequence[Any]], torch.Tensor]] = {
    "sum": _sum,
    "mean": _mean,
    "mm": lambda args: _product(*args),
    "bmm": lambda args: _product(*args),
    "addmm": _added,
    "baddbmm": _added,
    "linear": _linear,
}


def _any_float(args: Sequence[Any]) -> bool:
    return any(
        (isinstance(arg, torch.Tensor) and arg.is_floating_point())
        or (isinstance(arg, (list, tuple)) and _any_float(arg))
        for arg in args
    )


def _single(value: float) -> float:
    """A Python number as kernels for f32 and half types see it."""
    return float(torch.tensor(value, dtype=torch.float32))


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        narrow = value.is_floating_point() and value.dtype is not _WIDE
        return value.to(_WIDE) if narrow else value  # the same object: recorded by its id
    if isinstance(value, torch.dtype):
        return _WIDE if value.is_floating_point else value
    if isinstance(value, list):
        return [_widened(item) for item in value]
    return value


def _like(wide: Any, plain: Any) -> Any:
    if isinstance(plain, torch.Tensor):
        return wide.to(plain.dtype)
    if isinstance(plain, tuple):
        return tuple(_like(a, b) for a, b in zip(wide, plain, strict=True))
    return plain
