"""How the points of one loop nest correspond to the points of another.

Takes two nests and pairs of indices that should name the same element; gives a `Relation`:
the axes of the joined nest, and where the axes of both nests go in them. A relation is always
given, even a wrong one; whether it may be used is for the fusion rules, which ask `rows`,
`columns`, `levels` and `positions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .domain import cut, digits, enumerates, fresh, invert, points
from .index import (
    ZERO,
    Axis,
    Index,
    Size,
    as_index,
    axes_of,
    flatten,
    row_major,
    substitute,
    unflatten,
)
from .loops import Buffer, Nest, Scalar, scalars

Element = tuple[Index, ...]


@dataclass(frozen=True)
class Seed:
    """The guest touches `mine` of a buffer of `shape` where the host touches `yours`."""

    mine: Element
    yours: Element
    shape: tuple[Size, ...]


@dataclass(frozen=True)
class Relation:
    """`guest` and `host` send the old axes of both nests into the joined ones.

    rows: every row of the guest is a row of the joined nest, once
    columns: every reduced point of the guest is a reduced point of the joined nest, once
    positions: arg-reductions and scans of the guest go through the same order as before
    """

    guest: Mapping[Axis, Index]
    host: Mapping[Axis, Index]
    axes: tuple[Axis, ...]
    raxes: tuple[Axis, ...]
    rows: bool
    columns: bool
    positions: bool

    @property
    def fits(self) -> bool:
        return self.rows and self.columns and self.positions


def relate(guest: Nest, host: Nest, seeds: Sequence[Seed]) -> Relation:
    """The relation that the seeds suggest, with the host's axes cut where that is needed."""
    places = _places(guest, seeds)
    plain = _complete(guest, host, places, {})
    if plain.fits:
        return plain
    taken = {axis.name for axis in (*guest.axes, *guest.raxes, *host.axes, *host.raxes)}
    host_axes = (*host.axes, *host.raxes)
    parts = cut(host_axes, places.values(), taken)
    if not parts:
        return plain
    moved = {axis: substitute(place, parts) for axis, place in places.items()}
    split = _complete(guest, host, moved, parts)
    return split if split.fits else plain


def whole_box(guest: Nest, host: Nest) -> Relation:
    """Row-major position to row-major position, for nests that share no element."""
    places: dict[Axis, Index] = {}
    rows = host.axes
    if not guest.raxes and points(guest.axes) != points(host.axes):
        rows = (*host.axes, *host.raxes)
    for mine, yours in ((guest.axes, rows), (guest.raxes, host.raxes)):
        places |= _aligned(mine, yours)
    return _complete(guest, host, places, {})


def counts_positions(nest: Nest) -> bool:
    """Whether a nest has arg-reductions or scans, whose result depends on the order of `raxes`."""
    return any(
        s.op == "scan" or (s.op == "reduce" and s.value in ("argmax", "argmin"))
        for s in scalars(nest)
    )


def seeds_between(
    mine: Mapping[str, Iterable[Element]],
    yours: Mapping[str, list[Scalar]],
    buffers: Mapping[str, Buffer],
) -> list[Seed]:
    """All pairs of touched elements of common buffers, those that say most first."""
    found = [
        Seed(element, load.index, buffers[name].shape)
        for name, elements in mine.items()
        for element in elements
        for load in yours.get(name, ())
    ]
    return sorted(found, key=lambda seed: -len(_axes(seed.mine)))


def _places(guest: Nest, seeds: Sequence[Seed]) -> dict[Axis, Index]:
    places: dict[Axis, Index] = {}
    axes = (*guest.axes, *guest.raxes)
    for seed in seeds:
        for axis, place in invert(seed.mine, seed.shape, axes).at(seed.yours).items():
            places.setdefault(axis, place)
    return places


def _complete(
    guest: Nest, host: Nest, places: Mapping[Axis, Index], parts: Mapping[Axis, Index]
) -> Relation:
    """Fill in what the seeds left open and find out what holds."""
    guest_places = {axis: places.get(axis, ZERO) for axis in guest.axes}
    axes, raxes = divided(host.axes, parts), divided(host.raxes, parts)
    if not guest.raxes:
        rows = _rows_of_pointwise(guest, guest_places, axes, raxes)
        return Relation(guest_places, parts, axes, raxes, rows, True, True)
    used = _axes(guest_places.values())
    columns = {axis: places[axis] for axis in guest.raxes if axis in places}
    open_columns = any(axis.size != 1 and axis not in columns for axis in guest.raxes)
    if not raxes:
        inner = set(axes) if open_columns else _axes(columns.values())
        free = inner - used
        raxes = tuple(axis for axis in axes if axis in free and axis.size != 1)
        axes = tuple(axis for axis in axes if axis not in raxes)
    retained = open_columns and not raxes
    if retained:
        taken = {axis.name for axis in axes}
        raxes = tuple(Axis(fresh(axis.name, taken), axis.size) for axis in guest.raxes)
    if open_columns:
        columns = _aligned(guest.raxes, raxes)
    guest_places |= {axis: columns.get(axis, ZERO) for axis in guest.raxes}
    return Relation(
        guest_places,
        parts,
        axes,
        raxes,
        rows=_covers(guest.axes, guest_places, axes),
        columns=_covers(guest.raxes, guest_places, raxes),
        positions=_same_order(guest, guest_places, raxes),
    )


def _rows_of_pointwise(
    guest: Nest,
    places: Mapping[Axis, Index],
    axes: tuple[Axis, ...],
    raxes: tuple[Axis, ...],
) -> bool:
    return _covers(guest.axes, places, axes) or _covers(guest.axes, places, (*axes, *raxes))


def _covers(mine: tuple[Axis, ...], places: Mapping[Axis, Index], box: tuple[Axis, ...]) -> bool:
    """Whether the points of `box` visit each point of `mine` once."""
    found = enumerates([places[axis] for axis in mine], tuple(axis.size for axis in mine))
    return found is not None and found == {axis for axis in box if axis.size != 1}


def _same_order(guest: Nest, places: Mapping[Axis, Index], raxes: tuple[Axis, ...]) -> bool:
    """Whether the row-major position in the reduced box stays the same number."""
    if not counts_positions(guest):
        return True
    before = flatten(
        tuple(places[axis] for axis in guest.raxes),
        row_major(tuple(axis.size for axis in guest.raxes)),
    )
    after = flatten(tuple(map(as_index, raxes)), row_major(tuple(axis.size for axis in raxes)))
    return before == after


def _aligned(mine: tuple[Axis, ...], box: tuple[Axis, ...]) -> dict[Axis, Index]:
    """`mine` where row-major positions in both boxes are equal."""
    if [axis.size for axis in mine] == [axis.size for axis in box]:
        return {axis: as_index(other) for axis, other in zip(mine, box, strict=True)}
    position = flatten(tuple(map(as_index, box)), row_major(tuple(axis.size for axis in box)))
    parts = unflatten(position, tuple(axis.size for axis in mine))
    return dict(zip(mine, parts, strict=True))


def divided(axes: tuple[Axis, ...], parts: Mapping[Axis, Index]) -> tuple[Axis, ...]:
    """Axes with each cut one replaced by its pieces, slowest first."""
    found: list[Axis] = []
    for axis in axes:
        pieces = parts.get(axis)
        found += [axis] if pieces is None else [piece for piece, _ in digits(pieces) or ()]
    return tuple(found)


def _axes(values: Iterable[Index]) -> set[Axis]:
    return {axis for value in values for axis in axes_of(value)}
