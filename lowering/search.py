"""Places in sorted rows: searchsorted and bucketize.

Takes the row and what is sought in it; gives a fresh buffer of places. Each element does the
steps of one binary search, as many as the longest way through the row has. They are eager's own,
so that rows with nan, and those that are not sorted, give what eager gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from .index import Gathered, Index
from .loops import Scalar
from .promotion import FLOATS, INTS, opmath, promoted
from .values import Indices, Value
from .views import Lower
from .work import Declined, Work


def searchsorted(
    work: Work,
    node: fx.Node,
    rows: Value,
    sought: Value,
    out_int32: Any = False,
    right: Any = False,
    side: Any = None,
    sorter: Any = None,
) -> Value:
    """How many elements in front are smaller, or with `right` not greater: int[sought]. A row
    along the last dim for each row of `sought`, or one for all."""
    del out_int32  # the result says so
    if sorter is not None:
        raise Declined
    after = bool(right) if side is None else side == "right"
    length, rank = rows.shape[-1], len(rows.shape)
    dtype = promoted([(value.dtype, len(value.shape)) for value in (rows, sought)])
    if not isinstance(length, int) or length == 0 or dtype not in (*FLOATS, *INTS):
        raise Declined

    def make(at: Indices) -> Scalar:
        cast, wide = work.builder.cast, opmath(dtype)
        value = cast(cast(work.load(sought, at), dtype), wide)
        search = _Search(work, rows, at[:-1] if rank > 1 else (), length)
        return search.place(value, lambda element: cast(cast(element, dtype), wide), after)

    places = work.pointwise(node, node.meta["val"], make)
    work.ranges[places.buffer.name] = (0, length)  # so that nobody asks before reading there
    return places


class _Search:
    """A binary search in one row: `start` elements lie in front, `count` are still in question."""

    def __init__(self, work: Work, rows: Value, row: Indices, length: int) -> None:
        self._work, self._rows, self._row, self._length = work, rows, row, length

    def place(self, value: Scalar, read: Any, after: bool) -> Scalar:
        make = self._work.builder.make
        zero, one = self._number(0), self._number(1)
        start, count, least = zero, self._number(self._length), self._length
        for _ in range(self._length.bit_length()):
            half = make("shift_right", (count, one), "i64")
            middle = make("add", (start, half), "i64")
            some = make("gt", (count, zero), "bool") if least <= 0 else None
            element = read(self._element(middle, some))
            behind = make("gt" if after else "ge", (element, value), "bool")
            go = make("logical_not", (behind,), "bool")
            if some is not None:
                go = make("logical_and", (some, go), "bool")
            beyond = make("add", (middle, one), "i64")
            rest = make("sub", (make("sub", (count, half), "i64"), one), "i64")
            start = make("where", (go, beyond, start), "i64")
            count = make("where", (go, rest, half), "i64")
            least -= (least >> 1) + 1
        return start

    def _element(self, place: Scalar, wanted: Scalar | None) -> Scalar:
        if wanted is not None:  # with nothing left the place may be the one past the end
            last = self._number(self._length - 1)
            place = self._work.builder.make("minimum", (place, last), "i64")
        index = (*self._row, Index(((Gathered(place, self._length), 1),)))
        if wanted is None:
            return self._work.load(self._rows, index)
        other = 0.0 if self._rows.dtype in FLOATS else 0
        nothing = self._work.builder.const(other, self._rows.dtype)
        return self._work.load(self._rows, index, (wanted, nothing))

    def _number(self, value: int) -> Scalar:
        return self._work.builder.const(value, "i64")


def bucketize(
    work: Work,
    node: fx.Node,
    sought: Value,
    boundaries: Value,
    out_int32: Any = False,
    right: Any = False,
) -> Value:
    return searchsorted(work, node, boundaries, sought, out_int32, right)


SEARCH: Mapping[str, Lower] = {"searchsorted": searchsorted, "bucketize": bucketize}
