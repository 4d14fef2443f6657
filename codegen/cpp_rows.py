"""Writes point and row nests: outer loops, then one loop over the inner axes per pass.

Takes a `Kernel` and a `LoopPlan` of shape "point" or "row"; writes the body of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from ..lowering.index import Index, as_index
from ..lowering.loops import Scalar, Store
from . import cpp_types
from .cpp_access import Access
from .cpp_kernel import Kernel
from .cpp_passes import Pass, plan_passes, row_type
from .cpp_plan import Loop, LoopPlan, crossing_loads
from .cpp_reduce import Accumulator, accumulators
from .cpp_region_loops import RegionWriter
from .cpp_regions import plan_regions
from .cpp_scan import Running, running_values
from .passes import needed, store_roots
from .scalars import cost


class RowWriter(RegionWriter):
    """One kernel whose innermost loop walks the reduced axes (or the vector axis)."""

    scan_place = ""  # which entry of a scan's state belongs to the point

    def __init__(self, kernel: Kernel, plan: LoopPlan) -> None:
        super().__init__(kernel, plan)
        self.passes = plan_passes(kernel, plan)
        self.rows: dict[int, str] = {}
        self.running: dict[int, Running] = {}  # the scans of the pass being written
        self.row_size = "1"

    def write(self) -> None:
        """The whole body."""
        with ExitStack() as loops:
            self._define_at(0)
            if self.plan.parallel:
                self.kernel.write(self.plan.parallel)
            for depth, loop in enumerate(self.plan.outer, 1):
                loops.enter_context(self.kernel.block(loop.head))
                if depth >= self.plan.collapse:
                    self._define_at(depth)
                if self.plan.tile and depth == len(self.plan.outer) - 1:
                    self._stage_loads(*self.plan.tile)
            self.declare_rows()
            regions = plan_regions(self.kernel, self.plan)
            if regions is not None and len(self.passes) == 1:
                self.write_regions(self.passes[0], regions)
                return
            for step in self.passes:
                self.write_pass(step)

    # ---- values that leave the loops ----

    def _define_at(self, depth: int) -> None:
        """Values that stay the same within the loops beneath `depth`."""
        for scalar in self.kernel.analysis.order:
            if self._hoisted(scalar) and self._depth_of(scalar) == depth:
                self.kernel.define(scalar)

    def _hoisted(self, scalar: Scalar) -> bool:
        analysis = self.kernel.analysis
        steady = not analysis.varies[id(scalar)] & self.plan.inside
        return steady and scalar.op != "reduce" and analysis.level[id(scalar)] == 0

    def _depth_of(self, scalar: Scalar) -> int:
        axes = self.kernel.analysis.varies[id(scalar)]
        deepest = [d for d, loop in enumerate(self.plan.outer, 1) if loop.axis in axes]
        return max([self.plan.collapse, *deepest]) if deepest else 0

    # ---- tiles ----

    def _stage_loads(self, row: Loop, column: Loop) -> None:
        """Loads that run along `row` are transposed into a tile first, so that memory is walked
        along its rows on both sides."""
        kernel, tile = self.kernel, self.kernel.loops.tile
        # Rows of a tile are padded: columns would all share one cache set otherwise.
        pitch = f"{tile} + 8"
        for scalar in crossing_loads(kernel, self.plan):
            name, kind = kernel.fresh("tile"), cpp_types.MEMORY_TYPES[scalar.dtype]
            position = kernel.position(scalar.buffer or "", scalar.index)
            assert column.axis is not None
            step = kernel.printer.size(Access(position, False).step(column.axis))
            kernel.write(f"alignas(64) {kind} {name}[{tile}][{pitch}];")
            with kernel.block(""):
                lengths = [f"{loop.stop} - {loop.start}" for loop in (row, column)]
                kernel.write(f"const int64_t rows = {lengths[0]}, columns = {lengths[1]};")
                for loop in (row, column):
                    kernel.write(f"const int64_t {loop.var} = {loop.start};")
                place = kernel.place(scalar.buffer or "", scalar.index)
                kernel.write(f"eq_transpose(&{place}, {step}, {name}[0], {pitch}, rows, columns);")
            at = f"[{row.var} - {row.start}][{column.var} - {column.start}]"
            kernel.staged[id(scalar)] = name + at

    # ---- row buffers ----

    def declare_rows(self) -> None:
        sizes = [int(loop.stop) for loop in self.plan.inner if self._kept()]
        total = self.plan.width if self.plan.lanes is not None else 1
        for size in sizes:
            total *= size
        for scalar in self._kept():
            name = self.kernel.fresh("row")
            self.rows[id(scalar)] = name
            self.kernel.write(f"alignas(64) {row_type(scalar)} {name}[{total}];")

    def _kept(self) -> list[Scalar]:
        return [scalar for step in self.passes for scalar in step.kept]

    def row_place(self, scalar: Scalar) -> str:
        return f"{self.rows[id(scalar)]}[{self.kernel.printer.index(self.flat_inner())}]"

    def flat_inner(self) -> Index:
        """The position within the row, row-major over the inner loops."""
        total = Index()
        for loop in self.plan.inner:
            if loop.axis is not None:
                total = total * loop.axis.size + as_index(loop.axis)
        return total

    # ---- one pass ----

    def write_pass(self, step: Pass) -> None:
        kernel = self.kernel
        for scalar in step.steady:
            kernel.define(scalar)
        for store in step.outer_stores:
            kernel.store(store)
        if not step.loops:
            return
        fresh = partial(kernel.fresh, "r")
        found, led = accumulators(step.reductions, fresh, self._stretches())
        self.declare_scans(step)
        if self.plan.split:
            self._write_split(step, found)
        else:
            self.declare(found)
            self._write_loops(step, found, self.plan.inner)
            self._unrank(found)
        for item in (*found, *led):
            self._finish(item)

    def _unrank(self, found: Sequence[Accumulator]) -> None:
        for item in found:
            if item.ranked:
                self.kernel.write(f"{item.name} = eq_unrank({item.name}_rank);")

    def _stretches(self) -> bool:
        loops = self.plan.inner
        if not loops or loops[-1].axis is None:
            return False
        size = loops[-1].axis.size
        return (
            len(loops) > 1
            or not isinstance(size, int)
            or size > self.kernel.loops.stretch
            or bool(self.plan.split)
        )

    def declare(self, found: Sequence[Accumulator], part: bool = False) -> None:
        for item in found:
            if part and not item.wide:
                continue
            name = item.part if part else item.name
            self.kernel.write(f"{item.type(part)} {name} = {item.init};")
            if item.is_arg:
                self.kernel.write(f"int64_t {name}_at = -1;")
            if item.ranked:
                start = item.rank(item.init)
                self.kernel.write(f"{item.rank_type} {name}_rank = {start};")

    def declare_scans(self, step: Pass) -> None:
        """The running values of the scans that a pass computes."""
        self.running = running_values(step.scans, lambda: self.kernel.fresh("q"))
        for running in self.carried():
            for kind, name, first in running.states:
                self.kernel.write(f"{kind} {name} = {first};")

    def carried(self) -> list[Running]:
        """Each running value of the pass once."""
        return list(dict.fromkeys(self.running.values()))

    def _finish(self, item: Accumulator) -> None:
        kernel = self.kernel
        name = kernel.fresh()
        kind = cpp_types.VALUE_TYPES[item.scalar.dtype]
        kernel.write(f"const {kind} {name} = {item.finish(item.name, item.name + '_at')};")
        kernel.names[id(item.scalar)] = name

    def _write_split(self, step: Pass, found: Sequence[Accumulator]) -> None:
        """Chunks of the outermost inner loop on all threads; their results joined in order."""
        kernel, first = self.kernel, self.plan.inner[0]
        chunks = kernel.loops.chunks
        for item in found:
            kernel.write(f"{item.type()} {item.name}_parts[{chunks}];")
            if item.is_arg:
                kernel.write(f"int64_t {item.name}_parts_at[{chunks}];")
        kernel.write(self.plan.split)
        with kernel.block(f"for (int64_t chunk = 0; chunk < {chunks}; chunk++)"):
            kernel.write(f"const int64_t low = {first.stop} * chunk / {chunks};")
            kernel.write(f"const int64_t high = {first.stop} * (chunk + 1) / {chunks};")
            self.declare(found)
            piece = Loop(first.var, "low", "high", 1, first.axis)
            self._write_loops(step, found, (piece, *self.plan.inner[1:]))
            self._unrank(found)
            for item in found:
                kernel.write(f"{item.name}_parts[chunk] = {item.name};")
                if item.is_arg:
                    kernel.write(f"{item.name}_parts_at[chunk] = {item.name}_at;")
        if not found:
            return
        self.declare(found)
        with kernel.block(f"for (int64_t chunk = 0; chunk < {chunks}; chunk++)"):
            for item in found:
                self._merge(item, f"{item.name}_parts[chunk]", f"{item.name}_parts_at[chunk]")

    def _merge(self, item: Accumulator, value: str, position: str) -> None:
        """Takes the finished `value` of a later stretch into the running one."""
        write, name = self.kernel.write, item.name
        if item.is_arg:
            test = f"({position} >= 0) & ({item.better(name, value, name + '_at')})"
            with self.kernel.block(f"if ({test})"):
                write(f"{name} = {value};")
                write(f"{name}_at = {position};")
        elif item.kind in ("any", "all"):
            write(f"{name} = {name} {'|' if item.kind == 'any' else '&'} {value};")
        else:
            write(f"{name} = {item.update(name, value)};")

    # ---- the inner loops ----

    def _write_loops(
        self, step: Pass, found: Sequence[Accumulator], loops: tuple[Loop, ...]
    ) -> None:
        kernel = self.kernel
        if not loops:
            with kernel.block(""):
                self._write_point(step, found)
            return
        with ExitStack() as outside:
            for loop in loops[:-1]:
                outside.enter_context(kernel.block(loop.head))
            last = loops[-1]
            if self._searches(step, found):
                self._write_search(step, found[0], outside, last)
                return
            wide = [item for item in found if item.wide]
            if wide:
                last = self._open_stretch(outside, last)
                self.declare(wide, part=True)
            if self._scans_in_lanes(step, found):
                self._write_scan_loop(step, last)
                return
            if not step.scans:
                self._vectorise(found)
            with kernel.block(last.head):
                self._write_point(step, found)
            for item in wide:
                self._merge(item, item.part, "")

    def _searches(self, step: Pass, found: Sequence[Accumulator]) -> bool:
        """Whether the pass does nothing but find the place of an extreme."""
        alone = len(found) == 1 and not (step.inner_stores or step.kept or step.scans)
        return alone and found[0].is_arg and self.plan.simd and found[0].dtype != "bool"

    def _write_search(self, step: Pass, item: Accumulator, outside: ExitStack, loop: Loop) -> None:
        """The extreme of a stretch in vectors; its place is looked up only where it wins."""
        kernel, kind = self.kernel, "max" if item.kind == "argmax" else "min"
        last = self._open_stretch(outside, loop, self.kernel.loops.search)
        argument = item.scalar.args[0]
        best = Accumulator(Scalar("reduce", (argument,), item.dtype, value=kind), kernel.fresh("r"))
        self.declare([best])
        self._vectorise([best])
        with kernel.block(last.head):
            self.write_values(step, self.row_place)
            self._update(best)
        self._unrank([best])
        better = item.better(item.name, best.name, f"{item.name}_at")
        with kernel.block(f"if ({better})"), kernel.block(last.head):
            self.write_values(step, self.row_place)
            value, place = kernel.name(argument), f"{item.name}_at"
            with kernel.block(f"if ({best.matches(best.name, value)})"):
                kernel.write(f"{item.name} = {value};")
                kernel.write(f"{place} = {self.flat_reduced()};")
                kernel.write("break;")

    def _open_stretch(self, outside: ExitStack, loop: Loop, length: int = 0) -> Loop:
        """Cuts a long innermost loop into stretches; gives the loop over one."""
        length = length or self.kernel.loops.stretch
        size = loop.axis.size if loop.axis is not None else None
        if isinstance(size, int) and size <= length and not self.plan.split:
            return loop
        name = f"{loop.var}_from"
        outside.enter_context(self.kernel.block(Loop(name, loop.start, loop.stop, length).head))
        stop = f"{name} + {length} < {loop.stop} ? {name} + {length} : {loop.stop}"
        self.kernel.write(f"const int64_t {loop.var}_to = {stop};")
        return Loop(loop.var, name, f"{loop.var}_to", 1, loop.axis)

    def _vectorise(self, found: Sequence[Accumulator]) -> None:
        if self.plan.simd and not any(item.is_arg for item in found):
            clauses = "".join(f" {item.clause}" for item in found)
            self.kernel.write(f"#pragma omp simd{clauses}")

    def _scans_in_lanes(self, step: Pass, found: Sequence[Accumulator]) -> bool:
        """Whether the loop is a scan in lanes: one half of its body computes what is scanned,
        the other, which sees none of the values of the first, all that the scans give."""
        scans = [self.running[id(scalar)] for scalar in step.scans]
        if not scans or found or step.kept or not self.plan.simd:
            return False
        if not all(running.clause for running in scans):
            return False
        first, second = self._scan_halves(step)
        again = [scalar for scalar in first if scalar in second]
        return not any(s.op == "scan" for s in first) and all(
            cost(self.kernel.scalars, scalar) < self.kernel.loops.dear for scalar in again
        )

    def _scan_halves(self, step: Pass) -> tuple[list[Scalar], list[Scalar]]:
        """What varies before and after the scans, operands first."""
        varying = {id(scalar) for scalar in step.varying}
        kept = {id(scalar) for scalar in step.reread}
        before = needed([s.args[0] for s in step.scans], lambda s: id(s) in kept)
        ended = kept | self.running.keys()
        after = needed(store_roots(step.inner_stores), lambda s: id(s) in ended)
        order = self.kernel.analysis.in_order
        return order(before & varying), order(after & varying)

    def _write_scan_loop(self, step: Pass, loop: Loop) -> None:
        kernel = self.kernel
        first, second = self._scan_halves(step)
        carried = self.carried()
        kernel.write(f"#pragma omp simd {' '.join(str(running.clause) for running in carried)}")
        with kernel.block(loop.head):
            with kernel.block(""):
                self._reread(step, self.row_place)
                for scalar in first:
                    kernel.define(scalar)
                for running in carried:
                    self._take_in(running)
            kernel.write(f"#pragma omp scan inclusive({', '.join(r.name for r in carried)})")
            with kernel.block(""):
                self._reread(step, self.row_place)
                for scalar in step.scans:
                    self._define_scan(scalar)
                for scalar in second:
                    kernel.define(scalar)
                self.write_stores(step.inner_stores)

    def _take_in(self, running: Running) -> None:
        value = self.kernel.name(running.operand)
        for line in running.update(self.scan_place, value, self.flat_reduced()):
            self.kernel.write(line)

    def _define_scan(self, scalar: Scalar) -> None:
        kernel, running = self.kernel, self.running[id(scalar)]
        name = kernel.fresh()
        kind = cpp_types.VALUE_TYPES[scalar.dtype]
        kernel.write(f"const {kind} {name} = {running.result(scalar, self.scan_place)};")
        kernel.names[id(scalar)] = name

    def _write_point(self, step: Pass, found: Sequence[Accumulator]) -> None:
        self.write_values(step, self.row_place)
        for item in found:
            self._update(item)
        self.write_stores(step.inner_stores)

    def _update(self, item: Accumulator) -> None:
        value = self.kernel.name(item.scalar.args[0])
        if item.is_arg:
            self._update_arg(item, value)
        elif item.ranked:
            self.kernel.write(item.rank_update(value))
        else:
            self.kernel.write(f"{item.part} = {item.update(item.part, value)};")

    def write_values(self, step: Pass, place: Callable[[Scalar], str]) -> None:
        """Everything that varies within the pass, kept rows included."""
        kernel = self.kernel
        self._reread(step, place)
        taken: set[Running] = set()
        for scalar in step.varying:
            if scalar.op == "scan":
                running = self.running[id(scalar)]
                if running not in taken:
                    taken.add(running)
                    self._take_in(running)
                self._define_scan(scalar)
            else:
                kernel.define(scalar)
        for scalar in step.kept:
            kernel.write(f"{place(scalar)} = {kernel.name(scalar)};")

    def _reread(self, step: Pass, place: Callable[[Scalar], str]) -> None:
        kernel = self.kernel
        for scalar in step.reread:
            name = kernel.fresh()
            kind = cpp_types.VALUE_TYPES[scalar.dtype]
            kernel.write(f"const {kind} {name} = {place(scalar)};")
            kernel.names[id(scalar)] = name

    def write_stores(self, stores: Sequence[Store]) -> None:
        for store in stores:
            self.kernel.store(store)

    def flat_reduced(self) -> str:
        """The position an arg-reduction reports: row-major over the reduced axes."""
        total = Index()
        for axis in self.kernel.nest.raxes:
            total = total * axis.size + as_index(axis)
        return self.kernel.printer.index(total)

    def _update_arg(self, item: Accumulator, value: str) -> None:
        with self.kernel.block(f"if ({item.better(item.name, value, item.name + '_at')})"):
            self.kernel.write(f"{item.name} = {value};")
            self.kernel.write(f"{item.name}_at = {self.flat_reduced()};")
