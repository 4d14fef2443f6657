"""Checks of what a rule calls: ops with their arguments, facts, and what stands where.

Takes a `Draft` and the op table; reports unknown ops and facts, arguments that an op does not
have, comparisons outside conditions, and sides that are no tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from .expr import (
    Binary,
    Call,
    Compare,
    Expr,
    Field,
    Item,
    Logic,
    Name,
    Negative,
    Not,
    Sequence,
    children,
    names,
)
from .facts import PREDICATES, Predicate
from .kinds import (
    EACH,
    ON_NUMBERS,
    is_op,
    is_tensor,
    list_vars,
    parts,
    tensor_names,
    tensor_vars,
    walk_values,
)
from .op import ArgumentsError, Op
from .ops import OpTable
from .rule import Condition, ConstType, Rule, TensorType
from .rule_entries import WRITTEN_OUT, Draft
from .scope import hows, size_letters
from .source import Problems, suggestion
from .syntax import DTYPES

_NUMBER_FUNCTIONS: Mapping[str, tuple[int, int | None]] = {
    "min": (1, None),
    "max": (1, None),
    "abs": (1, 1),
    "len": (1, 1),
}


def check_calls(
    draft: Draft, table: OpTable, problems: Problems, lost: Collection[str] = ()
) -> None:
    """Reports E410 to E415, E501 to E509. `lost` names ops whose entries have mistakes."""
    rule = draft.rule
    checker = _Checker(draft, table, problems, lost)
    typed = "vars" not in draft.broken
    for root, expr in rule.match.items():
        checker.side(expr, "match")
        if typed and not is_op(expr, checker.left) and not isinstance(expr, Item):
            message = "the left side is no op, so it would match everything"
            problems.error(expr.span, "E410", message, f"root {root}" if root != "out" else None)
    for expr in (*rule.lets.values(), *rule.make.values()):
        checker.side(expr, "make")
    _check_results(draft, checker, problems)
    if not checker.lost:
        _check_size(rule, table, problems)
    for condition in rule.when:
        checker.condition(condition)
    for assumption in rule.assumes:
        if assumption.expr is not None:
            checker.facts(assumption.expr)
    if rule.stage == "trace" and typed and "match" not in draft.broken:
        _check_trace(rule, checker.left, problems)
    if typed:
        check_cases(draft, problems)


def called(rule: Rule) -> set[str]:
    """The names of all that a rule calls."""
    exprs = (*rule.match.values(), *rule.lets.values(), *rule.make.values())
    return {node.fn for expr in exprs for node in walk_values(expr) if isinstance(node, Call)}


def _check_results(draft: Draft, checker: _Checker, problems: Problems) -> None:
    typed = not draft.broken & {"vars", "let"}
    for expr in draft.rule.make.values():
        known = names(expr) <= checker.known  # else E402 says more
        if typed and known and not is_tensor(expr, checker.right):
            hint = "full_like(x, 0) makes a tensor of one number"
            problems.error(expr.span, "E413", "the right side is no tensor", hint)
        elif draft.rule.stage == "pre_grad" and isinstance(expr, Name):
            message = "in pre_grad a right side cannot be a bare variable"
            problems.error(expr.span, "E412", message, "aliasing is still visible there")


def _check_size(rule: Rule, table: OpTable, problems: Problems) -> None:
    """Ops that name an argument twice in what they are `as:` double it each time."""
    for expr in (*rule.match.values(), *rule.lets.values(), *rule.make.values()):
        size = _written_out(expr, table, {})
        if size > WRITTEN_OUT:
            message = f"this has {size} parts when each op is written as what it is 'as:'"
            problems.error(expr.span, "E321", message, f"{WRITTEN_OUT} are the most")


def _written_out(expr: Expr, table: OpTable, sizes: Mapping[str, int]) -> int:
    """How many parts `table.expand` would make; `sizes` says what names stand for."""
    op = table.find(expr.fn) if isinstance(expr, Call) else None
    if isinstance(expr, Call) and op is not None and op.entry is not None and op.entry.as_:
        try:
            placed = table.arrange(op, expr.args, dict(expr.kwargs), Sequence)
        except ArgumentsError:
            return 1
        inner = {
            op.params[place].name: _written_out(part, table, sizes)
            for place, part in placed.items()
        }
        return _written_out(op.entry.as_, table, inner)
    if isinstance(expr, Name):
        return sizes.get(expr.id, 1)
    return 1 + sum(_written_out(part, table, sizes) for part in children(expr))


class _Checker:
    def __init__(
        self, draft: Draft, table: OpTable, problems: Problems, lost: Collection[str]
    ) -> None:
        rule = self.rule = draft.rule
        self.broken = draft.broken
        self.declared = draft.spans
        self.hows = hows(rule)
        self.lost = {*lost, *draft.family}
        self.table = table
        self.problems = problems
        self.left = tensor_vars(rule.vars)
        self.right = tensor_names(rule)
        self.known = {*rule.vars, *rule.lets, *size_letters(rule), *hows(rule), *DTYPES}
        # What the left side makes may be asked about: `users(mm(x, w)) == 1`.
        self.matched = {node for expr in rule.match.values() for node in walk_values(expr)}

    def side(self, expr: Expr, side: str) -> None:
        """An expression of `match`, or of `let` and `make`."""
        for node in walk_values(expr):
            if isinstance(node, Compare | Logic | Not):
                hint = "write the op: gt(x, y), logical_and(x, y); or move it to 'when'"
                message = f"a comparison has no place in {side}"
                self.problems.error(node.span, "E411", message, hint)
            elif isinstance(node, Call):
                self._side_call(node, side)
            elif isinstance(node, Field):
                self._field(node)

    def _side_call(self, call: Call, side: str) -> None:
        tensors = self.left if side == "match" else self.right
        if call.fn == EACH:
            self._each(call)
        elif call.fn in ON_NUMBERS and not is_tensor(call, tensors):
            if not self.broken & {"vars", "let"}:
                self._on_numbers(call)
        elif call.fn in PREDICATES:
            self._fact(call)
        else:
            self.op(call)

    def _each(self, call: Call) -> None:
        if len(call.args) < 2 or not isinstance(call.args[0], Name):
            self.problems.error(call.span, "E505", "each takes an op and a list", "each(relu, xs)")
            return
        name = call.args[0]
        if name.id not in self.lost and self.table.find(name.id) is None:
            hint = suggestion(name.id, self.table.names())
            self.problems.error(name.span, "E501", f"unknown op '{name.id}'", hint)

    def op(self, call: Call) -> None:
        """A call of an op: it exists, and it has these arguments."""
        op = self.table.find(call.fn)
        if call.fn in self.lost:
            return
        if op is None:
            base, _, method = call.fn.partition(".")
            if method and (base in self.rule.vars or ("vars", base) in self.declared):
                hint: str | None = f"write {method}({base}, ...)"
            else:
                hint = suggestion(call.fn, (*self.table.names(), *PREDICATES))
            self.problems.error(call.span, "E501", f"unknown op '{call.fn}'", hint)
            return
        if self._keywords(call, op):
            self._places(call, op)

    def _keywords(self, call: Call, op: Op) -> bool:
        names = [param.name for param in op.params]
        sound = True
        for key, value in call.kwargs:
            if key not in names:
                hint = suggestion(key, names) or f"it has: {', '.join(names)}"
                message = f"'{call.fn}' has no argument '{key}'"
                # A keyword has no span of its own; it stands right before its value.
                start = max(1, value.span.col - len(key) - 1)
                span = value.span._replace(col=start, length=len(key))
                self.problems.error(span, "E503", message, hint)
                sound = False
        return sound

    def _places(self, call: Call, op: Op) -> None:
        signature = ", ".join(param.name for param in op.params)
        try:
            lists = list_vars(self.rule.vars)
            placed = self.table.arrange(op, call.args, dict(call.kwargs), Sequence, lists)
            if call.how is None:
                self.table.fill(op, placed)
        except ArgumentsError as error:
            hint = f"its arguments are ({signature})"
            self.problems.error(call.span, "E504", str(error), hint)

    def condition(self, condition: Condition) -> None:
        expr = condition.expr
        if not isinstance(expr, Compare | Logic | Not | Call) or (
            isinstance(expr, Call) and expr.fn in ON_NUMBERS
        ):
            hint = "a comparison, or a fact such as contiguous(x)"
            self.problems.error(expr.span, "E506", "this is no condition", hint)
        for node in walk_values(expr):
            if isinstance(node, Binary | Negative) and not self._may_stand(node):
                hint = "compare dtype(x), shape(x), ... of what is matched"
                self.problems.error(node.span, "E509", "conditions make no tensors", hint)
        self._refuse_values(expr)
        self.facts(expr)

    def facts(self, expr: Expr) -> None:
        """Calls in conditions are facts, never ops."""
        for node in walk_values(expr):
            if isinstance(node, Field):
                self._field(node)
            if not isinstance(node, Call) or node in self.matched:
                continue
            if node.fn in PREDICATES:
                self._fact(node)
            elif node.fn in ON_NUMBERS:
                self._on_numbers(node)
            else:
                words = (*PREDICATES, *ON_NUMBERS)
                hint = suggestion(node.fn, words)
                if hint is None and self.table.find(node.fn) is not None:
                    if "match" in self.broken:
                        continue  # it may be what is matched
                    hint = "conditions speak of facts about a value, not of ops"
                self.problems.error(node.span, "E502", f"unknown fact '{node.fn}'", hint)

    def _may_stand(self, expr: Expr) -> bool:
        """Whether arithmetic in a condition is on numbers, or is what the left side makes."""
        return not is_tensor(expr, self.left) or expr in self.matched or "match" in self.broken

    def _field(self, field: Field) -> None:
        """`how.groups` reads an attribute; `x.dtype` is Python, and would never hold."""
        if field.base in self.known and field.base not in self.hows:
            hint = f"write {field.name}({field.base})" if field.name in PREDICATES else None
            message = f"'.{field.name}' cannot be asked of '{field.base}'"
            self.problems.error(field.span, "E502", message, hint)

    def _refuse_values(self, expr: Expr) -> None:
        """`x > 0` cannot be known when compiling, for a tensor x."""
        if isinstance(expr, Compare):
            for part in (expr.first, *expr.rest):
                if isinstance(part, Name) and part.id in self.left:
                    message = f"'{part.id}' is a tensor: its values are not known here"
                    hint = "compare dtype(x), shape(x), ...; or write it under 'assumes'"
                    self.problems.error(part.span, "E507", message, hint)
        if not isinstance(expr, Call):
            for part in parts(expr):
                self._refuse_values(part)

    def _fact(self, call: Call) -> None:
        predicate: Predicate = PREDICATES[call.fn]
        self._count(call, predicate.least, predicate.most)

    def _on_numbers(self, call: Call) -> None:
        self._count(call, *_NUMBER_FUNCTIONS[call.fn])

    def _count(self, call: Call, least: int, most: int | None) -> None:
        count = len(call.args)
        if call.kwargs or call.how or count < least or (most is not None and count > most):
            wanted = str(least) if most == least else f"{least} or more"
            if most is not None and most != least:
                wanted = f"{least} to {most}"
            plural = "" if wanted == "1" else "s"
            message = f"'{call.fn}' takes {wanted} argument{plural}, by place"
            self.problems.error(call.span, "E505", message)


def _check_trace(rule: Rule, tensors: Set[str], problems: Problems) -> None:
    """Trace rules become decompositions, which torch looks up by one op."""
    for expr in rule.match.values():
        simple = isinstance(expr, Call) and not any(is_op(part, tensors) for part in parts(expr))
        if len(rule.match) > 1 or not simple:
            message = "a trace rule matches one op, on variables"
            problems.error(expr.span, "E414", message, "torch looks decompositions up by op")
            return


def check_cases(draft: Draft, problems: Problems) -> None:
    """`fires` and `misses` name letters and variables, with values that fit them (E508)."""
    rule = draft.rule
    sizes = {
        name.id
        for kind in rule.vars.values()
        if isinstance(kind, TensorType)
        for dim in kind.dims
        for name in walk_values(dim)
        if isinstance(name, Name)
    }
    known = {*rule.vars, *sizes, *draft.lost}
    for case in (*rule.fires, *rule.misses):
        for key, value in case.values.items():
            kind = rule.vars.get(key)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if key not in known:
                hint = suggestion(key, known)
                problems.error(case.span, "E508", f"'{key}' is no variable or size", hint)
            elif key in sizes and not whole:
                problems.error(case.span, "E508", f"'{key}' is a size, not {value!r}")
            elif isinstance(kind, TensorType) and value not in DTYPES:
                problems.error(case.span, "E508", f"'{key}' is a tensor: give its dtype")
            elif isinstance(kind, ConstType) and kind.kind == "dtype" and value not in DTYPES:
                problems.error(case.span, "E508", f"'{key}' is a dtype, not {value!r}")
