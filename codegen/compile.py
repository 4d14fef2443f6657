"""Fused loop IR to a callable: emit, dedupe, entry, build, load.

Takes a fused `Program`; gives a `CompiledGraph`. See `compile_program` for the order.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..engine.block_choices import BlockChoices
from ..engine.dtypes import dtype_of
from ..engine.loop_choices import LoopChoices
from ..lowering.domain import estimate, product
from ..lowering.guards import ASSERTIONS, Refusal
from ..lowering.index import Size, row_major
from ..lowering.loops import Buffer, Extern, Nest, Program, SizeValue, View
from ..lowering.placement import placement_problems
from ..lowering.plan import plan, taken_over
from ..lowering.verify import refuse
from .build import Unit, build_library
from .entry import ENTRY, Around, Call, KernelCall, PythonCall, ShimCall, emit_entry, shim_slot
from .externs import Operands, Route, emit_call, find_route, views_in
from .flags import compile_flags
from .gemm import Pick, pick_route
from .gpu.part import GpuPart, gpu_part, on_gpu, shown
from .gpu.split import split_reductions
from .instance import Blueprint, Functions, Instance, PythonStep, Slot, lower_argument
from .kernels import Kernel, KernelUse, emit_kernels, make_units
from .launch import Runner, find_runner
from .lockstep import CompiledParts
from .numbers import Numbers, plain
from .shims import ready
from .symbols import Bind, bind_symbols, symbol_of

LARGE_BYTES = 1 << 16  # tensors from this size on are let go as soon as nothing needs them
LARGE_TEMPORARY = 1 << 18  # bytes from which on an allocation costs little beside the writing
SHAPES_KEPT = 8  # instances of how many sets of symbol values are kept for dynamic shapes


@dataclass(frozen=True)
class CompileOptions:
    """`shims`: let the entry call ATen directly; off, every extern runs through Python.
    `measure_gemm`: take oneDNN for matrix products where it is measured to be faster; it may
    round differently from eager. `lasting` names inputs that the caller keeps anyway
    (parameters), so that letting them go early gains nothing. `verify`: check the memory plan,
    and keep what a check of the first call needs. `loops` and `blocks`: those of the targets "cpu"
    and "h200" unless given. `tight`: no memory for large temporaries is kept from call to call."""

    shims: bool = True
    measure_gemm: bool = True
    lasting: frozenset[str] = frozenset()
    verify: bool = False
    loops: LoopChoices | None = None
    blocks: BlockChoices | None = None
    tight: bool = False


@dataclass(frozen=True)
class ExternInfo:
    """How one extern call is run: `path` is "python" or the name of a C function. `pick` holds
    the times of a matrix product that was measured."""

    name: str
    target: str
    path: str
    origins: tuple[str, ...]
    rules: tuple[str, ...]
    pick: Pick | None = None


class CompiledGraph:
    """A boxed callable: takes one list of graph inputs (tensors and ints), empties it, and
    gives the list of outputs. Safe to call from several threads and from within itself."""

    def __init__(
        self,
        blueprint: Blueprint,
        symbols: Bind | None,
        kernels: Sequence[Kernel],
        externs: Sequence[ExternInfo],
        source: str,
        runner: Runner,
        parts: CompiledParts | None = None,
    ) -> None:
        self._boxed_call = True  # on the instance: torch copies it to wrappers from there
        self.kernels = tuple(kernels)
        self.externs = tuple(externs)
        self.source = source
        self.parts = parts
        self._blueprint = blueprint
        self._again = tuple(blueprint.again.items())
        self._symbols = symbols
        self._runner = runner
        self._run = runner.run
        self._lock = threading.Lock()
        self._free: dict[tuple[int, ...], list[tuple[Any, Instance]]] = {(): []}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the graph. Raises what an extern op raises, and TypeError for wrong inputs."""
        if self._symbols is None:
            values: tuple[int, ...] = ()
            free = self._free[()]
        else:
            values = self._symbols(inputs)
            free = self._pool(values)
        try:
            pair = free.pop()
        except IndexError:
            instance = Instance(self._blueprint, values)
            pair = (self._runner.prepare(instance), instance)
        instance = pair[1]
        instance.enter()
        try:
            outputs: list[Any] = self._run(*pair, inputs)
            for place, first in self._again:
                outputs[place] = outputs[first]
            return outputs
        finally:
            instance.leave()
            free.append(pair)

    def _pool(self, values: tuple[int, ...]) -> list[tuple[Any, Instance]]:
        """Idle instances for these sizes; the sizes used longest ago are forgotten."""
        with self._lock:
            free = self._free.pop(values, None)
            if free is None:
                free = []
                while len(self._free) >= SHAPES_KEPT:
                    del self._free[next(iter(self._free))]
            self._free[values] = free
            return free


