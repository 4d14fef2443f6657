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
from .rule import NUMERICS, ConstType, Rule, TensorType
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
        _check_conditions(draft, problems)
    _check_ignored(draft, table, problems)
    _check_ranks(draft, table, problems)
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
        if draft.back:
            continue
        left, right, numbering = backward(draft.rule)
        for other in seen.get((draft.rule.stage, left, right), ()):
            if other.base != draft.base:
                _check_undone(draft, other, numbering, problems)


def _check_undone(draft: Draft, other: Draft, numbering: Numbering, problems: Problems) -> None:
    if draft.rule.where > other.rule.where or other.back:
        return
    _, _, theirs = forward(other.rule)
    ours = (draft.rule.numerics, _assumed(draft.rule), draft.rule.device)
    if ours != (other.rule.numerics, _assumed(other.rule), other.rule.device):
        return  # not the same rule in two directions, so both_ways could not say it
    if conditions(draft.rule, numbering) == conditions(other.rule, theirs):
        message = f"'{other.base}' undoes '{draft.base}' of {draft.rule.where}"
        hint = "write one rule with both_ways: true"
        problems.error(other.rule.span, "E606", message, hint)


def _check_shadowed(same: SequenceOf[Draft], problems: Problems) -> None:
    for wide, narrow in itertools.permutations(same, 2):
        if wide.base == narrow.base or not _covers(wide.rule, narrow.rule):
            continue
        ours = conditions(wide.rule, forward(wide.rule)[2])
        theirs = conditions(narrow.rule, forward(narrow.rule)[2])
        later = narrow.rule.where > wide.rule.where
        if ours < theirs or (ours == theirs and later):
            message = f"'{wide.rule.name}' of {wide.rule.where} already does all of this"
            problems.warning(narrow.rule.span, "W705", message)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Whether `wide` is there wherever `narrow` is: in every profile, device and type."""
    return (
        NUMERICS.index(wide.numerics.float_class) <= NUMERICS.index(narrow.numerics.float_class)
        and NUMERICS.index(wide.numerics.int_class) <= NUMERICS.index(narrow.numerics.int_class)
        and _assumed(wide) <= _assumed(narrow)
        and wide.device in (None, narrow.device)
        and (wide.grad or not narrow.grad)
        and _types_cover(wide, narrow)
    )


def _assumed(rule: Rule) -> frozenset[str]:
    return frozenset(assumption.text for assumption in rule.assumes)


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


def _check_ranks(draft: Draft, table: OpTable, problems: Problems) -> None:
    """A dim counted from the front means another one at every rank."""
    kinds = draft.rule.vars
    for call in (node for expr in draft.rule.match.values() for node in walk_values(expr)):
        op = table.find(call.fn) if isinstance(call, Call) else None
        if op is None or not isinstance(call, Call) or not call.args:
            continue
        first = call.args[0].id if isinstance(call.args[0], Name) else ""
        kind = kinds.get(first)
        if not isinstance(kind, TensorType) or kind.lead is None:
            continue
        for place, value in table.arrange(op, call.args, dict(call.kwargs), Sequence).items():
            dims = value.items if isinstance(value, Sequence) else (value,)
            if op.params[place].kind == "dim" and any(map(_from_front, dims)):
                message = f"a dim from the front, but '{first}' may have any rank"
                hint = "count from the end (-1), or give its sizes"
                problems.warning(value.span, "W706", message, hint)


def _from_front(expr: Expr) -> bool:
    return isinstance(expr, Literal) and isinstance(expr.value, int) and expr.value >= 0


def _check_conditions(draft: Draft, problems: Problems) -> None:
    rule = draft.rule
    sizes = set(size_letters(rule))
    for condition in rule.when:
        answer = _answer(condition.expr, rule, sizes)
        if answer is not None:
            verdict = "always holds" if answer else "never holds: the rule cannot fire"
            span = condition.expr.span
            problems.warning(span, "W703", f"'{condition.text}' {verdict}")


def _answer(expr: Expr, rule: Rule, sizes: set[str]) -> bool | None:
    """What the types of the variables alone say about a condition; None where nothing."""
    if not isinstance(expr, Compare) or len(expr.ops) != 1:
        return None
    left, op, right = expr.first, expr.ops[0], expr.rest[0]
    if show(left, str) == show(right, str):
        return op in ("==", "<=", ">=")
    match left, op, right:
        case (Name(id=letter), ">=", Literal(value=0)) | (Literal(value=0), "<=", Name(id=letter)):
            return True if letter in sizes else None
        case Call(fn="rank", args=(Name(id=name),)), "==", Literal(value=number):
            kind = rule.vars.get(name)
            fixed = isinstance(kind, TensorType) and kind.lead is None
            return len(kind.dims) == number if fixed and isinstance(kind, TensorType) else None
        case Call(fn="dtype", args=(Name(id=name),)), "in", Sequence(items=items):
            kind = rule.vars.get(name)
            listed = {item.id for item in items if isinstance(item, Name)}
            if not isinstance(kind, TensorType) or len(listed) != len(items):
                return None
            if listed >= set(kind.dtypes):
                return True
            return None if listed & set(kind.dtypes) else False
    return None
