"""Reductions: sum, mean, prod, extrema, any/all, arg-reductions, moments, norms.

Takes the operand and canonical arguments; gives fresh buffers. Floats accumulate in f32 (f64
for f64) and are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from .index import ZERO, Axis, Size, as_index
from .loops import Scalar, Store
from .promotion import FLOATS, opmath
from .values import Indices, Stored, Value, plain, shape_of
from .views import Lower, reshaped
from .work import Declined, Work, number

EXTREMA = frozenset(("max", "min", "argmax", "argmin"))


@dataclass(frozen=True)
class Space:
    """The loops of a reduction over `dims` of `shape`."""

    axes: tuple[Axis, ...]
    raxes: tuple[Axis, ...]
    whole: Indices  # where an element of the operand is
    kept: Indices  # the same with ZERO at reduced dims
    dims: tuple[int, ...]

    @property
    def outer(self) -> Indices:
        """Where a result without the reduced dims is."""
        return tuple(at for k, at in enumerate(self.kept) if k not in self.dims)

    def result(self, keepdim: bool) -> Indices:
        return self.kept if keepdim else self.outer

    @property
    def count(self) -> Size:
        total: Size = 1
        for axis in self.raxes:
            total = plain(total * axis.size)
        return total


def space_over(shape: tuple[Size, ...], dims: tuple[int, ...]) -> Space:
    axes: list[Axis] = []
    raxes: list[Axis] = []
    whole, kept = [], []
    for k, size in enumerate(shape):
        axis = Axis(f"{'r' if k in dims else 'i'}{k}", size)
        whole.append(as_index(axis))
        kept.append(ZERO if k in dims else as_index(axis))
        (raxes if k in dims else axes).append(axis)
    return Space(tuple(axes), tuple(raxes), tuple(whole), tuple(kept), dims)


def dims_of(value: Any, rank: int) -> tuple[int, ...]:
    """Dims of a reduction: None and the empty list mean all."""
    if value is None or value == [] or value == ():
        return tuple(range(rank))
    listed = value if isinstance(value, list | tuple) else [value]
    return tuple(sorted(number(dim) % rank for dim in listed)) if rank else ()


def reduced(work: Work, kind: str, value: Scalar, space: Space) -> Scalar:
    """The reduction of `value` over the inner loops; over one point it is the point."""
    place = kind in ("argmax", "argmin")
    dtype = "i64" if place else value.dtype
    if kind in EXTREMA and any(axis.size == 0 for axis in space.raxes):
        raise Declined  # there is no such element: eager says so, or has its own answer
    if all(axis.size == 1 for axis in space.raxes):
        if kind == "sum" and dtype in FLOATS:  # sums start from 0: that of -0.0 is 0.0
            return work.builder.make("add", (value, work.builder.const(0.0, dtype)), dtype)
        return work.builder.const(0, "i64") if place else value
    return work.builder.make("reduce", (value,), dtype, value=kind)


def wide(dtype: str) -> str:
    """The dtype to order and accumulate in."""
    return "u8" if dtype == "bool" else opmath(dtype)


def fold(
    work: Work,
    node: fx.Node,
    meta: torch.Tensor,
    space: Space,
    make: Callable[[], Scalar],
) -> Stored:
    """A fresh buffer like `meta` holding `make()` once per outer point."""
    buffer = work.buffer_like(node, meta)
    keepdim = len(meta.shape) == len(space.whole)
    value = work.builder.cast(make(), buffer.dtype)
    work.nest(node, space.axes, space.raxes, [Store(buffer.name, space.result(keepdim), value)])
    return Stored(buffer)


@dataclass(frozen=True)
class Row:
    """One number per outer point of a space, in memory of its own."""

    work: Work
    space: Space
    stored: Stored

    def __call__(self) -> Scalar:
        """The number, read within the space."""
        return self.work.load(self.stored, self.space.outer)

    def result(self, node: fx.Node, meta: torch.Tensor) -> Value:
        """The numbers as a result of `node`: this memory where its dtype is the wanted one."""
        if word_of(meta.dtype) == self.stored.dtype:
            return reshaped(self.stored, shape_of(meta))
        flat = replace(self.space, raxes=())
        return fold(self.work, node, meta, flat, self)


def partial(work: Work, node: fx.Node, suffix: str, space: Space, value: Scalar) -> Row:
    """Put one number per outer point into memory."""
    shape = tuple(axis.size for axis in space.axes)
    buffer = work.buffer(f"{node.name}_{suffix}", value.dtype, shape)
    work.nest(node, space.axes, space.raxes, [Store(buffer.name, space.outer, value)])
    return Row(work, space, Stored(buffer))


def _simple(kind: str) -> Lower:
    def lower(work: Work, node: fx.Node, x: Value, dim: Any = None, *_: Any) -> Value:
        meta = node.meta["val"]
        none = kind in ("any", "all") and dim == []  # here, no dims are no dims
        space = space_over(x.shape, () if none else dims_of(dim, len(x.shape)))
        logical = kind in ("any", "all")
        result = "bool" if logical else word_of(meta.dtype)

        def make() -> Scalar:
            # as eager: every element is converted to `dtype=` before anything is added up
            value = work.builder.cast(work.load(x, space.whole), result)
            return reduced(
                work, kind, value if logical else work.builder.cast(value, wide(result)), space
            )

        return fold(work, node, meta, space, make)

    return lower


def nansum(work: Work, node: fx.Node, x: Value, dim: Any = None, *_: Any) -> Value:
    """The sum of what is not nan."""
    meta = node.meta["val"]
    result = word_of(meta.dtype)
    if result not in FLOATS:
        plain_sum: Value = _simple("sum")(work, node, x, dim)
        return plain_sum
    space = space_over(x.shape, dims_of(dim, len(x.shape)))
    make = work.builder.make

    def kept() -> Scalar:
        item = work.builder.cast(work.load(x, space.whole), wide(result))
        zero = work.builder.const(0.0, wide(result))
        some = make("where", (make("isnan", (item,), "bool"), zero, item), wide(result))
        return reduced(work, "sum", some, space)

    return fold(work, node, meta, space, kept)


def count_nonzero(work: Work, node: fx.Node, x: Value, dim: Any = None) -> Value:
    space = space_over(x.shape, () if dim == [] else dims_of(dim, len(x.shape)))

    def make() -> Scalar:
        some = work.builder.cast(work.load(x, space.whole), "bool")
        return reduced(work, "sum", work.builder.cast(some, "i64"), space)

    return fold(work, node, node.meta["val"], space, make)


def mean(work: Work, node: fx.Node, x: Value, dim: Any = None, *_: Any) -> Value:
    meta = node.meta["val"]
    space = space_over(x.shape, dims_of(dim, len(x.shape)))
    return fold(
        work, node, meta, space, lambda: plain_mean(work, x, space, wide(word_of(meta.dtype)))
    )


def plain_mean(work: Work, x: Value, space: Space, dtype: str) -> Scalar:
    """The sum divided by the count."""
    value = work.builder.cast(work.load(x, space.whole), dtype)
    total = reduced(work, "sum", value, space)
    return work.builder.make("div", (total, count_scalar(work, space.count, dtype)), dtype)


def count_scalar(work: Work, count: Size, dtype: str) -> Scalar:
    """A number of elements as a float."""
    if isinstance(count, int):
        return work.builder.const(float(count), dtype)
    size = work.builder.make("index", (), "i64", index=(as_index(count),))
    return work.builder.cast(size, dtype)


def _extremum(kind: str) -> Lower:
    """max and min: of everything, or along a dim together with where it is."""

    def lower(work: Work, node: fx.Node, x: Value, dim: Any = None, *rest: Any) -> Any:
        meta = node.meta["val"]
        if isinstance(meta, torch.Tensor):
            return _simple(kind)(work, node, x, dim)
        if not isinstance(dim, int):
            raise Declined
        values, places = meta
        space = space_over(x.shape, dims_of(dim, len(x.shape)))
        value = work.builder.cast(work.load(x, space.whole), wide(x.dtype))
        best = work.builder.cast(reduced(work, kind, value, space), x.dtype)
        where = reduced(work, f"arg{kind}", value, space)
        at = space.result(len(values.shape) == len(x.shape))
        buffers = [work.buffer_like(node, values), work.buffer_like(node, places)]
        stores = [
            Store(buffer.name, at, scalar)
            for buffer, scalar in zip(buffers, (best, where), strict=True)
        ]
        work.nest(node, space.axes, space.raxes, stores)
        work.ranges[buffers[1].name] = (0, plain(space.count - 1))
        return [Stored(buffer) for buffer in buffers]

    return lower


def _position(kind: str) -> Lower:
    def lower(work: Work, node: fx.Node, x: Value, dim: Any = None, *_: Any) -> Value:
        space = space_over(x.shape, dims_of(dim, len(x.shape)))

        def make() -> Scalar:
            value = work.builder.cast(work.load(x, space.whole), wide(x.dtype))
            return reduced(work, kind, value, space)

        made = fold(work, node, node.meta["val"], space, make)
        work.ranges[made.buffer.name] = (0, plain(space.count - 1))
        return made

    return lower


def running_mean(work: Work, x: Value, space: Space, dtype: str) -> Scalar:
    """The mean as a running one gives it, which is how eager gets those of var_mean: that of
    equal values is that value, so that their variance is 0, and one with an infinity among its
    values is nan, unless it is the only value."""
    if not is_positive(space.count):
        return plain_mean(work, x, space, dtype)  # there may be no first value
    make = work.builder.make
    value, first = (
        work.builder.cast(work.load(x, place), dtype) for place in (space.whole, space.kept)
    )
    if space.count == 1:
        return value
    total = reduced(work, "sum", make("sub", (value, first), dtype), space)
    step = make("div", (total, count_scalar(work, space.count, dtype)), dtype)
    mean = make("add", (first, step), dtype)
    nan = work.builder.const(math.nan, dtype)
    return make("where", (make("isinf", (mean,), "bool"), nan, mean), dtype)


def moments(
    work: Work,
    node: fx.Node,
    x: Value,
    space: Space,
    dtype: str,
    correction: float,
    mean_of: Callable[[Work, Value, Space, str], Scalar],
) -> tuple[Row, Scalar]:
    """Two passes: the mean in memory, then the variance within `space`."""
    average = partial(work, node, "mean", space, mean_of(work, x, space, dtype))
    gap = work.builder.make(
        "sub", (work.builder.cast(work.load(x, space.whole), dtype), average()), dtype
    )
    total = reduced(work, "sum", work.builder.make("mul", (gap, gap), dtype), space)
    count = count_scalar(work, space.count, dtype)
    if correction:
        left = work.builder.make("sub", (count, work.builder.const(correction, dtype)), dtype)
        count = work.builder.make("maximum", (left, work.builder.const(0.0, dtype)), dtype)
    return average, work.builder.make("div", (total, count), dtype)


def _spread(root: bool, with_mean: bool) -> Lower:
    """var, std, var_mean, std_mean."""

    def lower(work: Work, node: fx.Node, x: Value, *args: Any) -> Any:
        dim, correction = _spread_arguments(args)
        metas = node.meta["val"] if with_mean else [node.meta["val"]]
        dtype = wide(word_of(metas[0].dtype))
        if dtype not in FLOATS:
            raise Declined
        space = space_over(x.shape, dims_of(dim, len(x.shape)))
        average, value = moments(work, node, x, space, dtype, correction, running_mean)
        if root:
            value = work.builder.make("sqrt", (value,), dtype)
        made = fold(work, node, metas[0], space, lambda: value)
        if not with_mean:
            return made
        return [made, average.result(node, metas[1])]

    return lower


def _spread_arguments(args: Sequence[Any]) -> tuple[Any, float]:
    """(dim, correction) of var and its kin: the correction is a number, None (1) or, where
    the op says `unbiased`, a bool; a lone bool is `unbiased` over everything."""
    dim, correction = (
        (None, args[0])
        if len(args) == 1
        else (args[0], args[1])
        if args
        else (
            None,
            1,
        )
    )
    if isinstance(dim, bool):
        return None, float(dim)
    if correction is None:
        return dim, 1.0
    if not isinstance(correction, bool | int | float):
        raise Declined
    return dim, float(correction)


def vector_norm(
    work: Work, node: fx.Node, x: Value, order: Any = 2, dim: Any = None, *_: Any
) -> Value:
    meta = node.meta["val"]
    dtype = wide(word_of(meta.dtype))
    order = 2 if order is None else order
    if not isinstance(order, int | float) or dtype not in FLOATS:
        raise Declined
    space = space_over(x.shape, dims_of(dim, len(x.shape)))
    if math.isinf(order) and not is_positive(space.count):
        raise Declined
    make = work.builder.make

    def value() -> Scalar:
        item = work.builder.cast(work.load(x, space.whole), dtype)
        size = make("abs", (item,), dtype)
        if order == 2:
            squares = reduced(work, "sum", make("mul", (item, item), dtype), space)
            return make("sqrt", (squares,), dtype)
        if math.isinf(order):
            return reduced(work, "max" if order > 0 else "min", size, space)
        if order == 1:
            return reduced(work, "sum", size, space)
        if order == 0:
            zero = work.builder.const(0.0, dtype)
            some = work.builder.cast(make("ne", (item, zero), "bool"), dtype)
            return reduced(work, "sum", some, space)
        power = work.builder.const(float(order), dtype)
        total = reduced(work, "sum", make("pow", (size, power), dtype), space)
        return make("pow", (total, work.builder.const(1.0 / order, dtype)), dtype)

    return fold(work, node, meta, space, value)


def norm(work: Work, node: fx.Node, x: Value, order: Any = 2, dim: Any = None, *_: Any) -> Value:
    return vector_norm(work, node, x, order, dim)


def logsumexp(work: Work, node: fx.Node, x: Value, dim: Any = None, *_: Any) -> Value:
    meta = node.meta["val"]
    dtype = wide(word_of(meta.dtype))
    space = space_over(x.shape, dims_of(dim, len(x.shape)))
    make = work.builder.make
    item = work.builder.cast(work.load(x, space.whole), dtype)
    largest = reduced(work, "max", item, space)
    zero = work.builder.const(0.0, dtype)
    finite = make("where", (make("isinf", (largest,), "bool"), zero, largest), dtype)
    shift = partial(work, node, "max", space, finite)

    def value() -> Scalar:
        power = make("exp", (make("sub", (item, shift()), dtype),), dtype)
        total = reduced(work, "sum", power, space)
        return make("add", (make("log", (total,), dtype), shift()), dtype)

    return fold(work, node, meta, space, value)


def is_positive(size: Size) -> bool:
    return size > 0 if isinstance(size, int) else bool(size.is_positive)


REDUCTIONS: Mapping[str, Lower] = {
    "sum": _simple("sum"),
    "nansum": nansum,
    "prod": _simple("prod"),
    "amax": _simple("max"),
    "amin": _simple("min"),
    "any": _simple("any"),
    "all": _simple("all"),
    "count_nonzero": count_nonzero,
    "mean": mean,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "var": _spread(root=False, with_mean=False),
    "std": _spread(root=True, with_mean=False),
    "var_mean": _spread(root=False, with_mean=True),
    "std_mean": _spread(root=True, with_mean=True),
    "linalg_vector_norm": vector_norm,
    "norm": norm,
    "logsumexp": logsumexp,
}
