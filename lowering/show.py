"""The loop IR as text, for logs, `explain` and golden files.

Takes a `Program` or a `Nest`; gives lines that name axes, loads, scalar ops and stores in
order of running, with the FX nodes and rules each step came from.
"""

from __future__ import annotations

from typing import Any

from .index import Atom, Axis, Gathered, Index, Quotient
from .loops import Buffer, Extern, Nest, Program, Scalar, SizeValue, View, scalars

SIGNS = {"set": "=", "add": "+=", "mul": "*=", "max": "max=", "min": "min="}


def show_program(program: Program) -> str:
    """Buffers, steps and outputs, one per line."""
    lines = ["inputs: " + ", ".join(_input_text(item) for item in program.inputs)]
    lines += [_buffer_text(buffer) for buffer in program.buffers.values()]
    for step in program.steps:
        lines += ["", show_nest(step) if isinstance(step, Nest) else _extern_text(step)]
    lines += ["", "outputs: " + ", ".join(_value_text(value) for value in program.outputs)]
    return "\n".join(lines)


def show_nest(nest: Nest) -> str:
    """One loop nest with every scalar numbered."""
    head = f"{nest.name}: for {_axes_text(nest.axes)}"
    if nest.raxes:
        head += f" reduce {_axes_text(nest.raxes)}"
    lines = [head, *_origin_lines(nest)]
    names: dict[int, str] = {}
    for number, scalar in enumerate(scalars(nest)):
        names[id(scalar)] = f"%{number}"
        lines.append(f"  %{number}: {scalar.dtype} = {_scalar_text(scalar, names)}")
    for store in nest.stores:
        sign = SIGNS[store.mode]
        place = _index_text(store.index, names)
        lines.append(f"  {store.buffer}[{place}] {sign} {names[id(store.value)]}")
    return "\n".join(lines)


def _scalar_text(scalar: Scalar, names: dict[int, str]) -> str:
    arguments = ", ".join(names[id(part)] for part in scalar.args)
    match scalar.op:
        case "load":
            guard = f" where {arguments}" if arguments else ""
            return f"{scalar.buffer}[{_index_text(scalar.index, names)}]{guard}"
        case "const":
            return repr(scalar.value)
        case "index":
            return f"index {_index_text(scalar.index, names)}"
        case "reduce":
            return f"reduce {scalar.value}({arguments})"
        case "scan":
            return f"scan {scalar.value}({arguments})"
    return f"{scalar.op}({arguments})"


def _index_text(index: tuple[Index, ...], names: dict[int, str]) -> str:
    return ", ".join(_part_text(part, names) for part in index)


def _part_text(part: Index, names: dict[int, str]) -> str:
    terms = [(_atom_text(atom, names), size) for atom, size in part.terms]
    parts = [text if size == 1 else f"{size}*{text}" for text, size in terms]
    if part.const != 0 or not parts:
        parts.append(str(part.const))
    return " + ".join(parts)


def _atom_text(atom: Atom, names: dict[int, str]) -> str:
    match atom:
        case Axis(name=name):
            return name
        case Gathered(scalar=scalar, guard=guard):
            return f"[{names[id(scalar)]} by {guard}]" if guard else f"[{names[id(scalar)]}]"
        case Quotient(value=value, divisor=divisor):
            return f"(({_part_text(value, names)}) // {divisor})"
    return f"(({_part_text(atom.value, names)}) % {atom.divisor})"


def _axes_text(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name}<{axis.size}" for axis in axes) or "once"


def _origin_lines(step: Nest | Extern) -> list[str]:
    lines = [f"  # from {', '.join(step.origins)}"] if step.origins else []
    return lines + [f"  # by {rule}" for rule in step.rules]


def _extern_text(step: Extern) -> str:
    arguments = [_value_text(value) for value in step.args]
    arguments += [f"{key}={_value_text(value)}" for key, value in step.kwargs.items()]
    outs = ", ".join(out or "_" for out in step.outs)
    return "\n".join(
        [f"{step.name}: {outs} = {step.target}({', '.join(arguments)})", *_origin_lines(step)]
    )


def _value_text(value: Any) -> str:
    match value:
        case View():
            return f"{value.buffer}{list(value.shape)}@{list(value.stride)}+{value.offset}"
        case SizeValue(value=size):
            return str(size)
        case list() | tuple():
            return "[" + ", ".join(_value_text(item) for item in value) + "]"
    return str(value)


def _input_text(item: str | SizeValue | None) -> str:
    return str(item.value) if isinstance(item, SizeValue) else str(item)


def _buffer_text(buffer: Buffer) -> str:
    return f"{buffer.role} {buffer.name}: {buffer.dtype}{list(buffer.shape)}@{list(buffer.stride)}"
