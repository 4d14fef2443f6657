"""Which expressions are the same but for names, operand order or grouping.

Takes expressions; gives canonical texts. Two rules with equal texts are the same rule under
other names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from .expr import Binary, Call, Expr, Field, Item, Literal, Name, Negative, children
from .kinds import is_tensor
from .rule import Rule
from .rule_entries import inlined_make
from .syntax import DTYPES

Rename = Callable[[str], str]


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
    detail = getattr(expr, "op", getattr(expr, "ops", getattr(expr, "index", "")))
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


def forward(rule: Rule) -> tuple[str, str, Numbering]:
    """Both sides in canonical text, numbered from the left side on."""
    numbering = Numbering()
    return numbering.side(rule.match), numbering.side(inlined_make(rule)), numbering


def backward(rule: Rule) -> tuple[str, str, Numbering]:
    """The rule turned around, numbered from its right side on."""
    numbering = Numbering()
    return numbering.side(inlined_make(rule)), numbering.side(rule.match), numbering


def conditions(rule: Rule, numbering: Numbering) -> frozenset[str]:
    """The conditions in canonical text."""
    return frozenset(show(condition.expr, numbering) for condition in rule.when)


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
