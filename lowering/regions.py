"""Which elements of a buffer an access touches.

Takes the logical index of a load or store and the axes of its nest; gives a `Box`, whether
points collide, and what a set of boxes leaves out. Sizes that are symbols are compared where
that is certain, and nothing is claimed where it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from .collisions import own_places
from .domain import digits, enumerates, invert, points
from .index import Axis, Gathered, Index, Quotient, Remainder, Size, atoms, axes_of, bounds
from .ranges import at_most

# Points up to which an index that no rule of arithmetic covers is tried out.
TRIED_POINTS = 1 << 18


@dataclass(frozen=True)
class Box:
    """Elements low[d] <= index[d] < high[d] per dim d."""

    low: tuple[Size, ...]
    high: tuple[Size, ...]

    @property
    def static(self) -> bool:
        return all(isinstance(size, int) for size in (*self.low, *self.high))

    def meets(self, other: Box) -> bool:
        """Whether the two surely share an element."""
        sides = zip(self.low, self.high, other.low, other.high, strict=True)
        return all(_below(a, d) and _below(c, b) for a, b, c, d in sides)


def whole_box(shape: Sequence[Size]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def filled_box(index: tuple[Index, ...], shape: tuple[Size, ...]) -> Box | None:
    """The box that the points of a nest fill without a gap; None where that is not known."""
    if enumerates(index, shape) is not None:
        return whole_box(shape)
    low: list[Size] = []
    high: list[Size] = []
    used: set[Axis] = set()
    for part in index:
        found = digits(Index(part.terms)) if part.terms else ()
        if found is None or used & {axis for axis, _ in found}:
            return None
        used |= {axis for axis, _ in found}
        low.append(part.const)
        high.append(part.const + points(axis for axis, _ in found))
    return Box(tuple(low), tuple(high))


def reached_box(index: tuple[Index, ...]) -> Box:
    """A box around all elements that an index names."""
    ends = [bounds(part) for part in index]
    return Box(tuple(low for low, _ in ends), tuple(high + 1 for _, high in ends))


def leaves_out(wanted: Box, filled: Iterable[Box]) -> Box | None:
    """A part of `wanted` outside all of `filled`, None where there is none or it is unknown."""
    if any(not _below(a, b) for a, b in zip(wanted.low, wanted.high, strict=True)):
        return None  # nothing is wanted, as far as one can tell
    left = [wanted]
    for box in filled:
        if not box.static or not wanted.static:
            return None
        left = [part for piece in left for part in _without(piece, box)]
    return left[0] if left and left[0].static else None


def _without(piece: Box, box: Box) -> list[Box]:
    """`piece` less `box`, as boxes; all sizes are plain."""
    if not piece.meets(box):
        return [piece]
    parts: list[Box] = []
    low, high = list(piece.low), list(piece.high)
    for dim, (first, last) in enumerate(zip(box.low, box.high, strict=True)):
        if low[dim] < first:
            parts.append(Box(tuple(low), (*high[:dim], first, *high[dim + 1 :])))
            low[dim] = first
        if last < high[dim]:
            parts.append(Box((*low[:dim], last, *low[dim + 1 :]), tuple(high)))
            high[dim] = last
    return parts


def outside(part: Index, size: Size) -> bool:
    """Whether an index of a dim goes beyond it, for certain."""
    low, high = bounds(part)
    if not (at_most(low, -1) or at_most(size, high)):
        return False
    axes = sorted(axes_of(part), key=lambda axis: axis.name)
    if len(axes) == len(part.terms) == len(list(atoms(part))):
        return True  # then every value between the bounds is reached
    seen = tried((part,), axes)  # None: the bounds may be too wide
    return seen is not None and bool(((seen < 0) | (seen >= size)).any())


def beyond(part: Index, size: Size) -> bool:
    """Whether every value of an index lies outside its dim, for certain."""
    low, high = bounds(part)
    return at_most(high, -1) or at_most(size, low)


def collides(index: tuple[Index, ...], shape: tuple[Size, ...], axes: Sequence[Axis]) -> bool:
    """Whether two points of `axes` surely write one element; values read from memory may
    collide as they like, the store's mode says what that means."""
    axes = tuple(axis for axis in axes if axis.size != 1)
    if any(isinstance(atom, Gathered) for part in index for atom in atoms(part)):
        return False
    if set(axes) - {axis for part in index for axis in axes_of(part)}:
        return all(_below(0, axis.size) for axis in axes)
    if own_places(index, shape).issuperset(axes):
        return False
    inverse = invert(index, shape, axes)
    if all(axis in inverse.sources for axis in axes) or enumerates(index, shape) is not None:
        return False
    seen = tried(index, axes)
    return seen is not None and len(torch.unique(seen, dim=0)) != len(seen)


def tried(index: tuple[Index, ...], axes: Sequence[Axis]) -> torch.Tensor | None:
    """The elements that all points of `axes` name, one row each; None for too many points,
    symbols, or values read from memory."""
    total = points(axes)
    if not isinstance(total, int) or total > TRIED_POINTS or not index:
        return None
    if any(isinstance(atom, Gathered) for part in index for atom in atoms(part)):
        return None
    grid = dict(
        zip(axes, torch.meshgrid(*(torch.arange(a.size) for a in axes), indexing="ij"), strict=True)
        if axes
        else ()
    )
    columns = [_values(part, grid).expand([axis.size for axis in axes]) for part in index]
    return torch.stack([column.reshape(-1) for column in columns], 1)


def _values(part: Index, grid: dict[Axis, torch.Tensor]) -> torch.Tensor:
    total = torch.tensor(part.const)
    for atom, size in part.terms:
        match atom:
            case Axis():
                value = grid[atom]
            case Quotient():
                value = _values(atom.value, grid) // atom.divisor
            case Remainder():
                value = _values(atom.value, grid) % atom.divisor
            case Gathered():
                raise ValueError("a value read from memory")
        total = total + value * size
    return total


def _below(low: Size, high: Size) -> bool:
    return at_most(low, high - 1)
