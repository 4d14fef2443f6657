"""Expression trees of the rule language.

Takes nothing; gives the frozen node types that `syntax.parse` builds and every other
part of the engine reads. A node knows its place in the rule file (`span`), which never
takes part in equality.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """A stretch of one line of a rule file; `line` and `col` count from 1. There are as many
    as there are expressions, and a named tuple is twice as fast to make and to unpickle."""

    path: str
    line: int
    col: int
    length: int = 1

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.col}"


NOWHERE = Span("<builtin>", 1, 1)


@dataclass(frozen=True)
class Expr:
    span: Span = field(compare=False, repr=False, kw_only=True, default=NOWHERE)


@dataclass(frozen=True)
class Name(Expr):
    """A variable: tensor, size letter, constant, let piece or dtype word."""

    id: str


@dataclass(frozen=True)
class Literal(Expr):
    """A number, string, True, False or None. `inf`, `-inf` and `nan` are floats."""

    value: int | float | str | bool | None


@dataclass(frozen=True)
class Sequence(Expr):
    """A tuple or list of expressions."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Call(Expr):
    """`fn(args, key=value, **how)`; `fn` may be dotted (`F.linear`, `sum.dim_IntList`)."""

    fn: str
    args: tuple[Expr, ...] = ()
    kwargs: tuple[tuple[str, Expr], ...] = ()
    how: str | None = None


@dataclass(frozen=True)
class Binary(Expr):
    """`left op right` with op one of + - * / // % **."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Negative(Expr):
    value: Expr


@dataclass(frozen=True)
class Compare(Expr):
    """A chain `first ops[0] rest[0] ops[1] rest[1] ...`; ops: == != < <= > >= in, not in."""

    first: Expr
    ops: tuple[str, ...]
    rest: tuple[Expr, ...]


@dataclass(frozen=True)
class Logic(Expr):
    """`and` / `or` over two or more parts."""

    op: str
    parts: tuple[Expr, ...]


@dataclass(frozen=True)
class Not(Expr):
    value: Expr


@dataclass(frozen=True)
class Item(Expr):
    """`base[index]`: one result of an op with several; the index is a number or a variable."""

    base: Expr
    index: Expr


@dataclass(frozen=True)
class Field(Expr):
    """`how.groups`: one entry of a `**how`."""

    base: str
    name: str


_CHILDREN: Mapping[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    Sequence: lambda expr: expr.items,
    Call: lambda expr: (*expr.args, *(value for _, value in expr.kwargs)),
    Binary: lambda expr: (expr.left, expr.right),
    Negative: lambda expr: (expr.value,),
    Not: lambda expr: (expr.value,),
    Compare: lambda expr: (expr.first, *expr.rest),
    Logic: lambda expr: expr.parts,
    Item: lambda expr: (expr.base, expr.index),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions, in reading order."""
    read = _CHILDREN.get(type(expr))  # loading asks a hundred thousand times
    return () if read is None else read(expr)


# A node like another, of other children.
_REMADE: Mapping[type[Expr], Callable[[Any, tuple[Expr, ...]], Expr]] = {
    Sequence: lambda expr, parts: Sequence(parts, span=expr.span),
    Call: lambda expr, parts: _called(expr, parts),
    Binary: lambda expr, parts: Binary(expr.op, *parts, span=expr.span),
    Negative: lambda expr, parts: Negative(*parts, span=expr.span),
    Not: lambda expr, parts: Not(*parts, span=expr.span),
    Compare: lambda expr, parts: Compare(parts[0], expr.ops, parts[1:], span=expr.span),
    Logic: lambda expr, parts: Logic(expr.op, parts, span=expr.span),
    Item: lambda expr, parts: Item(*parts, span=expr.span),
}


def map_children(change: Callable[[Expr], Expr], expr: Expr) -> Expr:
    """`expr` with `change` applied to its direct parts; `expr` itself where none changes."""
    old = children(expr)
    if not old:
        return expr
    new = tuple(map(change, old))
    return expr if all(map(operator.is_, old, new)) else _REMADE[type(expr)](expr, new)


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """`expr` with `change` applied to every node, innermost first."""
    return change(map_children(lambda part: rebuild(part, change), expr))


def _called(call: Call, parts: tuple[Expr, ...]) -> Call:
    count = len(call.args)
    keys = (key for key, _ in call.kwargs)
    named = tuple(zip(keys, parts[count:], strict=True))
    return Call(call.fn, parts[:count], named, call.how, span=call.span)


def walk(expr: Expr) -> Iterator[Expr]:
    """`expr` and everything beneath it, parents first."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


def names(expr: Expr) -> set[str]:
    """Every variable mentioned, `**how` names included."""
    found: set[str] = set()
    for node in walk(expr):
        if isinstance(node, Name):
            found.add(node.id)
        elif isinstance(node, Call) and node.how:
            found.add(node.how)
        elif isinstance(node, Field):
            found.add(node.base)
    return found
