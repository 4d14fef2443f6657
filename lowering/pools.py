"""Pools and their gradients: max, average, adaptive; one, two or three dims.

Takes the operand and canonical arguments; gives fresh buffers in eager's layout. The places that
a max pool reports are flat positions in the operand's dims; of equal values the first counts, of
nans the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import dtype_of, word_of
from .index import Gathered, Index, Size, as_index, floor_div, remainder, row_major
from .loops import Scalar, Store
from .promotion import FLOATS
from .reductions import wide
from .values import (
    Indices,
    Stored,
    Value,
    axes_for,
    dense_stride,
    plain,
    shape_of,
    stride_of,
)
from .views import Lower, reshaped
from .windows import (
    Span,
    adaptive,
    every,
    fold_window,
    integer,
    numbers,
    offsets,
    points,
    position,
    sliding,
)
from .work import Declined, Work, wanted

Spans = Callable[[Indices], list[Span]]


def _max_spans(rank: int, x: Value, args: Sequence[Any]) -> Spans:
    """From kernel, stride, padding, dilation (and ceil_mode, which the result's size tells)."""
    kernel = numbers(args[0], rank)
    stride = numbers(args[1] if len(args) > 1 else (), rank, kernel)
    padding = numbers(args[2] if len(args) > 2 else 0, rank)
    dilation = numbers(args[3] if len(args) > 3 else 1, rank)
    shape = x.shape[-rank:]
    return lambda index: sliding(index[-rank:], shape, kernel, stride, padding, dilation)


def _adaptive_spans(rank: int, x: Value, result: Sequence[Size]) -> Spans:
    return lambda index: adaptive(index[-rank:], x.shape[-rank:], result[-rank:])


def _place(index: Indices, spans: Sequence[Span], k: Indices) -> Indices:
    """The element of the operand at point `k` of the window of result `index`."""
    inner = tuple(span.at(at) for span, at in zip(spans, k, strict=True))
    return (*index[: -len(spans)], *inner)


def _loaded(
    work: Work, x: Value, index: Indices, spans: Sequence[Span], k: Indices, other: Scalar
) -> Scalar:
    tests = [test for span, at in zip(spans, k, strict=True) for test in span.tests(work, at)]
    mask = every(work, tests)
    return work.load(x, _place(index, spans, k), None if mask is None else (mask, other))


def _lowest(work: Work, dtype: str) -> Scalar:
    if dtype in FLOATS:
        return work.builder.const(-math.inf, dtype)
    return work.builder.const(torch.iinfo(dtype_of(dtype)).min, dtype)


# ---- maxima ----


def _max_pool(rank: int, is_adaptive: bool) -> Lower:
    def lower(work: Work, node: fx.Node, x: Value, *args: Any) -> list[Value | None]:
        values, _ = node.meta["val"]
        if x.dtype == "bool" or 0 in x.shape:
            raise Declined
        if is_adaptive:
            spans = _adaptive_spans(rank, x, shape_of(values))
        else:
            spans = _max_spans(rank, x, args)
        read = wanted(node)
        index = tuple(as_index(axis) for axis in axes_for(shape_of(values)))
        if 1 in read:
            return list(_with_places(work, node, x, index, spans(index), read))
        other = _lowest(work, x.dtype)
        at = spans(index)
        item = lambda k: work.builder.cast(  # noqa: E731
            _loaded(work, x, index, at, k, other), wide(x.dtype)
        )
        fold = fold_window(work, "max", at, item)
        buffer = work.buffer_like(node, values)
        value = work.builder.cast(fold.value, buffer.dtype)
        work.nest(node, axes_for(buffer.shape), fold.raxes, [Store(buffer.name, index, value)])
        return [Stored(buffer), None]

    return lower


def _with_places(
    work: Work, node: fx.Node, x: Value, index: Indices, spans: list[Span], read: frozenset[int]
) -> list[Stored | None]:
    """Values and flat places, written out point by point."""
    if points(spans) > 2 * work.loops.window:
        raise Declined
    values, places = node.meta["val"]
    best, at = _best(work, x, index, spans)
    found: list[Stored | None] = [None, None]
    stores = []
    for k, (meta, value) in enumerate(zip((values, places), (best, at), strict=True)):
        if k in read:
            buffer = work.buffer_like(node, meta)
            found[k] = Stored(buffer)
            stores.append(Store(buffer.name, index, work.builder.cast(value, buffer.dtype)))
            if k == 1:
                count = reduce(lambda a, b: plain(a * b), x.shape[-len(spans) :])
                work.ranges[buffer.name] = (0, plain(count - 1))
    work.nest(node, axes_for(shape_of(values)), (), stores)
    return found


def _best(work: Work, x: Value, index: Indices, spans: Sequence[Span]) -> tuple[Scalar, Scalar]:
    """The largest value of a window and its flat place: i64, made of the place of the window and
    of a distance within it, which is i32 where it fits so that it has the width of floats."""
    make, cast = work.builder.make, work.builder.cast
    steps = row_major(tuple(span.size for span in spans))
    total = reduce(lambda a, b: plain(a * b), (span.size for span in spans))
    narrow = "i32" if isinstance(total, int) and total < 2**31 else "i64"
    other, dtype = _lowest(work, x.dtype), wide(x.dtype)
    best = cast(other, dtype)
    at = _constant(work, _first(work, spans, steps), narrow)
    for k in offsets(spans):
        value = cast(_loaded(work, x, index, spans, tuple(map(as_index, k)), other), dtype)
        away = _sum(
            as_index(step) * (span.step * n) for span, step, n in zip(spans, steps, k, strict=True)
        )
        here = _constant(work, position(work, away), narrow)
        at = make("where", (make("gt", (value, best), "bool"), here, at), narrow)
        if dtype in FLOATS:
            at = make("where", (make("isnan", (value,), "bool"), here, at), narrow)
        best = make("maximum", (value, best), dtype)
    base = _sum(span.start * step for span, step in zip(spans, steps, strict=True))
    return best, make("add", (position(work, base), cast(at, "i64")), "i64")


def _constant(work: Work, scalar: Scalar, dtype: str) -> Scalar:
    """An i64 value in another integer dtype, made at once where it is a number."""
    if scalar.op == "const":
        return work.builder.const(scalar.value, dtype)
    return work.builder.cast(scalar, dtype)


def _sum(parts: Iterable[Index]) -> Index:
    total = Index()
    for part in parts:
        total = total + part
    return total


def _first(work: Work, spans: Sequence[Span], steps: Sequence[Size]) -> Scalar:
    """How far the first point of a window that is there is from its start: what eager reports
    where all values are -inf."""
    make = work.builder.make
    total = integer(work, 0)
    for span, step in zip(spans, steps, strict=True):
        tests = span.tests(work, Index())
        if not any(test.op == "ge" for test in tests):
            continue
        start = position(work, span.start)
        outside = make("lt", (start, integer(work, 0)), "bool")
        inside = remainder(span.start, span.step)  # where the first point within is
        skipped = position(work, inside - span.start)
        width = position(work, as_index(step))
        far = make("mul", (skipped, width), "i64")
        gap = make("where", (outside, far, integer(work, 0)), "i64")
        total = gap if total.op == "const" else make("add", (total, gap), "i64")
    return total


def _max_backward(rank: int) -> Lower:
    """Each gradient is added at the place that its maximum had."""

    def lower(work: Work, node: fx.Node, grad: Value, x: Value, *args: Any) -> Value:
        meta, places = node.meta["val"], args[-1]
        shape = shape_of(meta)
        if 0 in shape or 0 in grad.shape:
            raise Declined
        lead = len(shape) - rank
        count = reduce(lambda a, b: plain(a * b), shape[lead:])
        stride = dense_stride(shape, stride_of(meta))
        inner = tuple(plain(stride[-1] * step) for step in row_major(shape[lead:]))
        if any(
            size != 1 and plain(a) != plain(b)
            for size, a, b in zip(shape[lead:], stride[lead:], inner, strict=True)
        ):
            raise Declined  # places are no steps in such memory
        flat = (*shape[:lead], count)
        buffer = work.buffer(node.name, word_of(meta.dtype), flat, (*stride[:lead], stride[-1]))
        zero = work.builder.const(0.0 if buffer.dtype in FLOATS else 0, buffer.dtype)
        work.fill(node, buffer, lambda index: zero)
        axes = axes_for(grad.shape)
        index = tuple(as_index(axis) for axis in axes)
        place = Index(((Gathered(work.load(places, index), count), 1),))
        value = work.builder.cast(work.load(grad, index), buffer.dtype)
        store = Store(buffer.name, (*index[:lead], place), value, "add")
        work.nest(node, axes, (), [store])
        return reshaped(Stored(buffer), shape)

    return lower


# ---- averages ----


def _average_arguments(rank: int, args: Sequence[Any]) -> tuple[Any, ...]:
    """Kernel, stride, padding, whether padding counts, and the divisor that overrides."""
    given = [*args, *(None,) * (6 - len(args))]
    kernel = numbers(given[0], rank)
    stride = numbers(given[1] if given[1] is not None else (), rank, kernel)
    padding = numbers(given[2] if given[2] is not None else 0, rank)
    counts = True if given[4] is None else bool(given[4])
    return kernel, stride, padding, counts, given[5]


def _extent(work: Work, span: Span, padding: int, counts: bool) -> int | Scalar:
    """How many points of a window count in the divisor: an int where it is always the same."""
    make = work.builder.make
    low = Index((), -padding if counts else 0)
    high = as_index(span.size) + (padding if counts else 0)
    start, stop = span.start, span.stop or span.start + span.count
    first, last = position(work, start), position(work, stop)
    whole = Span(start - low.const, span.count, plain(high.const - low.const), 1)
    tests = [test for k in (0, span.count - 1) for test in whole.tests(work, as_index(k))]
    if span.stop is None and not tests:
        return span.count
    if span.stop is None:
        below = make("lt", (first, position(work, low)), "bool")
        beyond = make("gt", (last, position(work, high)), "bool")
        first = make("where", (below, position(work, low), first), "i64")
        last = make("where", (beyond, position(work, high), last), "i64")
    return make("sub", (last, first), "i64")


def _divided(
    work: Work, total: Scalar, extents: Sequence[int | Scalar], one_by_one: bool
) -> Scalar:
    """`total` over the product of `extents`, or over one after the other."""
    dtype, make = total.dtype, work.builder.make
    factors = [
        work.builder.const(float(n), dtype) if isinstance(n, int) else work.builder.cast(n, dtype)
        for n in extents
    ]
    if not one_by_one:
        known = math.prod(n for n in extents if isinstance(n, int))
        open_ones = [f for f, n in zip(factors, extents, strict=True) if not isinstance(n, int)]
        divisor = work.builder.const(float(known), dtype) if known != 1 or not open_ones else None
        for factor in open_ones:
            divisor = factor if divisor is None else make("mul", (divisor, factor), dtype)
        assert divisor is not None
        factors = [divisor]
    for factor in factors:
        total = make("div", (total, factor), dtype)
    return total


Extents = Callable[[list[Span]], Sequence[int | Scalar]]


def _average_extents(work: Work, rank: int, args: Sequence[Any]) -> Extents:
    _, _, padding, counts, divisor = _average_arguments(rank, args)
    if divisor is not None:
        if not isinstance(divisor, int) or divisor == 0:
            raise Declined
        return lambda spans: [divisor]
    return lambda spans: [
        _extent(work, span, before, counts) for span, before in zip(spans, padding, strict=True)
    ]


def _lengths(work: Work) -> Extents:
    return lambda spans: [_extent(work, span, 0, False) for span in spans]


def _average_pool(rank: int, is_adaptive: bool) -> Lower:
    def lower(work: Work, node: fx.Node, x: Value, *args: Any) -> Value:
        meta = node.meta["val"]
        if word_of(meta.dtype) not in FLOATS or 0 in x.shape:
            raise Declined
        if is_adaptive:
            spans, extents = _adaptive_spans(rank, x, shape_of(meta)), _lengths(work)
        else:
            kernel, stride, padding, *_ = _average_arguments(rank, args)
            spans = _max_spans(rank, x, (kernel, stride, padding, 1))
            extents = _average_extents(work, rank, args)
        dtype = wide(x.dtype)
        zero = work.builder.const(0.0, x.dtype)
        buffer = work.buffer_like(node, meta)
        index = tuple(as_index(axis) for axis in axes_for(buffer.shape))
        at = spans(index)
        item = lambda k: work.builder.cast(  # noqa: E731
            _loaded(work, x, index, at, k, zero), dtype
        )
        fold = fold_window(work, "sum", at, item)
        value = _divided(work, fold.value, extents(at), is_adaptive)
        store = Store(buffer.name, index, work.builder.cast(value, buffer.dtype))
        work.nest(node, axes_for(buffer.shape), fold.raxes, [store])
        return Stored(buffer)

    return lower


@dataclass(frozen=True)
class Cover:
    """The results whose windows may hold an element of one dim, and, by place in `span`, how far
    the element is from the start of the window; None where only the window itself says."""

    span: Span
    distance: Callable[[Index], Index] | None = None


def _covers(at: Index, result: Size, kernel: int, stride: int, padding: int) -> Cover:
    """For windows of one size, the last result first."""
    span = Span(floor_div(at + padding, stride), -(-kernel // stride), result, -1)
    rest = remainder(at + padding, stride)
    return Cover(span, lambda k: rest + k * stride)


def _adaptive_covers(at: Index, size: Size, parts: Size) -> Cover:
    if not isinstance(size, int) or not isinstance(parts, int):
        raise Declined
    if size % parts == 0:
        return _covers(at, parts, size // parts, size // parts, 0)
    first = [k * parts // size for k in range(size)]
    last = [((k + 1) * parts - 1) // size for k in range(size)]
    count = max(b - a + 1 for a, b in zip(first, last, strict=True))
    return Cover(Span(floor_div(at * parts, size), count, parts))


def _average_backward(rank: int, is_adaptive: bool) -> Lower:
    """Each element gathers from the few windows that hold it."""

    def lower(work: Work, node: fx.Node, grad: Value, x: Value, *args: Any) -> Value:
        meta = node.meta["val"]
        if word_of(meta.dtype) not in FLOATS or 0 in grad.shape or 0 in x.shape:
            raise Declined
        shape, results = x.shape[-rank:], grad.shape[-rank:]
        if is_adaptive:
            spans, extents = _adaptive_spans(rank, x, results), _lengths(work)
            covers: list[Callable[[Index], Cover]] = [
                partial(_adaptive_covers, size=size, parts=parts)
                for size, parts in zip(shape, results, strict=True)
            ]
        else:
            kernel, stride, padding, *_ = _average_arguments(rank, args)
            spans = _max_spans(rank, x, (kernel, stride, padding, 1))
            extents = _average_extents(work, rank, args)
            covers = [
                partial(_covers, result=size, kernel=count, stride=step, padding=before)
                for size, count, step, before in zip(results, kernel, stride, padding, strict=True)
            ]

        def make(index: Indices) -> Scalar:
            inner = index[-rank:]
            near = [cover(at) for cover, at in zip(covers, inner, strict=True)]
            if points([cover.span for cover in near]) > work.loops.window:
                raise Declined

            def item(k: Indices) -> Scalar:
                place = tuple(cover.span.at(one) for cover, one in zip(near, k, strict=True))
                windows = spans(place)
                tests = [t for c, one in zip(near, k, strict=True) for t in c.span.tests(work, one)]
                for cover, one, at, window in zip(near, k, inner, windows, strict=True):
                    tests += _holds(work, cover, one, at, window)
                element = (*index[:-rank], *place)
                return _share(work, grad, element, tests, extents(windows), is_adaptive)

            return fold_window(work, "sum", [cover.span for cover in near], item).value

        return work.pointwise(node, meta, make)

    return lower


def _share(
    work: Work,
    grad: Value,
    element: Indices,
    tests: Sequence[Scalar],
    sizes: Sequence[int | Scalar],
    one_by_one: bool,
) -> Scalar:
    """What each element of one window gets of its gradient; zero where a test does not hold."""
    dtype, mask = wide(grad.dtype), every(work, tests)
    zero, nothing = work.builder.const(0.0, grad.dtype), work.builder.const(0.0, dtype)
    guard = None if mask is None else (mask, zero)
    value = work.builder.cast(work.load(grad, element, guard), dtype)
    shared = _divided(work, value, sizes, one_by_one)
    if mask is None or all(isinstance(size, int) for size in sizes):
        return shared
    # a window that is not there may have no points at all
    return work.builder.make("where", (mask, shared, nothing), dtype)


def _holds(work: Work, cover: Cover, k: Index, at: Index, window: Span) -> list[Scalar]:
    """Whether the window of place `k` holds element `at`, less what always holds."""
    if cover.distance is not None:
        return Span(cover.distance(k), 1, window.count).tests(work, Index())
    stop = window.stop if window.stop is not None else window.start + window.count
    return [
        work.builder.make("ge", (position(work, at), position(work, window.start)), "bool"),
        work.builder.make("lt", (position(work, at), position(work, stop)), "bool"),
    ]


POOLS: Mapping[str, Lower] = {
    **{f"max_pool{n}d_with_indices": _max_pool(n, False) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": _max_pool(n, True) for n in (2, 3)},
    **{f"max_pool{n}d_with_indices_backward": _max_backward(n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d_backward": _max_backward(n) for n in (2, 3)},
    **{f"avg_pool{n}d": _average_pool(n, False) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d": _average_pool(n, True) for n in (2, 3)},
    **{f"avg_pool{n}d_backward": _average_backward(n, False) for n in (2, 3)},
    **{f"_adaptive_avg_pool{n}d_backward": _average_backward(n, True) for n in (2, 3)},
}
