"""Checks of what one rule means: roots in any order, sides that say the same, growth.

Takes drafts; reports E6xx, which refuse a rule, and W7xx, which warn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as SequenceOf

from .alike import Numbering, operator_of, show, unordered
from .conditions import examine
from .expr import Call, Expr, Logic, Name
from .feeding import fed_by_itself
from .kinds import parts, tensor_vars
from .ops import OpTable
from .rule import Rule, TensorType
from .rule_entries import Draft
from .scope import named_roots
from .source import Problems
from .wildcards import check_wildcards

_OPERATORS = {"+": "add", "*": "mul"}


def check_rule(draft: Draft, table: OpTable, problems: Problems) -> None:
    """Reports what is wrong with one rule by itself."""
    _check_roots(draft, problems)
    if not draft.back:
        _check_sides(draft, table, problems)
        _check_conditions(draft, problems)
    check_wildcards(draft, table, problems)
    fed = fed_by_itself(draft.rule, table)
    if fed is not None:
        message = "the right side holds what the left side looks for, so this rule never ends"
        hint = "add a condition that its own result fails; only the budget stops it"
        problems.warning(fed, "W709", message, hint)
    if draft.back and draft.rule.numerics.float_class == "fewer_roundings":
        message = "'fewer_roundings' cannot hold both ways"
        problems.error(draft.rule.span, "E609", message, "one direction rounds more often")


def _check_roots(draft: Draft, problems: Problems) -> None:
    """Roots that could be swapped need an order, or one match is found many times."""
    rule = draft.rule
    ordered = _order(rule)
    for first, second in itertools.combinations(named_roots(rule), 2):
        a, b = Numbering(), Numbering()
        if show(rule.match[first], a) != show(rule.match[second], b):
            continue
        pairs = [(x, y) for x, y in zip(a.numbers, b.numbers, strict=True) if x != y]
        span = draft.spans.get(("match", second), rule.span)
        if not pairs:
            problems.error(span, "E602", f"roots '{first}' and '{second}' are the same")
        elif not _swaps(pairs, rule):
            continue
        elif not any(pair in ordered or pair[::-1] in ordered for pair in pairs):
            tensors = [pair for pair in pairs if pair[0] in rule.vars] or pairs
            message = f"roots '{first}' and '{second}' could be swapped"
            hint = f"add the condition before({tensors[0][0]}, {tensors[0][1]})"
            problems.error(span, "E601", message, hint)


def _swaps(pairs: SequenceOf[tuple[str, str]], rule: Rule) -> bool:
    """Whether exchanging the names of each pair maps the rule to itself: never where a name
    has two partners, or partners differ in type."""
    partner: dict[str, str] = {}
    for x, y in pairs:
        if partner.setdefault(x, y) != y or partner.setdefault(y, x) != x:
            return False
        first, second = rule.vars.get(x), rule.vars.get(y)
        if isinstance(first, TensorType) and isinstance(second, TensorType):
            if first.dtypes != second.dtypes or len(first.dims) != len(second.dims):
                return False
        elif first != second:
            return False
    return True


def _order(rule: Rule) -> set[tuple[str, str]]:
    """Pairs that the conditions put in order by `before`, chains included."""
    found: set[tuple[str, str]] = set()
    for condition in rule.when:
        top = condition.expr
        conjuncts = top.parts if isinstance(top, Logic) and top.op == "and" else (top,)
        for part in conjuncts:
            match part:
                case Call(fn="before", args=(Name(id=first), Name(id=second))):
                    found.add((first, second))
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


def _check_sides(draft: Draft, table: OpTable, problems: Problems) -> None:
    """Refuses rules that only reorder or regroup operands: the ops themselves say so."""
    rule = draft.rule
    if len(rule.match) > 1 or set(rule.match) != set(rule.make):
        return
    tensors = tensor_vars(rule.vars)
    root, left = next(iter(rule.match.items()))
    right = rule.make[root]
    if show(left, str) == show(right, str):
        problems.error(right.span, "E603", "both sides are the same")
    elif unordered(left, tensors, lambda op: False) == unordered(right, tensors, lambda op: False):
        message = "both sides are equal up to the order of operands"
        hint = "'commutes: true' on the op finds either order"
        problems.error(right.span, "E604", message, hint)
    elif not rule.when and _only_variables(left, tensors):

        def regroups(op: str) -> bool:
            found = table.find(_OPERATORS.get(op, op))
            return found is not None and found.commutes

        if unordered(left, tensors, regroups) == unordered(right, tensors, regroups):
            message = "both sides are equal up to the grouping of operands"
            hint = "such a rule never ends; add conditions that bound it"
            problems.error(right.span, "E605", message, hint)


def _only_variables(expr: Expr, tensors: set[str]) -> bool:
    if operator_of(expr) is None:
        return isinstance(expr, Name) and expr.id in tensors
    return all(_only_variables(part, tensors) for part in parts(expr))


def _check_conditions(draft: Draft, problems: Problems) -> None:
    for finding in examine(draft.rule):
        problems.warning(finding.span, "W703", finding.message)
