"""Views: ops that only say where elements lie.

Takes the value of the operand and canonical arguments; gives a `Mapped` value, no code. Also
covers ops that copy in eager but are no more than an index formula (roll, flip, repeat): the
reader computes the index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from ..engine.memory import shares_memory
from .index import (
    ZERO,
    Index,
    Size,
    as_index,
    bounds,
    flatten,
    floor_div,
    remainder,
    row_major,
    unflatten,
)
from .ranges import at_most
from .values import (
    Indices,
    Stored,
    Value,
    axes_for,
    mapped,
    plain,
    root,
    same_stride,
    shape_of,
    size_of,
    stride_of,
    strided,
)
from .work import Declined, Work, number, sizes, supported

Lower = Callable[..., Any]
_UNSAFE = frozenset(
    (
        torch.ops.aten._unsafe_view.default,
        torch.ops.aten.unsafe_split.Tensor,
        torch.ops.aten.unsafe_split_with_sizes.default,
    )
)


def view(work: Work, node: fx.Node, x: Value, *_: Any) -> Value:
    """Elements in row-major order under another shape. A reshape that copies is no more than
    that, too, but where the graph returns (views of) the copy."""
    meta = node.meta["val"]
    if word_of(meta.dtype) != x.dtype:
        raise Declined  # the same bits under another dtype
    value = reshaped(x, shape_of(meta))
    operand = node.all_input_nodes[0].meta["val"]
    if shares_memory(operand, meta) or not _escapes(node):
        return value
    if not supported(meta):
        raise Declined
    return work.pointwise(node, meta, lambda index: work.load(value, index))


def reshaped(x: Value, shape: tuple[Size, ...]) -> Value:
    if 0 in shape:  # nothing is ever read
        return mapped(x, shape, lambda index: tuple(ZERO for _ in x.shape))
    groups = _groups(x.shape, shape)

    def place(index: Indices) -> Indices:
        found: list[Index] = []
        for inner, outer in groups:
            old = x.shape[inner]
            new = shape[outer]
            position = flatten(index[outer], row_major(new))
            found += unflatten(position, old)
        return tuple(found)

    return mapped(x, shape, place)


def _groups(old: tuple[Size, ...], new: tuple[Size, ...]) -> list[tuple[slice, slice]]:
    """The shortest stretches of dims with equal products, so that formulas stay small."""
    groups = []
    i = j = 0
    while i < len(old) and j < len(new):
        first, second = i, j
        a, b = old[i], new[j]
        i, j = i + 1, j + 1
        while not _equal(a, b):
            if i < len(old) and (j >= len(new) or not at_most(b, a)):
                a, i = plain(a * old[i]), i + 1
            elif j < len(new):
                b, j = plain(b * new[j]), j + 1
            else:
                return [(slice(0, len(old)), slice(0, len(new)))]
        groups.append((slice(first, i), slice(second, j)))
    if i < len(old) or j < len(new):  # what is left has size 1
        groups.append((slice(i, len(old)), slice(j, len(new))))
    return groups


def _equal(a: Size, b: Size) -> bool:
    return bool(plain(a) == plain(b))


def permute(work: Work, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    rank = len(x.shape)
    order = [number(dim) % rank for dim in dims]
    back = [order.index(k) for k in range(rank)]
    return mapped(
        x,
        tuple(x.shape[k] for k in order),
        lambda index: tuple(index[k] for k in back),
    )


def transpose(work: Work, node: fx.Node, x: Value, first: int, second: int) -> Value:
    order = list(range(len(x.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return permute(work, node, x, order)


def expand(work: Work, node: fx.Node, x: Value, *_: Any) -> Value:
    return expanded(x, shape_of(node.meta["val"]))


def expanded(x: Value, shape: tuple[Size, ...]) -> Value:
    """`x` broadcast to `shape`."""
    if x.shape == shape:
        return x
    return mapped(x, shape, lambda index: broadcast_index(index, x.shape))


def broadcast_index(index: Indices, shape: tuple[Size, ...]) -> Indices:
    """Where an operand of `shape` is read by a loop over the broadcast shape."""
    tail = index[len(index) - len(shape) :]
    return tuple(ZERO if size == 1 else at for at, size in zip(tail, shape, strict=True))


def slice_(
    work: Work, node: fx.Node, x: Value, dim: int, start: Any, end: Any, step: Any = 1
) -> Value:
    shape = shape_of(node.meta["val"])
    first = 0 if start is None else start
    (low,), stride = sizes(first), number(step)
    if isinstance(low, int) and low < 0:
        raise Declined
    return mapped(x, shape, _moved(dim, lambda at: at * stride + low))


def _moved(dim: int, place: Callable[[Index], Index]) -> Callable[[Indices], Indices]:
    return lambda index: (*index[:dim], place(index[dim]), *index[dim + 1 :])


def select(work: Work, node: fx.Node, x: Value, dim: int, at: Any) -> Value:
    (position,) = sizes(at)
    if isinstance(position, int) and position < 0:
        position = plain(x.shape[dim] + position)
    place = as_index(position)
    return mapped(
        x,
        x.shape[:dim] + x.shape[dim + 1 :],
        lambda index: (*index[:dim], place, *index[dim:]),
    )


def copying(lower: Lower) -> Lower:
    """An op that copies in eager: its result is memory where the graph returns views of it, as
    their strides are those of the copy."""

    def lower_copy(work: Work, node: fx.Node, *args: Any) -> Value:
        value: Value = lower(work, node, *args)
        if not _escapes(node):
            return value
        return work.pointwise(node, node.meta["val"], lambda index: work.load(value, index))

    return lower_copy


def _escapes(node: fx.Node) -> bool:
    """Whether the graph returns this node, or views of it."""
    return any(
        user.op == "output" or (_passes_memory(user.target) and _escapes(user))
        for user in node.users
    )


def _passes_memory(target: Any) -> bool:
    """Whether results share memory with operands, be it that the schema says nothing of it."""
    return is_view(target) or target is operator.getitem or target in _UNSAFE


def is_view(target: Any) -> bool:
    """Whether the results of an op share memory with its operands."""
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.returns:
        return False
    alias = target._schema.returns[0].alias_info
    return alias is not None and not alias.is_write


def flip(work: Work, node: fx.Node, x: Value, dims: Sequence[int]) -> Value:
    chosen = {number(dim) % max(len(x.shape), 1) for dim in dims}
    return mapped(
        x,
        x.shape,
        lambda index: tuple(
            as_index(plain(size - 1)) - at if k in chosen else at
            for k, (at, size) in enumerate(zip(index, x.shape, strict=True))
        ),
    )


def roll(work: Work, node: fx.Node, x: Value, shifts: Any, dims: Sequence[int] = ()) -> Value:
    steps = [number(shift) for shift in (shifts if isinstance(shifts, list | tuple) else [shifts])]
    if not dims:
        flat = reshaped(x, (_numel(x.shape),))
        return reshaped(_rolled(flat, steps, [0]), x.shape)
    return _rolled(x, steps, [number(dim) % max(len(x.shape), 1) for dim in dims])


def _rolled(x: Value, shifts: list[int], dims: list[int]) -> Value:
    totals: dict[int, int] = {}
    for dim, shift in zip(dims, shifts, strict=True):
        totals[dim] = totals.get(dim, 0) + shift

    def place(index: Indices) -> Indices:
        found = list(index)
        for dim, shift in totals.items():
            size = x.shape[dim]
            # never negative before the remainder, where the size is known
            back: Size = (-shift) % size if isinstance(size, int) and size else -shift
            found[dim] = remainder(index[dim] + back, size) if size != 0 else index[dim]
        return tuple(found)

    return mapped(x, x.shape, place)


def rot90(work: Work, node: fx.Node, x: Value, k: Any = 1, dims: Sequence[int] = (0, 1)) -> Value:
    """Turned by k quarters in the plane of two dims, the first one towards the second."""
    first, second = (number(dim) % len(x.shape) for dim in dims)
    quarters = number(k) % 4
    ends = [as_index(plain(x.shape[dim] - 1)) for dim in (first, second)]

    def place(index: Indices) -> Indices:
        found = list(index)
        row, column = index[first], index[second]
        if quarters == 1:
            found[first], found[second] = column, ends[1] - row
        elif quarters == 2:
            found[first], found[second] = ends[0] - row, ends[1] - column
        elif quarters == 3:
            found[first], found[second] = ends[0] - column, row
        return tuple(found)

    return mapped(x, shape_of(node.meta["val"]), place)


def repeat(work: Work, node: fx.Node, x: Value, *_: Any) -> Value:
    shape = shape_of(node.meta["val"])
    lead = len(shape) - len(x.shape)

    def place(index: Indices) -> Indices:
        return tuple(
            at if size == outer else remainder(at, size) if size != 0 else at
            for at, size, outer in zip(index[lead:], x.shape, shape[lead:], strict=True)
        )

    return mapped(x, shape, place)


def diagonal(
    work: Work, node: fx.Node, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    rank = len(x.shape)
    first, second = number(dim1) % rank, number(dim2) % rank
    shift = number(offset)
    rest = [k for k in range(rank) if k not in (first, second)]

    def place(index: Indices) -> Indices:
        found: list[Index] = [ZERO] * rank
        for k, at in zip(rest, index[:-1], strict=True):
            found[k] = at
        found[first] = index[-1] + max(-shift, 0)
        found[second] = index[-1] + max(shift, 0)
        return tuple(found)

    return mapped(x, shape_of(node.meta["val"]), place)


def unfold(work: Work, node: fx.Node, x: Value, dim: int, size: Any, step: Any) -> Value:
    """A window per position: dim counts windows, a new last dim runs inside one."""
    stride = number(step)
    if not x.shape:
        return mapped(x, shape_of(node.meta["val"]), lambda index: ())
    dim %= len(x.shape)
    return mapped(
        x,
        shape_of(node.meta["val"]),
        lambda index: (*index[:dim], index[dim] * stride + index[-1], *index[dim + 1 : -1]),
    )


def pixel_shuffle(work: Work, node: fx.Node, x: Value, factor: Any) -> Value:
    """Channel (c, i, j) of pixel (h, w) goes to pixel (h * factor + i, w * factor + j) of c."""
    step, shape = number(factor), shape_of(node.meta["val"])

    def place(index: Indices) -> Indices:
        channel, high, wide = index[-3:]
        inner = remainder(high, step) * step + remainder(wide, step)
        spot = (floor_div(high, step), floor_div(wide, step))
        return (*index[:-3], channel * (step * step) + inner, *spot)

    return mapped(x, shape, place)


def as_strided(
    work: Work, node: fx.Node, x: Value, size: Any, stride: Any, offset: Any = None
) -> Value:
    """Provable where the operand is a view of a dense buffer, laid out as torch has it, and the
    result stays inside."""
    base, here = root(x), strided(x)
    meta = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else None
    if not isinstance(base, Stored) or here is None or not isinstance(meta, torch.Tensor):
        raise Declined
    if not same_stride(x.shape, here.stride, stride_of(meta)):  # torch has a copy
        raise Declined
    shape = base.buffer.shape
    if not same_stride(shape, base.buffer.stride, row_major(shape)) or 0 in shape:
        raise Declined
    start = size_of(meta.storage_offset())
    first = here.offset if offset is None else plain(sizes(offset)[0] - start + here.offset)
    steps, result = sizes(stride), shape_of(node.meta["val"])
    axes = tuple(as_index(axis) for axis in axes_for(result))
    low, high = bounds(flatten(axes, steps, first))
    if not at_most(0, low) or not at_most(high, plain(_numel(shape) - 1)):
        raise Declined
    return mapped(
        Stored(base.buffer),
        result,
        lambda index: unflatten(flatten(index, steps, first), shape),
    )


def _numel(shape: tuple[Size, ...]) -> Size:
    total: Size = 1
    for size in shape:
        total = plain(total * size)
    return total


def same(work: Work, node: fx.Node, x: Value, *_: Any) -> Value:
    return x


def split(work: Work, node: fx.Node, x: Value, _: Any, dim: int = 0) -> list[Value]:
    """Pieces along `dim`; their sizes are those of the results."""
    dim %= len(x.shape)
    pieces: list[Value] = []
    start: Size = 0
    for meta in node.meta["val"]:
        shape = shape_of(meta)
        pieces.append(mapped(x, shape, _moved(dim, _shift(start))))
        start = plain(start + shape[dim])
    return pieces


def _shift(start: Size) -> Callable[[Index], Index]:
    return lambda at: at + start


def unbind(work: Work, node: fx.Node, x: Value, dim: int = 0) -> list[Value]:
    return [select(work, node, x, dim, k) for k in range(len(node.meta["val"]))]


VIEWS: Mapping[str, Lower] = {
    "view": view,
    "reshape": view,
    "_unsafe_view": view,
    "squeeze": view,
    "unsqueeze": view,
    "flatten": view,
    "unflatten": view,
    "view_copy": view,
    "permute": permute,
    "transpose": transpose,
    "expand": expand,
    "broadcast_to": expand,
    "slice": slice_,
    "select": select,
    "flip": copying(flip),
    "roll": copying(roll),
    "rot90": copying(rot90),
    "repeat": copying(repeat),
    "diagonal": diagonal,
    "unfold": unfold,
    "pixel_shuffle": copying(pixel_shuffle),
    "as_strided": as_strided,
    "alias": same,
    "detach": same,
    "lift": same,
    "lift_fresh": same,
    "split": split,
    "split_with_sizes": split,
    "chunk": split,
    "unsafe_split": split,
    "unsafe_split_with_sizes": split,
    "unbind": unbind,
}
