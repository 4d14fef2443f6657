"""Rules that fire on what they make, larger each time: only a budget would stop them.

Takes a rule and the op table; gives the place where the right side matches the left side again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .alike import OPERATORS, operator_of, settle
from .expr import Call, Expr, Name, Span, children, names, walk
from .kinds import list_vars, walk_values
from .ops import OpTable
from .rule import Rule, TensorType, VarType
from .rule_entries import inlined_make
from .syntax import DTYPES

Binding = Mapping[str, Expr]


def fed_by_itself(rule: Rule, table: OpTable) -> Span | None:
    """Where the right side holds an instance of the left side on larger operands that no
    condition speaks of; None where it does not."""
    if len(rule.match) != 1:
        return None
    (match,) = rule.match.values()
    if not _may_hold([*rule.make.values(), *rule.lets.values()], match, table):
        return None
    lists = list_vars(rule.vars)
    pattern = settle(match, table, lists)
    for made in inlined_make(rule).values():
        for node in walk_values(settle(made, table, lists)):
            if any(_endless(rule, binding) for binding in _matches(pattern, node, {}, rule, table)):
                return node.span
    return None


def _may_hold(made: Iterable[Expr], match: Expr, table: OpTable) -> bool:
    """Whether the outermost op of `match` may be in `made`, as far as names say; settling both
    sides is slow, and few rules come so far."""
    found = {name for expr in made for name in _op_names(walk_values(expr), table)}
    return not found.isdisjoint(_op_names([match], table))


def _op_names(nodes: Iterable[Expr], table: OpTable) -> Iterator[str]:
    """The ops of calls and operators; for one that is written in others, these."""
    for node in nodes:
        name = operator_of(node)
        op = None if name is None else table.find(OPERATORS.get(name, name))
        if op is None:
            continue
        if op.entry is not None and op.entry.as_ is not None:
            yield from _op_names(walk(op.entry.as_), table)
        else:
            yield op.name


def _endless(rule: Rule, binding: Binding) -> bool:
    """Whether a match with `binding` is a new and larger one, and nothing forbids it."""
    changed = {name for name, value in binding.items() if value != Name(name)}
    larger = [binding[name] for name in changed if children(binding[name])]
    letters = {
        letter
        for name in changed
        for kind in [rule.vars[name]]
        if isinstance(kind, TensorType)
        for dim in kind.dims
        for letter in names(dim)
    }
    spoken = {name for condition in rule.when for name in names(condition.expr)}
    return bool(larger) and not spoken & (changed | letters)


def _matches(
    pattern: Expr, node: Expr, binding: Binding, rule: Rule, table: OpTable
) -> Iterator[Binding]:
    """The ways in which `node` is an instance of `pattern`, both in one spelling."""
    if isinstance(pattern, Name) and pattern.id in rule.vars:
        if binding.get(pattern.id, node) == node and _may_be(node, rule.vars[pattern.id]):
            yield {**binding, pattern.id: node}
        return
    if isinstance(pattern, Call) and isinstance(node, Call):
        alike = (pattern.fn, pattern.how) == (node.fn, node.how)
        keys = [key for key, _ in pattern.kwargs]
        if not alike or keys != [key for key, _ in node.kwargs] or pattern.args != node.args:
            return
        wanted = [value for _, value in pattern.kwargs]
        given = [value for _, value in node.kwargs]
        yield from _all_match(wanted, given, binding, rule, table)
        op = table.find(pattern.fn)
        if op is not None and op.commutes and len(given) == 2:
            yield from _all_match(wanted, given[::-1], binding, rule, table)
        return
    if type(pattern) is not type(node) or not children(pattern):
        if pattern == node:
            yield binding
        return
    if _head(pattern) == _head(node):
        yield from _all_match(children(pattern), children(node), binding, rule, table)


def _may_be(node: Expr, kind: VarType) -> bool:
    """Whether an expression may have a type: what a cast makes has one dtype."""
    if not isinstance(node, Call) or node.fn != "cast" or not isinstance(kind, TensorType):
        return True
    to = dict(node.kwargs).get("dtype")
    return not isinstance(to, Name) or to.id not in DTYPES or to.id in kind.dtypes


def _head(expr: Expr) -> tuple[object, ...]:
    return tuple(getattr(expr, name, None) for name in ("op", "ops", "index"))


def _all_match(
    patterns: list[Expr] | tuple[Expr, ...],
    nodes: list[Expr] | tuple[Expr, ...],
    binding: Binding,
    rule: Rule,
    table: OpTable,
) -> Iterator[Binding]:
    if len(patterns) != len(nodes):
        return
    if not patterns:
        yield binding
        return
    for first in _matches(patterns[0], nodes[0], binding, rule, table):
        yield from _all_match(patterns[1:], nodes[1:], first, rule, table)
