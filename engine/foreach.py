"""Ops on lists of tensors (`_foreach_add` and its kin), as one op for each tensor.

Takes nothing; gives a table from overload to function, as AOTAutograd's `decompositions` want
it. The steps of optimizers arrive as such lists; opened, they are plain arithmetic that fuses,
one loop nest for a parameter. On the CPU eager does the same, one op after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

Overload = torch._ops.OpOverload
_PREFIX = "_foreach_"
_aten = torch.ops.aten


def _addcmul(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return _aten.addcmul(x, a, b, value=value)


def _addcdiv(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return _aten.addcdiv(x, a, b, value=value)


def _norm(x: Any, order: Any = 2, dtype: Any = None) -> Any:
    return _aten.linalg_vector_norm(x, order, dtype=dtype)


# What eager calls for each tensor, where the name does not say it, or by other arguments.
_CALLS: Mapping[str, Callable[..., Any]] = {
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "norm": _norm,
    "maximum": _aten.clamp_min,
    "minimum": _aten.clamp_max,
    "zero": _aten.zeros_like,
}
_LISTS = ("List[Tensor]", "List[number]")


@lru_cache(maxsize=1)
def foreach_decompositions() -> Mapping[Overload, Callable[..., Any]]:
    """A function for each functional overload that is one op of ATen for each tensor."""
    found: dict[Overload, Callable[..., Any]] = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or not base.startswith(_PREFIX) or base.endswith("_"):
            continue
        target: Overload = getattr(getattr(_aten, base), overload or "default")
        short = base.removeprefix(_PREFIX)
        each = _CALLS.get(short) or getattr(_aten, short, None)
        if each is not None and _is_plain(target):
            found[target] = _one_by_one(target, each)
    return found


def _is_plain(target: Overload) -> bool:
    """Whether it gives one list, of new tensors."""
    schema = target._schema
    writes = schema.is_mutable or any(argument.is_out for argument in schema.arguments)
    return not writes and [str(result.type) for result in schema.returns] == ["List[Tensor]"]


def _one_by_one(target: Overload, each: Callable[..., Any]) -> Callable[..., Any]:
    arguments = target._schema.arguments
    places = tuple(
        place for place, argument in enumerate(arguments) if str(argument.type) in _LISTS
    )
    spread = any(  # numbers in a tensor, one for each operand: only their values can tell
        argument.name == "scalars" and str(argument.type) == "Tensor" for argument in arguments
    )

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if spread or any(place >= len(args) for place in places):
            return NotImplemented
        lists: list[Sequence[Any]] = [args[place] for place in places]
        if len({len(one) for one in lists}) != 1:
            return NotImplemented  # the op itself says what is wrong
        results = []
        for items in zip(*lists, strict=True):
            given = list(args)
            for place, item in zip(places, items, strict=True):
                given[place] = item
            results.append(each(*given, **kwargs))
        return results

    return decompose
