"""Writes the loops of a pointwise nest once per region, with what is settled there as constants.

Takes a `Pass` and the `Regions` that its loops are divided into; writes `if` chains around the
innermost loop and one such loop per stretch of its axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from .cpp_kernel import Kernel
from .cpp_passes import Pass
from .cpp_plan import Loop, LoopPlan
from .cpp_regions import Regions, dependents


class RegionWriter(ABC):
    """The part of a writer that repeats a pass for each region."""

    def __init__(self, kernel: Kernel, plan: LoopPlan) -> None:
        self.kernel = kernel
        self.plan = plan

    @abstractmethod
    def write_pass(self, step: Pass) -> None:
        """The loops of `plan.inner` around what the pass computes."""

    def write_regions(self, step: Pass, regions: Regions, depth: int = 0) -> None:
        """The pass once per region of the outer axes from `depth` on."""
        if depth == len(regions.outer):
            self._write_stretches(step, regions)
            return
        axis, stretches = regions.outer[depth]
        for place, stretch in enumerate(stretches):
            test = f"if ({self.kernel.axes[axis]} < {stretch.high})"
            words = ["else"] * (place > 0) + [test] * (place < len(stretches) - 1)
            with self.kernel.block(" ".join(words)):
                self._settle(regions.outcomes(axis, stretch))
                self.write_regions(step, regions, depth + 1)

    def _write_stretches(self, step: Pass, regions: Regions) -> None:
        """The innermost loop, once per stretch of its axis."""
        if not regions.inner:
            self.write_pass(step)
            return
        plan, loop = self.plan, self.plan.inner[0]
        assert loop.axis is not None
        for stretch in regions.inner:
            low, high = str(stretch.low), str(stretch.high)
            if loop.start != "0":  # a tile of the axis
                low, high = (
                    f"eq_max<int64_t>({low}, {loop.start})",
                    f"eq_min<int64_t>({high}, {loop.stop})",
                )
            piece = Loop(loop.var, low, high, 1, loop.axis)
            self.plan = replace(plan, inner=(piece,))
            with self.kernel.block(""):
                self._settle(regions.outcomes(loop.axis, stretch))
                self.write_pass(step)
        self.plan = plan

    def _settle(self, outcomes: Mapping[int, bool]) -> None:
        """Comparisons that have one outcome here; what was computed from them is made anew."""
        kernel = self.kernel
        again = [s for s in dependents(kernel, outcomes) if id(s) in kernel.names]
        for scalar in again:
            del kernel.names[id(scalar)]
        kernel.names |= {key: "true" if value else "false" for key, value in outcomes.items()}
        for scalar in again:
            kernel.define(scalar)
