"""Writes point and row nests: outer loops, then one loop over the inner axes per pass.

Takes a `Kernel` and a `LoopPlan` of shape "point" or "row"; writes the body of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ..lowering.index import Index, as_index
from ..lowering.loops import Scalar, Store
from . import cpp_types
from .cpp_kernel import Kernel
from .cpp_passes import Pass, plan_passes, row_type
from .cpp_plan import CHUNKS, SEARCH, STRETCH, TILE, Loop, LoopPlan, crossing_loads
from .cpp_reduce import Accumulator, accumulator


class RowWriter:
    """One kernel whose innermost loop walks the reduced axes (or the vector axis)."""

    def __init__(self, kernel: Kernel, plan: LoopPlan) -> None:
        self.kernel = kernel
        self.plan = plan
        self.passes = plan_passes(kernel, plan)
        self.rows: dict[int, str] = {}
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
        """Loads that run along `row` are copied into a tile first, so that memory is walked
        along its rows on both sides."""
        kernel = self.kernel
        row_at, column_at = f"{row.var} - {row.start}", f"{column.var} - {column.start}"
        chosen = [s for s in crossing_loads(kernel, self.plan)]
        names = {id(scalar): kernel.fresh("tile") for scalar in chosen}
        for scalar in chosen:
            kind = cpp_types.MEMORY_TYPES[scalar.dtype]
            # Rows of a tile are padded: columns would all share one cache set otherwise.
            kernel.write(f"alignas(64) {kind} {names[id(scalar)]}[{TILE}][{TILE} + 8];")
        for scalar in chosen:
            place = kernel.place(scalar.buffer or "", scalar.index)
            with kernel.block(column.head):
                kernel.write("#pragma omp simd")
                with kernel.block(row.head):
                    kernel.write(f"{names[id(scalar)]}[{column_at}][{row_at}] = {place};")
        for scalar in chosen:
            kernel.staged[id(scalar)] = f"{names[id(scalar)]}[{column_at}][{row_at}]"

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
        found = [accumulator(s, kernel.fresh("r"), self._stretches()) for s in step.reductions]
        if self.plan.split:
            self._write_split(step, found)
        else:
            self.declare(found)
            self._write_loops(step, found, self.plan.inner)
            self._unrank(found)
        for item in found:
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
            len(loops) > 1 or not isinstance(size, int) or size > STRETCH or bool(self.plan.split)
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

    def _finish(self, item: Accumulator) -> None:
        kernel = self.kernel
        name = kernel.fresh()
        kind = cpp_types.VALUE_TYPES[item.scalar.dtype]
        kernel.write(f"const {kind} {name} = {item.finish(item.name, item.name + '_at')};")
        kernel.names[id(item.scalar)] = name

    def _write_split(self, step: Pass, found: Sequence[Accumulator]) -> None:
        """Chunks of the outermost inner loop on all threads; their results joined in order."""
        kernel, first = self.kernel, self.plan.inner[0]
        for item in found:
            kernel.write(f"{item.type()} {item.name}_parts[{CHUNKS}];")
            if item.is_arg:
                kernel.write(f"int64_t {item.name}_parts_at[{CHUNKS}];")
        kernel.write(self.plan.split)
        with kernel.block(f"for (int64_t chunk = 0; chunk < {CHUNKS}; chunk++)"):
            kernel.write(f"const int64_t low = {first.stop} * chunk / {CHUNKS};")
            kernel.write(f"const int64_t high = {first.stop} * (chunk + 1) / {CHUNKS};")
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
        with kernel.block(f"for (int64_t chunk = 0; chunk < {CHUNKS}; chunk++)"):
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
            self._vectorise(found)
            with kernel.block(last.head):
                self._write_point(step, found)
            for item in wide:
                self._merge(item, item.part, "")

    def _searches(self, step: Pass, found: Sequence[Accumulator]) -> bool:
        """Whether the pass does nothing but find the place of an extreme."""
        alone = len(found) == 1 and not step.inner_stores and not step.kept
        return alone and found[0].is_arg and self.plan.simd and found[0].dtype != "bool"

    def _write_search(self, step: Pass, item: Accumulator, outside: ExitStack, loop: Loop) -> None:
        """The extreme of a stretch in vectors; its place is looked up only where it wins."""
        kernel, kind = self.kernel, "max" if item.kind == "argmax" else "min"
        last = self._open_stretch(outside, loop, SEARCH)
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

    def _open_stretch(self, outside: ExitStack, loop: Loop, length: int = STRETCH) -> Loop:
        """Cuts a long innermost loop into stretches; gives the loop over one."""
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
        for scalar in step.reread:
            name = kernel.fresh()
            kind = cpp_types.VALUE_TYPES[scalar.dtype]
            kernel.write(f"const {kind} {name} = {place(scalar)};")
            kernel.names[id(scalar)] = name
        for scalar in step.varying:
            kernel.define(scalar)
        for scalar in step.kept:
            kernel.write(f"{place(scalar)} = {kernel.name(scalar)};")

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
