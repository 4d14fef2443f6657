"""Checks of what rules mean: those that would run away, undo each other or never matter.

Takes drafts; reports E6xx, which refuse a rule, and W7xx, which warn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as SequenceOf

from .alike import Numbering, backward, conditions, forward, operator_of, show, unordered
from .expr import Call, Compare, Expr, Item, Literal, Logic, Name, Sequence, names
from .kinds import parts, tensor_vars, walk_values
from .ops import OpTable
from .rule import ConstType, Rule, TensorType
from .rule_entries import Draft
from .scope import named_roots, size_letters
from .source import Problems

# Ops whose other attributes say how a value is stored, not what it is.
_STORED = ("clone", "contiguous", "cast")
_OPERATORS = {"+": "add", "*": "mul"}


def check_rule(draft: Draft, table: OpTable, problems: Problems) -> None:
    """Reports what is wrong with one rule by itself."""
    _check_roots(draft, problems)
    if not draft.back:
        _check_sides(draft, table, problems)
        _check_always_true(draft, problems)
    _check_ignored(draft, table, problems)
    if draft.back and draft.rule.numerics.float_class == "fewer_roundings":
        message = "'fewer_roundings' cannot hold both ways"
        problems.error(draft.rule.span, "E609", message, "one direction rounds more often")


def check_rules(drafts: SequenceOf[Draft], problems: Problems) -> None:
    """Reports what is wrong with rules beside each other."""
    seen: dict[tuple[str, str, str], list[Draft]] = {}
    for draft in drafts:
        left, right, _ = forward(draft.rule)
        seen.setdefault((draft.rule.stage, left, right), []).append(draft)
    for same in seen.values():
        _check_shadowed(same, problems)
    for draft in drafts:
        left, right, numbering = backward(draft.rule)
        for other in seen.get((draft.rule.stage, left, right), ()):
            if other.base != draft.base:
                _check_undone(draft, other, numbering, problems)


def _check_undone(
    draft: Draft, other: Draft, numbering: Numbering, problems: Problems
) -> None:
    if draft.rule.where > other.rule.where or draft.back or other.back:
        return
    _, _, theirs = forward(other.rule)
    if conditions(draft.rule, numbering) == conditions(other.rule, theirs):
        message = f"'{other.base}' undoes '{draft.base}' of {draft.rule.where}"
        hint = "write one rule with both_ways: true"
        problems.error(other.rule.span, "E606", message, hint)


def _check_shadowed(same: SequenceOf[Draft], problems: Problems) -> None:
    for wide, narrow in itertools.permutations(same, 2):
        if wide.base == narrow.base or not _types_cover(wide.rule, narrow.rule):
            continue
        ours = conditions(wide.rule, forward(wide.rule)[2])
        theirs = conditions(narrow.rule, forward(narrow.rule)[2])
        later = narrow.rule.where > wide.rule.where
        if ours < theirs or (ours == theirs and later):
            message = f"'{wide.rule.name}' of {wide.rule.where} already does all of this"
            problems.warning(narrow.rule.span, "W705", message)


def _types_cover(wide: Rule, narrow: Rule) -> bool:
    """Whether every variable of `wide` allows what its counterpart in `narrow` allows."""
    ours, theirs = forward(wide)[2].numbers, forward(narrow)[2].numbers
    partner = {number: name for name, number in theirs.items()}
    for name, kind in wide.vars.items():
        other = narrow.vars.get(partner.get(ours.get(name, -1), ""))
        if isinstance(kind, TensorType) and isinstance(other, TensorType):
            free = kind.lead is not None and not kind.dims
            same = show_dims(kind) == show_dims(other)
            if not set(kind.dtypes) >= set(other.dtypes) or not (free or same):
                return False
        elif kind != other and not (isinstance(kind, ConstType) and kind.kind == "any"):
            return False
    return True


def show_dims(kind: TensorType) -> str:
    dims = ",".join(show(dim, str) for dim in kind.dims)
    return dims if kind.lead is None else f"...{kind.lead},{dims}"


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


def _check_ignored(draft: Draft, table: OpTable, problems: Problems) -> None:
    """What the left side binds and nothing reads: the rule holds for every value of it."""
    rule = draft.rule
    read: set[str] = set()
    for expr in (*rule.make.values(), *rule.lets.values(), *(c.expr for c in rule.when)):
        read |= names(expr)
    for expr in rule.match.values():
        _check_root(expr, read, draft, table, problems)
        for node in walk_values(expr):
            how = node.how if isinstance(node, Call) and node.fn not in _STORED else None
            if how is not None and how not in read:
                message = f"the attributes in '{how}' are matched, then ignored"
                problems.warning(node.span, "W704", message)


def _check_root(
    expr: Expr, read: set[str], draft: Draft, table: OpTable, problems: Problems
) -> None:
    """Dims of the outermost op decide the shape of the result, so they must be used."""
    while isinstance(expr, Item):
        expr = expr.base
    op = table.find(expr.fn) if isinstance(expr, Call) else None
    if op is None or not isinstance(expr, Call):
        return
    kinds = draft.rule.vars
    for place, value in table.arrange(op, expr.args, dict(expr.kwargs), Sequence).items():
        if not isinstance(value, Name) or op.params[place].kind not in ("dim", "dims"):
            continue
        if isinstance(kinds.get(value.id), ConstType) and value.id not in read:
            message = f"'{value.id}' decides the result's shape, but nothing reads it"
            hint = "write the number, or use it in when or make"
            problems.error(value.span, "E608", message, hint)


def _check_always_true(draft: Draft, problems: Problems) -> None:
    rule = draft.rule
    sizes = set(size_letters(rule))
    for condition in rule.when:
        if _always(condition.expr, rule, sizes):
            message = f"'{condition.text}' always holds"
            problems.warning(condition.expr.span, "W703", message)


def _always(expr: Expr, rule: Rule, sizes: set[str]) -> bool:
    match expr:
        case Compare(first=first, ops=("==" | "<=" | ">=",), rest=(second,)) if show(
            first, str
        ) == show(second, str):
            return True
        case Compare(first=Name(id=letter), ops=(">=",), rest=(Literal(value=0),)):
            return letter in sizes
        case Compare(first=Literal(value=0), ops=("<=",), rest=(Name(id=letter),)):
            return letter in sizes
        case Compare(first=Call(fn="rank", args=(Name(id=x),)), ops=("==",), rest=(Literal(),)):
            kind = rule.vars.get(x)
            given = expr.rest[0]
            return (
                isinstance(kind, TensorType)
                and kind.lead is None
                and isinstance(given, Literal)
                and len(kind.dims) == given.value
            )
        case Compare(first=Call(fn="dtype", args=(Name(id=x),)), ops=("in",), rest=(listed,)):
            kind = rule.vars.get(x)
            allowed = names(listed)
            return isinstance(kind, TensorType) and allowed >= set(kind.dtypes)
    return False
