"""Stretches of loop axes on which comparisons of positions have one outcome.

Takes a `Kernel` and its `LoopPlan`; gives `Regions`. The border of a padded window or of a part
of a concatenation is a comparison of a position with a number. Where such comparisons are
settled, loads need no mask and the loop over the inside vectorises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..lowering.index import Axis, Index
from ..lowering.loops import Scalar, operands
from .cpp_kernel import Kernel
from .cpp_plan import LoopPlan

_SIGNS = {"ge": (1, 0), "gt": (1, -1), "lt": (-1, -1), "le": (-1, 0)}


@dataclass(frozen=True)
class Turn:
    """A comparison that is `before` for positions below `at` on `axis`, and not from there on."""

    axis: Axis
    at: int
    before: bool


@dataclass(frozen=True)
class Stretch:
    low: int
    high: int


@dataclass(frozen=True)
class Regions:
    """What each outer axis, and the innermost loop, is divided into."""

    turns: dict[int, Turn]
    outer: tuple[tuple[Axis, tuple[Stretch, ...]], ...]
    inner: tuple[Stretch, ...]

    def outcomes(self, axis: Axis, stretch: Stretch) -> dict[int, bool]:
        """The comparisons that a stretch settles, by id."""
        found = {}
        for key, turn in self.turns.items():
            if turn.axis != axis:
                continue
            if stretch.high <= turn.at:
                found[key] = turn.before
            elif stretch.low >= turn.at:
                found[key] = not turn.before
        return found


def plan_regions(kernel: Kernel, plan: LoopPlan) -> Regions | None:
    """The regions of a pointwise nest; None where its comparisons leave nothing to settle."""
    if plan.shape != "point" or plan.tile is not None or len(plan.inner) != 1:
        return None
    turns = {
        id(scalar): turn
        for scalar in kernel.analysis.order
        if (turn := turn_of(scalar)) is not None
    }
    loops = kernel.loops
    room = loops.region_scalars // max(len(kernel.analysis.order), 1)
    axis = plan.inner[0].axis
    inner: tuple[Stretch, ...] = ()
    if axis is not None and isinstance(axis.size, int):
        inner = _around(_stretches(axis, turns.values()), loops.region_points)
        if len(inner) > room:
            return None
    outer: list[tuple[Axis, tuple[Stretch, ...]]] = []
    copies = max(len(inner), 1)
    for loop in plan.outer:
        pieces = _stretches(loop.axis, turns.values()) if loop.axis is not None else []
        if len(pieces) > 1 and len(pieces) <= loops.region_pieces and copies * len(pieces) <= room:
            assert loop.axis is not None
            outer.append((loop.axis, tuple(pieces)))
            copies *= len(pieces)
    return Regions(turns, tuple(outer), inner) if outer or len(inner) > 1 else None


def turn_of(scalar: Scalar) -> Turn | None:
    """Where a comparison of two positions turns, if they differ by one axis and a number."""
    if scalar.op not in _SIGNS:
        return None
    sides = [_position(arg) for arg in scalar.args]
    if sides[0] is None or sides[1] is None:
        return None
    gap = sides[0] - sides[1]
    if len(gap.terms) != 1:
        return None
    (axis, step), const = gap.terms[0], gap.const
    if not isinstance(axis, Axis) or not isinstance(axis.size, int):
        return None
    if not isinstance(step, int) or not isinstance(const, int):
        return None
    sign, shift = _SIGNS[scalar.op]
    step, const = step * sign, const * sign + shift  # true where step * axis + const >= 0
    if step > 0:
        return Turn(axis, -(const // step), False)
    return Turn(axis, const // -step + 1, True)


def _position(scalar: Scalar) -> Index | None:
    if scalar.op == "index":
        return scalar.index[0]
    if scalar.op == "const" and scalar.dtype == "i64":
        return Index((), int(scalar.value))
    return None


def _stretches(axis: Axis, turns: Iterable[Turn]) -> list[Stretch]:
    size = axis.size
    if not isinstance(size, int):
        return []
    cuts = sorted({turn.at for turn in turns if turn.axis == axis and 0 < turn.at < size})
    return [Stretch(low, high) for low, high in zip([0, *cuts], [*cuts, size], strict=True)]


def _around(pieces: list[Stretch], shortest: int) -> tuple[Stretch, ...]:
    """The longest stretch, and what is before and behind it."""
    if len(pieces) < 2:
        return ()
    main = max(pieces, key=lambda piece: piece.high - piece.low)
    if main.high - main.low < shortest:
        return ()
    sides = (Stretch(0, main.low), main, Stretch(main.high, pieces[-1].high))
    return tuple(piece for piece in sides if piece.low < piece.high)


def dependents(kernel: Kernel, settled: Iterable[int]) -> list[Scalar]:
    """What is computed from settled comparisons, operands first."""
    known = set(settled)
    found = []
    for scalar in kernel.analysis.order:
        if id(scalar) not in known and any(id(part) in known for part in operands(scalar)):
            known.add(id(scalar))
            found.append(scalar)
    return found
