"""How the loads and stores of a nest move along its axes.

Takes a `Kernel`; gives `Access` records.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lowering.index import Axis, Index, Size
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
