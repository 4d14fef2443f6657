"""Checks of what table entries mean: `scalar:` and `as:` of ops, `means:` of scalar ops.

Takes the entries of a load; reports calls of what does not exist, or with the wrong number of
operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .expr import Call, Expr
from .facts import PREDICATES
from .kinds import ON_NUMBERS, walk_values
from .ops import OpTable
from .rule import OpEntry, ScalarEntry
from .source import Problems, suggestion

# What `scalar:` may call besides scalar ops: `lowering/pointwise.py` resolves these by the
# arguments and dtypes of a call.
_RESOLVED = ("pick", "given", "narrow", "exact", "largest")


def check_meanings(
    ops: Iterable[OpEntry],
    scalars: Iterable[ScalarEntry],
    known: Mapping[str, ScalarEntry],
    table: OpTable,
    problems: Problems,
) -> None:
    """Reports E501 and E505 in `ops` and `scalars`; `known` holds every scalar op there is."""
    for scalar in scalars:
        if scalar.means is not None:
            _check_scalar(scalar.means, known, (), problems)
    for op in ops:
        if op.scalar is not None:
            _check_scalar(op.scalar, known, _RESOLVED, problems)
        if op.as_ is not None:
            _check_op(op.as_, table, problems)


def _check_scalar(
    expr: Expr, known: Mapping[str, ScalarEntry], more: tuple[str, ...], problems: Problems
) -> None:
    for call in walk_values(expr):
        if not isinstance(call, Call) or call.fn in more:
            continue
        entry = known.get(call.fn)
        if entry is None:
            hint = suggestion(call.fn, (*known, *more))
            problems.error(call.span, "E501", f"unknown scalar op '{call.fn}'", hint)
        elif len(call.args) != len(entry.args) or call.kwargs or call.how:
            hint = f"its type is {entry.type}"
            message = f"'{call.fn}' takes {len(entry.args)} operands, by place"
            problems.error(call.span, "E505", message, hint)


def _check_op(expr: Expr, table: OpTable, problems: Problems) -> None:
    for call in walk_values(expr):
        if not isinstance(call, Call) or call.fn in PREDICATES or call.fn in ON_NUMBERS:
            continue
        if table.find(call.fn) is None:
            hint = suggestion(call.fn, (*table.names(), *PREDICATES))
            problems.error(call.span, "E501", f"unknown op '{call.fn}'", hint)
