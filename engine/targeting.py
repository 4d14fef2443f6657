"""Whether a rule is for the machine that a graph runs on.

Takes the `device` field of a rule and a `Target`; gives the answer, and mistakes in the field.
A predicate reads the numbers of `rules/targets`: `device == "cuda" and bandwidth > 1e12`,
`flops(bf16) >= 8 * flops(f32)`, `name in ("h200", "cpu")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .attributes import Attributes
from .dtypes import DTYPES, word_of
from .expr import Call, Expr, Name, walk
from .rule import Rule
from .target import Target
from .world import EvaluateError, MetaFacts

# The rate depends on the dtype, so it is asked for like a function.
_RATE = "flops"


class _TargetScope(Attributes):
    """The numbers of one target as names, and `flops(dtype)`."""

    def __init__(self, target: Target) -> None:
        values = {field.name: getattr(target, field.name) for field in fields(target)}
        values.pop(_RATE)
        super().__init__(values, MetaFacts(lambda handle: handle))
        self.target = target

    def call(self, call: Call) -> Any:
        if call.fn == _RATE and len(call.args) == 1:
            return self.target.matrix_rate(word_of(self.value(call.args[0])))
        return super().call(call)


def suits(rule: Rule, target: Target) -> bool:
    """Whether `rule` may be used on `target`."""
    if isinstance(rule.device, Expr):
        try:
            return _TargetScope(target).answer(rule.device) is True
        except EvaluateError:
            return False
    return rule.device is None or rule.device == target.device


def unknown_names(device: Expr) -> Iterator[tuple[Expr, str]]:
    """The names and functions in a target predicate that no target has, with their places."""
    known = target_names()
    for part in walk(device):
        if isinstance(part, Call) and part.fn not in (_RATE, "min", "max"):
            yield part, part.fn
        elif isinstance(part, Name) and part.id not in known and part.id not in DTYPES:
            yield part, part.id


def target_names() -> tuple[str, ...]:
    """What a target predicate may read, apart from `flops(dtype)`."""
    return tuple(field.name for field in fields(Target) if field.name != _RATE)
