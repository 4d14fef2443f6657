"""What a canonical op is, and how one is made from an entry or an ATen schema.

Takes `op` entries and overloads; gives `Op` with its parameters. `ops.OpTable` is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .attributes import Attributes
from .functional import functional_form, mutable_form
from .rule import OpEntry
from .signature import form_of
from .torch_level import argument_defaults, torch_object
from .world import MetaFacts, node_meta

Target = Any  # an OpOverload, a torch function, or a method's name
# Namespaces whose functional ops are pure; custom ops may hide effects, so they stay opaque.
_PURE = frozenset({"aten", "prims", "quantized_decomposed"})
_NAMES_OF_DIMS = ("dim", "dims", "dim0", "dim1", "start_dim", "end_dim")
# Torch functions have no schema that would tell.
_LISTS = ("size", "repeats")


class ArgumentsError(Exception):
    """Arguments that an op cannot have; the text names the op and the argument."""


@dataclass(frozen=True)
class Param:
    """One parameter of an op. kind: "tensor", "tensors" (a list), "dim", "dims" (counted in
    the first tensor), "attribute". `reduces`: the dims are a set, and None means all.
    `listed`: a list of numbers; one number stands for a list of one. `number`: what is
    no operand of a pointwise op, or may be a Python number there."""

    name: str
    default: Any = None
    required: bool = True
    kind: str = "attribute"
    reduces: bool = False
    listed: bool = False
    number: bool = True


@dataclass(frozen=True, eq=False)
class Op:
    """A canonical op; there is one object per name in a table. `entry` is None for ops made
    from their schema, `overloads` empty for macros (`layer_norm`, spelled through `as:`)."""

    name: str
    params: tuple[Param, ...]
    overloads: tuple[Target, ...]
    entry: OpEntry | None = None
    commutes: bool = False

    @property
    def defaults(self) -> tuple[Any, ...]:
        return tuple(param.default for param in self.params)

    def place(self, name: str) -> int | None:
        """The index of a parameter, None where there is none of that name."""
        for index, param in enumerate(self.params):
            if param.name == name:
                return index
        return None

    def __repr__(self) -> str:
        return f"<op {self.name}({', '.join(param.name for param in self.params)})>"


@dataclass(frozen=True)
class Bound:
    """A canonical call: one entry per parameter of `op`. Entries are handles, lists of
    handles and None, or constants (tuples for lists of numbers; symbolic sizes as SymInt)."""

    op: Op
    args: tuple[Any, ...]


GETITEM = Op(
    "getitem", (Param("value", kind="tensor"), Param("index")), (torch_object("operator.getitem"),)
)


def is_opaque(target: torch._ops.OpOverload, declared: bool) -> bool:
    schema = target._schema
    if schema.is_mutable or not any("Tensor" in str(r.type) for r in schema.returns):
        return True
    if declared:
        return False
    return target.namespace not in _PURE


def spelled(target: torch._ops.OpOverload) -> str:
    target = mutable_form(target) or target
    name = f"{target._opname}.{target._overloadname}"
    return name if target.namespace == "aten" else f"{target.namespace}.{name}"


def plain_name(overload: torch._ops.OpOverload, declared: Mapping[str, Any]) -> str:
    name = spelled(overload)
    short = name.removesuffix(".default")
    return name if short in declared else short


def overloads_of(entry: OpEntry) -> tuple[torch._ops.OpOverload, ...]:
    return tuple(o for o in map(find_overload, entry.aten) if o is not None)


def find_overload(name: str) -> torch._ops.OpOverload | None:
    """The overload `sum.dim_IntList`, `prims.convert_element_type.default`, or the plainest
    functional one of `sum`; None where torch has none. Of a custom op that writes into its
    arguments, `mylib.norm_out.default`, the functional form."""
    parts = name.split(".")
    space = torch.ops.aten
    if len(parts) == 3 or (len(parts) == 2 and parts[0] in _PURE):
        space, parts = getattr(torch.ops, parts[0]), parts[1:]
    packet = getattr(space, parts[0], None)
    if packet is None or not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    list_names: Callable[[], list[str]] = packet.overloads
    if len(parts) == 2:
        if parts[1] not in list_names():
            return None
        found: torch._ops.OpOverload = getattr(packet, parts[1])
        writes = space is not torch.ops.aten and found._schema.is_mutable
        return (functional_form(found) or found) if writes else found
    ranked = sorted(list_names(), key=lambda name: name != "default")
    usable = (getattr(packet, o) for o in ranked)
    return next((o for o in usable if not is_opaque(o, declared=True)), None)


def params_of(entry: OpEntry, overloads: Sequence[torch._ops.OpOverload]) -> tuple[Param, ...]:
    names = [name for name, _ in entry.args]
    kinds: dict[str, str] = {}
    single: set[str] = set()
    numbers: set[str] = set()
    for overload in overloads:
        form = form_of(overload, names, [None] * len(names))
        for slot, argument in zip(form.slots, overload._schema.arguments, strict=True):
            if slot.place >= 0:
                name = names[slot.place]
                kinds[name] = _wider(kinds.get(name), kind_of(argument, name))
                if "List[" not in slot.type:
                    single.add(name)
                if slot.accepts(0, form.takes_numbers):
                    numbers.add(name)
    params = []
    for name, default in entry.args:
        value = None if default is None else Attributes({}, MetaFacts(node_meta)).value(default)
        kind = kinds.get(name, "attribute" if overloads or name != "dim" else "dim")
        reduces = kind == "dims" and name == "dim" and default is not None and value is None
        listed = name in _LISTS or (name in kinds and name not in single and kind == "attribute")
        number = kind != "tensor" or name in numbers or entry.scalar is None
        params.append(Param(name, value, default is None, kind, reduces, listed, number))
    return tuple(params)


def automatic_params(name: str) -> tuple[Param, ...] | None:
    """The parameters of a torch function that no entry declares: from its Python signature, or
    from the schema of the ATen op of that name. None where there is neither."""
    function = torch_object(name)
    if not callable(function):
        return None
    own = argument_defaults(function)
    if own is not None:
        return tuple(Param(name, default, required) for name, default, required in own)
    overload = find_overload(str(getattr(function, "__name__", "")).strip("_"))
    if overload is None:
        return None
    return tuple(
        Param(a.name, default_of(a), not a.has_default_value(), kind_of(a))
        for a in overload._schema.arguments
    )


def _wider(first: str | None, second: str) -> str:
    """A parameter may be a tensor in one overload and a number in another."""
    order = ("attribute", "dim", "dims", "tensor", "tensors")
    return second if first is None else max(first, second, key=order.index)


def kind_of(argument: torch.Argument, name: str | None = None) -> str:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    if kind == "Tensor":
        return "tensor"
    if kind.startswith("List[") and "Tensor" in kind:
        return "tensors"
    if name in _NAMES_OF_DIMS and kind == "int":
        return "dim"
    if name in _NAMES_OF_DIMS and kind.startswith("List[int"):
        return "dims"
    return "attribute"


def default_of(argument: torch.Argument) -> Any:
    default = argument.default_value
    return tuple(default) if isinstance(default, list) else default
