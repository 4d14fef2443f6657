"""Writes column nests: a block of neighbouring points in lane arrays, reduced axes around it.

Takes a `Kernel` and a `LoopPlan` of shape "column"; writes the body of the kernel. What a
point needs once (a bias, the result of an earlier pass) sits in an array of one entry per lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ..lowering.index import Axis
from ..lowering.loops import Scalar, operands
from . import cpp_types
from .cpp_kernel import Kernel
from .cpp_passes import Pass
from .cpp_plan import Loop, LoopPlan
from .cpp_reduce import Accumulator, accumulators
from .cpp_rows import RowWriter
from .cpp_scan import running_values
from .passes import store_roots


class ColumnWriter(RowWriter):
    """One kernel whose innermost loop walks lanes of a parallel axis."""

    scan_place = "[lane]"

    def __init__(self, kernel: Kernel, plan: LoopPlan) -> None:
        super().__init__(kernel, plan)
        if plan.lanes is None:
            raise ValueError("a column nest needs a lane axis")
        self.lanes: Axis = plan.lanes

    # ---- lanes ----

    @property
    def _var(self) -> str:
        return self.kernel.axes[self.lanes]

    @property
    def _count(self) -> str:
        size, width = self.lanes.size, self.plan.width
        if isinstance(size, int) and size % width == 0:
            return str(width)
        return f"eq_min<int64_t>({width}, {self.kernel.size(self.lanes)} - {self._var}_tile)"

    @contextmanager
    def _each_lane(self) -> Iterator[None]:
        self.kernel.write("#pragma omp simd")
        with self.kernel.block("for (int64_t lane = 0; lane < lanes; lane++)"):
            self.kernel.write(f"const int64_t {self._var} = {self._var}_tile + lane;")
            yield

    def _lane_varying(self, scalar: Scalar) -> bool:
        """Results of reductions count too: they sit in lane arrays whatever they read."""
        analysis = self.kernel.analysis
        return self.lanes in analysis.varies[id(scalar)] or analysis.level[id(scalar)] > 0

    def row_place(self, scalar: Scalar) -> str:
        position = self.kernel.printer.index(self.flat_inner() * self.plan.width)
        return f"{self.rows[id(scalar)]}[{position} + lane]"

    def declare_rows(self) -> None:
        self.kernel.write(f"const int64_t lanes = {self._count};")
        super().declare_rows()

    # ---- one pass ----

    def write_pass(self, step: Pass) -> None:
        kernel = self.kernel
        for scalar in step.steady:
            if not self._lane_varying(scalar):
                kernel.define(scalar)
        self._write_lane_values(step)
        if not step.loops:
            return
        fresh = partial(kernel.fresh, "r")
        found, led = accumulators(step.reductions, fresh, self._row_stretches())
        self.declare_scans(step)
        if self.plan.split:
            self._split_columns(step, found)
        else:
            self._declare_lanes(found)
            self._column_loops(step, found, self.plan.inner)
        for item in (*found, *led):
            kernel.names[id(item.scalar)] = self._lane_result(item)

    def _lane_result(self, item: Accumulator) -> str:
        return f"({item.finish(f'{item.name}[lane]', f'{item.name}_at[lane]')})"

    def _write_lane_values(self, step: Pass) -> None:
        """Values and stores of a point; those that the loops read go to lane arrays."""
        values = [s for s in step.steady if self._lane_varying(s) and s.op != "const"]
        exported = [s for s in values if id(s) in self._read_by(step)]
        if not exported and not step.outer_stores:
            return
        kernel = self.kernel
        names = {id(s): kernel.fresh("lane") for s in exported}
        for scalar in exported:
            kind = cpp_types.VALUE_TYPES[scalar.dtype]
            kernel.write(f"alignas(64) {kind} {names[id(scalar)]}[{self.plan.width}];")
        with self._each_lane():
            for scalar in values:
                kernel.define(scalar)
            for scalar in exported:
                kernel.write(f"{names[id(scalar)]}[lane] = {kernel.name(scalar)};")
            self.write_stores(step.outer_stores)
        for scalar in exported:
            kernel.names[id(scalar)] = f"{names[id(scalar)]}[lane]"

    def _read_by(self, step: Pass) -> set[int]:
        """Ids of what the loops of a pass read directly."""
        read = {id(part) for scalar in step.varying for part in operands(scalar)}
        read |= {id(reduction.args[0]) for reduction in step.reductions}
        return read | {id(part) for part in store_roots(step.inner_stores)}

    # ---- loops ----

    def _row_stretches(self) -> bool:
        rows = 1
        for loop in self.plan.inner:
            if loop.axis is None or not isinstance(loop.axis.size, int):
                return True
            rows *= loop.axis.size
        return rows > self.kernel.loops.column_rows

    def _declare_lanes(self, found: Sequence[Accumulator], part: bool = False) -> None:
        chosen = [item for item in found if item.wide or not part]
        for item in chosen:
            name = item.part if part else item.name
            self.kernel.write(f"alignas(64) {item.type(part)} {name}[{self.plan.width}];")
            if item.is_arg:
                self.kernel.write(f"alignas(64) int64_t {name}_at[{self.plan.width}];")
        if not chosen:
            return
        with self.kernel.block(f"for (int64_t lane = 0; lane < {self.plan.width}; lane++)"):
            for item in chosen:
                name = item.part if part else item.name
                self.kernel.write(f"{name}[lane] = {item.init};")
                if item.is_arg:
                    self.kernel.write(f"{name}_at[lane] = -1;")

    def declare_scans(self, step: Pass) -> None:
        self.running = running_values(step.scans, lambda: self.kernel.fresh("q"))
        states = [state for running in self.carried() for state in running.states]
        if not states:
            return
        width = self.plan.width
        for kind, name, _ in states:
            self.kernel.write(f"alignas(64) {kind} {name}[{width}];")
        with self.kernel.block(f"for (int64_t lane = 0; lane < {width}; lane++)"):
            for _, name, first in states:
                self.kernel.write(f"{name}[lane] = {first};")

    def _split_columns(self, step: Pass, found: Sequence[Accumulator]) -> None:
        """Chunks of the outermost reduced axis on all threads; their lanes joined in order."""
        kernel, first, width = self.kernel, self.plan.inner[0], self.plan.width
        chunks = kernel.loops.column_chunks
        for item in found:
            kernel.write(f"{item.type()} {item.name}_parts[{chunks}][{width}];")
            if item.is_arg:
                kernel.write(f"int64_t {item.name}_parts_at[{chunks}][{width}];")
        kernel.write(self.plan.split)
        with kernel.block(f"for (int64_t chunk = 0; chunk < {chunks}; chunk++)"):
            kernel.write(f"const int64_t low = {first.stop} * chunk / {chunks};")
            kernel.write(f"const int64_t high = {first.stop} * (chunk + 1) / {chunks};")
            self._declare_lanes(found)
            piece = Loop(first.var, "low", "high", 1, first.axis)
            self._column_loops(step, found, (piece, *self.plan.inner[1:]))
            if found:
                with self._each_lane():
                    for item in found:
                        name = item.name
                        kernel.write(f"{name}_parts[chunk][lane] = {name}[lane];")
                        if item.is_arg:
                            kernel.write(f"{name}_parts_at[chunk][lane] = {name}_at[lane];")
        if not found:
            return
        self._declare_lanes(found)
        with (
            kernel.block(f"for (int64_t chunk = 0; chunk < {chunks}; chunk++)"),
            self._each_lane(),
        ):
            for item in found:
                parts = f"{item.name}_parts"
                self._merge_lane(item, f"{parts}[chunk][lane]", f"{parts}_at[chunk][lane]")

    def _merge_lane(self, item: Accumulator, value: str, position: str) -> None:
        write, name = self.kernel.write, f"{item.name}[lane]"
        if item.is_arg:
            place = f"{item.name}_at[lane]"
            write(f"const bool take = ({position} >= 0) & ({item.better(name, value, place)});")
            write(f"{name} = take ? {value} : {name};")
            write(f"{place} = take ? {position} : {place};")
        elif item.kind in ("any", "all"):
            write(f"{name} = {name} {'|' if item.kind == 'any' else '&'} {value};")
        else:
            write(f"{name} = {item.update(name, value)};")

    def _column_loops(
        self, step: Pass, found: Sequence[Accumulator], loops: tuple[Loop, ...]
    ) -> None:
        kernel, rows = self.kernel, self.kernel.loops.column_rows
        wide = [item for item in found if item.wide]
        with ExitStack() as outside:
            for loop in loops[:-1]:
                outside.enter_context(kernel.block(loop.head))
            last = loops[-1] if loops else Loop("once", "0", "1")
            if wide:
                name = f"{last.var}_from"
                outside.enter_context(kernel.block(Loop(name, last.start, last.stop, rows).head))
                stop = f"eq_min<int64_t>({name} + {rows}, {last.stop})"
                kernel.write(f"const int64_t {last.var}_to = {stop};")
                self._declare_lanes(wide, part=True)
                last = Loop(last.var, name, f"{last.var}_to", 1, last.axis)
            with kernel.block(last.head), self._each_lane():
                self.write_values(step, self.row_place)
                for item in found:
                    self._update_lane(item)
                self.write_stores(step.inner_stores)
            if wide:
                with self._each_lane():
                    for item in wide:
                        name = f"{item.name}[lane]"
                        kernel.write(f"{name} = {item.update(name, f'{item.part}[lane]')};")

    def _update_lane(self, item: Accumulator) -> None:
        write, value = self.kernel.write, self.kernel.name(item.scalar.args[0])
        if not item.is_arg:
            name = f"{item.part}[lane]"
            write(f"{name} = {item.update(name, value)};")
            return
        name, place = f"{item.name}[lane]", f"{item.name}_at[lane]"
        test = self.kernel.fresh("take")
        write(f"const bool {test} = {item.better(name, value, place)};")
        write(f"{name} = {test} ? {value} : {name};")
        write(f"{place} = {test} ? {self.flat_reduced()} : {place};")
