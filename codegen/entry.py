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
    """A kernel on buffers (slots of the pointer table) and symbols (slots of `Numbers`). Before
    it runs, the first buffer of each pair in `taken` is put where the second one is."""

    kernel: str
    buffers: tuple[int, ...]
    numbers: tuple[int, ...]
    taken: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class GpuCall:
    """A kernel for a GPU: `function` is its place in the table of functions (entry_runtime.h,
    `variant`), `programs` a slot of `Numbers`, `threads` those of a program, `shared` its bytes of
    shared memory, `hidden` how many null pointers follow the arguments."""

    label: str
    function: int
    buffers: tuple[int, ...]
    numbers: tuple[int, ...]
    programs: int
    threads: int
    shared: int
    hidden: int


@dataclass(frozen=True)
class Gpu:
    """The device of GPU calls, and where the table of functions has what they need."""

    device: int
    stream: int
    launch: int
    push: int
    pop: int
    context: int


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


Call = KernelCall | GpuCall | ShimCall | PythonCall


@dataclass(frozen=True)
class Around:
    """What happens around one step: operands of outputs to allocate before it, buffers whose
    memory came from a shim to free after it, and whether Python has tensors to let go."""

    allocate: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    drop: bool = False


def emit_entry(calls: Sequence[Call], around: Sequence[Around], gpu: Gpu | None = None) -> str:
    """C++ text of the entry; `around` has one entry per call, and one for after the last. `gpu`
    is needed for GPU calls."""
    lines = ['#include "entry_runtime.h"', ""]
    lines += _prototypes(calls)
    head = f'extern "C" int64_t {ENTRY}(Context *c) {{'
    lines += [head if gpu is None else "static int64_t steps(Context *c, void *stream) {"]
    lines += [
        "  void **p = c->pointers;",
        "  const int64_t *n = c->numbers;",
        "  (void)p, (void)n;",
    ]
    for step, (call, more) in enumerate(zip((*calls, None), around, strict=True)):
        lines += [f"  if (allocate(c, {i})) return {step + 1};" for i in more.allocate]
        if isinstance(call, GpuCall):
            assert gpu is not None
            lines += _emit_gpu(call, gpu)
        elif call is not None:
            lines += _emit(step, call)
        lines += [f"  drop(c, &c->owned[{slot}]);" for slot in more.free]
        if more.drop:
            lines.append(f"  if (c->python(c, {-1 - step})) return {step + 1};")
    lines += ["  return 0;", "}", ""]
    if gpu is not None:
        lines += [head, *_around_gpu(gpu), "}", ""]
    return "\n".join(lines)


def _around_gpu(gpu: Gpu) -> list[str]:
    """Runs the steps in the context of the device, on the stream that torch is on."""
    return [
        "  void *stream = nullptr, *context = nullptr;",
        f"  int failed = call(c->shims[{gpu.stream}], (int32_t){gpu.device}, &stream);",
        f"  failed = failed ? failed : call(c->shims[{gpu.push}], c->shims[{gpu.context}]);",
        "  if (failed) return -failed;",
        "  int64_t result = steps(c, stream);",
        f"  call(c->shims[{gpu.pop}], &context);",
        "  return result;",
    ]


def _emit_gpu(call: GpuCall, gpu: Gpu) -> list[str]:
    """One launch. Arguments are passed by address, as the driver wants them."""
    passed = [f"&p[{slot}]" for slot in call.buffers]
    passed += [f"(void *)&n[{slot}]" for slot in call.numbers] + ["&none"] * call.hidden
    pointers = " | ".join(f"(uintptr_t)p[{slot}]" for slot in call.buffers) or "0"
    return [
        f"  {{  // {call.label}",
        "    void *none = nullptr;",
        f"    void *arguments[] = {{{', '.join(passed)}}};",
        f"    void *function = variant(c, {call.function}, {pointers});",
        "    if (!function) return 1;",
        f"    int failed = launch(c->shims[{gpu.launch}], function, n[{call.programs}], "
        f"{call.threads}u, {call.shared}u, stream, arguments);",
        "    if (failed) return -failed;",
        "  }",
    ]


def shim_slot(symbols: Sequence[str], symbol: str | None = None) -> int:
    """The place of a graph's own shim in the table, after those of the runtime; without one, that
    of what follows them all."""
    return len(BASE) + (len(symbols) if symbol is None else symbols.index(symbol))


def _prototypes(calls: Sequence[Call]) -> list[str]:
    seen: dict[str, str] = {}
    for call in calls:
        if isinstance(call, KernelCall):
            types = ["void *"] * len(call.buffers) + ["int64_t"] * len(call.numbers)
            seen[call.kernel] = f'extern "C" void {call.kernel}({", ".join(types)});'
    return [*seen.values(), ""] if seen else []


def _emit(step: int, call: KernelCall | ShimCall | PythonCall) -> list[str]:
    match call:
        case KernelCall(kernel=kernel, buffers=buffers, numbers=numbers, taken=taken):
            moves = [f"  p[{new}] = p[{old}];" for new, old in taken]
            passed = [f"p[{slot}]" for slot in buffers] + [f"n[{slot}]" for slot in numbers]
            return [*moves, f"  {kernel}({', '.join(passed)});"]
        case ShimCall(label=label, lines=lines):
            return [f"  {{  // {label}", *(f"    {line}" for line in lines), "  }"]
        case PythonCall(label=label, flags=flags):
            wrong = " || ".join(f"!*(const bool *)p[{slot}]" for slot in flags)
            test = f"({wrong}) && " if flags else ""
            return [f"  if ({test}c->python(c, {step})) return {step + 1};  // {label}"]
