"""Kernels of a program: emitted, named, deduplicated and laid out in translation units.

Takes nests; gives one `Kernel` per distinct text. A kernel's name comes from its text alone,
so that equal kernels of different graphs share compiled objects; the comment above it (nodes
and rules of every nest that uses it) is shown and saved but is no part of any cache key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeVar

from ..engine.loop_choices import LoopChoices
from ..lowering.loops import Buffer, Nest, scalars
from .build import Unit
from .cache import digest
from .cpp import KernelText, emit_nest
from .structure import structure

Text = TypeVar("Text", bound=Any)  # a frozen dataclass with the buffer names `args`
KERNELS_PER_UNIT = 25
_PLUMBING = frozenset({"load", "const", "index", "cast", "reduce", "scan"})
_PRELUDE = '#include "eqsat_math.h"\n'


@dataclass(frozen=True)
class Kernel:
    """`uses` counts the nests that call it."""

    name: str
    text: str
    origins: tuple[str, ...]
    rules: tuple[str, ...]
    uses: int = 1


@dataclass(frozen=True)
class KernelUse:
    """How one nest calls its kernel: buffer names and symbol names in call order."""

    kernel: str
    buffers: tuple[str, ...]
    symbols: tuple[str, ...]


def emit_kernels(
    nests: Sequence[Nest],
    buffers: Mapping[str, Buffer],
    table: Mapping[str, Any],
    loops: LoopChoices | None = None,
) -> tuple[list[Kernel], list[KernelUse]]:
    """Distinct kernels in order of first use, and one `KernelUse` per nest."""
    kernels: dict[str, Kernel] = {}
    uses: list[KernelUse] = []
    memo: dict[Hashable, tuple[KernelText, tuple[str, ...]]] = {}

    def emit(nest: Nest, buffers: Mapping[str, Buffer]) -> KernelText:
        return emit_nest(nest, buffers, table, loops)

    for nest in nests:
        emitted = emit_once(nest, buffers, emit, memo)
        found = kernels.get(emitted.text)
        if found is None:
            name = f"k_{digest(emitted.text)[:8]}_{label(nest)}"
            text = emitted.text.replace("@NAME@", name)
            found = Kernel(name, text, nest.origins, nest.rules)
        else:
            found = used_again(found, nest)
        kernels[emitted.text] = found
        uses.append(KernelUse(found.name, tuple(emitted.args), tuple(emitted.symbols)))
    return list(kernels.values()), uses


def emit_once(
    nest: Nest,
    buffers: Mapping[str, Buffer],
    emit: Callable[[Nest, Mapping[str, Buffer]], Text],
    memo: dict[Hashable, tuple[Text, tuple[str, ...]]],
) -> Text:
    """What `emit` gives for `nest`; for an alike nest that was seen before, what it gave then, with
    buffers renamed."""
    key, names = structure(nest, buffers)
    found = memo.get(key)
    if found is None:
        emitted = emit(nest, buffers)
        memo[key] = emitted, names
        return emitted
    emitted, others = found
    renamed = dict(zip(others, names, strict=True))
    return replace(emitted, args=tuple(renamed[name] for name in emitted.args))


def used_again(kernel: Kernel, nest: Nest) -> Kernel:
    """`kernel` with one nest more that calls it."""
    return replace(
        kernel,
        origins=_joined(kernel.origins, nest.origins),
        rules=_joined(kernel.rules, nest.rules),
        uses=kernel.uses + 1,
    )


def make_units(kernels: Sequence[Kernel], cores: int) -> list[Unit]:
    """Translation units of about equal size. Kernels are sorted by name, so that the same
    set of kernels always makes the same units."""
    if not kernels:
        return []
    ordered = sorted(kernels, key=lambda kernel: kernel.name)
    count = max(1, min(cores, ceil(len(ordered) / KERNELS_PER_UNIT)))
    size = ceil(len(ordered) / count)
    pieces = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return [
        Unit(
            _PRELUDE + "".join(_definition(kernel) for kernel in piece),
            _PRELUDE + "".join(_comment(kernel) + _definition(kernel) for kernel in piece),
        )
        for piece in pieces
    ]


def _definition(kernel: Kernel) -> str:
    return f'extern "C" {{\n{kernel.text.strip()}\n}}\n'


def _comment(kernel: Kernel) -> str:
    lines = [f"nodes: {', '.join(kernel.origins)}", *(f"rule: {rule}" for rule in kernel.rules)]
    if kernel.uses > 1:
        lines.append(f"called {kernel.uses} times")
    # A comment must not swallow code: no line breaks, no trailing backslash.
    return "\n" + "".join(f"// {' '.join(line.split())}.\n" for line in lines)


def label(nest: Nest) -> str:
    """A few words for what the nest computes: its reductions and last scalar ops."""
    words: list[str] = []
    for scalar in reversed(scalars(nest)):
        folds = {"reduce": str(scalar.value), "scan": f"running_{scalar.value}"}
        word = folds.get(scalar.op, scalar.op)
        if (scalar.op in folds or scalar.op not in _PLUMBING) and word not in words:
            words.append(word)
    kept = words[:3]
    return "_".join(reversed(kept)) or "copy"


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
