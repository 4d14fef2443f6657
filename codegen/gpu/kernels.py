"""The GPU kernels of a program: emitted, named, deduplicated, compiled and loaded.

Takes nests; gives a `GpuUse` per nest and `GpuKernels`, the addresses that the C entry calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.block_choices import BlockChoices
from ...lowering.index import Size
from ...lowering.loops import Buffer, Nest
from ..cache import digest
from ..kernels import Kernel, emit_once, label, used_again
from . import driver
from .build import Binary, build_kernels
from .emit import TritonText, emit_nest, programs

THREADS_PER_WARP = 32


@dataclass(frozen=True)
class GpuUse:
    """How one nest calls kernel number `kernel`: buffer and symbol names in call order, and how
    many programs run."""

    kernel: int
    buffers: tuple[str, ...]
    symbols: tuple[str, ...]
    programs: Size


@dataclass(frozen=True)
class GpuKernels:
    """`shown` are the kernels as reports show them; the rest has one entry for each of them."""

    shown: tuple[Kernel, ...]
    texts: tuple[TritonText, ...]
    binaries: tuple[Binary, ...]
    device: int

    def functions(self) -> tuple[int, ...]:
        """Per kernel its address for aligned memory, and a place for the one for any memory,
        which is compiled where it is first needed."""
        found: list[int] = []
        for binary in self.binaries:
            found += [driver.load(binary, self.device), 0]
        return tuple(found)

    def for_any_memory(self, number: int) -> int:
        """The address of kernel `number` for memory that is not aligned."""
        named = [(self.shown[number].name, self.texts[number])]
        (binary,) = build_kernels(named, driver.target_of(self.device), aligned=False)
        return driver.load(binary, self.device)


def emit_kernels(
    nests: Sequence[Nest],
    buffers: Mapping[str, Buffer],
    table: Mapping[str, Any],
    blocks: BlockChoices | None = None,
) -> tuple[list[tuple[Kernel, TritonText]], list[GpuUse]]:
    """Distinct kernels in order of first use, and one `GpuUse` per nest."""
    numbers: dict[Hashable, int] = {}
    kernels: list[tuple[Kernel, TritonText]] = []
    uses: list[GpuUse] = []
    memo: dict[Hashable, tuple[TritonText, tuple[str, ...]]] = {}

    def emit(nest: Nest, buffers: Mapping[str, Buffer]) -> TritonText:
        return emit_nest(nest, buffers, table, blocks)

    for nest in nests:
        emitted = emit_once(nest, buffers, emit, memo)
        # A copy of floats reads like one of integers: only the types tell them apart.
        key = emitted.text, emitted.types, emitted.warps
        number = numbers.setdefault(key, len(kernels))
        if number == len(kernels):
            name = f"k_{digest(*map(repr, key))[:8]}_{label(nest)}"
            text = emitted.text.replace("@NAME@", name)
            kernels.append((Kernel(name, text, nest.origins, nest.rules), emitted))
        else:
            found, same = kernels[number]
            kernels[number] = used_again(found, nest), same
        uses.append(GpuUse(number, emitted.args, emitted.symbols, programs(emitted)))
    return kernels, uses


def build(kernels: Sequence[tuple[Kernel, TritonText]], device: int) -> GpuKernels:
    """Compile kernels for a CUDA device and load them."""
    named = [(kernel.name, text) for kernel, text in kernels]
    binaries = build_kernels(named, driver.target_of(device))
    shown, texts = zip(*kernels, strict=True) if kernels else ((), ())
    return GpuKernels(tuple(shown), tuple(texts), tuple(binaries), device)
