"""Calls of torch functions and tensor methods, as graphs before AOTAutograd hold them.

Takes names as rules write them (`F.linear`, `torch.matmul`, `Tensor.view`, `operator.add`);
gives the objects, and forms that turn their call arguments into canonical ones and back.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .signature import match_names
from .world import is_constant, node_meta

if TYPE_CHECKING:
    from .op import Param

_ROOTS: Mapping[str, Any] = {
    "F": torch.nn.functional,
    "torch": torch,
    "Tensor": torch.Tensor,
    "operator": operator,
}


_SAME = ("torch", "Tensor", "operator")


def torch_object(name: str) -> Any:
    """The function or method behind a torch-level name, None where torch has none."""
    root, *path = name.split(".")
    found = _ROOTS.get(root)
    for part in path:
        found = getattr(found, part, None)
    return found


def sibling_names(name: str) -> tuple[str, ...]:
    """The other spellings of a torch function that take the same arguments: `torch.abs`,
    `Tensor.abs`, `operator.abs` and `Tensor.__abs__`."""
    root, _, base = name.partition(".")
    if root not in _SAME:
        return (name,)
    spelled = [*(f"{other}.{base}" for other in _SAME), f"Tensor.__{base}__"]
    return tuple(other for other in spelled if callable(torch_object(other)))


@dataclass(frozen=True)
class TorchForm:
    """A torch function seen from an op: `names` are its own argument names in order."""

    target: Callable[..., Any]
    names: tuple[str, ...]
    places: tuple[int, ...]
    params: tuple[Param, ...]

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
        """Canonical arguments of a call, None where it says more than the op can."""
        values = [param.default for param in self.params]
        filled: set[int] = set()
        args = self._gathered(args)
        if len(args) > len(self.places):
            args = self._packed(args)
        given = [*zip(self.names, args, strict=False), *kwargs.items()]
        own = [param.name for param in self.params]
        for name, value in given:
            if name in self.names:
                place = self.places[self.names.index(name)]
            else:
                place = own.index(name) if name in own else -1
            if place < 0 or place in filled:
                return None
            values[place] = value
            filled.add(place)
        missing = any(p.required and i not in filled for i, p in enumerate(self.params))
        return None if missing else values

    def write(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Tensors and required arguments by position, other attributes by name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = False
        for name, place in zip(self.names, self.places, strict=True):
            if place < 0:
                continue
            param, value = self.params[place], values[place]
            if not param.required and is_constant(value) and value == param.default:
                gap = True
            elif gap or (not param.required and is_constant(value)):
                kwargs[name] = value
                gap = True
            else:
                args.append(value)
        return tuple(args), kwargs

    def _gathered(self, args: Sequence[Any]) -> Sequence[Any]:
        """`einsum(equation, a, b)`: tensors given one by one are one list."""
        for at, (place, arg) in enumerate(zip(self.places, args, strict=False)):
            if place >= 0 and self.params[place].kind == "tensors":
                listed = isinstance(arg, (list, tuple)) or is_constant(arg)
                holds = isinstance(node_meta(arg), (list, tuple))
                return args if listed or holds else [*args[:at], list(args[at:])]
        return args

    def _packed(self, args: Sequence[Any]) -> Sequence[Any]:
        """`x.view(2, 3)`: sizes given one by one are one argument."""
        last = len(self.places) - 1
        return [*args[:last], tuple(args[last:])]


def torch_form(target: Any, params: Sequence[Param]) -> TorchForm:
    """The form of a torch function, or of the method of that name."""
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    own = [param.name for param in params]
    names = _argument_names(function) or own
    places = match_names(names, own)
    return TorchForm(function, tuple(names), tuple(places), tuple(params))


def argument_defaults(function: Any) -> list[tuple[str, Any, bool]] | None:
    """Name, default and whether it is required, per argument of a Python function; None for
    builtins, and for functions that take any number of arguments."""
    names = _argument_names(function)
    if names is None:
        return None
    parameters = inspect.signature(function).parameters
    return [
        (name, None if p.default is p.empty else p.default, p.default is p.empty)
        for name, p in ((name, parameters[name]) for name in names)
    ]


@functools.cache
def _argument_names(function: Any) -> list[str] | None:
    """Argument names of a Python function; None for builtins, which do not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        return None
    return list(signature.parameters)
