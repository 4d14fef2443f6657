"""Cleans up the axes of finished loop nests.

Takes a `Program` or one `Nest`; gives the same computation over fewer and better ordered axes:
axes of size 1 are gone, axes that are only used in pieces (`a // 8`, `a % 8`) are cut there,
the fastest axis walks through memory one by one, and neighbouring axes that every access
walks through as one are merged. Axes are named i0, i1, ... and r0, r1, ... in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ..engine.loop_choices import LoopChoices
from ..engine.target import load_target
from .collisions import scatters, shared_axes
from .domain import cut, cuts_of, estimate, product
from .index import (
    ZERO,
    Axis,
    Index,
    Quotient,
    Remainder,
    Size,
    as_index,
    atoms,
    axes_of,
    flatten,
    floor_div,
    remainder,
)
from .loops import Buffer, Builder, Nest, Program, scalars
from .relate import counts_positions, divided
from .rewrite import Rewriter, rewrite_nest
from .sampled import REPEATS, with_plain_places


@dataclass(frozen=True)
class _Accesses:
    """Element positions in memory, plain index values last; those of stores come first."""

    positions: tuple[Index, ...]
    values: tuple[Index, ...]
    colliding: tuple[Axis, ...]  # along which points may write to one element

    @property
    def all(self) -> tuple[Index, ...]:
        return (*self.positions, *self.values)


Step = Callable[[Nest, _Accesses, Builder], Nest]


def simplify(program: Program, loops: LoopChoices | None = None) -> Program:
    """`program` with every nest simplified, for the loops of the target "cpu" unless given."""
    steps = tuple(
        simplify_nest(step, program.buffers, loops) if isinstance(step, Nest) else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def simplify_nest(
    nest: Nest, buffers: Mapping[str, Buffer], loops: LoopChoices | None = None
) -> Nest:
    """One nest simplified; `buffers` gives the strides of what it touches."""
    builder = Builder()
    loops = loops or load_target("cpu").loops
    nest = with_plain_places(nest, builder, loops)
    cut_long, interleave = partial(_cut, loops.shortest_piece), partial(_interleave, loops)
    steps: tuple[Step, ...] = (_drop, cut_long, _sort, interleave, _merge, _rename)
    for step in steps:
        nest = step(nest, _accesses(nest, buffers), builder)
    return nest


def _accesses(nest: Nest, buffers: Mapping[str, Buffer]) -> _Accesses:
    stores = [flatten(s.index, buffers[s.buffer].stride) for s in nest.stores]
    loads: list[Index] = []
    values: list[Index] = []
    for scalar in scalars(nest):
        if scalar.op == "load" and scalar.buffer is not None:
            loads.append(flatten(scalar.index, buffers[scalar.buffer].stride))
        elif scalar.op == "index":
            values.append(scalar.index[0])
    by_detail = [sorted(some, key=lambda i: -len(i.terms)) for some in (stores, loads)]
    positions = (*by_detail[0], *by_detail[1])
    return _Accesses(positions, tuple(values), shared_axes(nest, buffers))


def _drop(nest: Nest, accesses: _Accesses, builder: Builder) -> Nest:
    single = [axis for axis in (*nest.axes, *nest.raxes) if axis.size == 1]
    axes, raxes = (
        tuple(axis for axis in group if axis.size != 1) for group in (nest.axes, nest.raxes)
    )
    if not single:
        return nest
    if nest.raxes and not raxes:
        raxes = nest.raxes[:1]  # a reduction stays one
    return rewrite_nest(nest, builder, dict.fromkeys(single, ZERO), axes, raxes)


def _cut(shortest: int, nest: Nest, accesses: _Accesses, builder: Builder) -> Nest:
    """An axis that some access walks as a whole is cut only into pieces at least this long:
    shorter inner loops cost more than the divisions they save."""
    axes = (*nest.axes, *nest.raxes)
    axes = tuple(axis for axis in axes if _worth_cutting(axis, accesses.all, shortest))
    if not axes:
        return nest
    parts = cut(axes, accesses.all, {axis.name for axis in (*nest.axes, *nest.raxes)})
    if not parts:
        return nest
    return rewrite_nest(nest, builder, parts, divided(nest.axes, parts), divided(nest.raxes, parts))


def _worth_cutting(axis: Axis, accesses: Iterable[Index], allowed: int) -> bool:
    whole, shortest = False, None
    for access in accesses:
        whole = whole or access.coefficient(axis) != 0
        for atom in atoms(access):
            for found, divisor in cuts_of(atom):
                if found == axis:
                    size = estimate(divisor)
                    shortest = size if shortest is None else min(shortest, size)
    return shortest is not None and (not whole or shortest >= allowed)


def _sort(nest: Nest, accesses: _Accesses, builder: Builder) -> Nest:
    """Slow axes first. The most detailed store decides, then other accesses place what is
    left. Reduced axes stay where arg-reductions count along them."""
    raxes = nest.raxes
    if not counts_positions(nest):
        raxes = _sorted(raxes, accesses.positions)
    axes = _in_order(_sorted(nest.axes, accesses.positions), accesses.colliding)
    return replace(nest, axes=axes, raxes=raxes)


def _in_order(axes: tuple[Axis, ...], colliding: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """`axes` with those of which points may write to one element in their old order."""
    left = iter(axis for axis in colliding if axis in axes)
    return tuple(next(left) if axis in colliding else axis for axis in axes)


def _sorted(axes: tuple[Axis, ...], positions: Iterable[Index]) -> tuple[Axis, ...]:
    order: list[Axis] = []
    for position in positions:
        strides = {axis: abs(estimate(position.coefficient(axis))) for axis in axes}
        placed = set(order)
        news = sorted(
            (axis for axis in axes if strides[axis] and axis not in placed),
            key=lambda axis: -strides[axis],
        )
        for axis in news:
            order.insert(_place(axis, order, strides), axis)
    return (*(axis for axis in axes if axis not in set(order)), *order)


def _place(axis: Axis, order: list[Axis], strides: Mapping[Axis, int]) -> int:
    """Before the first placed axis that is faster in this access, else right after the last
    slower one, else in front."""
    for place, other in enumerate(order):
        if 0 < strides[other] < strides[axis]:
            return place
    slower = [place for place, other in enumerate(order) if strides[other] >= strides[axis]]
    return slower[-1] + 1 if slower else 0


def _interleave(loops: LoopChoices, nest: Nest, accesses: _Accesses, builder: Builder) -> Nest:
    """Neighbours along the fastest axis that read one element are stored by one point, so that
    loads walk through memory too."""
    if nest.raxes or not nest.axes or len(nest.stores) != 1 or scatters(nest.stores[0]):
        return nest
    axis, (store,) = nest.axes[-1], nest.stores
    cuts = [cut for access in accesses.all for atom in atoms(access) for cut in cuts_of(atom)]
    counts = {count for found, count in cuts if found == axis}
    count = counts.pop() if len(counts) == 1 else 0
    if count not in REPEATS or not isinstance(count, int) or not isinstance(axis.size, int):
        return nest
    few = len(scalars(nest)) * count <= loops.interleaved_scalars
    if axis.size % count or axis.size // count < loops.shortest_piece or not few:
        return nest
    if accesses.positions[0].coefficient(axis) != 1:
        return nest
    inner = Axis(f"{axis.name}_by_{count}", axis.size // count)
    stores = tuple(
        Rewriter(builder, {axis: as_index(inner) * count + step}).store(store)
        for step in range(count)
    )
    return replace(nest, axes=(*nest.axes[:-1], inner), stores=stores)


def _merge(nest: Nest, accesses: _Accesses, builder: Builder) -> Nest:
    taken = {axis.name for axis in (*nest.axes, *nest.raxes)}
    places: dict[Axis, Index] = {}
    axes, raxes = (_merged(group, accesses.all, places, taken) for group in (nest.axes, nest.raxes))
    return rewrite_nest(nest, builder, places, axes, raxes) if places else nest


def _merged(
    axes: tuple[Axis, ...],
    accesses: tuple[Index, ...],
    places: dict[Axis, Index],
    taken: set[str],
) -> tuple[Axis, ...]:
    """Runs of axes that can be one; `places` learns where each axis of a run went."""
    runs: list[list[Axis]] = []
    for axis in axes:
        if runs and all(_walks_as_one(runs[-1][-1], axis, access) for access in accesses):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    result: list[Axis] = []
    for run in runs:
        if len(run) == 1:
            result.append(run[0])
            continue
        whole = Axis(_joined_name(run, taken), product(axis.size for axis in run))
        result.append(whole)
        rest = as_index(whole)
        for axis in reversed(run[1:]):
            places[axis] = remainder(rest, axis.size)
            rest = floor_div(rest, axis.size)
        places[run[0]] = rest
    return tuple(result)


def _walks_as_one(slow: Axis, fast: Axis, access: Index) -> bool:
    for atom, _ in access.terms:
        if isinstance(atom, Quotient | Remainder) and {slow, fast} & axes_of(Index(((atom, 1),))):
            return False
    step: Size = (as_index(access.coefficient(fast)) * fast.size).const
    return bool(access.coefficient(slow) == step)


def _joined_name(run: list[Axis], taken: set[str]) -> str:
    name = "_".join(axis.name for axis in run)
    taken.add(name)
    return name


def _rename(nest: Nest, accesses: _Accesses, builder: Builder) -> Nest:
    """Names by place; also brings all scalars into one builder."""
    axes = tuple(Axis(f"i{place}", axis.size) for place, axis in enumerate(nest.axes))
    raxes = tuple(Axis(f"r{place}", axis.size) for place, axis in enumerate(nest.raxes))
    old, new = (*nest.axes, *nest.raxes), (*axes, *raxes)
    places = {before: as_index(after) for before, after in zip(old, new, strict=True)}
    return rewrite_nest(nest, builder, places, axes, raxes)
