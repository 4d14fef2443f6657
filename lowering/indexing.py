"""Reads through an index tensor.

Takes the operand and index values; gives fresh buffers. An index whose range is not known is
checked before anything is read (lowering/guards.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from .guards import Wanted, guard, size_scalar
from .index import Gathered, Index, Size, as_index, bounds, unflatten
from .loops import Scalar
from .ranges import inside, interval
from .values import Indices, Value
from .views import Lower, broadcast_index
from .work import Declined, Work, number


def position(work: Work, index: Scalar, size: Size, *, wraps: bool, guard: str = "") -> Index:
    """The place in a dim of `size` that an index scalar names, which is in range; `guard` is
    the flag that says so, where only the data can. `wraps` allows negative ones, counted from
    the end."""
    if not inside(interval(index, work.ranges), size):
        if wraps:
            index = _wrapped(work, index, size)
    elif index.op == "index" and inside(bounds(index.index[0]), size):
        return index.index[0]
    if index.op == "const":
        return as_index(int(index.value))
    return Index(((Gathered(index, size, guard), 1),))


def _wrapped(work: Work, index: Scalar, size: Size) -> Scalar:
    make = work.builder.make
    wide = work.builder.cast(index, "i64")
    negative = make("lt", (wide, work.builder.const(0, "i64")), "bool")
    total = make("add", (wide, size_scalar(work, size)), "i64")
    return make("where", (negative, total, wide), "i64")


Place = Callable[[Indices], Indices]


def along(
    work: Work,
    node: fx.Node,
    x: Value,
    dim: int,
    index: Value,
    pick: Callable[[Indices], Indices],
    *,
    wraps: bool = False,
) -> Place:
    """Where `x` is accessed: as given, but along `dim` at what `index` holds at `pick` of the
    place. Raises Declined, before anything is appended, for what is no index."""
    (flag,) = guard(work, node, [Wanted(index, x.shape[dim], wraps)])

    def place(at: Indices) -> Indices:
        scalar = work.load(index, pick(at))
        found = position(work, scalar, x.shape[dim], wraps=wraps, guard=flag)
        return (*at[:dim], found, *at[dim + 1 :])

    return place


def dim_of(x: Value, dim: int) -> int:
    """`dim` counted from the front. Raises Declined for a tensor without dims."""
    if not x.shape:
        raise Declined
    return number(dim) % len(x.shape)


def embedding(work: Work, node: fx.Node, weight: Value, index: Value, *_: object) -> Value:
    if 0 in weight.shape:
        raise Declined
    rank = len(index.shape)
    (flag,) = guard(work, node, [Wanted(index, weight.shape[0])])

    def make(at: Indices) -> Scalar:
        scalar = work.load(index, at[:rank])
        row = position(work, scalar, weight.shape[0], wraps=False, guard=flag)
        return work.load(weight, (row, *at[rank:]))

    return work.pointwise(node, node.meta["val"], make)


def gather(work: Work, node: fx.Node, x: Value, dim: int, index: Value, *_: object) -> Value:
    place = along(work, node, x, dim_of(x, dim), index, lambda at: at)
    return work.pointwise(node, node.meta["val"], lambda at: work.load(x, place(at)))


def index_select(work: Work, node: fx.Node, x: Value, dim: int, index: Value) -> Value:
    dim = dim_of(x, dim)
    if len(index.shape) != 1 or 0 in x.shape:
        raise Declined
    place = along(work, node, x, dim, index, lambda at: (at[dim],))
    return work.pointwise(node, node.meta["val"], lambda at: work.load(x, place(at)))


@dataclass(frozen=True)
class Picked:
    """The elements x[indices]: the index tensors broadcast together to `block`, which stands
    where the first indexed dim was, or in front where a slice lies between indexed dims.
    `place` is the element of x at an index into `shape`."""

    shape: tuple[Size, ...]
    place: Place


def picked(
    work: Work, node: fx.Node, x: Value, indices: Sequence[Value | None], *, trusted: bool
) -> Picked:
    """Raises Declined, before anything is appended, for masks and other dtypes."""
    chosen = [k for k, value in enumerate(indices) if value is not None]
    tensors = [value for value in indices if value is not None]
    if not tensors or any(value.dtype not in ("i64", "i32") for value in tensors):
        raise Declined
    block = _broadcast([value.shape for value in tensors])
    adjacent = chosen == list(range(chosen[0], chosen[-1] + 1))
    front, rank = chosen[0] if adjacent else 0, len(block)
    rest = [size for k, size in enumerate(x.shape) if k not in chosen]
    shape = (*rest[:front], *block, *rest[front:])
    wanted = [Wanted(value, x.shape[k], True) for k, value in zip(chosen, tensors, strict=True)]
    free = trusted or 0 in shape  # eager looks at no index where it picks nothing
    flags = iter([""] * len(wanted) if free else guard(work, node, wanted))
    entries = [(None, "") if value is None else (value, next(flags)) for value in indices]
    entries += [(None, "")] * (len(x.shape) - len(entries))

    def place(at: Indices) -> Indices:
        inner, outer = at[front : front + rank], iter((*at[:front], *at[front + rank :]))
        found: list[Index] = []
        for (value, flag), size in zip(entries, x.shape, strict=True):
            if value is None:
                found.append(next(outer))
                continue
            scalar = work.load(value, broadcast_index(inner, value.shape))
            found.append(position(work, scalar, size, wraps=True, guard=flag))
        return tuple(found)

    return Picked(shape, place)


def _broadcast(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The shape that shapes which go together broadcast to."""
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((s for s in sizes if s != 1), 1) for sizes in zip(*wide, strict=True))


def index(work: Work, node: fx.Node, x: Value, indices: Sequence[Value | None]) -> Value:
    trusted = node.target is torch.ops.aten._unsafe_index.Tensor
    place = picked(work, node, x, indices, trusted=trusted).place
    return work.pointwise(node, node.meta["val"], lambda at: work.load(x, place(at)))


def take(work: Work, node: fx.Node, x: Value, index: Value) -> Value:
    """Elements by their row-major number."""
    place = numbered(work, node, x, index)
    return work.pointwise(node, node.meta["val"], lambda at: work.load(x, place(at)))


def numbered(work: Work, node: fx.Node, x: Value, index: Value) -> Place:
    """Where `x` is accessed by the row-major numbers in `index`. Raises Declined, before
    anything is appended, for what is no index."""
    total: Size = 1
    for size in x.shape:
        total = (as_index(total) * size).const
    (flag,) = guard(work, node, [Wanted(index, total, True)])

    def place(at: Indices) -> Indices:
        found = position(work, work.load(index, at), total, wraps=True, guard=flag)
        return unflatten(found, x.shape)

    return place


INDEXING: Mapping[str, Lower] = {
    "embedding": embedding,
    "gather": gather,
    "index_select": index_select,
    "index": index,
    "_unsafe_index": index,
    "take": take,
}
