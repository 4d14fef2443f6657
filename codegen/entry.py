"""The C entry of a compiled graph: one function that runs every step in order.

Takes the steps in their final form; gives C++ text. Only the entry knows the order of
steps, so kernel objects can be shared between graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .shims import BASE

ENTRY = "eqsat_entry"


@dataclass(frozen=True)
class KernelCall:
    """A kernel on buffers (slots of the pointer table) and symbols (slots of `Numbers`)."""

    kernel: str
    buffers: tuple[int, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ShimCall:
    """C statements made by `externs.emit_call`."""

    label: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class PythonCall:
    """A call back into Python, by step number."""

    label: str


Call = KernelCall | ShimCall | PythonCall


def emit_entry(calls: Sequence[Call], dead: Sequence[Sequence[int]]) -> str:
    """C++ text of the entry. `dead[i]` lists buffers nobody reads after step i; results that
    a shim allocated are freed there."""
    lines = ['#include "entry_runtime.h"', ""]
    lines += _prototypes(calls)
    lines += [f'extern "C" int64_t {ENTRY}(Context *c) {{', "  void **p = c->pointers;"]
    lines.append("  const int64_t *n = c->numbers;")
    lines.append("  (void)p, (void)n;")
    for step, (call, slots) in enumerate(zip(calls, dead, strict=True)):
        lines += _emit(step, call)
        lines += [f"  drop(c, &c->owned[{slot}]);" for slot in slots]
    lines += ["  return 0;", "}", ""]
    return "\n".join(lines)


def shim_slot(symbols: Sequence[str], symbol: str) -> int:
    """The place of a graph's own shim in the table, after those of the runtime."""
    return len(BASE) + symbols.index(symbol)


def _prototypes(calls: Sequence[Call]) -> list[str]:
    seen: dict[str, str] = {}
    for call in calls:
        if isinstance(call, KernelCall):
            types = ["void *"] * len(call.buffers) + ["int64_t"] * len(call.numbers)
            seen[call.kernel] = f'extern "C" void {call.kernel}({", ".join(types)});'
    return [*seen.values(), ""] if seen else []


def _emit(step: int, call: Call) -> list[str]:
    match call:
        case KernelCall(kernel=kernel, buffers=buffers, numbers=numbers):
            passed = [f"p[{slot}]" for slot in buffers] + [f"n[{slot}]" for slot in numbers]
            return [f"  {kernel}({', '.join(passed)});"]
        case ShimCall(label=label, lines=lines):
            return [f"  {{  // {label}", *(f"    {line}" for line in lines), "  }"]
        case PythonCall(label=label):
            return [f"  if (c->python(c, {step})) return {step + 1};  // {label}"]
