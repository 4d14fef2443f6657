"""Which expressions are the same but for names, operand order or grouping.

Takes expressions; gives canonical texts. Two rules with equal texts are the same rule under
other names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from .expr import (
    Binary,
    Call,
    Expr,
    Field,
    Item,
    Literal,
    Name,
    Negative,
    Sequence,
    children,
    rebuild,
)
from .facts import PREDICATES
from .kinds import is_tensor
from .ops import OpTable, Param
from .syntax import DTYPES

Rename = Callable[[str], str]
OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}


def show(expr: Expr, rename: Rename) -> str:
    """`expr` as text, every name through `rename`, keywords in alphabetical order."""
    match expr:
        case Name(id=name):
            return rename(name)
        case Literal(value=value):
            return repr(value)
        case Field(base=base, name=name):
            return f"{rename(base)}.{name}"
        case Call(fn=fn, args=args, kwargs=kwargs, how=how):
            keywords = sorted(kwargs, key=lambda pair: pair[0])
            shown = [show(arg, rename) for arg in args]
            shown += [f"{key}={show(value, rename)}" for key, value in keywords]
            shown += [f"**{rename(how)}"] if how is not None else []
            return f"{fn}({','.join(shown)})"
    parts = ",".join(show(part, rename) for part in children(expr))
    detail = getattr(expr, "op", getattr(expr, "ops", ""))
    return f"<{type(expr).__name__} {detail} {parts}>"


class Numbering:
    """Gives every name a number by order of appearance; dtypes keep their names."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        if name in DTYPES:
            return name
        return f"${self.numbers.setdefault(name, len(self.numbers))}"

    def side(self, roots: Mapping[str, Expr]) -> str:
        return ";".join(show(roots[root], self) for root in sorted(roots))


@dataclass(frozen=True)
class Sides:
    """Two sides in canonical text, and the names of the rule in the order in which they appear
    there. Two rules with equal texts differ in names only."""

    left: str
    right: str
    names: tuple[str, ...]


def sides(left: Mapping[str, Expr], right: Mapping[str, Expr]) -> Sides:
    """The canonical text of two sides, numbered from `left` on."""
    numbering = Numbering()
    return Sides(numbering.side(left), numbering.side(right), tuple(numbering.numbers))


def settle(expr: Expr, table: OpTable, lists: Set[str]) -> Expr:
    """`expr` in one spelling: aliases opened, operators as ops, every argument by its name,
    defaults left out, the operands of a commuting op in alphabetical order but for names.

    `lists` are the variables that stand for lists. Expects calls that `check_calls` accepts.
    """

    def settled(node: Expr) -> Expr:
        if isinstance(node, Binary) and node.op in OPERATORS:
            node = Call(OPERATORS[node.op], (node.left, node.right), span=node.span)
        op = table.find(node.fn) if isinstance(node, Call) else None
        if op is None or not isinstance(node, Call) or node.fn in PREDICATES:
            return node
        placed = table.arrange(op, node.args, dict(node.kwargs), Sequence, lists)
        if op.commutes and 0 in placed and 1 in placed and len(placed) == 2:
            first, second = sorted((placed[0], placed[1]), key=lambda side: show(side, _erase))
            placed = {0: first, 1: second}
        named = tuple(
            (op.params[place].name, value)
            for place, value in sorted(placed.items())
            if not (isinstance(value, Literal) and _is_default(op.params[place], value))
        )
        return Call(op.name, (), named, node.how, span=node.span)

    return rebuild(table.expand(expr), settled)


def _erase(name: str) -> str:
    return name if name in DTYPES else "$"


def _is_default(param: Param, value: Literal) -> bool:
    return not param.required and repr(param.default) == repr(value.value)


def unordered(expr: Expr, tensors: Set[str], flattens: Callable[[str], bool]) -> str:
    """`expr` with the tensor operands of every op in alphabetical order; chains of one op are
    flattened first where `flattens` says so, so that grouping is lost too."""
    operator = operator_of(expr)
    if operator is None or not is_tensor(expr, tensors):
        if isinstance(expr, Negative | Item):
            return f"{type(expr).__name__}({unordered(children(expr)[0], tensors, flattens)})"
        return show(expr, str)
    operands = _flat(expr, operator) if flattens(operator) else list(children(expr))
    moved = [unordered(part, tensors, flattens) for part in operands if is_tensor(part, tensors)]
    kept = [show(part, str) for part in operands if not is_tensor(part, tensors)]
    keywords = [key for key, _ in expr.kwargs] if isinstance(expr, Call) else []
    return f"{operator}({','.join(sorted(moved))};{','.join([*kept, *keywords])})"


def operator_of(expr: Expr) -> str | None:
    match expr:
        case Binary(op=op):
            return op
        case Call(fn=fn):
            return fn
    return None


def _flat(expr: Expr, operator: str) -> list[Expr]:
    if operator_of(expr) != operator:
        return [expr]
    return [leaf for part in children(expr) for leaf in _flat(part, operator)]
