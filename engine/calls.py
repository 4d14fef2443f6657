"""Checks of what a rule calls: ops with their arguments, facts, and what stands where.

Takes a `Draft` and the op table; reports unknown ops and facts, arguments that an op does not
have, comparisons outside conditions, and sides that are no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from .expr import Call, Compare, Expr, Item, Logic, Name, Not, Sequence
from .facts import PREDICATES, Predicate
from .kinds import (
    EACH,
    ON_NUMBERS,
    is_op,
    is_tensor,
    parts,
    tensor_names,
    tensor_vars,
    walk_values,
)
from .op import ArgumentsError, Op
from .ops import OpTable
from .rule import Condition, ConstType, Rule, TensorType
from .rule_entries import Draft
from .source import Problems, suggestion
from .syntax import DTYPES

_NUMBER_FUNCTIONS: Mapping[str, tuple[int, int | None]] = {
    "min": (1, None),
    "max": (1, None),
    "abs": (1, 1),
    "len": (1, 1),
}


def check_calls(draft: Draft, table: OpTable, problems: Problems) -> None:
    """Reports E410 to E415, E501 to E509."""
    rule = draft.rule
    checker = _Checker(rule, table, problems)
    for root, expr in rule.match.items():
        checker.side(expr, "match")
        if not is_op(expr, checker.left) and not isinstance(expr, Item):
            message = "the left side is no op, so it would match everything"
            problems.error(expr.span, "E410", message, f"root {root}" if root != "out" else None)
    for expr in (*rule.lets.values(), *rule.make.values()):
        checker.side(expr, "make")
    for expr in rule.make.values():
        if not is_tensor(expr, checker.right):
            hint = "full_like(x, 0) makes a tensor of one number"
            problems.error(expr.span, "E413", "the right side is no tensor", hint)
        elif rule.stage == "pre_grad" and isinstance(expr, Name):
            message = "in pre_grad a right side cannot be a bare variable"
            problems.error(expr.span, "E412", message, "aliasing is still visible there")
    for condition in rule.when:
        checker.condition(condition)
    for assumption in rule.assumes:
        if assumption.expr is not None:
            checker.facts(assumption.expr)
    if rule.stage == "trace":
        _check_trace(rule, checker.left, problems)
    check_cases(draft, problems)


class _Checker:
    def __init__(self, rule: Rule, table: OpTable, problems: Problems) -> None:
        self.rule = rule
        self.table = table
        self.problems = problems
        self.left = tensor_vars(rule.vars)
        self.right = tensor_names(rule)
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

    def _side_call(self, call: Call, side: str) -> None:
        tensors = self.left if side == "match" else self.right
        if call.fn == EACH:
            self._each(call)
        elif call.fn in ON_NUMBERS and not is_tensor(call, tensors):
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
        if self.table.find(name.id) is None:
            hint = suggestion(name.id, self.table.names())
            self.problems.error(name.span, "E501", f"unknown op '{name.id}'", hint)

    def op(self, call: Call) -> None:
        """A call of an op: it exists, and it has these arguments."""
        op = self.table.find(call.fn)
        if op is None:
            base, _, method = call.fn.partition(".")
            if base in self.rule.vars:
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
            placed = self.table.arrange(op, call.args, dict(call.kwargs), Sequence)
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
        self._refuse_values(expr)
        self.facts(expr)

    def facts(self, expr: Expr) -> None:
        """Calls in conditions are facts, never ops."""
        for node in walk_values(expr):
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
                    hint = "conditions speak of facts about a value, not of ops"
                self.problems.error(node.span, "E502", f"unknown fact '{node.fn}'", hint)

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
    known = {*rule.vars, *sizes}
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
