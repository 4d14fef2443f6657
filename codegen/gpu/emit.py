"""Loop nests as Triton functions.

Takes a `Nest` with its buffers and the scalar entries; gives `TritonText`. Equal nests give equal
text. One pass over the reduced axis per level of reductions (`passes.py`): where a program holds
its rows whole, a pass is plain statements; else it is a loop over stretches of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...engine.block_choices import BlockChoices
from ...engine.rule import ScalarEntry
from ...engine.target import load_target
from ...lowering.domain import product
from ...lowering.index import Axis, Size
from ...lowering.loops import Buffer, Nest, Scalar, Store
from ..passes import needed, store_roots
from . import spelling
from .kernel import Kernel
from .reductions import Fold, fold_of, folded, operand, scan_of, scanned
from .tiles import Block, tile

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice

from eqsat.codegen.gpu.helpers import (
    digamma, first_max, first_min, float_floor_div, floor_div, floor_mod, gcd, int_power,
    join_powers, last_max, last_min, nan_max, nan_min, plus, random_bits, times,
    whole_power,
)


"""


@dataclass(frozen=True)
class TritonText:
    """`text` defines a Triton function `@NAME@`; it takes the memory of `args` (buffer names),
    then the values of `symbols` (sympy symbol names) as int64. `types` are those of all
    parameters. It runs as `grid` programs: per factor, the size of an axis and of its block."""

    text: str
    args: tuple[str, ...]
    symbols: tuple[str, ...]
    types: tuple[str, ...]
    grid: tuple[tuple[Size, int], ...]
    warps: int
    asserts: bool


def emit_nest(
    nest: Nest,
    buffers: Mapping[str, Buffer],
    scalars: Mapping[str, ScalarEntry],
    blocks: BlockChoices | None = None,
) -> TritonText:
    """The Triton function of `nest`.

    Raises MissingScalar for a scalar op without a Triton spelling and UnsupportedSize for a
    symbolic size without one.
    """
    tiled = tile(nest, buffers, blocks or load_target("h200").blocks)
    kernel = Kernel(tiled, buffers, scalars)
    _write_positions(kernel)
    writer = _Writer(kernel)
    for level in range(kernel.analysis.passes):
        writer.write_pass(level)
    pointers = [spelling.POINTERS[buffers[name].dtype] for name in kernel.arguments]
    lines = [f"@triton.jit\ndef @NAME@({kernel.signature()}):", *kernel.lines, ""]
    return TritonText(
        text="\n".join(lines),
        args=tuple(kernel.arguments),
        symbols=tuple(kernel.symbols),
        types=(*pointers, *("i64" for _ in kernel.symbols)),
        grid=tuple((block.axis.size, block.size) for block in tiled.tiling.outer),
        warps=tiled.tiling.warps,
        asserts=any("tl.device_assert" in line for line in kernel.lines),
    )


def _write_positions(kernel: Kernel) -> None:
    """The position of the program along each axis, fastest axis first."""
    outer = kernel.tiling.outer
    wide = ".to(tl.int64)" if kernel.wide() else ""
    kernel.write(f"pid = tl.program_id(0){wide}")
    for number, block in enumerate(reversed(outer)):
        last = number == len(outer) - 1
        count = f"tl.cdiv({kernel.printer.size(block.axis.size)}, {block.size})"
        start = "pid" if last else f"pid % {count}"
        _write_position(kernel, block, f"{start} * {block.size}")
        if not last:
            kernel.write(f"pid = pid // {count}")
    if kernel.tiling.inner is not None and kernel.tiling.persistent:
        _write_position(kernel, kernel.tiling.inner, "")


def _write_position(kernel: Kernel, block: Block, start: str) -> None:
    name = block.axis.name
    if block.axis not in kernel.tiling.shaped:
        kernel.write(f"{name} = {start.removesuffix(' * 1')}")
        return
    lanes = kernel.along(f"tl.arange(0, {block.size})", block.axis)
    kernel.write(f"{name} = {start} + {lanes}" if start else f"{name} = {lanes}")
    if not block.covers:
        kernel.write(f"{name}_in = {name} < {kernel.printer.size(block.axis.size)}")


