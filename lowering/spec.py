"""What a legal `Program` is.

Takes a program; gives a list of problems in plain words, empty for a legal one: names, dtypes
and roles that go together, and what `traffic` says about memory. Tests run it after lowering
and after every fusion, `verify` in every compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch._subclasses.fake_tensor import unset_fake_temporarily

from .guards import Refusal
from .index import axes_of
from .loops import (
    MODES,
    REDUCTIONS,
    SCANS,
    Buffer,
    Extern,
    Nest,
    Program,
    Scalar,
    Store,
    View,
    gathered,
    guards,
    scalars,
    views_in,
)
from .pointwise import COMPARISONS, LOGIC, TESTS
from .promotion import INTS
from .traffic import traffic_problems

ROLES = ("input", "temp", "output", "extern", "constant")


def problems(program: Program) -> list[str]:
    """Everything that is wrong with `program`."""
    found = list(_problems(program))
    with unset_fake_temporarily():  # AOTAutograd compiles under its fake mode
        return found or list(traffic_problems(program))


def _problems(program: Program) -> Iterator[str]:
    for name, buffer in program.buffers.items():
        yield from _buffer(name, buffer)
    written = {
        name for name, buffer in program.buffers.items() if buffer.role in ("input", "constant")
    }
    names: set[str] = set()
    asked: set[str] = set()  # flags that have been found true
    for step in program.steps:
        if step.name in names:
            yield f"two steps are called {step.name}"
        names.add(step.name)
        if isinstance(step, Nest):
            yield from _nest(step, program.buffers, written)
            for flag in sorted(guards(step) - asked):
                yield f"{step.name} goes through an index that nobody found {flag} true for"
        else:
            yield from _extern(step, program.buffers, written)
            asked |= {*step.mutates} if isinstance(step.target, Refusal) else set()
    for item in program.outputs:
        if isinstance(item, View):
            yield from _view("the output", item, program.buffers, written)


def _buffer(name: str, buffer: Buffer) -> Iterator[str]:
    if buffer.name != name:
        yield f"{name} is entered as {buffer.name}"
    if len(buffer.shape) != len(buffer.stride):
        yield f"{name} has {len(buffer.shape)} sizes and {len(buffer.stride)} strides"
    if buffer.role not in ROLES:
        yield f"{name} has the unknown role {buffer.role}"


def _nest(nest: Nest, buffers: Mapping[str, Buffer], written: set[str]) -> Iterator[str]:
    every = (*nest.axes, *nest.raxes)
    if len({axis.name for axis in every}) != len(every):
        yield f"{nest.name} has two axes of one name"
    if not nest.stores:
        yield f"{nest.name} stores nothing"
    own = {store.buffer for store in nest.stores}
    known = frozenset(every)
    for scalar in scalars(nest):
        yield from _scalar(nest, scalar, buffers, written | own)
        for index in scalar.index:
            if not axes_of(index) <= known:
                yield f"{nest.name}: {index} uses an axis of another nest"
    for store in nest.stores:
        yield from _store(nest, store, buffers)
    if _reduces(nest) != bool(nest.raxes):
        yield f"{nest.name} has reduced axes without a reduction, or the reverse"
    written |= own


def _reduces(nest: Nest) -> bool:
    return any(scalar.op in ("reduce", "scan") for scalar in scalars(nest))


def _store(nest: Nest, store: Store, buffers: Mapping[str, Buffer]) -> Iterator[str]:
    buffer = buffers.get(store.buffer)
    if buffer is None:
        yield f"{nest.name} stores into {store.buffer}, which is not a buffer"
        return
    if buffer.role in ("extern", "constant"):
        yield f"{nest.name} stores into {buffer.name}, which is {buffer.role}"
    if len(store.index) != len(buffer.shape):
        yield f"{nest.name} stores into {buffer.name} with {len(store.index)} indices"
    if store.value.dtype != buffer.dtype:
        yield f"{nest.name} stores {store.value.dtype} into {buffer.name}, {buffer.dtype}"
    if store.mode not in MODES:
        yield f"{nest.name} stores in the unknown mode {store.mode}"


def _scalar(
    nest: Nest, scalar: Scalar, buffers: Mapping[str, Buffer], written: set[str]
) -> Iterator[str]:
    where = f"{nest.name}: {scalar.op}"
    if scalar.op == "load":
        yield from _load(where, scalar, buffers, written)
    elif not _well_typed(scalar):
        yield f"{where} of {[arg.dtype for arg in scalar.args]} gives {scalar.dtype}"
    for part in gathered(scalar.index):
        if part.dtype not in INTS:
            yield f"{where} is indexed by {part.dtype}"


def _well_typed(scalar: Scalar) -> bool:
    """Whether the dtypes of operands and result go together."""
    dtypes = [arg.dtype for arg in scalar.args]
    match scalar.op:
        case "const":
            return not dtypes
        case "cast":
            return len(dtypes) == 1
        case "index":
            return scalar.dtype == "i64" and len(scalar.index) == 1
        case "where":
            return dtypes == ["bool", scalar.dtype, scalar.dtype]
        case "reduce":
            wanted = "i64" if str(scalar.value).startswith("arg") else dtypes[0]
            return scalar.value in REDUCTIONS and scalar.dtype == wanted
        case "scan":
            wanted = "i64" if str(scalar.value).startswith("arg") else dtypes[0]
            return scalar.value in SCANS and scalar.dtype == wanted
    if scalar.op in LOGIC:
        return scalar.dtype == "bool" and set(dtypes) == {"bool"}
    if scalar.op in COMPARISONS or scalar.op in TESTS:
        return scalar.dtype == "bool" and len(set(dtypes)) == 1
    return set(dtypes) == {scalar.dtype}


def _load(
    where: str, scalar: Scalar, buffers: Mapping[str, Buffer], written: set[str]
) -> Iterator[str]:
    buffer = buffers.get(scalar.buffer or "")
    if buffer is None:
        yield f"{where} from {scalar.buffer}, which is not a buffer"
        return
    if buffer.name not in written and 0 not in buffer.shape:
        yield f"{where} from {buffer.name} before it is written"
    if scalar.dtype != buffer.dtype or len(scalar.index) != len(buffer.shape):
        yield f"{where} of {scalar.dtype}[{len(scalar.index)}] from {buffer.name}"
    if scalar.args and [arg.dtype for arg in scalar.args] != ["bool", scalar.dtype]:
        yield f"{where} from {buffer.name} is guarded by {[a.dtype for a in scalar.args]}"


def _extern(step: Extern, buffers: Mapping[str, Buffer], written: set[str]) -> Iterator[str]:
    filled = {view.buffer for view in views_in(step.kwargs.get("out"))} & {*step.mutates}
    for view in views_in((step.args, tuple(step.kwargs.values()))):
        yield from _view(step.name, view, buffers, written | filled)
    written |= filled
    for name in step.outs:
        if name is not None and buffers[name].role != "extern":
            yield f"{step.name} gives {name}, whose role is {buffers[name].role}"
    written |= {name for name in step.outs if name is not None}


def _view(
    where: str, view: View, buffers: Mapping[str, Buffer], written: set[str]
) -> Iterator[str]:
    buffer = buffers.get(view.buffer)
    if buffer is None:
        yield f"{where} reads {view.buffer}, which is not a buffer"
    elif buffer.name not in written and 0 not in buffer.shape:
        yield f"{where} reads {buffer.name} before it is written"
    if len(view.shape) != len(view.stride):
        yield f"{where} has {len(view.shape)} sizes and {len(view.stride)} strides"
