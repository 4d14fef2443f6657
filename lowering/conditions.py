"""Evaluates the conditions and gains of fusion rules.

Takes `engine.expr` trees over the two names `producer` and `consumer`; gives closures that
look facts up by name. With sizes that are not known, a comparison holds only when it holds
for all of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..engine.expr import (
    Binary,
    Call,
    Compare,
    Expr,
    Literal,
    Logic,
    Name,
    Negative,
    Not,
    Sequence,
    walk,
)
from ..engine.source import suggestion

Closure = Callable[[Any, Any], Any]
Facts = Mapping[str, Callable[..., Any]]

PLAIN: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "len": len}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_ORDER: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


class ConditionError(ValueError):
    """A condition that uses a word the fusion rules do not know."""


def compile_expr(expr: Expr, facts: Facts) -> Closure:
    """`expr` as a function of the two nodes. Facts get the nodes that the call names.

    Raises ConditionError, with the place in the rule file, for an unknown fact or name.
    """
    match expr:
        case Literal(value=value):
            return lambda p, c: value
        case Name(id="producer"):
            return lambda p, c: p
        case Name(id="consumer"):
            return lambda p, c: c
        case Name(id=word):
            return lambda p, c: word  # device, dtype and kind words stand for themselves
        case Call(fn=fn, args=args, kwargs=()):
            return _call(expr, facts, fn, [compile_expr(arg, facts) for arg in args])
        case Binary(op=op, left=left, right=right):
            apply = _ARITHMETIC[op]
            first, second = compile_expr(left, facts), compile_expr(right, facts)
            return lambda p, c: apply(first(p, c), second(p, c))
        case Negative(value=inner):
            operand = compile_expr(inner, facts)
            return lambda p, c: -operand(p, c)
        case Sequence(items=items):
            parts = [compile_expr(item, facts) for item in items]
            return lambda p, c: tuple(part(p, c) for part in parts)
    return _truth(expr, facts)


def _truth(expr: Expr, facts: Facts) -> Closure:
    match expr:
        case Not(value=inner):
            operand = compile_expr(inner, facts)
            return lambda p, c: not operand(p, c)
        case Logic(op=op, parts=terms):
            parts = [compile_expr(term, facts) for term in terms]
            return functools.reduce(_both if op == "and" else _either, parts)
        case Compare(first=first, ops=ops, rest=rest):
            values = [compile_expr(value, facts) for value in (first, *rest)]
            steps = [
                (_ORDER[op], left, right)
                for op, left, right in zip(ops, values[:-1], values[1:], strict=True)
            ]
            links = [_compared(*step) for step in steps]
            return functools.reduce(_both, links)
    raise ConditionError(f"{expr.span}: error: this has no meaning in a fusion rule")


def _both(first: Closure, second: Closure) -> Closure:
    return lambda p, c: first(p, c) and second(p, c)


def _either(first: Closure, second: Closure) -> Closure:
    return lambda p, c: first(p, c) or second(p, c)


def _compared(holds: Callable[[Any, Any], Any], left: Closure, right: Closure) -> Closure:
    return lambda p, c: _known(holds(left(p, c), right(p, c)))


def _known(value: Any) -> bool:
    """True only where a comparison of sizes holds for all values of the symbols."""
    return value if isinstance(value, bool) else value is True or str(value) == "True"


def _call(expr: Expr, facts: Facts, name: str, args: list[Closure]) -> Closure:
    found = facts.get(name) or PLAIN.get(name)
    if found is None:
        hint = suggestion(name, [*facts, *PLAIN])
        tail = f" ({hint})" if hint else ""
        raise ConditionError(f"{expr.span}: error: unknown fact '{name}'{tail}")
    if len(args) == 1:
        (one,) = args
        return lambda p, c: found(one(p, c))
    if len(args) == 2:
        one, two = args
        return lambda p, c: found(one(p, c), two(p, c))
    return lambda p, c: found(*(arg(p, c) for arg in args))


def calls(expr: Expr, facts: Facts) -> Iterator[Call]:
    """The looked-up facts in a condition, each once."""
    seen: set[Expr] = set()
    for part in walk(expr):
        if isinstance(part, Call) and part.fn in facts and part not in seen:
            seen.add(part)
            yield part


def spell(call: Call) -> str:
    """`readers(producer)`, `does(producer, 'softmax')`."""
    return f"{call.fn}({', '.join(_spelled(arg) for arg in call.args)})"


def _spelled(arg: Expr) -> str:
    match arg:
        case Name(id=word):
            return word
        case Literal(value=value):
            return repr(value)
    return "..."