def compile_program(
    program: Program, scalars: Mapping[str, Any], options: CompileOptions | None = None
) -> CompiledGraph:
    """Compile `program`. `scalars` is the table of scalar ops (rules/scalar).

    Raises CompilerMissing, BuildError, UnboundSymbol.
    """
    with unset_fake_temporarily():  # AOTAutograd compiles under its fake mode
        return _compile(program, scalars, options or CompileOptions())


def _compile(
    program: Program, scalars: Mapping[str, Any], options: CompileOptions
) -> CompiledGraph:
    program = split_reductions(program, options.blocks)
    routes, picks = _find_routes(program, options)
    program = _assign_roles(program, routes)
    alone = _large_temporaries(program, routes) if options.tight and ready() else frozenset()
    owned = alone | _allocated(program, routes)
    here = frozenset(name for name in owned if program.buffers[name].device == "cpu")
    taken = taken_over(program, here)
    program = _with_role("output", alone - taken.keys(), program)
    program = _with_role("taken", taken, program)
    numbers = Numbers()
    operands = Operands(program.buffers, numbers)
    kernels, uses = emit_kernels(_nests(program), program.buffers, scalars, options.loops)
    shims = sorted({route.shim.symbol for route in routes.values()})
    gpu = gpu_part(program, scalars, shim_slot(shims), options.blocks)
    shims += gpu.symbols
    calls = _make_calls(program, routes, (uses, gpu), operands, numbers, shims, taken)
    touched = _touched(program, uses, gpu)
    around, drops = _surround(program, routes, touched, operands, options, taken)
    entry = emit_entry(calls, around, gpu.table())
    units = [*make_units(kernels, os.cpu_count() or 1), Unit(entry, entry)]
    library = ctypes.CDLL(str(build_library(units, compile_flags())))
    table = Functions(tuple(shims), gpu.functions(), gpu.late)
    blueprint = _make_blueprint(program, drops, operands, numbers, table, library, taken)
    parts = None
    if options.verify and gpu.built is None:
        refuse("plan", placement_problems(program, blueprint.arena, _usual_sizes(program)))
        parts = CompiledParts(program, tuple(uses), library)
    symbols = numbers.symbols()
    bind = bind_symbols(program, symbols) if symbols else None
    source = "\n".join([*(unit.shown for unit in units), *shown(gpu.kernels)])
    externs = _describe(program, routes, picks)
    kernels = [*kernels, *gpu.kernels]
    return CompiledGraph(blueprint, bind, kernels, externs, source, find_runner(), parts)


# Steps of `compile_program`.


def _allocated(program: Program, routes: Mapping[int, Route]) -> frozenset[str]:
    """Results that C functions allocate, each in memory of its own."""
    steps = [program.steps[number] for number, route in routes.items() if not route.shim.out]
    found = [name for step in steps if isinstance(step, Extern) for name in step.outs]
    return frozenset(name for name in found if name is not None)


def _large_temporaries(program: Program, routes: Mapping[int, Route]) -> frozenset[str]:
    """Temporaries that may be allocated for the steps that need them, each by itself. Python would
    hold on to those that it is handed."""
    handed = {
        name
        for number, step in enumerate(program.steps)
        if isinstance(step, Extern) and number not in routes
        for name in (*(view.buffer for view in views_in((step.args, step.kwargs))), *step.mutates)
    }
    sizes = _usual_sizes(program)
    return frozenset(
        name
        for name in sizes.keys() - handed
        if sizes[name] >= LARGE_TEMPORARY and program.buffers[name].device == "cpu"
    )


def _with_role(role: str, names: Collection[str], program: Program) -> Program:
    changed = {name: replace(program.buffers[name], role=role) for name in names}
    return replace(program, buffers={**program.buffers, **changed})


def _find_routes(
    program: Program, options: CompileOptions
) -> tuple[dict[int, Route], dict[int, Pick]]:
    """Step number -> shim call, for the externs that have one; and what was measured."""
    routes: dict[int, Route] = {}
    picks: dict[int, Pick] = {}
    for number, step in enumerate(program.steps):
        route = None
        if isinstance(step, Extern) and options.shims:
            route = find_route(step, program.buffers)
        if route is None:
            continue
        moved = isinstance(step, Extern) and step.mutates
        if options.measure_gemm and not moved:  # oneDNN gives memory of its own
            route, pick = pick_route(route, program.buffers)
            if pick is not None:
                picks[number] = pick
        routes[number] = route
    return routes, picks


