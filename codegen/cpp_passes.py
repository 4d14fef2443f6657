"""What each pass over the reduced axes computes, and which values wait in a row buffer.

Takes a `Kernel` and its `LoopPlan`; gives one `Pass` per reduction level. Values that vary
within a pass are computed again by every pass that reads them, except dear ones: those are
kept in a buffer of one row (or one block of lanes) where the row is short enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..lowering.index import Axis
from ..lowering.loops import Scalar, Store, operands
from . import cpp_types
from .cpp_kernel import Kernel
from .cpp_plan import LoopPlan
from .passes import needed, store_roots
from .scalars import cost


@dataclass(frozen=True)
class Pass:
    """`varying` is computed at every step, `steady` before the loop; `kept` of the varying
    ones go to row buffers, `reread` come from there."""

    level: int
    reductions: tuple[Scalar, ...]
    inner_stores: tuple[Store, ...]
    outer_stores: tuple[Store, ...]
    varying: tuple[Scalar, ...]
    steady: tuple[Scalar, ...]
    kept: tuple[Scalar, ...] = ()
    reread: tuple[Scalar, ...] = ()

    @property
    def scans(self) -> tuple[Scalar, ...]:
        """Those of `varying` that carry a value from point to point."""
        return tuple(scalar for scalar in self.varying if scalar.op == "scan")

    @property
    def loops(self) -> bool:
        return bool(self.reductions or self.inner_stores)


def plan_passes(kernel: Kernel, plan: LoopPlan) -> list[Pass]:
    """The passes in order. Reduced axes are `plan.inside` without the lane axis."""
    moving = plan.inside - {plan.lanes} if plan.lanes is not None else plan.inside
    kept = _choose_kept(kernel, plan, moving)
    result, done = [], set[int]()
    for level in range(kernel.analysis.passes):
        step = _one_pass(kernel, plan, moving, level, kept, done)
        done |= {id(scalar) for scalar in step.kept}
        result.append(step)
    return result


def _one_pass(
    kernel: Kernel,
    plan: LoopPlan,
    moving: frozenset[Axis],
    level: int,
    kept: set[int],
    done: set[int],
) -> Pass:
    analysis = kernel.analysis
    reductions = _reductions(kernel, level)
    stores = _stores(kernel, level)
    inner = [s for s in stores if plan.shape == "point" or analysis.store_axes(s) & moving]
    roots = _roots(reductions, stores)
    found = needed(roots, lambda scalar: id(scalar) in done)
    varying = [s for s in analysis.in_order(found) if _moves(kernel, s, moving)]
    steady = [s for s in analysis.in_order(found) if not _moves(kernel, s, moving)]
    read = {id(s) for s in roots} | {id(o) for s in varying for o in operands(s)}
    return Pass(
        level=level,
        reductions=tuple(reductions),
        inner_stores=tuple(inner),
        outer_stores=tuple(s for s in stores if s not in inner),
        varying=tuple(varying),
        steady=tuple(steady),
        kept=tuple(s for s in varying if id(s) in kept),
        reread=tuple(s for s in analysis.in_order(read & done)),
    )


def _moves(kernel: Kernel, scalar: Scalar, moving: frozenset[Axis]) -> bool:
    return bool(kernel.analysis.varies[id(scalar)] & moving)


def _reductions(kernel: Kernel, level: int) -> list[Scalar]:
    analysis = kernel.analysis
    return [s for s in analysis.order if s.op == "reduce" and analysis.level[id(s)] == level]


def _stores(kernel: Kernel, level: int) -> list[Store]:
    levels = kernel.analysis.store_level
    return [s for s, at in zip(kernel.nest.stores, levels, strict=True) if at == level]


def _roots(reductions: Iterable[Scalar], stores: Iterable[Store]) -> list[Scalar]:
    return [*(reduction.args[0] for reduction in reductions), *store_roots(stores)]


def _choose_kept(kernel: Kernel, plan: LoopPlan, moving: frozenset[Axis]) -> set[int]:
    """Dear values that a later pass reads again; simulates the passes once."""
    room = _row_elements(kernel, plan)
    if room is None or kernel.analysis.passes < 2 or plan.shape == "point":
        return set()
    dear = {
        id(s): s
        for s in kernel.analysis.order
        if _moves(kernel, s, moving)
        and s.op not in ("load", "const", "index", "reduce", "cast")
        and cost(kernel.scalars, s) >= kernel.loops.dear
    }
    done, hits = set[int](), set[int]()

    def stop(scalar: Scalar) -> bool:
        if id(scalar) in done:
            hits.add(id(scalar))
        return id(scalar) in done

    for level in range(kernel.analysis.passes):
        found = needed(_roots(_reductions(kernel, level), _stores(kernel, level)), stop)
        done.update(found & dear.keys())
    chosen, room_left = set[int](), kernel.loops.row_bytes
    for key, scalar in dear.items():
        width = 8 if scalar.dtype in ("f64", "i64") else 4
        if key in hits and room * width <= room_left:
            chosen.add(key)
            room_left -= room * width
    return chosen


def _row_elements(kernel: Kernel, plan: LoopPlan) -> int | None:
    """Elements of a row buffer, or None where that is unknown or too many."""
    total = plan.width if plan.lanes is not None else 1
    for loop in plan.inner:
        if loop.axis is None or not isinstance(loop.axis.size, int):
            return None
        total *= loop.axis.size
    return total if 0 < total <= kernel.loops.row_elements else None


def row_type(scalar: Scalar) -> str:
    """The element type of the buffer that keeps `scalar`."""
    return cpp_types.VALUE_TYPES[scalar.dtype]
