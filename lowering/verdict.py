"""Whether the fusion rules allow a pair of nests to join, and what it gains.

Takes the rules and the facts; gives a `Verdict` for a pair: the rule that allows it with the
largest gain, or the condition that stood in the way. A `forbid` or `avoid` that holds beats all
that allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.expr import Expr
from ..engine.rule import FuseRule
from .conditions import Closure, calls, compile_expr, spell
from .dependence import Node

FactTable = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Refusal:
    """What decided against a pair: the first condition of `rule` that failed, or all those
    of a `forbid` or `avoid`, which held."""

    rule: FuseRule
    text: str
    exprs: tuple[Expr, ...]


@dataclass(frozen=True)
class Verdict:
    """`rule` is None where the pair may not join; then `refusal` says why."""

    rule: FuseRule | None
    gain: float = 0.0
    refusal: Refusal | None = None


@dataclass(frozen=True)
class _Compiled:
    rule: FuseRule
    conditions: tuple[Closure, ...]
    gain: Closure | None

    def failed(self, producer: Node, consumer: Node) -> int | None:
        """The number of the first condition that does not hold."""
        for number, holds in enumerate(self.conditions):
            if not holds(producer, consumer):
                return number
        return None

    def hopes(self, producer: Node, consumer: Node) -> bool:
        """Whether the first condition of `when` and the first of `worth` hold."""
        first = {0, len(self.rule.when)} & set(range(len(self.conditions)))
        return all(self.conditions[number](producer, consumer) for number in sorted(first))

    def refusal(self, number: int | None = None) -> Refusal:
        """What condition `number` has to say, or all together."""
        conditions = self.rule.conditions
        told = conditions if number is None else (conditions[number],)
        text = " and ".join(condition.text for condition in told)
        return Refusal(self.rule, text, tuple(condition.expr for condition in told))


class Judge:
    """Rules compiled once; `facts` maps the names that conditions call."""

    def __init__(self, rules: Sequence[FuseRule], facts: FactTable) -> None:
        self._facts = facts
        self._rules = [_compile(rule, facts) for rule in rules]
        self._fitting: dict[tuple[str, str], tuple[list[_Compiled], ...]] = {}

    def verdict(self, producer: Node, consumer: Node) -> Verdict:
        fuse, against, prefer = self._of_kinds(producer, consumer)
        refusals: list[tuple[int, Refusal]] = []
        best: tuple[float, FuseRule] | None = None
        for rule in fuse:
            number = rule.failed(producer, consumer)
            if number is not None:
                refusals.append((number, rule.refusal(number)))
                continue
            gain = _worth(rule, producer, consumer)
            if best is None or gain > best[0]:
                best = (gain, rule.rule)
        if best is None:
            nearest = max(reversed(refusals), key=lambda entry: entry[0])[1] if refusals else None
            return Verdict(None, refusal=nearest)
        for rule in against:
            if rule.failed(producer, consumer) is None:
                return Verdict(None, refusal=rule.refusal())
        extra = [r for r in prefer if r.failed(producer, consumer) is None]
        total = best[0] + sum(_worth(rule, producer, consumer) for rule in extra)
        if total <= 0:
            told = (best[1].gain,) if best[1].gain is not None else ()
            return Verdict(None, total, Refusal(best[1], "gain > 0", told))
        return Verdict(best[1], total)

    def hope(self, producer: Node, consumer: Node) -> float | None:
        """The largest gain of the rules whose first conditions hold, before all else is
        looked at; None where there is no such rule."""
        fuse, _, prefer = self._of_kinds(producer, consumer)
        gains = [
            _worth(rule, producer, consumer) for rule in fuse if rule.hopes(producer, consumer)
        ]
        if not gains:
            return None
        liked = [_worth(rule, producer, consumer) for rule in prefer]
        return max(gains) + sum(gain for gain in liked if gain > 0)

    def values(self, refusal: Refusal, producer: Node, consumer: Node) -> dict[str, Any]:
        """The facts that the refusing conditions asked for."""
        found = {
            spell(call): compile_expr(call, self._facts)(producer, consumer)
            for expr in refusal.exprs
            for call in calls(expr, self._facts)
        }
        return {name: _plain(value) for name, value in found.items()}

    def _of_kinds(self, producer: Node, consumer: Node) -> tuple[list[_Compiled], ...]:
        kinds = (self._facts["kind"](producer), self._facts["kind"](consumer))
        if kinds not in self._fitting:
            fitting = [
                entry
                for entry in self._rules
                if entry.rule.producer in (kinds[0], "any")
                and entry.rule.consumer in (kinds[1], "any")
            ]
            self._fitting[kinds] = tuple(
                [entry for entry in fitting if entry.rule.kind in words]
                for words in (("fuse",), ("forbid", "avoid"), ("prefer",))
            )
        return self._fitting[kinds]


def _compile(rule: FuseRule, facts: FactTable) -> _Compiled:
    conditions = tuple(compile_expr(condition.expr, facts) for condition in rule.conditions)
    return _Compiled(rule, conditions, compile_expr(rule.gain, facts) if rule.gain else None)


def _worth(rule: _Compiled, producer: Node, consumer: Node) -> float:
    return float(rule.gain(producer, consumer)) if rule.gain is not None else 0.0


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)
