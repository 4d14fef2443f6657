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
    """A call back into Python, by step number; with flags (buffers of one bool) only where
    one of them is false."""

    label: str
    flags: tuple[int, ...] = ()


Call = KernelCall | ShimCall | PythonCall


@dataclass(frozen=True)
class Around:
    """What happens around one step: operands of outputs to allocate before it, buffers whose
    memory came from a shim to free after it, and whether Python has tensors to let go."""

    allocate: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    drop: bool = False


def emit_entry(calls: Sequence[Call], around: Sequence[Around]) -> str:
    """C++ text of the entry; `around` has one entry per call, and one for after the last."""
    lines = ['#include "entry_runtime.h"', ""]
    lines += _prototypes(calls)
    lines += [f'extern "C" int64_t {ENTRY}(Context *c) {{', "  void **p = c->pointers;"]
    lines.append("  const int64_t *n = c->numbers;")
    lines.append("  (void)p, (void)n;")
    for step, (call, more) in enumerate(zip((*calls, None), around, strict=True)):
        lines += [f"  if (allocate(c, {i})) return {step + 1};" for i in more.allocate]
        lines += _emit(step, call) if call is not None else ()
        lines += [f"  drop(c, &c->owned[{slot}]);" for slot in more.free]
        if more.drop:
            lines.append(f"  if (c->python(c, {-1 - step})) return {step + 1};")
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
        case PythonCall(label=label, flags=flags):
            wrong = " || ".join(f"!*(const bool *)p[{slot}]" for slot in flags)
            test = f"({wrong}) && " if flags else ""
            return [f"  if ({test}c->python(c, {step})) return {step + 1};  // {label}"]
