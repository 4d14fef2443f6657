"""Checks of what table entries mean: `scalar:` and `as:` of ops, `means:` of scalar ops.

Takes the entries of a load; reports calls of what does not exist, or with the wrong number of
operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from .expr import Call, Expr
from .facts import PREDICATES
from .kinds import ON_NUMBERS, walk_values
from .ops import OpTable
from .rule import OpEntry, ScalarEntry
from .source import Problems, suggestion

# What `scalar:` may call besides scalar ops: `lowering/pointwise.py` resolves these by the
# arguments and dtypes of a call.
_RESOLVED = frozenset({"pick", "given", "narrow", "exact", "largest"})


def check_meanings(
    ops: Iterable[OpEntry],
    scalars: Iterable[ScalarEntry],
    known: Mapping[str, ScalarEntry],
    table: OpTable,
    lost: Set[str],
    problems: Problems,
) -> set[str]:
    """Reports E501, E505 and E322 in `ops` and `scalars`; `known` holds every scalar op there
    is, and `lost` names those of either kind whose entries have mistakes. Gives the names of
    those whose meaning has no end."""
    endless: set[str] = set()
    for scalar in scalars:
        if scalar.means is not None:
            _check_scalar(scalar.means, known, lost, problems)
            if not _ends(scalar.name, scalar.means, lambda name: _meant(name, known), problems):
                endless.add(scalar.name)
    for op in ops:
        if op.scalar is not None:
            _check_scalar(op.scalar, known, lost | _RESOLVED, problems)
        if op.as_ is not None:
            _check_op(op.as_, table, lost, problems)
            if not _ends(op.name, op.as_, lambda name: _spelled(name, table), problems):
                endless.add(op.name)
    return endless


def _spelled(name: str, table: OpTable) -> Expr | None:
    op = table.find(name)
    return op.entry.as_ if op is not None and op.entry is not None else None


def _meant(name: str, known: Mapping[str, ScalarEntry]) -> Expr | None:
    return known[name].means if name in known else None


def _ends(
    name: str, meaning: Expr, meaning_of: Callable[[str], Expr | None], problems: Problems
) -> bool:
    """Reports E322 where the meaning of `name` leads back to `name`."""
    seen: set[str] = set()
    waiting = [meaning]
    while waiting:
        calls = {node.fn for node in walk_values(waiting.pop()) if isinstance(node, Call)}
        if name in calls:
            message = f"the meaning of '{name}' leads back to '{name}'"
            problems.error(meaning.span, "E322", message, "spell it in ops that do not use it")
            return False
        found = (meaning_of(called) for called in calls - seen)
        waiting += [expr for expr in found if expr is not None]
        seen |= calls
    return True


def _check_scalar(
    expr: Expr, known: Mapping[str, ScalarEntry], more: Set[str], problems: Problems
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


def _check_op(expr: Expr, table: OpTable, lost: Set[str], problems: Problems) -> None:
    for call in walk_values(expr):
        if not isinstance(call, Call) or call.fn in {*PREDICATES, *ON_NUMBERS, *lost}:
            continue
        if table.find(call.fn) is None:
            hint = suggestion(call.fn, (*table.names(), *PREDICATES))
            problems.error(call.span, "E501", f"unknown op '{call.fn}'", hint)
