"""Runs a compiled graph step by step beside the interpreter of loop IR.

Takes a program with its compiled kernels, the program as it was before fusion, and real
inputs. Every nest runs three ways on the same memory: its kernel, the interpreter, and the
interpreter on the nests it was fused from; where they differ by more than rounding explains,
a text names the nest and the first element. Extern calls run once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..lowering.agreement import DISTURBANCES, differing
from ..lowering.domain import product
from ..lowering.index import Size
from ..lowering.interpret import (
    Points,
    bind_symbols,
    memory_of,
    number,
    output,
    poisoned,
    results_of,
)
from ..lowering.loops import Extern, Nest, Program, scalars
from .kernels import KernelUse
from .segmented import fitted

# Points times scalars of a nest beyond which the interpreter takes too long.
INTERPRETED_WORK = 1 << 23

Memory = dict[str, torch.Tensor]


@dataclass(frozen=True)
class CompiledParts:
    """What `CompiledGraph` was made of: `uses` has one entry per nest of `program`."""

    program: Program
    uses: tuple[KernelUse, ...]
    library: ctypes.CDLL


@dataclass(frozen=True)
class Lockstep:
    """`lowered` is the program before fusion; `members` names its nests that a nest was fused
    from, where these are several."""

    parts: CompiledParts
    lowered: Program
    members: Mapping[str, frozenset[str]]

    def run(self, inputs: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """The outputs of the graph, and what is wrong with its kernels; inputs that it writes
        are written. After a nest that went wrong the run goes on with the right values.

        Raises BadProgram for accesses outside of memory, and what externs raise.
        """
        return _Run(self, inputs).run()


class _Run:
    def __init__(self, lockstep: Lockstep, inputs: Sequence[Any]) -> None:
        self._program = program = lockstep.parts.program
        self._parts = lockstep.parts
        self._lowered = lockstep.lowered
        self._members = lockstep.members
        self._symbols = bind_symbols(program, inputs)
        self._memory: Memory = memory_of(program, inputs, self._symbols)
        self._wrong: list[str] = []

    def run(self) -> tuple[list[Any], list[str]]:
        uses = iter(self._parts.uses)
        for step in self._program.steps:
            if isinstance(step, Nest):
                self._nest(step, next(uses))
            else:
                self._extern(step)
        outputs = [output(item, self._memory, self._symbols) for item in self._program.outputs]
        return self._program.with_repeats(outputs), self._wrong

    def _extern(self, step: Extern) -> None:
        results = results_of(step, self._memory, self._symbols)
        for name, value in zip(step.outs, results, strict=False):
            if name is not None and value is not None:
                buffer = self._program.buffers[name]
                self._memory[name] = fitted(value, buffer, self._symbols)

    def _nest(self, nest: Nest, use: KernelUse) -> None:
        written = list(dict.fromkeys(store.buffer for store in nest.stores))
        before = {name: _copy(self._memory[name]) for name in written}
        self._run_kernel(use)
        if self._work(nest) > INTERPRETED_WORK:
            return
        wanted = {**self._memory, **{name: _copy(before[name]) for name in written}}
        points = self._points(nest, wanted)
        moved = [self._moved(nest, before, disturb) for disturb in DISTURBANCES]
        terms = self._count(axis.size for axis in nest.raxes)
        apart = self._apart(nest, before)
        for store in nest.stores:
            name = store.buffer
            others, places = [other[name] for other in moved], points.places(store)
            for what, right, got in (("parts", apart, wanted), ("kernel", wanted, self._memory)):
                wrong = differing(got[name], right[name], others, wanted[name], terms)
                wrong &= places
                if bool(wrong.any()):
                    text = _text(nest, name, what, got[name], right[name], wrong)
                    self._wrong.append(text)
                    self._memory[name].copy_(right[name])
                    break

    def _points(self, nest: Nest, memory: Memory, disturb: Any = None) -> Points:
        points = Points(nest, self._program.buffers, memory, self._symbols, disturb)
        points.run()
        return points

    def _moved(self, nest: Nest, before: Memory, disturb: Any) -> Memory:
        memory = {**self._memory, **{name: _copy(value) for name, value in before.items()}}
        self._points(nest, memory, disturb)
        return {name: memory[name] for name in before}

    def _apart(self, nest: Nest, before: Memory) -> Memory:
        """The memory that the nests fill from which `nest` was made."""
        names = self._members.get(nest.name, (nest.name,))
        steps = [
            step for step in self._lowered.steps if isinstance(step, Nest) and step.name in names
        ]
        memory = {**self._memory, **{name: _copy(value) for name, value in before.items()}}
        buffers = {**self._lowered.buffers, **self._program.buffers}
        for name in {store.buffer for step in steps for store in step.stores} - before.keys():
            memory[name] = poisoned(buffers[name], self._symbols)
        for step in steps:
            Points(step, buffers, memory, self._symbols).run()
        return memory

    def _run_kernel(self, use: KernelUse) -> None:
        function = getattr(self._parts.library, use.kernel)
        function.restype = None
        places = [ctypes.c_void_p(self._memory[name].data_ptr()) for name in use.buffers]
        values = {str(symbol): value for symbol, value in self._symbols.items()}
        function(*places, *(ctypes.c_int64(values[name]) for name in use.symbols))

    def _work(self, nest: Nest) -> int:
        axes = self._count(axis.size for axis in (*nest.axes, *nest.raxes))
        return axes * len(scalars(nest))

    def _count(self, sizes: Iterable[Size]) -> int:
        return number(product(sizes), self._symbols)


def _text(
    nest: Nest,
    name: str,
    what: str,
    got: torch.Tensor,
    right: torch.Tensor,
    wrong: torch.Tensor,
) -> str:
    place = tuple(int(part) for part in wrong.nonzero()[0])
    claim = {
        "parts": "the nest differs from the nests that it was fused from",
        "kernel": "its kernel differs from its loop IR",
    }[what]
    rules = ", ".join(nest.rules) or "none"
    return (
        f"nest {nest.name} (nodes: {', '.join(nest.origins)}; rules: {rules}): {claim} in "
        f"{int(wrong.sum())} of {wrong.numel()} elements of {name}: at {list(place)} there is "
        f"{got[place].item()} instead of {right[place].item()}"
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and the same elements in between."""
    made: torch.Tensor = torch.empty(0, dtype=tensor.dtype)
    memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return made.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
