"""Loop nests that each fill one region of a buffer, as `cat` and `stack` make them.

Takes two nests; finds whether their regions touch along one dim or lie apart, and makes the one
nest that fills both by choosing per point. Each part's loads happen only in its own region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .domain import digits, invert, points, product
from .index import ZERO, Axis, Index, Size, as_index
from .loops import Buffer, Builder, Nest, Scalar, Store
from .masking import Masked
from .ranges import at_most
from .rewrite import Rewriter


@dataclass(frozen=True)
class Region:
    """The box of elements with low[d] <= element[d] < low[d] + size[d]."""

    low: tuple[Size, ...]
    size: tuple[Size, ...]


def region(nest: Nest) -> Region | None:
    """The box that a pointwise nest fills with its only store, each element once."""
    if nest.raxes or len(nest.stores) != 1 or nest.stores[0].mode != "set":
        return None
    found = [digits(Index(part.terms)) for part in nest.stores[0].index]
    used: list[Axis] = []
    for chain in found:
        if chain is None:
            return None
        used += [axis for axis, _ in chain]
    if len(used) != len(set(used)) or product(a.size for a in used) != points(nest.axes):
        return None
    return Region(
        tuple(part.const for part in nest.stores[0].index),
        tuple(points(axis for axis, _ in chain or ()) for chain in found),
    )


def seam(first: Nest, second: Nest) -> int | None:
    """The dim along which the region of `second` begins where that of `first` ends."""
    if first.stores[0].buffer != second.stores[0].buffer:
        return None
    one, two = region(first), region(second)
    if one is None or two is None:
        return None
    other = [
        dim
        for dim in range(len(one.low))
        if (one.low[dim], one.size[dim]) != (two.low[dim], two.size[dim])
    ]
    if len(other) != 1:
        return None
    (dim,) = other
    end = (as_index(one.low[dim]) + one.size[dim]).const
    return dim if end == two.low[dim] else None


def write_apart(first: Nest, second: Nest) -> bool:
    """Whether it is known that no element is written by both."""
    return all(
        _apart(_box(one), _box(other))
        for one in first.stores
        for other in second.stores
        if one.buffer == other.buffer
    )


def _box(store: Store) -> Region | None:
    """A box that holds every element that a store writes."""
    found = [digits(Index(part.terms)) for part in store.index]
    if store.mode != "set" or any(chain is None for chain in found):
        return None
    return Region(
        tuple(part.const for part in store.index),
        tuple(points(axis for axis, _ in chain or ()) for chain in found),
    )


def _apart(one: Region | None, other: Region | None) -> bool:
    if one is None or other is None:
        return False
    return any(
        _ends_before(one, other, dim) or _ends_before(other, one, dim)
        for dim in range(len(one.low))
    )


def _ends_before(one: Region, other: Region, dim: int) -> bool:
    end = (as_index(one.low[dim]) + one.size[dim]).const
    return at_most(end, other.low[dim])


def side_by_side(
    first: Nest, second: Nest, buffers: Mapping[str, Buffer], builder: Builder
) -> tuple[tuple[Axis, ...], Store]:
    """Axes and store of the nest that fills both regions; `seam` says that there is one."""
    dim, one, two = seam(first, second), region(first), region(second)
    assert dim is not None and one is not None and two is not None
    sizes = list(one.size)
    sizes[dim] = (as_index(one.size[dim]) + two.size[dim]).const
    axes = tuple(Axis(f"i{place}", size) for place, size in enumerate(sizes))
    element = tuple(as_index(axis) + low for axis, low in zip(axes, one.low, strict=True))
    buffer = buffers[first.stores[0].buffer]
    place = builder.make("index", (), "i64", index=(element[dim],))
    mask = builder.make("lt", (place, _number(two.low[dim], builder)), "bool")
    values = [
        _value(nest, element, buffer, guard, builder)
        for nest, guard in (
            (first, mask),
            (second, builder.make("logical_not", (mask,), "bool")),
        )
    ]
    chosen = builder.make("where", (mask, *values), buffer.dtype)
    return axes, Store(buffer.name, element, chosen)


def _value(
    nest: Nest, element: tuple[Index, ...], buffer: Buffer, mask: Scalar, builder: Builder
) -> Scalar:
    store = nest.stores[0]
    places = dict.fromkeys(nest.axes, ZERO)
    places |= invert(store.index, buffer.shape, nest.axes).at(element)
    value = Rewriter(builder, places, Masked(builder, mask)).scalar(store.value)
    return builder.cast(value, buffer.dtype)


def _number(size: Size, builder: Builder) -> Scalar:
    if isinstance(size, int):
        return builder.const(size, "i64")
    return builder.make("index", (), "i64", index=(as_index(size),))
