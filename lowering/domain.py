"""What one needs to know about boxes of axes to compare two loop nests.

Takes axes, sizes and indices; gives point counts, inverses of store indices, and whether an
index runs through a whole box exactly once. Boxes are compared as flattened row-major
positions, so that a view or reshape between two nests does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sympy

from .index import (
    ZERO,
    Axis,
    Index,
    Quotient,
    Remainder,
    Size,
    as_index,
    atoms,
    flatten,
    floor_div,
    remainder,
    row_major,
    unflatten,
)

# What an unknown size counts as where a number is needed to estimate work.
USUAL_SIZE = 64


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes, in the same normal form that indices use."""
    total: Size = 1
    for size in sizes:
        if isinstance(total, int) and isinstance(size, int):
            total *= size
        else:
            total = (as_index(total) * size).const
    return total


def points(axes: Iterable[Axis]) -> Size:
    """How many points a box of axes has."""
    return product(axis.size for axis in axes)


def estimate(size: Size) -> int:
    """A plain number for a size; symbols count as `USUAL_SIZE`."""
    if isinstance(size, int):
        return size
    return int(size.subs(dict.fromkeys(size.free_symbols, USUAL_SIZE)))


def ratio(size: Size, divisor: Size) -> Size | None:
    """size / divisor where that is a whole number for all values of the symbols."""
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor and size % divisor == 0 else None
    quotient = sympy.cancel(sympy.sympify(size) / divisor)
    if sympy.denom(quotient) != 1:
        return None
    return int(quotient) if isinstance(quotient, sympy.Integer) else quotient


def bare(value: Index) -> Axis | None:
    """The axis that an index is, where it is nothing more."""
    if len(value.terms) != 1 or value.const != 0:
        return None
    atom, weight = value.terms[0]
    return atom if weight == 1 and isinstance(atom, Axis) else None


def digits(value: Index) -> tuple[tuple[Axis, Size], ...] | None:
    """The axes of a mixed-radix number with their weights, slowest first.

    None where `value` is anything else: then two points may have the same value, or some
    value in between belongs to no point.
    """
    axis = bare(value)
    if axis is not None:
        return ((axis, 1),)
    weights = dict(value.terms)
    if value.const != 0 or not all(isinstance(atom, Axis) for atom in weights):
        return None
    found: list[tuple[Axis, Size]] = []
    need: Size = 1
    while weights:
        digit = next((atom for atom, weight in weights.items() if weight == need), None)
        if not isinstance(digit, Axis):
            return None
        found.append((digit, weights.pop(digit)))
        need = product((need, digit.size))
    return tuple(reversed(found))


def enumerates(parts: Iterable[Index], sizes: tuple[Size, ...]) -> frozenset[Axis] | None:
    """The axes whose points run through the box `sizes` exactly once, or None.

    `parts` has one index per dim of the box.
    """
    parts = tuple(parts)
    plain = {bare(part): size for part, size in zip(parts, sizes, strict=True) if size != 1}
    if len(plain) == sum(size != 1 for size in sizes) and all(
        axis is not None and axis.size == size for axis, size in plain.items()
    ):
        return frozenset(axis for axis in plain if axis is not None)
    position = flatten(parts, row_major(sizes))
    found = digits(position)
    # A part beyond its own size can still make a sum that looks right.
    if found is None or unflatten(position, sizes) != parts:
        return None
    axes = [axis for axis, _ in found]
    return frozenset(axes) if points(axes) == product(sizes) else None


@dataclass(frozen=True)
class Inverse:
    """Which point of a nest writes an element: per axis the dim of the buffer, what is added
    there, the weight of the axis within the dim, and whether slower axes share the dim.

    `whole` says that every element is written by exactly one point.
    """

    sources: Mapping[Axis, tuple[int, Size, Size, bool]]
    whole: bool

    def at(self, element: tuple[Index, ...]) -> dict[Axis, Index]:
        """Where each axis stands for a logical index of the buffer."""
        places: dict[Axis, Index] = {}
        for axis, (dim, offset, weight, wraps) in self.sources.items():
            value = floor_div(element[dim] - offset, weight)
            places[axis] = remainder(value, axis.size) if wraps else value
        return places


def invert(written: tuple[Index, ...], shape: tuple[Size, ...], axes: tuple[Axis, ...]) -> Inverse:
    """The inverse of a logical index that is written (or read) at each point of `axes`.

    Axes that cannot be told from the element stand at 0 and the inverse is not whole.
    """
    sources: dict[Axis, tuple[int, Size, Size, bool]] = {}
    whole = True
    for dim, part in enumerate(written):
        plain = Index(part.terms)
        found = digits(plain)
        if found is None:
            whole = False
            continue
        covered = points(axis for axis, _ in found) == shape[dim]
        repeated = any(axis in sources for axis, _ in found)
        whole = whole and covered and part.const == 0 and not repeated
        for place, (axis, weight) in enumerate(found):
            sources.setdefault(axis, (dim, part.const, weight, place > 0))
    whole = whole and all(axis in sources or axis.size == 1 for axis in axes)
    return Inverse(sources, whole)


def cut(axes: tuple[Axis, ...], values: Iterable[Index], taken: set[str]) -> dict[Axis, Index]:
    """Axes to split into digits so that quotients and remainders of them in `values` go away.

    Gives the new form of each such axis, in fresh axes whose names are added to `taken`.
    """
    places: dict[Axis, Index] = {}
    bounds: dict[Axis, list[Size]] = {}
    for value in values:
        for atom in atoms(value):
            for axis, divisor in cuts_of(atom):
                known = bounds.setdefault(axis, [])
                if divisor not in known:
                    known.append(divisor)
    for axis in axes:
        steps = _ladder(bounds.get(axis, []), axis.size)
        if steps:
            places[axis] = _split(axis, steps, taken)
    return places


def cuts_of(atom: object) -> tuple[tuple[Axis, Size], ...]:
    """The places at which a quotient or remainder cuts a single axis in two."""
    if not isinstance(atom, Quotient | Remainder):
        return ()
    value, scale = atom.value, 1
    inner = value.terms[0][0] if len(value.terms) == 1 and value.const == 0 else None
    if inner is None or value.terms[0][1] != 1:
        return ()
    if isinstance(inner, Axis):
        return ((inner, atom.divisor),)
    found = cuts_of(inner)
    if isinstance(inner, Quotient) and len(found) == 1:
        axis, scale = found[0]
        return (*found, (axis, product((scale, atom.divisor))))
    return found


def _ladder(bounds: list[Size], size: Size) -> list[Size]:
    """`bounds` from small to large where each divides the next and the last divides `size`."""
    left = [bound for bound in bounds if bound not in (1, size)]
    steps: list[Size] = []
    while left:
        low = next((b for b in left if all(ratio(other, b) is not None for other in left)), None)
        if low is None or ratio(size, low) is None:
            return []
        left.remove(low)
        steps.append(low)
    return steps


def _split(axis: Axis, steps: list[Size], taken: set[str]) -> Index:
    total, low = ZERO, 1
    lows: list[Size] = [1, *steps]
    highs: list[Size] = [*steps, axis.size]
    for number, (low, high) in enumerate(zip(lows, highs, strict=True)):
        part = ratio(high, low)
        assert part is not None  # by `_ladder`
        name = fresh(f"{axis.name}_{len(lows) - number}", taken)
        total = total + as_index(Axis(name, part)) * low
    return total


def fresh(name: str, taken: set[str]) -> str:
    """`name`, or a variation that is not in `taken`; adds it there."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found
