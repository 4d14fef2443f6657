"""What a rule's expressions are evaluated against.

Takes nothing; gives the protocols `Facts` (what is known about a tensor) and `World` (facts,
and the power to make new tensors), and the truth values of conditions. A handle is whatever
a world calls a tensor: a torch.Tensor, an FX node, an e-class. It must not be a Python
number, string, tuple or list, as those are constants.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

if TYPE_CHECKING:
    from .op import Op


class EvaluateError(Exception):
    """An expression has no value here; the text says why, in a rule author's words."""


class Truth(enum.Enum):
    """The answers a condition can give besides True and False.

    UNKNOWN: not statically known (symbolic sizes); counts as false.
    FREE: about the place in a graph, asked where there is no graph; counts as true.
    """

    UNKNOWN = "not statically known"
    FREE = "free"


class Facts(Protocol):
    """What predicates may ask. `meta` gives a tensor's (fake) value, a tuple of them for an
    op with several results, or the number itself for a number."""

    def meta(self, handle: Any) -> Any: ...

    def is_weight(self, handle: Any) -> bool | Truth: ...

    def is_frozen(self, handle: Any) -> bool | Truth: ...

    def is_input(self, handle: Any) -> bool | Truth: ...

    def position(self, handle: Any) -> int | Truth | None: ...

    def users(self, handle: Any) -> int | Truth: ...

    def feeds_comparison(self, handle: Any) -> bool | Truth: ...


class World(Facts, Protocol):
    """Facts, and `emit`, which makes the result of one canonical op call."""

    def emit(self, op: Op, args: Sequence[Any]) -> Any: ...


class MetaFacts:
    """Facts about values alone: every question about a place in a graph is refused."""

    def __init__(self, meta: Callable[[Any], Any]) -> None:
        self._meta = meta

    def meta(self, handle: Any) -> Any:
        return self._meta(handle)

    def is_weight(self, handle: Any) -> bool | Truth:
        return self._refuse("is_weight")

    def is_frozen(self, handle: Any) -> bool | Truth:
        return self._refuse("is_frozen")

    def is_input(self, handle: Any) -> bool | Truth:
        return self._refuse("is_input")

    def position(self, handle: Any) -> int | Truth | None:
        return self._refuse("before")

    def users(self, handle: Any) -> int | Truth:
        return self._refuse("users")

    def feeds_comparison(self, handle: Any) -> bool | Truth:
        return self._refuse("feeds_comparison")

    def _refuse(self, fact: str) -> bool:
        raise EvaluateError(f"{fact} is not known here")


_CONSTANTS = (
    *(int, float, complex, str, tuple, type(None), Truth),
    *(torch.SymInt, torch.SymFloat, torch.SymBool),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def is_constant(value: Any) -> bool:
    """Whether `value` is a constant of the language rather than a handle or a list of them."""
    return isinstance(value, _CONSTANTS)


def is_number(value: Any) -> bool:
    """Whether `value` is a number, symbolic ones and bools included."""
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool))


def node_meta(handle: Any) -> Any:
    """The (fake) value of an FX node, of a tensor, or of a constant (itself)."""
    if isinstance(handle, fx.Node):
        meta = handle.meta
        return meta["val"] if "val" in meta else meta.get("example_value")
    return handle
