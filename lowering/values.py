"""What a node of the graph becomes: memory, a view of memory, or a formula.

Takes buffers and functions on logical indices; gives `Value`s. `Stored` is a whole buffer,
`Mapped` a view (pure index arithmetic), `Computed` a value without memory that costs next to
nothing to make anew (constants, ranges).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import FloorDiv, Max

from ..engine.views import size_expression
from .index import Axis, Index, Size, as_index, bounds, exact_ratio, flatten, row_major
from .loops import Buffer, Builder, Scalar, View

Indices = tuple[Index, ...]
Guard = tuple[Scalar, Scalar]  # (mask, other): other where the mask is false


@dataclass(frozen=True, eq=False)
class Stored:
    """All of `buffer`."""

    buffer: Buffer

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.buffer.shape

    @property
    def dtype(self) -> str:
        return self.buffer.dtype


@dataclass(frozen=True, eq=False)
class Computed:
    """`make(builder, index)` at every index of `shape`."""

    shape: tuple[Size, ...]
    dtype: str
    make: Callable[[Builder, Indices], Scalar]


@dataclass(frozen=True, eq=False)
class Mapped:
    """`base` at `place(index)` for every index of `shape`."""

    base: Stored | Computed
    shape: tuple[Size, ...]
    place: Callable[[Indices], Indices]

    @property
    def dtype(self) -> str:
        return self.base.dtype


Value = Stored | Computed | Mapped


def mapped(value: Value, shape: tuple[Size, ...], place: Callable[[Indices], Indices]) -> Value:
    """The view of `value` that reads `place(index)`; views of views collapse."""
    if isinstance(value, Mapped):
        inner = value.place
        return Mapped(value.base, shape, lambda index: inner(place(index)))
    return Mapped(value, shape, place)


def rebased(value: Value, base: Stored) -> Value:
    """`value` with its formula replaced by memory that holds it."""
    return Mapped(base, value.shape, value.place) if isinstance(value, Mapped) else base


def root(value: Value) -> Stored | Computed:
    return value.base if isinstance(value, Mapped) else value


def load(builder: Builder, value: Value, index: Indices, guard: Guard | None = None) -> Scalar:
    """The scalar at a logical index; with a guard the memory is touched only under the mask."""
    holds = None if guard is None else decided(guard[0])
    if guard is not None and holds is not None:
        return load(builder, value, index) if holds else builder.cast(guard[1], value.dtype)
    base = root(value)
    if isinstance(value, Mapped):
        index = value.place(index)
    if isinstance(base, Stored):
        return builder.make("load", guard or (), base.dtype, buffer=base.buffer.name, index=index)
    made = base.make(builder, index)
    if guard is None:
        return made
    return builder.make("where", (guard[0], made, guard[1]), base.dtype)


def decided(mask: Scalar) -> bool | None:
    """Whether a mask holds everywhere (True) or nowhere (False), where its bounds say so."""
    match mask.op:
        case "const":
            return bool(mask.value)
        case "logical_and":
            parts = [decided(part) for part in mask.args]
            return False if False in parts else True if all(parts) else None
        case "logical_not":
            opposite = decided(mask.args[0])
            return None if opposite is None else not opposite
        case "lt" | "ge":
            below = _is_below(*mask.args)
        case "gt" | "le":
            below = _is_below(*reversed(mask.args))
        case _:
            return None
    return below if mask.op in ("lt", "gt") or below is None else not below


def _is_below(left: Scalar, right: Scalar) -> bool | None:
    one, two = _extent(left), _extent(right)
    if one is None or two is None:
        return None
    if _known_at_least(two[0] - 1, one[1]):
        return True
    return False if _known_at_least(one[0], two[1]) else None


def _extent(place: Scalar) -> tuple[Size, Size] | None:
    """The smallest and the largest value of a position."""
    if place.op == "index":
        return bounds(place.index[0])
    known = place.op == "const" and isinstance(place.value, int)
    return (int(place.value), int(place.value)) if known and place.value is not None else None


def axes_for(shape: tuple[Size, ...], prefix: str = "i") -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{k}", size) for k, size in enumerate(shape))


def real_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Without those of size 1, which never occur in an index."""
    return tuple(axis for axis in axes if axis.size != 1)


def strided(value: Value, like: tuple[Size, ...] | None = None) -> View | None:
    """`value` as strides over its buffer, or None where strides cannot say it.

    `like` gives the strides of dims of size 1 (and of everything in an empty tensor), which
    index arithmetic cannot tell.
    """
    base = root(value)
    if not isinstance(base, Stored):
        return None
    buffer = base.buffer
    like = like or row_major(value.shape)
    if not isinstance(value, Mapped):
        return View(buffer.name, buffer.shape, buffer.stride)
    if 0 in value.shape:
        return View(buffer.name, value.shape, like)
    axes = axes_for(value.shape)
    position = flatten(value.place(tuple(as_index(axis) for axis in axes)), buffer.stride)
    if any(not isinstance(atom, Axis) or _negative(size) for atom, size in position.terms):
        return None
    stride = tuple(
        like[k] if axis.size == 1 else position.coefficient(axis) for k, axis in enumerate(axes)
    )
    return View(buffer.name, value.shape, stride, position.const)


