"""How the arguments of one ATen overload (or torch function) map to an op's parameters.

Takes an op's parameter names and an overload; gives a `Form` that turns call arguments into
canonical ones and back. Schema arguments meet parameters of the same name first; the rest
meet in order (`self, other` and `x, y`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .world import is_constant, is_number, node_meta

# Values of arguments that no parameter stands for, and that change nothing about the result.
_IDLE: Mapping[str, tuple[Any, ...]] = {
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
    "memory_format": (None, torch.preserve_format),
    "generator": (None,),
    "non_blocking": (True, False),
    "implicit": (True, False),
}
# What a schema calls an int though Python has a type for it.
_ENUMERATIONS = (torch.dtype, torch.layout, torch.memory_format)
# Overload families that take a Python number where the schema says Tensor.
_TAKES_NUMBERS = frozenset(f"aten::{name}" for name in ("add", "sub", "mul", "div", "floor_divide"))


@dataclass(frozen=True)
class Slot:
    """One argument of an overload; `place` is the parameter's index, -1 where none."""

    name: str
    place: int
    type: str
    keyword: bool
    has_default: bool
    default: Any

    def accepts(self, value: Any, numbers: bool) -> bool:
        """Whether `value` can be passed here without a conversion."""
        kind = self.type
        if kind.startswith("Optional["):
            if value is None:
                return True
            kind = kind[len("Optional[") : -1]
        if value is None:
            return False
        if kind == "Tensor":
            if is_number(value):
                return numbers
            return not is_constant(value) and not isinstance(value, list)
        if kind.startswith("List["):
            return isinstance(value, (list, tuple))
        if kind in ("number", "float", "int", "bool"):
            return is_number(value) or isinstance(value, _ENUMERATIONS)
        return True


@dataclass(frozen=True)
class Form:
    """An overload seen from an op. `template` holds the canonical arguments of a call that
    passes none."""

    target: Any
    slots: tuple[Slot, ...]
    template: tuple[Any, ...]
    defaults: tuple[Any, ...]
    takes_numbers: bool

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Canonical arguments of a call, None where it says more than the op can."""
        values = list(self.template)
        given = {slot.name: value for slot, value in zip(self.slots, args, strict=False)}
        given.update(kwargs)
        for slot in self.slots:
            if slot.name not in given:
                continue
            value = given.pop(slot.name)
            if slot.place >= 0:
                values[slot.place] = value
            elif not self._idle(slot, value, values):
                return None
        return None if given else values

    def write(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """args and kwargs for the target; None where this overload cannot take them."""
        places = {slot.place for slot in self.slots}
        for place, (value, default) in enumerate(zip(values, self.defaults, strict=True)):
            if place not in places and not _equal(value, default):
                return None
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = False
        for slot in self.slots:
            value = values[slot.place] if slot.place >= 0 else slot.default
            if value is None and slot.type.startswith("List[") and slot.has_default:
                value = slot.default
            if not slot.accepts(value, self.takes_numbers):
                return None
            if slot.has_default and _equal(value, slot.default):
                gap = True
            elif slot.keyword or gap:
                kwargs[slot.name] = _plain(value)
            else:
                args.append(_plain(value))
        return tuple(args), kwargs

    def _idle(self, slot: Slot, value: Any, values: Sequence[Any]) -> bool:
        if slot.name in _IDLE:
            return any(value is idle for idle in _IDLE[slot.name])
        if slot.name == "device" and values:
            return value is None or getattr(node_meta(values[0]), "device", None) == value
        return _equal(value, slot.default)


def form_of(target: torch._ops.OpOverload, params: Sequence[str], defaults: Sequence[Any]) -> Form:
    """The form of an ATen overload for an op with these parameters."""
    arguments = target._schema.arguments
    places = match_names([argument.name for argument in arguments], params)
    template = list(defaults)
    slots = []
    for argument, place in zip(arguments, places, strict=True):
        default = argument.default_value
        default = tuple(default) if isinstance(default, list) else default
        has_default = argument.has_default_value()
        if place >= 0 and has_default:
            template[place] = default
        slots.append(
            Slot(
                argument.name,
                place,
                str(argument.type),
                bool(argument.kwarg_only),
                has_default,
                default,
            )
        )
    takes = target._schema.name in _TAKES_NUMBERS
    return Form(target, tuple(slots), tuple(template), tuple(defaults), takes)


def match_names(arguments: Sequence[str], params: Sequence[str]) -> list[int]:
    """The parameter index per argument, -1 where no parameter is left for it.

    Tensors of a schema come first and under other names (`self`), so what does not match by
    name matches in order; named extras (`layout`, `device`, ...) never match by order.
    """
    free = [place for place, param in enumerate(params) if param not in arguments]
    places = []
    for name in arguments:
        if name in params:
            places.append(list(params).index(name))
        elif free and name not in _IDLE and name not in ("device", "dtype"):
            places.append(free.pop(0))
        else:
            places.append(-1)
    return places


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _equal(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if not (is_constant(value) and is_constant(default)) or type(value) is not type(default):
        return False
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    if isinstance(value, float):
        return repr(value) == repr(default)
    return bool(value == default)