def _assign_roles(program: Program, routes: Mapping[int, Route]) -> Program:
    """Decide whose memory each buffer is, now that it is known how externs run.

    What an op allocates itself is "extern"; what a graph output looks at is "output"; the
    rest lies in the arena.
    """
    shown = {view.buffer for view in program.outputs if isinstance(view, View)}
    allocated: set[str | None] = set()
    for number, step in enumerate(program.steps):
        if isinstance(step, Extern) and not (number in routes and routes[number].shim.out):
            allocated |= set(step.outs)
    buffers: dict[str, Buffer] = {}
    for name, buffer in program.buffers.items():
        role = buffer.role
        if role not in ("input", "constant"):
            role = "extern" if name in allocated else "output" if name in shown else "temp"
        buffers[name] = replace(buffer, role=role)
    return replace(program, buffers=buffers)


def _make_calls(
    program: Program,
    routes: Mapping[int, Route],
    nests: tuple[Sequence[KernelUse], GpuPart],
    operands: Operands,
    numbers: Numbers,
    shims: Sequence[str],
    taken: Mapping[str, str],
) -> list[Call]:
    calls: list[Call] = []
    uses, gpu = nests
    remaining = iter(uses)
    for number, step in enumerate(program.steps):
        if isinstance(step, Nest) and on_gpu(step, program):
            calls.append(gpu.call(step, operands, numbers))
        elif isinstance(step, Nest):
            use = next(remaining)
            slots = tuple(map(operands.slot, use.buffers))
            symbols = tuple(numbers.add(symbol_of(name)) for name in use.symbols)
            moves = [
                (store.buffer, taken[store.buffer])
                for store in step.stores
                if store.buffer in taken
            ]
            places = tuple((operands.slot(new), operands.slot(old)) for new, old in moves)
            calls.append(KernelCall(use.kernel, slots, symbols, places))
        elif number in routes:
            route = routes[number]
            slot = shim_slot(shims, route.shim.symbol)
            lines = emit_call(route, step.outs, operands, numbers, shim=slot, step=number)
            calls.append(ShimCall(f"{step.target} by {route.shim.symbol}", tuple(lines)))
        else:
            label = str(step.target).split("\n")[0]
            calls.append(PythonCall(label, _flags(step, program, operands)))
    return calls


def _flags(step: Extern, program: Program, operands: Operands) -> tuple[int, ...]:
    """The buffers of one bool that an extern does nothing about where all are true."""
    asked: Any = ()
    if isinstance(step.target, Refusal):
        asked = step.args[0]
    elif step.target in ASSERTIONS:
        asked = step.args[:1]
    buffers = [program.buffers[view.buffer] for view in views_in(asked)]
    if not all(
        buffer.dtype == "bool" and buffer.shape == () and buffer.device == "cpu"
        for buffer in buffers
    ):
        return ()
    return tuple(operands.slot(buffer.name) for buffer in buffers)


def _make_blueprint(
    program: Program,
    drops: Mapping[int, tuple[int, ...]],
    operands: Operands,
    numbers: Numbers,
    table: Functions,
    library: ctypes.CDLL,
    taken: Mapping[str, str],
) -> Blueprint:
    steps = {
        number: _python_step(step, operands, numbers)
        for number, step in enumerate(program.steps)
        if isinstance(step, Extern)
    }
    slots = []
    for buffer in program.buffers.values():
        named = buffer.role in ("output", "extern", "taken")
        whole = operands.whole(buffer.name) if named else None
        elements = numbers.add(_elements(buffer)) if buffer.role == "temp" else 0
        device = torch.device(buffer.device)
        slots.append(
            Slot(buffer.name, dtype_of(buffer.dtype), buffer.role, elements, whole, device)
        )
    outputs = _outputs(program, operands, numbers)
    constants = {operands.slot(name): tensor for name, tensor in program.constants.items()}
    return Blueprint(
        inputs=tuple(
            operands.slot(value) if isinstance(value, str) else -1 for value in program.inputs
        ),
        slots=tuple(slots),
        operands=tuple(operands.table),
        evaluate=numbers.function(numbers.symbols()),
        arena=plan(program),
        taken={operands.slot(new): operands.slot(old) for new, old in taken.items()},
        table=table,
        steps=steps,
        drops=drops,
        outputs=outputs,
        again=program.again,
        constants=constants,
        entry=ctypes.cast(getattr(library, ENTRY), ctypes.c_void_p).value or 0,
        library=library,
    )


