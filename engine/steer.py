"""Sizes and numbers that meet the conditions of a rule, which free draws would rarely meet.

Takes conditions and what is drawn so far; changes sizes and constants in place. A condition
that cannot be read yet is left to chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from .attributes import Attributes
from .expr import Call, Compare, Expr, Name
from .rule import TensorType
from .world import EvaluateError, MetaFacts

_FAR = 6  # how far a number lies from its only bound, at most
_MOST = 0.9  # how often draws are steered
_ONES = 0.3  # how often a dim is broadcast
_MISSING = object()


def order_numbers(
    condition: Compare,
    drawn: dict[str, Any],
    free: set[str],
    scope: Mapping[str, Any],
    random: Random,
) -> None:
    """Whole numbers for the free names of `0 <= a <= b <= n`, in the order that it asks for."""
    if random.random() > _MOST or any(op not in ("<", "<=") for op in condition.ops):
        return
    if len(condition.ops) == 1 and _value(condition, {**scope, **drawn}) is True:
        return  # a single bound that holds leaves the draw as it is
    parts = (condition.first, *condition.rest)
    unknown = [isinstance(part, Name) and part.id in free for part in parts]
    known: list[Any] = [
        None if loose else _value(part, {**scope, **drawn})
        for part, loose in zip(parts, unknown, strict=True)
    ]
    bounds = [value for value in known if type(value) is int]
    if not any(unknown) or len(bounds) + sum(unknown) < len(parts):
        return  # a part is no whole number, or cannot be read yet
    low = min(bounds, default=0) - _FAR if unknown[0] else known[0]
    high = max(bounds, default=0) + _FAR if unknown[-1] else known[-1]
    if low > high:
        return
    chosen = sorted(random.randint(low, high) for loose in unknown if loose)
    for part, loose in zip(parts, unknown, strict=True):
        if loose and isinstance(part, Name) and type(drawn[part.id]) is int:
            drawn[part.id] = chosen.pop(0)


def broadcast_leads(
    conditions: Sequence[Expr],
    types: Mapping[str, TensorType],
    sizes: dict[str, Any],
    metas: Mapping[str, Any],
    random: Random,
) -> None:
    """Leading sizes that meet `broadcasts_to(x, sizes)` and `broadcastable(x, y)`: with dims
    left out in front and dims of one, as a rank condition on the tensor allows."""
    for condition in conditions:
        if not isinstance(condition, Call) or random.random() > _MOST:
            continue
        if condition.fn == "broadcasts_to":
            variables, target = [condition.args[0]], _value(condition.args[1], {**metas, **sizes})
        elif condition.fn == "broadcastable":
            first = condition.args[0]
            variables = list(condition.args)
            target = tuple(metas[first.id].shape) if isinstance(first, Name) else _MISSING
        else:
            continue
        if not isinstance(target, tuple):
            continue
        for variable in variables:
            kind = types.get(variable.id) if isinstance(variable, Name) else None
            if kind is not None and kind.lead is not None and not kind.dims:
                ranks = _ranks(variable, conditions, len(target), random)
                sizes[f"...{kind.lead}"] = _broadcast(target, random.choice(ranks), random)


def _ranks(variable: Expr, conditions: Sequence[Expr], most: int, random: Random) -> list[int]:
    """The ranks that conditions such as `rank(x) in (2, 4)` leave."""
    for condition in conditions:
        match condition:
            case Compare(first=Call(fn="rank", args=(Name() as name,)), ops=(op,), rest=(other,)):
                if name == variable and op in ("==", "in"):
                    allowed = _value(other, {})
                    allowed = allowed if isinstance(allowed, tuple) else (allowed,)
                    fitting = [rank for rank in allowed if type(rank) is int and rank <= most]
                    if fitting:
                        return fitting
    return list(range(most + 1))


def _broadcast(target: tuple[int, ...], rank: int, random: Random) -> tuple[int, ...]:
    kept = target[len(target) - rank :]
    return tuple(1 if random.random() < _ONES else length for length in kept)


def _value(expr: Expr, env: Mapping[str, Any]) -> Any:
    try:
        return Attributes(env, MetaFacts(lambda x: x)).value(expr)
    except (EvaluateError, IndexError, ValueError, TypeError):
        return _MISSING
