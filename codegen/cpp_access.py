"""How the loads and stores of a nest move along its axes.

Takes a `Kernel`; gives `Access` records and, for nests whose points may write to one place,
the axes that are safe to share out among threads and lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lowering.index import Axis, Index, Size, axes_of
from ..lowering.loops import Store, gathered
from .cpp_index import step_along
from .cpp_kernel import Kernel


@dataclass(frozen=True)
class Access:
    """One load or store at element `position` of a buffer."""

    position: Index
    is_store: bool

    def step(self, axis: Axis) -> Size:
        """Elements between neighbours along `axis`; 0 where it stays."""
        return step_along(self.position, axis)


def accesses(kernel: Kernel) -> list[Access]:
    """Every load, then every store."""
    found = [
        Access(kernel.position(scalar.buffer or "", scalar.index), False)
        for scalar in kernel.analysis.order
        if scalar.op == "load"
    ]
    found += [Access(kernel.position(s.buffer, s.index), True) for s in kernel.nest.stores]
    return found


def private_axes(kernel: Kernel) -> frozenset[Axis] | None:
    """None where no two points write to one place; else the axes of which every value has
    places of its own."""
    colliding = [store for store in kernel.nest.stores if _may_collide(store)]
    if not colliding:
        return None
    every = frozenset((*kernel.nest.axes, *kernel.nest.raxes))
    return every.intersection(*(_own_places(store) for store in colliding))


def _may_collide(store: Store) -> bool:
    return store.mode == "add" or bool(gathered(store.index))


def _own_places(store: Store) -> frozenset[Axis]:
    """Axes that alone make up one dim of the index."""
    return frozenset(
        part.terms[0][0]
        for part in store.index
        if len(part.terms) == 1 and isinstance(part.terms[0][0], Axis) and axes_of(part)
    )