def _python_step(step: Extern, operands: Operands, numbers: Numbers) -> PythonStep:
    return PythonStep(
        step.target,
        tuple(lower_argument(value, operands.add, numbers.add) for value in step.args),
        {
            name: lower_argument(value, operands.add, numbers.add)
            for name, value in step.kwargs.items()
        },
        tuple(None if name is None else operands.whole(name) for name in step.outs),
        step.single,
    )


def _outputs(program: Program, operands: Operands, numbers: Numbers) -> tuple[tuple[str, Any], ...]:
    found: list[tuple[str, Any]] = []
    for place, value in enumerate(program.outputs):
        output = _output(value, operands, numbers)
        again = output[0] == "tensor" and output in found and place not in program.again
        found.append(("view", output[1]) if again else output)
    return tuple(found)


def _output(value: Any, operands: Operands, numbers: Numbers) -> tuple[str, Any]:
    if isinstance(value, View):
        return "tensor", operands.add(value)
    if isinstance(value, SizeValue):
        return "number", numbers.add(value.value)
    return "value", value


def _elements(buffer: Buffer) -> Size:
    """How many elements of memory the layout spans; not positive for an empty tensor whose
    sizes are symbolic."""
    if any(size == 0 for size in buffer.shape):
        return 0
    if buffer.stride == row_major(buffer.shape):
        return product(buffer.shape)
    total: Size = 1
    for size, stride in zip(buffer.shape, buffer.stride, strict=True):
        total = total + (size - 1) * stride
    return plain(total)


def _usual_sizes(program: Program) -> dict[str, int]:
    """Bytes of each temporary buffer, with a usual size for every symbol."""
    return {
        name: max(estimate(_elements(buffer)), 0) * dtype_of(buffer.dtype).itemsize
        for name, buffer in program.buffers.items()
        if buffer.role == "temp"
    }


def _describe(
    program: Program, routes: Mapping[int, Route], picks: Mapping[int, Pick]
) -> list[ExternInfo]:
    return [
        ExternInfo(
            step.name,
            str(step.target),
            routes[number].shim.symbol if number in routes else "python",
            step.origins,
            step.rules,
            picks.get(number),
        )
        for number, step in enumerate(program.steps)
        if isinstance(step, Extern) and not isinstance(step.target, Refusal)
    ]


def _nests(program: Program) -> list[Nest]:
    """Those of the CPU."""
    steps = program.steps
    return [step for step in steps if isinstance(step, Nest) and not on_gpu(step, program)]


def _touched(program: Program, uses: Sequence[KernelUse], gpu: GpuPart) -> list[tuple[str, ...]]:
    """Per step, the buffers it reads or writes."""
    touched: list[tuple[str, ...]] = []
    remaining = iter(uses)
    for step in program.steps:
        if isinstance(step, Nest) and on_gpu(step, program):
            touched.append(gpu.uses[step.name].buffers)
        elif isinstance(step, Nest):
            touched.append(next(remaining).buffers)
        else:
            views = views_in((*step.args, *step.kwargs.values()))
            kept = [name for name in step.outs if name is not None]
            touched.append((*(view.buffer for view in views), *kept, *step.mutates))
    return touched


def _surround(
    program: Program,
    routes: Mapping[int, Route],
    touched: Sequence[Sequence[str]],
    operands: Operands,
    options: CompileOptions,
    taken: Mapping[str, str],
) -> tuple[list[Around], dict[int, tuple[int, ...]]]:
    """What to allocate before and free after each step; and per step the buffers whose
    tensors Python lets go of. Small ones wait for the end: a callback costs more."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, names in enumerate(touched):
        for name in names:
            first.setdefault(name, number)
            last[name] = number
    for view in views_in(program.outputs):
        last.pop(view.buffer, None)
    for new, old in reversed(list(taken.items())):
        last[old] = max(last[old], last[new])
    owned = _allocated(program, routes)
    allocate, free, drop = (defaultdict[int, list[int]](list) for _ in range(3))
    for name, buffer in program.buffers.items():
        if buffer.role == "output" and ready():
            allocate[first.get(name, len(touched))].append(operands.whole(name))
            if name in last:
                free[last[name]].append(operands.slot(name))
        elif name not in last or buffer.role not in ("extern", "input"):
            continue
        elif name in owned:
            free[last[name]].append(operands.slot(name))
        elif name not in options.lasting and _is_large(buffer):
            drop[last[name]].append(operands.slot(name))
    around = [
        Around(tuple(allocate[number]), tuple(free[number]), number in drop)
        for number in range(len(program.steps) + 1)
    ]
    return around, {number: tuple(slots) for number, slots in drop.items()}


def _is_large(buffer: Buffer) -> bool:
    size = product(buffer.shape)
    return not isinstance(size, int) or size * dtype_of(buffer.dtype).itemsize >= LARGE_BYTES
