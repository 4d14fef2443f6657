"""Ops that put tensors together: cat, stack, pad, scatters into a slice, triangles.

Takes operands and canonical arguments; gives fresh buffers. `cat` fills one region per
operand; the others choose per element, under a mask that guards the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .creation import constant
from .index import Index, Size, as_index, floor_div, remainder
from .loops import Scalar, Store
from .takeover import taken_over
from .values import Indices, Stored, Value, axes_for, mapped, plain, shape_of
from .views import Lower
from .work import Declined, Work, number, sizes


def cat(work: Work, node: fx.Node, xs: Sequence[Value], dim: int = 0) -> Value:
    """One nest per operand, each storing into its part of the result."""
    meta = node.meta["val"]
    dim = number(dim) % max(meta.dim(), 1)
    # torch lets an empty tensor of one dim stand among others
    parts = [x for x in xs if not (x.shape == (0,) and meta.dim() != 1)]
    return _joined(work, node, meta, parts, dim)


def stack(work: Work, node: fx.Node, xs: Sequence[Value], dim: int = 0) -> Value:
    meta = node.meta["val"]
    dim = number(dim) % meta.dim()
    parts = [
        mapped(
            x,
            (*x.shape[:dim], 1, *x.shape[dim:]),
            lambda index: (*index[:dim], *index[dim + 1 :]),
        )
        for x in xs
    ]
    return _joined(work, node, meta, parts, dim)


def _joined(
    work: Work, node: fx.Node, meta: torch.Tensor, parts: Sequence[Value], dim: int
) -> Value:
    buffer = work.buffer_like(node, meta)
    start: Size = 0
    for part in parts:
        axes = axes_for(part.shape)
        index = tuple(as_index(axis) for axis in axes)
        value = work.builder.cast(work.load(part, index), buffer.dtype)
        place = (*index[:dim], index[dim] + start, *index[dim + 1 :])
        work.nest(node, axes, (), [Store(buffer.name, place, value)])
        start = plain(start + part.shape[dim])
    return Stored(buffer)


def between(work: Work, at: Index, low: Size, high: Size, size: Size) -> list[Scalar]:
    """The tests of low <= at < high that are not always true for 0 <= at < size."""
    position = work.builder.make("index", (), "i64", index=(at,))
    tests = []
    if low != 0:
        tests.append(work.builder.make("ge", (position, _size(work, low)), "bool"))
    if plain(high) != plain(size):
        tests.append(work.builder.make("lt", (position, _size(work, high)), "bool"))
    return tests


def _size(work: Work, size: Size) -> Scalar:
    if isinstance(size, int):
        return work.builder.const(size, "i64")
    return work.builder.make("index", (), "i64", index=(as_index(size),))


def every(work: Work, tests: Sequence[Scalar]) -> Scalar | None:
    found: Scalar | None = None
    for test in tests:
        found = test if found is None else work.builder.make("logical_and", (found, test), "bool")
    return found


def pad(work: Work, node: fx.Node, x: Value, amounts: Any, value: Any = 0) -> Value:
    """Constant padding; a negative amount cuts. Amounts come in pairs, last dim first."""
    meta = node.meta["val"]
    shape = shape_of(meta)
    numbers = sizes(amounts)
    rank = len(shape)
    before: list[Size] = [0] * rank
    for k in range(len(numbers) // 2):
        before[rank - 1 - k] = numbers[2 * k]
    if not isinstance(value, bool | int | float):
        raise Declined
    other = work.builder.const(_as_dtype(value, x.dtype), x.dtype)

    def make(index: Indices) -> Scalar:
        place = tuple(at - low for at, low in zip(index, before, strict=True))
        tests = []
        for at, low, size, result in zip(index, before, x.shape, shape, strict=True):
            end = plain(low + size)
            if isinstance(end, int) and isinstance(result, int):
                end = min(end, result)
            tests += between(work, at, 0 if _negative(low) else low, end, result)
        mask = every(work, tests)
        return work.load(x, place, None if mask is None else (mask, other))

    return work.pointwise(node, meta, make)


def _negative(size: Size) -> bool:
    return size < 0 if isinstance(size, int) else bool(size.is_negative)


def _as_dtype(value: bool | int | float, dtype: str) -> bool | int | float:
    if dtype == "bool":
        return bool(value)
    return float(value) if dtype.startswith(("f", "b")) else int(value)


def slice_scatter(
    work: Work,
    node: fx.Node,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Value:
    """`x` with the slice replaced; the source tells how long the slice is."""
    dim = number(dim) % len(x.shape)
    (low,), stride = sizes(0 if start is None else start), number(step)
    if isinstance(low, int) and low < 0:
        if not isinstance(x.shape[dim], int):
            raise Declined
        low = max(low + number(x.shape[dim]), 0)
    count = source.shape[dim]
    if count == 0:
        return work.pointwise(node, node.meta["val"], lambda index: work.load(x, index))
    last = plain(low + (count - 1) * stride + 1)
    written = _in_place(
        work, node, x, source, lambda at: (*at[:dim], at[dim] * stride + low, *at[dim + 1 :])
    )
    if written is not None:
        return written

    def make(index: Indices) -> Scalar:
        at = index[dim]
        tests = between(work, at, low, last, x.shape[dim])
        if stride != 1:
            off = work.builder.make("index", (), "i64", index=(remainder(at - low, stride),))
            tests.append(work.builder.make("eq", (off, work.builder.const(0, "i64")), "bool"))
        mask = every(work, tests)
        place = (*index[:dim], floor_div(at - low, stride), *index[dim + 1 :])
        return _chosen(work, mask, source, place, work.load(x, index))

    return work.pointwise(node, node.meta["val"], make)


def _in_place(
    work: Work, node: fx.Node, x: Value, source: Value, place: Callable[[Indices], Indices]
) -> Value | None:
    """The source put at `place` in an input that the graph writes anyway; None elsewhere, as
    one nest that chooses per element fuses with what makes `x`."""
    out = taken_over(work, node, x)
    if out is None or out.buffer.role != "input":
        return None
    axes = axes_for(source.shape)
    at = tuple(map(as_index, axes))
    value = work.builder.cast(work.load(source, at), out.dtype)
    work.nest(node, axes, (), [Store(out.buffer.name, place(at), value)])
    return out


def _chosen(
    work: Work, mask: Scalar | None, source: Value, place: Indices, other: Scalar
) -> Scalar:
    if mask is None:
        return work.load(source, place)
    if source.dtype == other.dtype:
        return work.load(source, place, (mask, other))
    zero = work.builder.const(_as_dtype(0, source.dtype), source.dtype)
    value = work.builder.cast(work.load(source, place, (mask, zero)), other.dtype)
    return work.builder.make("where", (mask, value, other), other.dtype)


def select_scatter(work: Work, node: fx.Node, x: Value, source: Value, dim: int, at: Any) -> Value:
    dim = number(dim) % len(x.shape)
    (position,) = sizes(at)
    if isinstance(position, int) and position < 0:
        position = plain(position + x.shape[dim])
    written = _in_place(
        work, node, x, source, lambda at: (*at[:dim], as_index(position), *at[dim:])
    )
    if written is not None:
        return written

    def make(index: Indices) -> Scalar:
        here = work.builder.make("index", (), "i64", index=(index[dim],))
        mask = work.builder.make("eq", (here, _size(work, position)), "bool")
        place = (*index[:dim], *index[dim + 1 :])
        return _chosen(work, mask, source, place, work.load(x, index))

    return work.pointwise(node, node.meta["val"], make)


def slice_backward(
    work: Work, node: fx.Node, grad: Value, _: Any, dim: int, start: Any, end: Any, step: Any
) -> Value:
    """Zeros with the gradient in the slice."""
    return slice_scatter(work, node, constant(node, 0), grad, dim, start, end, step)


def select_backward(work: Work, node: fx.Node, grad: Value, _: Any, dim: int, at: Any) -> Value:
    """Zeros with the gradient in one entry."""
    return select_scatter(work, node, constant(node, 0), grad, dim, at)


def _triangle(op: str) -> Lower:
    """tril keeps column <= row + diagonal, triu column >= row + diagonal."""

    def lower(work: Work, node: fx.Node, x: Value, diagonal: Any = 0) -> Value:
        (shift,) = sizes(diagonal)
        zero = work.builder.const(_as_dtype(0, x.dtype), x.dtype)

        def make(index: Indices) -> Scalar:
            row, column = (
                work.builder.make("index", (), "i64", index=(at,))
                for at in (index[-2] + shift, index[-1])
            )
            keep = work.builder.make(op, (column, row), "bool")
            return work.builder.make("where", (keep, work.load(x, index), zero), x.dtype)

        return work.pointwise(node, node.meta["val"], make)

    return lower


ASSEMBLE: Mapping[str, Lower] = {
    "cat": cat,
    "stack": stack,
    "constant_pad_nd": pad,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "slice_backward": slice_backward,
    "select_backward": select_backward,
    "tril": _triangle("le"),
    "triu": _triangle("ge"),
}
