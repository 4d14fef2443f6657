"""Which part of a nest one program of a kernel computes: at most three axes, and a block of each.

Takes a nest and its buffers; gives the nest over flattened axes and a `Tiling` of them. Axes that
walk memory together are merged already (lowering/simplify.py), slowest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...engine.block_choices import BlockChoices
from ...lowering.domain import estimate, points
from ...lowering.index import Axis, Index, Size, as_index, flatten, unflatten
from ...lowering.loops import Buffer, Builder, Nest, scalars
from ...lowering.rewrite import rewrite_nest
from ..cpp_index import step_along


@dataclass(frozen=True)
class Block:
    """A stretch of an axis. `size` is a power of two; 1 makes the position a plain number."""

    axis: Axis
    size: int

    @property
    def covers(self) -> bool:
        """Whether every block lies within the axis."""
        size = self.axis.size
        return isinstance(size, int) and size > 0 and size % self.size == 0


@dataclass(frozen=True)
class Tiling:
    """`outer` are the blocks of one program, slowest first. `inner` is the reduced axis: whole
    where `persistent`, else walked in steps of its block."""

    outer: tuple[Block, ...]
    inner: Block | None
    persistent: bool
    warps: int

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.outer if self.inner is None else (*self.outer, self.inner)

    @property
    def shaped(self) -> tuple[Axis, ...]:
        """The axes that are dims of tiles, in order."""
        return tuple(block.axis for block in self.blocks if block.size > 1 or block is self.inner)


@dataclass(frozen=True)
class Tiled:
    nest: Nest
    tiling: Tiling


def tile(nest: Nest, buffers: Mapping[str, Buffer], choices: BlockChoices) -> Tiled:
    """`nest` over the axes of a tiling that suits how it walks memory."""
    accesses = _positions(nest, buffers)
    if nest.raxes:
        flat = _flattened(nest, {"x": nest.axes, "r": nest.raxes})
        return Tiled(flat, _rows(flat, buffers, choices))
    crossing = _crossing(nest.axes, accesses, choices)
    if crossing is None:
        flat = _flattened(nest, {"x": nest.axes})
        return Tiled(flat, _flat(flat.axes[0], choices))
    x, y = crossing
    rest = tuple(axis for axis in nest.axes if axis not in crossing)
    flat = _flattened(nest, {"z": rest, "y": (y,), "x": (x,)})
    return Tiled(flat, _square(flat.axes, choices))


def _positions(nest: Nest, buffers: Mapping[str, Buffer]) -> list[tuple[Index, int]]:
    """Where each load and store is, and the bytes of an element; stores count twice, as the
    hardware joins scattered reads better than scattered writes."""
    found = [(s.buffer or "", s.index, 1) for s in scalars(nest) if s.op == "load"]
    found += [(store.buffer, store.index, 2) for store in nest.stores]
    return [(flatten(at, buffers[name].stride), weight) for name, at, weight in found]


def _flattened(nest: Nest, groups: Mapping[str, Sequence[Axis]]) -> Nest:
    """One axis per group, of the group's name, in place of the axes of the group."""
    places: dict[Axis, Index] = {}
    made: dict[str, Axis] = {}
    for name, axes in groups.items():
        made[name] = Axis(name, points(axes))
        sizes = tuple(axis.size for axis in axes)
        places |= dict(zip(axes, unflatten(as_index(made[name]), sizes), strict=True))
    raxes = tuple(axis for name, axis in made.items() if name == "r")
    axes = tuple(axis for name, axis in made.items() if name != "r")
    return rewrite_nest(nest, Builder(), places, axes, raxes)


def _fastest(position: Index, axes: Iterable[Axis]) -> Axis | None:
    """The axis along which neighbours in memory follow each other."""
    return next((axis for axis in axes if step_along(position, axis) in (1, -1)), None)


def _crossing(
    axes: Sequence[Axis], accesses: Sequence[tuple[Index, int]], choices: BlockChoices
) -> tuple[Axis, Axis] | None:
    """Two long axes each of which is the fastest of some access: what a transposed copy has.
    The one that most accesses follow comes first."""
    votes: dict[Axis, int] = {}
    for position, weight in accesses:
        axis = _fastest(position, axes)
        if axis is not None and estimate(axis.size) >= choices.crossing:
            votes[axis] = votes.get(axis, 0) + weight
    ranked = sorted(votes, key=lambda axis: -votes[axis])
    return (ranked[0], ranked[1]) if len(ranked) > 1 else None


def _flat(axis: Axis, choices: BlockChoices) -> Tiling:
    filled = estimate(axis.size) >= choices.flat * choices.programs
    size = _side(choices.flat if filled else choices.least_flat, estimate(axis.size))
    return Tiling((Block(axis, size),), None, False, _warps(size, choices))


def _square(axes: Sequence[Axis], choices: BlockChoices) -> Tiling:
    z, y, x = axes
    side = [_side(choices.square, estimate(axis.size)) for axis in (y, x)]
    blocks = Block(z, 1), Block(y, side[0]), Block(x, side[1])
    return Tiling(blocks, None, False, _warps(side[0] * side[1], choices))


def _rows(nest: Nest, buffers: Mapping[str, Buffer], choices: BlockChoices) -> Tiling:
    (x,), (r,) = nest.axes, nest.raxes
    length, rows = estimate(r.size), estimate(x.size)
    columns = _is_columns(nest, buffers)
    whole = power_of_two(length)
    values = sum(scalar.op == "load" for scalar in scalars(nest))
    room = choices.columns if columns else choices.row
    persistent = isinstance(r.size, int) and whole <= max(room // max(values, 1), choices.least_row)
    scans = any(scalar.op == "scan" for scalar in scalars(nest))
    if columns:
        across = _side(choices.across, rows)
        step = whole if persistent else _side(choices.tile // across, length)
    else:
        step = whole if persistent else _side(choices.step, length)
        across = _side(choices.tile // step, _shared_rows(rows, choices))
    if scans:
        across = 1
    step = max(step, 2)
    return Tiling((Block(x, across),), Block(r, step), persistent, _warps(across * step, choices))


def _shared_rows(rows: int, choices: BlockChoices) -> int:
    """How many rows a program may take so that there are programs enough."""
    return max(1, power_of_two(rows // choices.programs + 1) // 2)


def _is_columns(nest: Nest, buffers: Mapping[str, Buffer]) -> bool:
    """Whether neighbours in memory follow the axis that is kept rather than the reduced one."""
    along = {axis: 0 for axis in (*nest.axes, *nest.raxes)}
    for position, weight in _positions(nest, buffers):
        axis = _fastest(position, along)
        if axis is not None:
            along[axis] += weight
    return along[nest.axes[0]] > along[nest.raxes[0]]


def _side(limit: int, length: int) -> int:
    """A power of two: the least that covers `length`, or the largest within `limit`."""
    return min(1 << max(limit, 1).bit_length() - 1, power_of_two(length))


def _warps(elements: int, choices: BlockChoices) -> int:
    return min(max(power_of_two(elements // (32 * choices.per_thread)), 1), choices.warps)


def power_of_two(count: Size | int) -> int:
    """The least power of two that is no smaller than `count`."""
    return 1 << max(int(count) - 1, 0).bit_length()
