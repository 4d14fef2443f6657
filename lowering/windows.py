"""Windows that slide over dims: where each one lies, and what is folded within it.

Takes sizes and canonical arguments of pools; gives one `Span` per dim. A fold over few points is
written out, point by point, so that the loop over the results is the innermost one and
vectorises; one over many is a reduction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .index import Axis, Index, Size, as_index, bounds, floor_div
from .loops import Scalar
from .ranges import at_most
from .values import Indices
from .work import Declined, Work, number


@dataclass(frozen=True)
class Span:
    """The window of one dim at one result: points `start + step * k` for k in 0 .. count - 1, of
    which those within 0 .. size - 1, and below `stop` where that is given, are there."""

    start: Index
    count: int
    size: Size
    step: int = 1
    stop: Index | None = None

    def at(self, k: Index) -> Index:
        return self.start + k * self.step

    def tests(self, work: Work, k: Index) -> list[Scalar]:
        """What must hold for point `k` to be there, less what always does."""
        at = self.at(k)
        low, high = bounds(at)
        tests = []
        if not at_most(0, low):
            tests.append(work.builder.make("ge", (position(work, at), integer(work, 0)), "bool"))
        ends = [as_index(self.size)] if self.stop is None else [self.stop]
        for end in ends:
            if end.terms or not at_most(high, end.const - 1):
                operands = (position(work, at), position(work, end))
                tests.append(work.builder.make("lt", operands, "bool"))
        return tests


def position(work: Work, index: Index) -> Scalar:
    """An index as an i64 value."""
    if not index.terms and isinstance(index.const, int):
        return integer(work, index.const)
    return work.builder.make("index", (), "i64", index=(index,))


def integer(work: Work, value: int) -> Scalar:
    return work.builder.const(value, "i64")


def numbers(value: Any, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """One static number per dim, from a list of as many, of one, or of none."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    listed = [number(item) for item in listed] or list(default)
    if len(listed) == 1:
        listed *= rank
    if len(listed) != rank:
        raise Declined
    return tuple(listed)


def sliding(
    index: Indices,
    shape: Sequence[Size],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Span]:
    """The windows of a pool at the result `index`, which has one entry per dim."""
    return [
        Span(at * step - before, count, size, apart)
        for at, size, count, step, before, apart in zip(
            index, shape, kernel, stride, padding, dilation, strict=True
        )
    ]


def adaptive(index: Indices, shape: Sequence[Size], result: Sequence[Size]) -> list[Span]:
    """The windows that share out `shape` among `result` places per dim."""
    spans = []
    for at, size, parts in zip(index, shape, result, strict=True):
        if not isinstance(size, int) or not isinstance(parts, int):
            raise Declined
        starts = [k * size // parts for k in range(parts)]
        stops = [-(-(k + 1) * size // parts) for k in range(parts)]
        count = max((stop - start for start, stop in zip(starts, stops, strict=True)), default=1)
        if size % parts == 0:
            spans.append(Span(at * (size // parts), count, size))
        else:
            stop = floor_div((at + 1) * size + (parts - 1), parts)
            spans.append(Span(floor_div(at * size, parts), count, size, 1, stop))
    return spans


def points(spans: Sequence[Span]) -> int:
    total = 1
    for span in spans:
        total *= span.count
    return total


def offsets(spans: Sequence[Span]) -> list[tuple[int, ...]]:
    """The points of a window in row-major order."""
    return list(itertools.product(*(range(span.count) for span in spans)))


def window_axes(spans: Sequence[Span]) -> tuple[Axis, ...]:
    """Reduced axes that walk a window."""
    return tuple(Axis(f"w{k}", span.count) for k, span in enumerate(spans))


def every(work: Work, tests: Sequence[Scalar]) -> Scalar | None:
    """Whether all tests hold; None where there is none."""
    found: Scalar | None = None
    for test in tests:
        found = test if found is None else work.builder.make("logical_and", (found, test), "bool")
    return found


@dataclass(frozen=True)
class Fold:
    """A fold over a window: its value, and the axes of the reduction that it is, if any."""

    value: Scalar
    raxes: tuple[Axis, ...]


def fold_window(
    work: Work, kind: str, spans: Sequence[Span], value: Callable[[Indices], Scalar]
) -> Fold:
    """The sum or max of `value(k)` over the points of a window; `value` gives the identity at
    points that are not there."""
    if points(spans) > work.loops.window:
        raxes = tuple(axis for axis in window_axes(spans) if axis.size != 1)
        item = value(tuple(as_index(axis) for axis in window_axes(spans)))
        return Fold(work.builder.make("reduce", (item,), item.dtype, value=kind), raxes)
    op = {"sum": "add", "max": "maximum"}[kind]
    items = [value(tuple(as_index(k) for k in place)) for place in offsets(spans)]
    # as eager: sums start from 0, so that those of -0.0 are 0.0, and a later equal value does
    # not replace an earlier maximum
    total = work.builder.const(0.0, items[0].dtype) if kind == "sum" else items.pop(0)
    for item in items:
        total = work.builder.make(op, (item, total), item.dtype)
    return Fold(total, ())
