"""Evaluates attribute and condition expressions: everything but the making of tensors.

Takes an expression, an environment (names to handles, numbers, dtypes, tuples) and facts;
gives the value. `evaluate.Evaluator` adds op calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .dtypes import DTYPES
from .expr import (
    Binary,
    Call,
    Compare,
    Expr,
    Field,
    Item,
    Literal,
    Logic,
    Name,
    Negative,
    Not,
    Sequence,
)
from .facts import PREDICATES
from .symbolic import (
    Answer,
    all_of,
    any_of,
    arithmetic,
    compare,
    known,
    largest,
    magnitude,
    negate,
    smallest,
)
from .world import EvaluateError, Facts, Truth, is_number

_ON_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "min": smallest,
    "max": largest,
    "abs": magnitude,
    "len": lambda value: len(value),
}


class Attributes:
    """An evaluator over one environment. `known` maps sub-expressions to their values, so
    that a matched `relu(k)` inside an attribute is not made again."""

    def __init__(
        self,
        env: Mapping[str, Any],
        world: Facts,
        known: Mapping[Expr, Any] | None = None,
    ) -> None:
        self.env = env
        self.world = world
        self.known = known or {}

    def value(self, expr: Expr) -> Any:
        """The value of `expr`. Raises EvaluateError where it has none."""
        if self.known and expr in self.known:
            return self.known[expr]
        match expr:
            case Name(id=name):
                return self.name(name)
            case Literal(value=value):
                return value
            case Call():
                return self.call(expr)
            case Binary(op=op, left=left, right=right):
                return self.binary(op, self.value(left), self.value(right))
            case Negative(value=inner):
                return self.negative(self.value(inner))
            case Sequence(items=items):
                return tuple(self.value(item) for item in items)
            case Item(base=base, index=index):
                return self.item(self.value(base), self.value(index))
            case Field(base=base, name=name):
                return self._field(base, name)
        return self.answer(expr)

    def answer(self, expr: Expr) -> Answer:
        """The value of a condition, never guarding on a symbolic size."""
        match expr:
            case Compare(first=first, ops=ops, rest=rest):
                return self._compare(first, ops, rest)
            case Logic(op="and", parts=parts):
                return self._logic(parts, all_of, False)
            case Logic(op="or", parts=parts):
                return self._logic(parts, any_of, True)
            case Not(value=inner):
                return negate(self.answer(inner))
        return known(self.value(expr))

    def name(self, name: str) -> Any:
        if name in self.env:
            return self.env[name]
        if name in DTYPES:
            return DTYPES[name]
        raise EvaluateError(f"'{name}' has no value")

    def call(self, call: Call) -> Any:
        """A predicate, min, max, abs or len; anything else is refused here."""
        args = [self.value(arg) for arg in call.args]
        found, value = self.function(call, args)
        if found:
            return value
        raise EvaluateError(f"{call.fn}(...) makes a tensor, which has no place here")

    def function(self, call: Call, args: list[Any]) -> tuple[bool, Any]:
        """(True, result) where `call` is a function on facts and numbers, else (False, None)."""
        predicate = PREDICATES.get(call.fn)
        if predicate is not None:
            return True, predicate(self.world, *args)
        plain = _ON_NUMBERS.get(call.fn)
        if plain is not None and not call.kwargs and all(map(_numbers, args)):
            if Truth.FREE in args:
                return True, Truth.FREE
            try:
                return True, plain(*args)
            except (TypeError, ValueError) as error:
                raise EvaluateError(f"{call.fn}: {error}") from error
        return False, None

    def binary(self, op: str, left: Any, right: Any) -> Any:
        return arithmetic(op, left, right)

    def negative(self, value: Any) -> Any:
        if not is_number(value):
            raise EvaluateError(f"-{value!r} is not a number")
        return -value

    def item(self, base: Any, index: int) -> Any:
        if not isinstance(base, (tuple, list)):
            raise EvaluateError(f"{base!r} has no entry {index}")
        if not -len(base) <= index < len(base):
            raise EvaluateError(f"no entry {index} among {len(base)}")
        return base[index]

    def _field(self, base: str, name: str) -> Any:
        attributes = self.name(base)
        if name not in attributes:
            raise EvaluateError(f"'{base}' holds no '{name}'")
        return attributes[name]

    def _compare(self, first: Expr, ops: tuple[str, ...], rest: tuple[Expr, ...]) -> Answer:
        answers: list[Answer] = []
        left = self.value(first)
        for op, part in zip(ops, rest, strict=True):
            right = self.value(part)
            answers.append(compare(op, left, right))
            left = right
        return all_of(*answers)

    def _logic(self, parts: tuple[Expr, ...], join: Callable[..., Answer], decided: bool) -> Answer:
        """Parts in order, stopping at the first that decides: `rank(x) == 2 and ...`."""
        answers: list[Answer] = []
        for part in parts:
            answers.append(self.answer(part))
            if answers[-1] is decided:
                break
        return join(*answers)


def _numbers(value: Any) -> bool:
    return is_number(value) or isinstance(value, tuple | list) or value is Truth.FREE
