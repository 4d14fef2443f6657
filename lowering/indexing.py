"""Reads through an index tensor, where every index is known to lie in range.

Takes the operand and index values; gives fresh buffers. Eager raises on an index out of
range, and a loop nest cannot; so an index whose range is not known makes the call an extern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .index import Gathered, Index, Size, as_index, bounds
from .loops import Scalar
from .promotion import INTS
from .ranges import at_most, inside, interval
from .values import Indices, Value, plain
from .views import Lower, broadcast_index
from .work import Declined, Work, number


def position(work: Work, index: Scalar, size: Size, *, wraps: bool, trusted: bool = False) -> Index:
    """The place in a dim of `size` that an index scalar names. Raises Declined unless it is
    known to be in range, or the caller promised (`trusted`); `wraps` allows negative ones,
    counted from the end."""
    if index.dtype not in INTS:
        raise Declined
    found = interval(index, work.ranges)
    if found is None and trusted:
        found = (plain(-size), plain(size - 1))
    if found is None:
        raise Declined
    if not inside(found, size):
        low, high = found
        if not (wraps and at_most(plain(-size), low) and at_most(high, plain(size - 1))):
            raise Declined
        index = _wrapped(work, index, size)
    elif index.op == "index" and inside(bounds(index.index[0]), size):
        return index.index[0]
    if index.op == "const":
        return as_index(int(index.value))
    return Index(((Gathered(index, size), 1),))


def _wrapped(work: Work, index: Scalar, size: Size) -> Scalar:
    make = work.builder.make
    wide = work.builder.cast(index, "i64")
    total = (
        work.builder.const(size, "i64")
        if isinstance(size, int)
        else make("index", (), "i64", index=(as_index(size),))
    )
    negative = make("lt", (wide, work.builder.const(0, "i64")), "bool")
    return make("where", (negative, make("add", (wide, total), "i64"), wide), "i64")


def embedding(work: Work, node: fx.Node, weight: Value, index: Value, *_: Any) -> Value:
    rank = len(index.shape)

    def make(at: Indices) -> Scalar:
        row = position(work, work.load(index, at[:rank]), weight.shape[0], wraps=False)
        return work.load(weight, (row, *at[rank:]))

    return work.pointwise(node, node.meta["val"], make)


def gather(work: Work, node: fx.Node, x: Value, dim: int, index: Value, *_: Any) -> Value:
    if not x.shape:
        raise Declined
    dim = number(dim) % len(x.shape)

    def make(at: Indices) -> Scalar:
        place = position(work, work.load(index, at), x.shape[dim], wraps=False)
        return work.load(x, (*at[:dim], place, *at[dim + 1 :]))

    return work.pointwise(node, node.meta["val"], make)


def index_select(work: Work, node: fx.Node, x: Value, dim: int, index: Value) -> Value:
    if not x.shape or len(index.shape) != 1:
        raise Declined
    dim = number(dim) % len(x.shape)

    def make(at: Indices) -> Scalar:
        place = position(work, work.load(index, (at[dim],)), x.shape[dim], wraps=False)
        return work.load(x, (*at[:dim], place, *at[dim + 1 :]))

    return work.pointwise(node, node.meta["val"], make)


def index(work: Work, node: fx.Node, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[indices]: the index tensors broadcast together; their dims stand where the first
    indexed dim was, or in front where a slice lies between indexed dims."""
    chosen = [k for k, value in enumerate(indices) if value is not None]
    tensors = [value for value in indices if value is not None]
    if not tensors or any(value.dtype not in ("i64", "i32") for value in tensors):
        raise Declined
    rank = max(len(value.shape) for value in tensors)
    trusted = node.target is torch.ops.aten._unsafe_index.Tensor
    adjacent = chosen == list(range(chosen[0], chosen[-1] + 1))
    front = chosen[0] if adjacent else 0

    def make(at: Indices) -> Scalar:
        block = at[front : front + rank]
        rest = iter((*at[:front], *at[front + rank :]))
        place = []
        for k, size in enumerate(x.shape):
            value = indices[k] if k < len(indices) else None
            if value is None:
                place.append(next(rest))
            else:
                scalar = work.load(value, broadcast_index(block, value.shape))
                place.append(position(work, scalar, size, wraps=True, trusted=trusted))
        return work.load(x, tuple(place))

    return work.pointwise(node, node.meta["val"], make)


INDEXING: Mapping[str, Lower] = {
    "embedding": embedding,
    "gather": gather,
    "index_select": index_select,
    "index": index,
    "_unsafe_index": index,
}
