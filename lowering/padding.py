"""Pads that repeat the operand: reflection and replication, their gradients, and col2im.

Takes the operand and canonical arguments; gives fresh buffers. The element that a place reads is
a choice between three formulas, which the C++ writer settles for the inside of the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from .index import Gathered, Index, Size, as_index, floor_div, remainder
from .loops import Scalar, Store
from .promotion import FLOATS
from .reductions import wide
from .values import Indices, Stored, Value, axes_for, plain
from .views import Lower
from .windows import Span, every, fold_window, integer, numbers, position
from .work import Declined, Work, number


def _amounts(value: Any, rank: int) -> list[tuple[int, int]]:
    """What is added before and behind each of the last `rank` dims, in order of dims."""
    if not isinstance(value, list | tuple) or len(value) != 2 * rank:
        raise Declined
    flat = [number(item) for item in value]
    return [(flat[2 * k], flat[2 * k + 1]) for k in reversed(range(rank))]


def _chosen(work: Work, at: Index, size: Size, before: int, left: Index, right: Index) -> Scalar:
    """`left` in front of the operand, `right` behind it, its own element between."""
    make, here = work.builder.make, position(work, at)
    inner = position(work, at - before)
    beyond = make("ge", (here, position(work, as_index(size) + before)), "bool")
    chosen = make("where", (beyond, position(work, right), inner), "i64")
    if before <= 0:
        return chosen
    ahead = make("lt", (here, integer(work, before)), "bool")
    return make("where", (ahead, position(work, left), chosen), "i64")


def _reflected(work: Work, at: Index, size: Size, before: int) -> Scalar:
    end = (as_index(size) - 1) * 2
    return _chosen(work, at, size, before, as_index(before) - at, end - at + before)


def _replicated(work: Work, at: Index, size: Size, before: int) -> Scalar:
    return _chosen(work, at, size, before, Index(), as_index(size) - 1)


Chooser = Callable[[Work, Index, Size, int], Scalar]


def _places(
    work: Work,
    choose: Chooser,
    index: Indices,
    shape: Sequence[Size],
    amounts: Sequence[tuple[int, int]],
) -> Indices:
    """The element of the operand that each place of a padded result stands for."""
    return tuple(
        at - before
        if before <= 0 and behind <= 0
        else Index(((Gathered(choose(work, at, size, before), size), 1),))
        for at, size, (before, behind) in zip(index, shape, amounts, strict=True)
    )


def _pad(rank: int, choose: Chooser) -> Lower:
    def lower(work: Work, node: fx.Node, x: Value, padding: Any) -> Value:
        amounts, lead = _amounts(padding, rank), len(x.shape) - rank
        if 0 in x.shape:
            raise Declined

        def make(index: Indices) -> Scalar:
            inner = _places(work, choose, index[lead:], x.shape[lead:], amounts)
            return work.load(x, (*index[:lead], *inner))

        return work.pointwise(node, node.meta["val"], make)

    return lower


def _replication_backward(rank: int) -> Lower:
    """Each gradient is added to the element that its place repeats."""

    def lower(work: Work, node: fx.Node, grad: Value, x: Value, padding: Any) -> Value:
        amounts, lead = _amounts(padding, rank), len(x.shape) - rank
        if 0 in grad.shape or 0 in x.shape:
            raise Declined
        buffer = work.buffer_like(node, node.meta["val"])
        zero = work.builder.const(0.0 if buffer.dtype in FLOATS else 0, buffer.dtype)
        work.fill(node, buffer, lambda index: zero)
        axes = axes_for(grad.shape)
        index = tuple(as_index(axis) for axis in axes)
        inner = _places(work, _replicated, index[lead:], x.shape[lead:], amounts)
        value = work.builder.cast(work.load(grad, index), buffer.dtype)
        work.nest(node, axes, (), [Store(buffer.name, (*index[:lead], *inner), value, "add")])
        return Stored(buffer)

    return lower


def _mirror_images(
    work: Work, at: Index, size: Size, before: int, behind: int
) -> list[tuple[Index, list[Scalar]]]:
    """The places of a reflected result that repeat element `at`, each with what must hold."""
    make, here = work.builder.make, position(work, at)
    own = Span(at + before, 1, plain(as_index(size).const + before + behind))
    found = [(own.start, own.tests(work, Index()))]
    if before > 0:
        tests = [make("ge", (here, integer(work, 1)), "bool")]
        tests.append(make("le", (here, integer(work, before)), "bool"))
        found.append((as_index(before) - at, tests))
    if behind > 0:
        last = as_index(size) - 1
        tests = [make("lt", (here, position(work, last)), "bool")]
        tests.append(make("ge", (here, position(work, last - behind)), "bool"))
        found.append((last * 2 - at + before, tests))
    return found


def _reflection_backward(rank: int) -> Lower:
    """Each element gathers from its mirror images."""

    def lower(work: Work, node: fx.Node, grad: Value, x: Value, padding: Any) -> Value:
        meta = node.meta["val"]
        amounts, lead = _amounts(padding, rank), len(x.shape) - rank
        if grad.dtype not in FLOATS or 0 in grad.shape or 0 in x.shape:
            raise Declined
        dtype = wide(grad.dtype)
        zero = work.builder.const(0.0, grad.dtype)

        def make(index: Indices) -> Scalar:
            images = [
                _mirror_images(work, at, size, before, behind)
                for at, size, (before, behind) in zip(
                    index[lead:], x.shape[lead:], amounts, strict=True
                )
            ]
            total: Scalar | None = None
            for combination in itertools.product(*images):
                mask = every(work, [test for _, tests in combination for test in tests])
                place = (*index[:lead], *(one for one, _ in combination))
                guard = None if mask is None else (mask, zero)
                value = work.builder.cast(work.load(grad, place, guard), dtype)
                total = value if total is None else work.builder.make("add", (total, value), dtype)
            assert total is not None
            return total

        return work.pointwise(node, meta, make)

    return lower


def col2im(
    work: Work,
    node: fx.Node,
    x: Value,
    output_size: Any,
    kernel_size: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Value:
    """Every element is the sum of the columns' entries that were taken from it."""
    meta = node.meta["val"]
    if x.dtype not in FLOATS or 0 in x.shape:
        raise Declined
    result, kernel, apart, before, step = (
        numbers(value, 2) for value in (output_size, kernel_size, dilation, padding, stride)
    )
    counts = tuple(
        (size + 2 * pad - gap * (count - 1) - 1) // by + 1
        for size, count, gap, pad, by in zip(result, kernel, apart, before, step, strict=True)
    )
    zero = work.builder.const(0.0, x.dtype)
    buffer = work.buffer_like(node, meta)
    axes = axes_for(buffer.shape)
    index = tuple(as_index(axis) for axis in axes)

    def item(k: Indices) -> Scalar:
        tests, windows = [], []
        for at, one, gap, pad, by, count in zip(
            index[-2:], k, apart, before, step, counts, strict=True
        ):
            start = at + pad - one * gap
            tests += Span(start, 1, count * by).tests(work, Index())
            if by != 1:
                off = position(work, remainder(start, by))
                tests.append(work.builder.make("eq", (off, integer(work, 0)), "bool"))
            windows.append(floor_div(start, by))
        mask = every(work, tests)
        channel = index[-3] * (kernel[0] * kernel[1]) + k[0] * kernel[1] + k[1]
        place = (*index[:-3], channel, windows[0] * counts[1] + windows[1])
        return work.builder.cast(
            work.load(x, place, None if mask is None else (mask, zero)), wide(x.dtype)
        )

    spans = [Span(Index(), count, count) for count in kernel]
    fold = fold_window(work, "sum", spans, item)
    value = work.builder.cast(fold.value, buffer.dtype)
    work.nest(node, axes, fold.raxes, [Store(buffer.name, index, value)])
    return Stored(buffer)


PADDING: Mapping[str, Lower] = {
    **{f"reflection_pad{n}d": _pad(n, _reflected) for n in (1, 2, 3)},
    **{f"replication_pad{n}d": _pad(n, _replicated) for n in (1, 2, 3)},
    **{f"reflection_pad{n}d_backward": _reflection_backward(n) for n in (1, 2, 3)},
    **{f"replication_pad{n}d_backward": _replication_backward(n) for n in (1, 2, 3)},
    "col2im": col2im,
}
