"""What the entry of a compiled graph needs to run the nests of a GPU.

Takes a program; gives a `GpuPart`: its kernels, how each nest calls one, and the functions that
the entry's table holds for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.block_choices import BlockChoices
from ...lowering.loops import Nest, Program
from ..entry import Gpu, GpuCall
from ..externs import Operands
from ..kernels import Kernel
from ..numbers import Numbers
from ..symbols import symbol_of
from . import driver
from .kernels import THREADS_PER_WARP, GpuKernels, GpuUse, build, emit_kernels

STREAM = "aoti_torch_get_current_cuda_stream"
SYMBOLS = (STREAM, driver.LAUNCH, driver.PUSH, driver.POP)


class TwoDevices(Exception):
    """A program has nests on more than one GPU."""


@dataclass(frozen=True)
class GpuPart:
    """`uses` has an entry per nest of the GPU, by the name of the nest. `first` is the place of
    the first of `SYMBOLS` in the table, the context and the kernels follow them."""

    uses: Mapping[str, GpuUse] = field(default_factory=dict)
    built: GpuKernels | None = None
    first: int = 0

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return () if self.built is None else self.built.shown

    @property
    def symbols(self) -> tuple[str, ...]:
        """Functions that are found by name."""
        return () if self.built is None else SYMBOLS

    def functions(self) -> tuple[int, ...]:
        """Addresses that follow those of `symbols`."""
        if self.built is None:
            return ()
        return (driver.context_of(self.built.device), *self.built.functions())

    def late(self, place: int) -> int:
        """The function that belongs at a place of `functions` that holds none yet."""
        assert self.built is not None
        return self.built.for_any_memory((place - 1) // 2)

    def table(self) -> Gpu | None:
        """Where the entry finds what it needs; None where nothing runs on a GPU."""
        if self.built is None:
            return None
        places = range(self.first, self.first + len(SYMBOLS) + 1)
        return Gpu(self.built.device, *places)

    def call(self, nest: Nest, operands: Operands, numbers: Numbers) -> GpuCall:
        use = self.uses[nest.name]
        assert self.built is not None
        binary = self.built.binaries[use.kernel]
        return GpuCall(
            label=binary.name,
            function=self.first + len(SYMBOLS) + 1 + 2 * use.kernel,
            buffers=tuple(map(operands.slot, use.buffers)),
            numbers=tuple(numbers.add(symbol_of(name)) for name in use.symbols),
            programs=numbers.add(use.programs),
            threads=binary.warps * THREADS_PER_WARP,
            shared=binary.shared,
            hidden=binary.scratch,
        )


def gpu_part(
    program: Program, scalars: Mapping[str, Any], first: int, blocks: BlockChoices | None = None
) -> GpuPart:
    """The part of `program` that runs on a GPU; `first` is where its functions start.

    Raises TwoDevices, MissingScalar, UnsupportedSize and what Triton raises.
    """
    nests = gpu_nests(program)
    if not nests:
        return GpuPart()
    devices = {program.buffers[nest.stores[0].buffer].device for nest in nests}
    if len(devices) > 1:
        raise TwoDevices(f"kernels on {', '.join(sorted(devices))} in one graph")
    device = torch.device(devices.pop()).index or 0
    kernels, uses = emit_kernels(nests, program.buffers, scalars, blocks)
    named = {nest.name: use for nest, use in zip(nests, uses, strict=True)}
    return GpuPart(named, build(kernels, device), first)


def gpu_nests(program: Program) -> list[Nest]:
    """The nests that write to the memory of a GPU."""
    return [step for step in program.steps if isinstance(step, Nest) and on_gpu(step, program)]


def on_gpu(nest: Nest, program: Program) -> bool:
    return program.buffers[nest.stores[0].buffer].device != "cpu"


def shown(kernels: Sequence[Kernel]) -> list[str]:
    """The kernels as text, each with what it is for."""
    return [f"# nodes: {', '.join(kernel.origins)}\n{kernel.text}" for kernel in kernels]
