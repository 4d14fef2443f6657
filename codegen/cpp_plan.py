"""Which loops a nest becomes: order, vector axis, tiles, lanes, threads.

Takes a `Kernel`; gives a `LoopPlan`. Three shapes: "point" (no reduction: outer loops and one
vector loop), "row" (one loop over the reduced axes per pass), "column" (the vector axis is a
parallel one: lanes in local arrays, reduced axes outside of them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engine.loop_choices import LoopChoices
from ..lowering.collisions import private_axes
from ..lowering.index import Axis, Size
from ..lowering.loops import Scalar, gathered, operands
from ..lowering.relate import counts_positions
from .cpp_access import Access, accesses
from .cpp_index import is_linear
from .cpp_kernel import Kernel
from .scalars import cost


@dataclass(frozen=True)
class Loop:
    """`for (var = start; var < stop; var += step)`; `axis` is what it walks, None for a loop
    over tiles of an axis."""

    var: str
    start: str
    stop: str
    step: int = 1
    axis: Axis | None = None

    @property
    def head(self) -> str:
        step = f"{self.var}++" if self.step == 1 else f"{self.var} += {self.step}"
        return f"for (int64_t {self.var} = {self.start}; {self.var} < {self.stop}; {step})"


@dataclass(frozen=True)
class LoopPlan:
    """`parallel` is the pragma before the first outer loop ("" for none) and `collapse` the
    number of loops it takes; `split` the pragma of the chunk loops ("" for none)."""

    shape: str
    outer: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    lanes: Axis | None = None
    width: int = 0
    parallel: str = ""
    collapse: int = 0
    split: str = ""
    simd: bool = True
    inside: frozenset[Axis] = field(default_factory=frozenset)  # walked within a pass
    tile: tuple[Loop, Loop] | None = None  # the loops over one tile: across, along the stores


def plan_loops(kernel: Kernel) -> LoopPlan:
    """The loops for the nest of `kernel`."""
    axes = [axis for axis in kernel.nest.axes if kernel.axes[axis] != "0"]
    raxes = [axis for axis in kernel.nest.raxes if kernel.axes[axis] != "0"]
    found = accesses(kernel)
    private = private_axes(kernel.nest, kernel.buffers)
    if not kernel.nest.raxes:
        return _plan_points(kernel, axes, found, private)
    lanes = _lane_axis(kernel.loops, axes, raxes, found) if private is None else None
    if lanes is not None:
        return _plan_columns(kernel, axes, raxes, lanes, found)
    return _plan_rows(kernel, axes, raxes, found, private)


# ---- work and threads ----


def _product(axes: Sequence[Axis]) -> Size:
    total: Size = 1
    for axis in axes:
        total = total * axis.size
    return total


def _flops(kernel: Kernel) -> int:
    """Work per innermost point, roughly."""
    return max(1, round(sum(cost(kernel.scalars, scalar) for scalar in kernel.analysis.order)))


def _threads(kernel: Kernel, collapse: int, pieces: Size | None = None) -> str:
    """The `parallel for` pragma where the work of the nest pays for threads, else ""."""
    work = _product([*kernel.nest.axes, *kernel.nest.raxes]) * _flops(kernel)
    if isinstance(work, int) and work < kernel.loops.parallel_work:
        return ""
    if isinstance(pieces, int) and pieces < 2:
        return ""
    text = "#pragma omp parallel for schedule(static)"
    if collapse > 1:
        text += f" collapse({collapse})"
    if not isinstance(work, int):
        text += f" if ({kernel.printer.size(work)} >= {kernel.loops.parallel_work})"
    return text


def _collapsed(kernel: Kernel, sizes: Sequence[Size]) -> int:
    """How many outermost loops share their points among threads."""
    points = 1
    for place, size in enumerate(sizes):
        if points >= kernel.loops.collapse_points:
            return place
        points *= size if isinstance(size, int) else 1
    return len(sizes)


def _loop(kernel: Kernel, axis: Axis) -> Loop:
    return Loop(kernel.axes[axis], "0", kernel.size(axis), 1, axis)


def _tiles(kernel: Kernel, axis: Axis, step: int) -> tuple[Loop, Loop]:
    """A loop over tiles of `axis` and the loop within one."""
    name, size = kernel.axes[axis], kernel.size(axis)
    tile = f"{name}_tile"
    stop = f"{tile} + {step}"
    if not isinstance(axis.size, int) or axis.size % step:
        stop = f"eq_min<int64_t>({stop}, {size})"
    return Loop(tile, "0", size, step), Loop(name, tile, stop, 1, axis)


# ---- pointwise nests ----


def _plan_points(
    kernel: Kernel,
    axes: list[Axis],
    found: list[Access],
    private: frozenset[Axis] | None,
) -> LoopPlan:
    if not axes:
        return LoopPlan("point", (), ())
    if private is not None:
        return _plan_scatter(kernel, axes, found, private)
    vector = _vector_axis(axes, found)
    others = [axis for axis in axes if axis != vector]
    inside = frozenset({vector})
    crossing = _crossing_axis(kernel, others, vector, found)
    if crossing is not None:
        return _plan_tiles(kernel, others, vector, crossing)
    points = _product(others)
    if isinstance(points, int) and points < kernel.loops.few_points:
        tile, inner = _tiles(kernel, vector, kernel.loops.stretch)
        pieces = points if _small(vector.size, kernel.loops.stretch) else kernel.loops.few_points
        pragma = _threads(kernel, len(others) + 1, pieces)
        if pragma and pieces != points:
            outer = (*(_loop(kernel, axis) for axis in others), tile)
            return LoopPlan("point", outer, (inner,), None, 0, pragma, len(outer), inside=inside)
    return _loops_as_given(kernel, "point", others, (_loop(kernel, vector),), inside)


def _small(size: Size, limit: int) -> bool:
    return isinstance(size, int) and size <= limit


def _loops_as_given(
    kernel: Kernel,
    shape: str,
    outer: Sequence[Axis],
    inner: tuple[Loop, ...],
    inside: frozenset[Axis],
    simd: bool = True,
) -> LoopPlan:
    collapse = _collapsed(kernel, [axis.size for axis in outer])
    pragma = _threads(kernel, collapse, _product(outer))
    loops = tuple(_loop(kernel, axis) for axis in outer)
    return LoopPlan(
        shape, loops, inner, None, 0, pragma, collapse if pragma else 0, simd=simd, inside=inside
    )


def _plan_scatter(
    kernel: Kernel, axes: list[Axis], found: list[Access], private: frozenset[Axis]
) -> LoopPlan:
    """Points may collide: only axes that keep to places of their own are shared out, and the
    others run in order."""
    in_order = [axis for axis in axes if axis not in private]
    vector = _vector_axis([axis for axis in axes if axis not in in_order[:-1]], found)
    others = [axis for axis in axes if axis != vector]
    inside = frozenset({vector})
    shared = [axis for axis in others if axis in private]
    rest = [axis for axis in others if axis not in private]
    # Vectors that are scattered are slower than numbers, above all where the next ones read them.
    simd = vector in private and not _scatters_along(kernel, vector)
    inner: tuple[Loop, ...] = (_loop(kernel, vector),)
    if shared:
        collapse = _collapsed(kernel, [axis.size for axis in shared])
        pragma = _threads(kernel, collapse, _product(shared))
        loops = tuple(_loop(kernel, axis) for axis in (*shared, *rest))
        depth = collapse if pragma else 0
        return LoopPlan("point", loops, inner, None, 0, pragma, depth, simd=simd, inside=inside)
    pragma = _threads(kernel, 1) if simd and not _small(vector.size, kernel.loops.lanes) else ""
    loops = tuple(_loop(kernel, axis) for axis in rest)
    if pragma:  # every thread walks all points, for its own stretch of the vector axis
        tile, last = _tiles(kernel, vector, kernel.loops.lanes)
        return LoopPlan("point", (tile, *loops), (last,), None, 0, pragma, 1, inside=inside)
    return LoopPlan("point", loops, inner, None, 0, "", 0, simd=simd, inside=inside)


def _scatters_along(kernel: Kernel, axis: Axis) -> bool:
    """Whether neighbours along `axis` are stored at places read from memory."""
    places = (part for store in kernel.nest.stores for part in gathered(store.index))
    return any(axis in kernel.analysis.varies[id(part)] for part in places)


def _plan_tiles(kernel: Kernel, others: list[Axis], vector: Axis, crossing: Axis) -> LoopPlan:
    """Some load runs along another axis than the stores: walk square tiles of both."""
    rest = [axis for axis in others if axis != crossing]
    across, row = _tiles(kernel, crossing, kernel.loops.tile)
    along, inner = _tiles(kernel, vector, kernel.loops.tile)
    loops = (*(_loop(kernel, axis) for axis in rest), across, along, row)
    collapse = min(len(rest) + 2, max(1, _collapsed(kernel, [*(axis.size for axis in rest), 8, 8])))
    pragma = _threads(kernel, collapse)
    depth = collapse if pragma else 0
    inside = frozenset({vector})
    return LoopPlan(
        "point", loops, (inner,), None, 0, pragma, depth, inside=inside, tile=(row, inner)
    )


def crossing_loads(kernel: Kernel, plan: LoopPlan) -> list[Scalar]:
    """Unmasked loads of a tiled nest that have unit stride across the vector axis, and move by
    the same step everywhere along both."""
    if plan.tile is None or plan.tile[0].axis is None or plan.tile[1].axis is None:
        return []
    across, along = plan.tile[0].axis, plan.tile[1].axis
    written = {store.buffer for store in kernel.nest.stores}
    chosen = []
    for scalar in kernel.analysis.order:
        if scalar.op != "load" or operands(scalar) or scalar.buffer in written:
            continue
        access = Access(kernel.position(scalar.buffer or "", scalar.index), False)
        if not is_linear(access.position, (across, along)):
            continue
        if access.step(across) == 1 and access.step(along) not in (0, 1):
            chosen.append(scalar)
    return chosen


def _vector_axis(axes: Sequence[Axis], found: Sequence[Access]) -> Axis:
    """The axis with most unit strides; stores count most, later axes win ties."""

    def score(place: int) -> tuple[float, int]:
        total = 0.0
        for access in found:
            step = access.step(axes[place])
            weight = 4.0 if access.is_store else 1.0
            total += weight if step == 1 else 0.0 if step == 0 else -0.25 * weight
        return total, place

    return axes[max(range(len(axes)), key=score)]


def _crossing_axis(
    kernel: Kernel, others: Sequence[Axis], vector: Axis, found: Sequence[Access]
) -> Axis | None:
    """Another axis along which some load has unit stride, while it jumps along `vector`."""
    loops = kernel.loops
    if _small(vector.size, loops.short_side - 1):
        return None
    for access in found:
        step = access.step(vector)
        if access.is_store or step == 0 or _small(step, loops.short_step - 1):
            continue
        for axis in others:
            if access.step(axis) == 1 and not _small(axis.size, loops.short_side - 1):
                return axis
    return None


# ---- reductions ----


def _plan_rows(
    kernel: Kernel,
    axes: list[Axis],
    raxes: list[Axis],
    found: list[Access],
    private: frozenset[Axis] | None,
) -> LoopPlan:
    ordered = _row_order(kernel, raxes, found)
    inner = tuple(_loop(kernel, axis) for axis in ordered)
    inside = frozenset(raxes)
    if private is not None:
        shared = [axis for axis in axes if axis in private]
        rest = [axis for axis in axes if axis not in private]
        collapse = _collapsed(kernel, [axis.size for axis in shared])
        pragma = _threads(kernel, collapse, _product(shared)) if shared else ""
        loops = tuple(_loop(kernel, axis) for axis in (*shared, *rest))
        simd = bool(ordered) and ordered[-1] in private
        depth = collapse if pragma else 0
        return LoopPlan("row", loops, inner, None, 0, pragma, depth, simd=simd, inside=inside)
    split = _split(kernel, _product(axes), ordered)
    if split:
        loops = tuple(_loop(kernel, axis) for axis in axes)
        return LoopPlan("row", loops, inner, split=split, inside=inside)
    return _loops_as_given(kernel, "row", axes, inner, inside)


def _split(kernel: Kernel, points: Size, raxes: Sequence[Axis]) -> str:
    """The pragma of chunk loops, where too few points share a long reduction."""
    loops = kernel.loops
    if not raxes or not _small(points, loops.few_points - 1) or _small(raxes[0].size, loops.chunks):
        return ""
    if any(scalar.op == "scan" for scalar in kernel.analysis.order):
        return ""  # a chunk needs the end of the one before it
    return _threads(kernel, 1)


def _row_order(kernel: Kernel, raxes: list[Axis], found: Sequence[Access]) -> list[Axis]:
    """The unit-stride axis goes last; arg-reductions and scans need the order as given."""
    if len(raxes) < 2 or counts_positions(kernel.nest):
        return raxes
    vector = _vector_axis(raxes, found)
    return [*(axis for axis in raxes if axis != vector), vector]


def _lane_axis(
    loops: LoopChoices, axes: Sequence[Axis], raxes: Sequence[Axis], found: Sequence[Access]
) -> Axis | None:
    """A parallel axis that suits lanes better than any reduced axis suits a row loop."""
    reduced = [access for access in found if any(access.step(axis) != 0 for axis in raxes)]
    along_rows = sum(any(access.step(axis) == 1 for axis in raxes) for access in reduced)
    points = _product(raxes)
    best: tuple[int, Axis] | None = None
    for axis in axes:
        if _small(axis.size, loops.fewest_lanes - 1):
            continue
        lanes = sum(access.step(axis) == 1 for access in reduced)
        if _small(points, loops.short_rows):  # short rows: lanes win even where they skip elements
            lanes += sum(access.step(axis) == 2 for access in reduced)
            lanes += sum(access.step(axis) == 1 for access in reduced if not access.is_store)
        if lanes > along_rows and (best is None or lanes >= best[0]):
            best = lanes, axis
    return best[1] if best else None


def _plan_columns(
    kernel: Kernel,
    axes: list[Axis],
    raxes: list[Axis],
    lanes: Axis,
    found: list[Access],
) -> LoopPlan:
    others = [axis for axis in axes if axis != lanes]
    width = lane_width(kernel.loops, lanes.size, _product(raxes), _walks(kernel, raxes))
    tile = Loop(f"{kernel.axes[lanes]}_tile", "0", kernel.size(lanes), width)
    outer = (*(_loop(kernel, axis) for axis in others), tile)
    ordered = _column_order(kernel, raxes, found)
    inner = tuple(_loop(kernel, axis) for axis in ordered)
    inside = frozenset({*raxes, lanes})
    blocks = lanes.size // width if isinstance(lanes.size, int) else kernel.loops.few_points
    split = _split(kernel, _product(others) * max(1, blocks), ordered)
    if split:
        return LoopPlan("column", outer, inner, lanes, width, split=split, inside=inside)
    collapse = min(len(outer), 1 + _collapsed(kernel, [axis.size for axis in others]))
    pragma = _threads(kernel, collapse, _product(others) * blocks)
    depth = collapse if pragma else 0
    return LoopPlan("column", outer, inner, lanes, width, pragma, depth, inside=inside)


def _walks(kernel: Kernel, raxes: Sequence[Axis]) -> int:
    """How many passes walk the reduced axes."""
    analysis = kernel.analysis
    levels = {analysis.level[id(s)] for s in analysis.order if s.op == "reduce"}
    for store, level in zip(kernel.nest.stores, analysis.store_level, strict=True):
        if analysis.store_axes(store) & frozenset(raxes):
            levels.add(level)
    return len(levels)


def _column_order(kernel: Kernel, raxes: list[Axis], found: Sequence[Access]) -> list[Axis]:
    """Reduced axes with the longest step outermost, so that memory is walked forwards."""
    if counts_positions(kernel.nest):
        return raxes

    def longest(axis: Axis) -> int:
        steps = [access.step(axis) for access in found]
        return max((step if isinstance(step, int) else 2**40 for step in steps), default=0)

    return sorted(raxes, key=longest, reverse=True)


def lane_width(loops: LoopChoices, size: Size, rows: Size, passes: int) -> int:
    """Lanes per block. One pass over memory is fastest along whole rows; where later passes
    read a block again, it has to stay in cache. A divisor of a known size is best."""
    widest = loops.widest_lanes
    if passes > 1:
        fitting = loops.lane_block // rows if isinstance(rows, int) and rows else 0
        widest = min(widest, max(64, fitting // 16 * 16))
    if not isinstance(size, int):
        return min(widest, loops.lanes)
    if size <= widest:
        return size
    good = [width for width in range(widest, widest // 4, -16) if size % width == 0]
    return good[0] if good else widest