class _Writer:
    """Writes the passes of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        inner = kernel.tiling.inner
        self.row = frozenset[Axis]() if inner is None else frozenset({inner.axis})
        self.outer = frozenset(kernel.tiling.shaped) - self.row

    def write_pass(self, level: int) -> None:
        analysis = self.kernel.analysis
        reductions = [
            s for s in analysis.order if s.op == "reduce" and analysis.level[id(s)] == level
        ]
        placed = zip(self.kernel.nest.stores, analysis.store_level, strict=True)
        stores = [store for store, at in placed if at == level]
        inside = [store for store in stores if analysis.store_axes(store) & self.row]
        outside = [store for store in stores if store not in inside]
        if self.row and not self.kernel.tiling.persistent:
            self._walk(reductions, inside)
        else:
            self._define(_roots(reductions, inside))
            for reduction in reductions:
                self._reduce(reduction)
            for store in inside:
                self.kernel.store(store, self.outer | self.row)
        self._define(store_roots(outside))
        for store in outside:
            self.kernel.store(store, self.outer)

    def _define(self, roots: Iterable[Scalar]) -> None:
        kernel = self.kernel
        for scalar in kernel.analysis.in_order(needed(roots, lambda s: id(s) in kernel.names)):
            if scalar.op == "scan":
                self._scan(scalar, None)
            else:
                kernel.define(scalar)

    # ---- rows that are held whole ----

    def _reduce(self, scalar: Scalar) -> None:
        kernel, fold = self.kernel, fold_of(scalar)
        value = self._masked(scalar, fold)
        if fold.places:
            value = f"({value}, {kernel.full(self._place('tl.int64'))})"
        self._finish(scalar, fold, value)

    def _finish(self, scalar: Scalar, fold: Fold, value: str) -> None:
        kernel = self.kernel
        text = fold.fold.format(value, len(kernel.tiling.shaped) - 1)
        text = kernel.kept(f"{text}[1]" if fold.places else text)
        kernel.assign(scalar, folded(scalar, fold, text), self.outer)

    def _masked(self, scalar: Scalar, fold: Fold) -> str:
        """The operand as a full tile, with the identity outside of the row."""
        kernel = self.kernel
        value = operand(scalar, fold, kernel.name(scalar.args[0]))
        mask = kernel.mask(self.row)
        if mask:
            value = f"tl.where({mask}, {value}, tl.full([], {fold.first}, {fold.type}))"
        return kernel.full(value)

    def _place(self, type_: str) -> str:
        """The flat position in the row."""
        (axis,) = self.row
        return f"{axis.name}.to({type_})"

    # ---- rows that are walked ----

    def _walk(self, reductions: list[Scalar], stores: list[Store]) -> None:
        if not reductions and not stores:
            return
        kernel, inner = self.kernel, self.kernel.tiling.inner
        assert inner is not None
        roots = _roots(reductions, stores)
        found = kernel.analysis.in_order(needed(roots, lambda s: id(s) in kernel.names))
        for scalar in found:
            if not kernel.analysis.varies[id(scalar)] & self.row:
                kernel.define(scalar)
        running = {id(scalar): self._start(scalar) for scalar in reductions}
        carried = {id(s): self._start_scan(s) for s in found if s.op == "scan"}
        size = kernel.printer.size(inner.axis.size)
        with kernel.loop(f"for start in range(0, {size}, {inner.size})"):
            _write_position(kernel, inner, "start")
            for scalar in found:
                if scalar.op == "scan":
                    self._scan(scalar, carried[id(scalar)])
                else:
                    kernel.define(scalar)
            for scalar in reductions:
                self._step(scalar, running[id(scalar)])
            for store in stores:
                kernel.store(store, self.outer | self.row)
        for scalar in reductions:
            names, fold = running[id(scalar)], fold_of(scalar)
            value = f"({names[0]}, {names[1]})" if fold.places else names[0]
            self._finish(scalar, fold, value)

    def _start(self, scalar: Scalar) -> list[str]:
        """The running tile of a reduction, and for an arg-reduction that of the places."""
        kernel, fold = self.kernel, fold_of(scalar)
        name = kernel.fresh("m")
        kernel.write(f"{name} = tl.full({kernel.shape}, {fold.first}, {fold.type})")
        if not fold.places:
            return [name]
        # Behind every real place: an equal value that is really there comes first.
        kernel.write(f"{name}_at = tl.full({kernel.shape}, {2**62}, tl.int64)")
        return [name, f"{name}_at"]

    def _step(self, scalar: Scalar, names: list[str]) -> None:
        kernel, fold = self.kernel, fold_of(scalar)
        value = self._masked(scalar, fold)
        if fold.places:
            place = self._place("tl.int64")
            mask = kernel.mask(self.row)
            place = f"tl.where({mask}, {place}, {2**62})" if mask else place
            both = f"{', '.join(names)}, {value}, {kernel.full(place)}"
            kernel.write(f"{', '.join(names)} = {fold.pair.split('(')[0]}({both})")
        else:
            kernel.write(f"{names[0]} = {fold.pair.format(names[0], value)}")

    # ---- scans ----

    def _start_scan(self, scalar: Scalar) -> list[str]:
        kernel, scan = self.kernel, scan_of(scalar)
        name = kernel.fresh("c")
        names = [f"{name}_{number}" for number in range(len(scan.states))]
        shape = kernel.shape.rsplit(",", 1)[0] + ", 1]" if "," in kernel.shape else "[1]"
        for one, first, type_ in zip(names, scan.states, scan.types, strict=True):
            kernel.write(f"{one} = tl.full({shape}, {first}, {type_})")
        return names

    def _scan(self, scalar: Scalar, carried: list[str] | None) -> None:
        kernel, scan = self.kernel, scan_of(scalar)
        name = kernel.fresh("w")
        states = [f"{name}_{number}" for number in range(len(scan.states))]
        values = [kernel.full(value) for value in self._scan_operands(scalar)]
        dim = len(kernel.tiling.shaped) - 1
        operands = values[0] if len(values) == 1 else f"({', '.join(values)})"
        kernel.write(f"{', '.join(states)} = tl.associative_scan({operands}, {dim}, {scan.pair})")
        if carried is not None:
            both = ", ".join((*carried, *states))
            kernel.write(f"{', '.join(states)} = {scan.pair}({both})")
            self._carry(states, carried, scan.types)
        kernel.assign(scalar, scanned(scalar, tuple(states)), self.outer | self.row)

    def _scan_operands(self, scalar: Scalar) -> list[str]:
        """What is scanned: the operand, with its place or the power of itself; identities
        outside of the row, so that the last lane holds the total."""
        kernel, scan = self.kernel, scan_of(scalar)
        second = {"logaddexp": "1"}.get(str(scalar.value), self._place("tl.int64"))
        values = [f"({kernel.name(scalar.args[0])}).to({scan.types[0]})", second][: len(scan.types)]
        mask = kernel.mask(self.row)
        made = []
        for value, first, type_ in zip(values, scan.states, scan.types, strict=True):
            identity = f"tl.full([], {first}, {type_})"
            if mask:
                made.append(f"tl.where({mask}, {value}, {identity}).to({type_})")
            else:
                made.append(f"tl.full([], {value}, {type_})" if value == "1" else value)
        return made

    def _carry(self, states: list[str], carried: list[str], types: tuple[str, ...]) -> None:
        """Takes the last lane of each state over into the next step, bit by bit."""
        kernel, inner = self.kernel, self.kernel.tiling.inner
        assert inner is not None
        last = kernel.along(f"(tl.arange(0, {inner.size}) == {inner.size - 1})", inner.axis)
        dim = len(kernel.tiling.shaped) - 1
        for state, name, type_ in zip(states, carried, types, strict=True):
            bits = {"tl.float32": "tl.int32", "tl.float64": "tl.int64"}.get(type_, type_)
            cast = f".to({bits}, bitcast=True)" if bits != type_ else ""
            back = f".to({type_}, bitcast=True)" if bits != type_ else f".to({type_})"
            total = f"tl.sum(tl.where({last}, {state}{cast}, 0), {dim})"
            kept = kernel.kept(total) if len(kernel.tiling.shaped) > 1 else f"{total}[None]"
            kernel.write(f"{name} = ({kept}){back}")


def _roots(reductions: Iterable[Scalar], stores: Iterable[Store]) -> list[Scalar]:
    return [*(reduction.args[0] for reduction in reductions), *store_roots(stores)]


def programs(text: TritonText) -> Size:
    """How many programs a kernel runs as."""
    return product(
        -(-size // block) if isinstance(size, int) else (size + block - 1) // block
        for size, block in text.grid
    )