def _negative(size: Size) -> bool:
    return size < 0 if isinstance(size, int) else not size.is_nonnegative


def size_of(
    value: int | torch.SymInt, known: Mapping[sympy.Expr, sympy.Expr] | None = None
) -> Size:
    """A size as the IR spells it, with the `known` parts of its expression replaced."""
    if isinstance(value, torch.SymInt):
        return plain(value.node.expr.xreplace(known) if known else value.node.expr)
    return int(value)


def plain(value: sympy.Expr | int) -> Size:
    return value if isinstance(value, int) else _expanded(value)


@lru_cache(maxsize=65536)
def _expanded(value: sympy.Expr) -> Size:
    value = sympy.expand(value)
    if value.has(FloorDiv):
        value = sympy.expand(value.replace(FloorDiv, _divided))
    return int(value) if value.is_Integer else value


def _divided(above: sympy.Expr, below: sympy.Expr) -> sympy.Expr:
    """The quotient of two sizes, without a division where it is always whole (s**3 // s**2)."""
    ratio = exact_ratio(above, below)
    return FloorDiv(above, below) if ratio is None else ratio


def shape_of(tensor: torch.Tensor) -> tuple[Size, ...]:
    return tuple(1 if _is_one(size) else size_of(size) for size in tensor.shape)


def _is_one(size: int | torch.SymInt) -> bool:
    """Whether a guard of the graph says that this expression is 1: such a dim broadcasts."""
    if not isinstance(size, torch.SymInt) or size.node.expr.is_Atom:
        return False
    return size.node.hint == 1 and statically_known_true(size == 1)


def stride_of(tensor: torch.Tensor) -> tuple[Size, ...]:
    """Strides, row-major where the layout has none (sparse). Sizes that are 1 are so in them."""
    if tensor.layout is not torch.strided:
        return row_major(shape_of(tensor))
    ones = {size_expression(size): sympy.S.One for size in tensor.shape if _is_one(size)}
    return tuple(size_of(step, ones) for step in tensor.stride())


def dense_stride(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> tuple[Size, ...]:
    """`stride` where every element has a place of its own, else row-major."""
    if 0 in shape or same_stride(shape, stride, row_major(shape)):
        return stride
    dims = [k for k, size in enumerate(shape) if size != 1]
    if not all(isinstance(stride[k], int) and isinstance(shape[k], int) for k in dims):
        return stride if _symbolic_dense(shape, stride, dims) else row_major(shape)
    step: Size = 1
    for k in sorted(dims, key=lambda k: stride[k]):
        if stride[k] < step:
            return row_major(shape)
        step = plain(stride[k] * shape[k])
    return stride


def fresh_stride(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> tuple[Size, ...]:
    """The strides of memory that an op has just made. Symbolic ones are those of an input, of
    which the op copies all memory, gaps included (`slice_scatter`): nothing proves that they
    step over each other, but eager writes through them, too."""
    dims = [k for k, size in enumerate(shape) if size != 1]
    symbolic = any(not isinstance(stride[k], int) for k in dims)
    if symbolic and all(stride[k] != 0 for k in dims):
        return stride
    return dense_stride(shape, stride)


def same_stride(shape: tuple[Size, ...], first: tuple[Size, ...], second: tuple[Size, ...]) -> bool:
    """Whether two strides address `shape` alike; dims of size 1 do not count."""
    if 0 in shape:
        return True
    return all(
        size == 1 or _apart(a, shape) == _apart(b, shape)
        for size, a, b in zip(shape, first, second, strict=True)
    )


def _apart(step: Size, shape: tuple[Size, ...]) -> Size:
    """A stride with the size of a dim in place of max(1, size), as torch writes it: they
    differ only where the tensor is empty."""
    step = plain(step)
    if isinstance(step, int) or not step.has(Max):
        return step
    known = {
        Max(1, size): size  # type: ignore[no-untyped-call]
        for size in shape
        if not isinstance(size, int)
    }
    return plain(step.xreplace(known))


def _symbolic_dense(shape: tuple[Size, ...], stride: tuple[Size, ...], dims: list[int]) -> bool:
    """Whether the dims, from the innermost to the outermost one, are known to step over each
    other."""
    step: Size = 1
    left = list(dims)
    while left:
        inner = next((k for k in left if _apart(stride[k], shape) == plain(step)), None)
        if inner is None:
            inner = next((k for k in left if _is_inmost(k, left, step, shape, stride)), None)
        if inner is None:
            return False
        step = plain(_apart(stride[inner], shape) * shape[inner])
        left.remove(inner)
    return True


def _is_inmost(
    dim: int, dims: list[int], step: Size, shape: tuple[Size, ...], stride: tuple[Size, ...]
) -> bool:
    """Whether elements along `dim` are `step` apart, with gaps, and other dims step over all."""
    whole = plain(stride[dim] * shape[dim])
    return _known_at_least(stride[dim], step) and all(
        _known_at_least(stride[other], whole) for other in dims if other != dim
    )


def _known_at_least(value: Size, least: Size) -> bool:
    return not _negative(plain(value - least))
