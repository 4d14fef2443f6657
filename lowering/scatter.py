"""Writes through an index tensor.

Takes the operand, index and source values; gives fresh buffers: a copy of the operand, then a
nest that writes into it. Points that meet at one element run in order (`loops.Store`), so
duplicate indices give what eager gives on one thread: the last value, or sums in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import dtype_of
from .creation import constant
from .externs import VALUES
from .guards import known, size_scalar
from .index import Gathered, Index, Size, as_index
from .indexing import along, dim_of, numbered, picked
from .loops import Scalar, Store
from .promotion import FLOATS, opmath
from .ranges import interval
from .takeover import taken_over
from .values import Indices, Stored, Value, axes_for
from .views import Lower, broadcast_index, reshaped
from .work import Declined, Work, number, sizes

Place = Callable[[Indices], Indices]
Fill = Callable[[Indices], Scalar]
Write = tuple[Fill, str]  # what is written, and the mode of the store
REDUCES = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def written(
    work: Work,
    node: fx.Node,
    x: Value,
    shape: tuple[Size, ...],
    place: Place,
    *writes: Write,
    wide: bool = False,
) -> Value:
    """`x` with every write done, one after the other, at `place` of every index of `shape`: in
    its own memory where nobody needs it any more, else in a copy. `wide`: half floats are
    joined as floats, and rounded once at the end."""
    dtype = opmath(x.dtype)
    if work.device != "cpu" and any(not _is_atomic(mode, dtype) for _, mode in writes):
        raise Declined
    apart = wide and dtype != x.dtype
    out = None if apart else taken_over(work, node, x)
    if apart:
        memory = work.buffer(f"{node.name}_wide", dtype, x.shape)
        out = work.fill(node, memory, lambda at: work.load(x, at))
    elif out is None:
        out = work.pointwise(node, node.meta["val"], lambda at: work.load(x, at))
    for value, mode in writes:
        _write(work, node, out, shape, place, value, mode)
    if not apart:
        return out
    return work.pointwise(node, node.meta["val"], lambda at: work.load(out, at))


def _is_atomic(mode: str, dtype: str) -> bool:
    """Whether points that run at once can join a value in this way."""
    return mode == "set" or (mode == "add" and dtype in ("f32", "f64", "i32", "i64"))


def _write(
    work: Work,
    node: fx.Node,
    out: Stored,
    shape: tuple[Size, ...],
    place: Place,
    value: Fill,
    mode: str,
) -> None:
    axes = axes_for(shape)
    at = tuple(map(as_index, axes))
    scalar = work.builder.cast(value(at), out.dtype)
    work.nest(node, axes, (), [Store(out.buffer.name, place(at), scalar, mode)])


def filling(work: Work, node: fx.Node, source: Any) -> Fill:
    """What is written: elements of a tensor that broadcasts, or a number in the dtype of the
    result. Raises Declined for anything else."""
    if isinstance(source, VALUES):
        return lambda at: work.load(source, broadcast_index(at, source.shape))
    number = constant(node, source)
    return lambda at: work.load(number, at)


def scatter(work: Work, node: fx.Node, x: Value, dim: int, index: Value, source: Any) -> Value:
    value, place = _along(work, node, x, dim, index, source)
    return written(work, node, x, index.shape, place, (value, "set"))


def scatter_joined(
    work: Work, node: fx.Node, x: Value, dim: int, index: Value, source: Any, reduce: str
) -> Value:
    """Joined with what is there, by a sum or a product."""
    value, place = _along(work, node, x, dim, index, source)
    mode = {"add": "add", "multiply": "mul"}[reduce]
    return written(work, node, x, index.shape, place, (value, mode), wide=True)


def scatter_add(
    work: Work, node: fx.Node, x: Value, dim: int, index: Value, source: Value
) -> Value:
    value, place = _along(work, node, x, dim, index, source)
    return written(work, node, x, index.shape, place, (value, "add"), wide=True)


def scatter_reduce(
    work: Work,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    _can_reduce(x, reduce)
    value, place = _along(work, node, x, dim, index, source)
    return _reduced(work, node, x, index.shape, place, value, reduce, include_self)


def index_reduce(
    work: Work,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    _can_reduce(x, reduce)
    if reduce == "prod" and opmath(x.dtype) != x.dtype:
        raise Declined
    place = _rows(work, node, x, dim_of(x, dim), index, source.shape)
    value = filling(work, node, source)
    return _reduced(work, node, x, source.shape, place, value, reduce, include_self)


def _along(
    work: Work, node: fx.Node, x: Value, dim: int, index: Value, source: Any
) -> tuple[Fill, Place]:
    """What each index writes, and where."""
    dim = dim_of(x, dim)
    if len(index.shape) != len(x.shape):
        raise Declined
    value = filling(work, node, source)
    if isinstance(source, VALUES):  # may be larger than the index
        value = lambda at: work.load(source, at)  # noqa: E731
    return value, along(work, node, x, dim, index, lambda at: at)


def _can_reduce(x: Value, reduce: str) -> None:
    if reduce != "mean" and reduce not in REDUCES:
        raise Declined
    if reduce == "mean" and (opmath(x.dtype) != x.dtype or x.dtype == "bool"):
        raise Declined


def _reduced(
    work: Work,
    node: fx.Node,
    x: Value,
    shape: tuple[Size, ...],
    place: Place,
    value: Fill,
    reduce: str,
    include_self: bool,
) -> Value:
    """Elements joined by `reduce` with what is written there; without `include_self` the old
    ones do not count, where there are new ones."""
    mode = REDUCES.get(reduce, "add")
    writes = [] if include_self else [(filling(work, node, _neutral(mode, x.dtype)), "set")]
    total = written(work, node, x, shape, place, *writes, (value, mode), wide=True)
    if reduce != "mean":
        return total
    memory = work.buffer(f"{node.name}_count", x.dtype, x.shape)
    one = filling(work, node, 1)
    start = one if include_self else filling(work, node, 0)
    count = work.fill(node, memory, start)
    _write(work, node, count, shape, place, one, "add")
    op = "div" if x.dtype in FLOATS else "floor_div"

    def mean(at: Indices) -> Scalar:
        some = work.builder.make("maximum", (work.load(count, at), one(at)), x.dtype)
        return work.builder.make(op, (work.load(total, at), some), x.dtype)

    return work.pointwise(node, node.meta["val"], mean)


def _neutral(mode: str, dtype: str) -> bool | int | float:
    """The number that joining by `mode` does not notice."""
    if mode in ("add", "mul"):
        return 0 if mode == "add" else 1
    if dtype == "bool":
        return mode == "min"
    if dtype in FLOATS:
        return float("-inf") if mode == "max" else float("inf")
    info = torch.iinfo(dtype_of(dtype))
    return info.min if mode == "max" else info.max


def index_put(
    work: Work,
    node: fx.Node,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    chosen = [value for value in indices if value is not None]
    if len(chosen) == 1 and chosen[0].dtype == "bool":
        return _put_masked(work, node, x, indices, values, accumulate)
    value = filling(work, node, values)
    trusted = node.target is torch.ops.aten._unsafe_index_put.default
    found = picked(work, node, x, indices, trusted=trusted)
    mode = "add" if accumulate else "set"
    return written(work, node, x, found.shape, found.place, (value, mode))


def _put_masked(
    work: Work,
    node: fx.Node,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool,
) -> Value:
    """One value wherever a mask over some dims holds."""
    start = next(k for k, value in enumerate(indices) if value is not None)
    mask = indices[start]
    assert mask is not None
    end = start + len(mask.shape)
    if any(size != 1 for size in values.shape) or mask.shape != x.shape[start:end]:
        raise Declined
    value = filling(work, node, values)

    def make(at: Indices) -> Scalar:
        old, new = work.load(x, at), work.builder.cast(value(at), x.dtype)
        if accumulate:
            op = "logical_or" if x.dtype == "bool" else "add"
            new = work.builder.make(op, (old, new), x.dtype)
        chosen = work.load(mask, at[start:end])
        return work.builder.make("where", (chosen, new, old), x.dtype)

    return work.pointwise(node, node.meta["val"], make)


def put(
    work: Work, node: fx.Node, x: Value, index: Value, source: Value, accumulate: bool = False
) -> Value:
    """Elements replaced or added to by their row-major number."""
    value = filling(work, node, reshaped(source, index.shape))
    place = numbered(work, node, x, index)
    mode = "add" if accumulate else "set"
    return written(work, node, x, index.shape, place, (value, mode))


def index_add(
    work: Work, node: fx.Node, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1
) -> Value:
    dim = dim_of(x, dim)
    if alpha != 1 and (opmath(x.dtype) != x.dtype or x.dtype == "bool"):
        raise Declined
    factor = filling(work, node, alpha)

    def value(at: Indices) -> Scalar:
        item = work.load(source, at)
        return item if alpha == 1 else work.builder.make("mul", (item, factor(at)), x.dtype)

    place = _rows(work, node, x, dim, index, source.shape)
    wide = len(x.shape) > 1  # eager rounds each sum of a vector
    return written(work, node, x, source.shape, place, (value, "add"), wide=wide)


def index_copy(work: Work, node: fx.Node, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim = dim_of(x, dim)
    place = _rows(work, node, x, dim, index, source.shape)
    return written(work, node, x, source.shape, place, (filling(work, node, source), "set"))


def index_fill(work: Work, node: fx.Node, x: Value, dim: int, index: Value, value: Any) -> Value:
    dim = dim_of(x, dim)
    fill = filling(work, node, value)
    if len(index.shape) != 1:
        raise Declined
    shape = (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])
    place = _rows(work, node, x, dim, index, shape, wraps=True)
    return written(work, node, x, shape, place, (fill, "set"))


def _rows(
    work: Work,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    shape: tuple[Size, ...],
    *,
    wraps: bool = False,
) -> Place:
    """Where slices along `dim` go that a vector of indices names."""
    if len(index.shape) != 1 or len(shape) != len(x.shape) or 0 in x.shape:
        raise Declined
    return along(work, node, x, dim, index, lambda at: (at[dim],), wraps=wraps)


def embedding_dense_backward(
    work: Work,
    node: fx.Node,
    grad: Value,
    index: Value,
    rows: Any,
    padding: Any,
    scale_grad_by_freq: Any,
) -> Value:
    """Rows of the gradient added up by index; the padding index, and any out of range, do not
    count."""
    (count,) = sizes(rows)
    if scale_grad_by_freq is not False or count == 0:
        raise Declined
    rank, make = len(index.shape), work.builder.make
    zero = constant(node, 0)

    def counted(at: Indices) -> tuple[Scalar, list[Scalar]]:
        scalar = work.load(index, at[:rank])
        wide, tests = work.builder.cast(scalar, "i64"), []
        found = interval(scalar, work.ranges)
        if not known(found, count, wraps=False):
            tests += [
                make("ge", (wide, work.builder.const(0, "i64")), "bool"),
                make("lt", (wide, size_scalar(work, count)), "bool"),
            ]
        if number(padding) >= 0:
            tests.append(make("ne", (wide, work.builder.const(padding, "i64")), "bool"))
        return wide, tests

    def place(at: Indices) -> Indices:
        wide, tests = counted(at)
        for test in tests:
            wide = make("where", (test, wide, work.builder.const(0, "i64")), "i64")
        return (Index(((Gathered(wide, count), 1),)), *at[rank:])

    def value(at: Indices) -> Scalar:
        item = work.load(grad, at)
        for test in counted(at)[1]:
            item = make("where", (test, item, work.load(zero, at)), grad.dtype)
        return item

    return written(work, node, zero, grad.shape, place, (value, "add"))


def diagonal_scatter(
    work: Work,
    node: fx.Node,
    x: Value,
    source: Value,
    offset: Any = 0,
    dim1: Any = 0,
    dim2: Any = 1,
) -> Value:
    """`x` with the diagonal of two dims replaced; it is the last dim of the source."""
    shift, rank, make = number(offset), len(x.shape), work.builder.make
    first, second = (number(dim) % rank for dim in (dim1, dim2))
    if 0 in source.shape:
        return work.pointwise(node, node.meta["val"], lambda at: work.load(x, at))

    def value(at: Indices) -> Scalar:
        row, column = (make("index", (), "i64", index=(at[k],)) for k in (first, second))
        shifted = make("index", (), "i64", index=(at[first] + shift,))
        mask = make("eq", (shifted if shift else row, column), "bool")
        along_it = at[first] if shift >= 0 else at[second]
        rest = tuple(part for k, part in enumerate(at) if k not in (first, second))
        return work.load(source, (*rest, along_it), (mask, work.load(x, at)))

    return work.pointwise(node, node.meta["val"], value)


SCATTER: Mapping[str, Lower] = {
    "scatter": scatter,
    "scatter_add": scatter_add,
    "scatter_joined": scatter_joined,
    "scatter_reduce": scatter_reduce,
    "index_reduce": index_reduce,
    "index_put": index_put,
    "_unsafe_index_put": index_put,
    "put": put,
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill": index_fill,
    "embedding_dense_backward": embedding_dense_backward,
    "diagonal_scatter": diagonal_scatter,
}
