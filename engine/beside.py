"""Checks of rules beside each other: those that undo each other, and those that never matter.

Takes the rules of a load, and the built-in ones where they stand beside it; reports E606, which
refuses a rule, and W705 and W708, which warn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .alike import Sides, settle, show, sides
from .expr import Expr
from .kinds import list_vars
from .ops import OpTable
from .rule import NUMERICS, ConstType, Rule, TensorType
from .rule_entries import inlined_make
from .source import Problems


@dataclass(frozen=True)
class _Entry:
    """A rule with its sides in one spelling. `own`: it is of this load, so it may be blamed."""

    rule: Rule
    own: bool
    left: Mapping[str, Expr]
    right: Mapping[str, Expr]

    @property
    def base(self) -> str:
        """The name as written, without member and direction."""
        return self.rule.name.split("/")[0]

    @property
    def back(self) -> bool:
        return self.rule.name.endswith("/back")

    @property
    def place(self) -> tuple[str, int]:
        return self.rule.span.path, self.rule.span.line


def check_rules(
    rules: Sequence[Rule], beside: Iterable[Rule], table: OpTable, problems: Problems
) -> None:
    """Reports on `rules`, which are sound by themselves, and on how they go with `beside`."""
    entries = [_entry(rule, True, table) for rule in rules]
    entries += [_entry(rule, False, table) for rule in beside]
    seen: dict[tuple[str, str, str], list[tuple[_Entry, Sides]]] = {}
    for entry in entries:
        forward = sides(entry.left, entry.right)
        key = (entry.rule.stage, forward.left, forward.right)
        seen.setdefault(key, []).append((entry, forward))
    for same in seen.values():
        for (wide, theirs), (narrow, ours) in itertools.permutations(same, 2):
            if narrow.own and wide.base != narrow.base:
                _check_shadowed(wide, theirs, narrow, ours, problems)
    for entry in entries:
        if not entry.own or entry.back:
            continue
        turned = sides(entry.right, entry.left)
        for other, theirs in seen.get((entry.rule.stage, turned.left, turned.right), ()):
            if other.base != entry.base and not other.back:
                _check_undone(entry, turned, other, theirs, problems)


def _entry(rule: Rule, own: bool, table: OpTable) -> _Entry:
    lists = list_vars(rule.vars)
    left = {root: settle(expr, table, lists) for root, expr in rule.match.items()}
    right = {root: settle(expr, table, lists) for root, expr in inlined_make(rule).items()}
    return _Entry(rule, own, left, right)


def _check_undone(
    entry: _Entry, turned: Sides, other: _Entry, theirs: Sides, problems: Problems
) -> None:
    ours, its = entry.rule, other.rule
    if (ours.numerics, _assumed(ours), ours.device) != (its.numerics, _assumed(its), its.device):
        return  # not the same rule in two directions, so both_ways could not say it
    names = _partners(ours, turned, its, theirs)
    if names is None or _conditions(ours, names) != _conditions(its, {}):
        return
    if not other.own:
        message = f"'{entry.base}' undoes the built-in '{other.base}' of {its.where}"
        hint = f"both forms stay; if one is enough, drop this rule or disable '{other.base}'"
        problems.warning(ours.span, "W708", message, hint)
    elif entry.place < other.place:
        message = f"'{other.base}' undoes '{entry.base}' of {ours.where}"
        problems.error(its.span, "E606", message, "write one rule with both_ways: true")


def _check_shadowed(
    wide: _Entry, theirs: Sides, narrow: _Entry, ours: Sides, problems: Problems
) -> None:
    names = _partners(wide.rule, theirs, narrow.rule, ours)
    if names is None or not covers(wide.rule, narrow.rule):
        return
    fewer, more = _conditions(wide.rule, names), _conditions(narrow.rule, {})
    first = not wide.own or wide.place < narrow.place
    if fewer < more or (fewer == more and (first or _wider(wide, theirs, narrow, ours))):
        built_in = "" if wide.own else "the built-in "
        message = f"{built_in}'{wide.rule.name}' of {wide.rule.where} already does all of this"
        hint = "drop one of the two, or make this one say more"
        problems.warning(narrow.rule.span, "W705", message, hint)


def _wider(wide: _Entry, theirs: Sides, narrow: _Entry, ours: Sides) -> bool:
    """Whether `wide` says more than `narrow`, not just the same."""
    same = _partners(narrow.rule, ours, wide.rule, theirs) is not None
    return not (same and covers(narrow.rule, wide.rule))


def covers(wide: Rule, narrow: Rule) -> bool:
    """Whether `wide` is there wherever `narrow` is: in every profile and on every device."""
    return (
        NUMERICS.index(wide.numerics.float_class) <= NUMERICS.index(narrow.numerics.float_class)
        and NUMERICS.index(wide.numerics.int_class) <= NUMERICS.index(narrow.numerics.int_class)
        and _assumed(wide) <= _assumed(narrow)
        and wide.device in (None, narrow.device)
        and (wide.grad or not narrow.grad)
    )


def _assumed(rule: Rule) -> frozenset[str]:
    return frozenset(assumption.text for assumption in rule.assumes)


def _conditions(rule: Rule, names: Mapping[str, str]) -> frozenset[str]:
    """The conditions in text, in the names of the other rule."""
    return frozenset(show(c.expr, lambda name: names.get(name, name)) for c in rule.when)


def _partners(wide: Rule, ours: Sides, narrow: Rule, theirs: Sides) -> dict[str, str] | None:
    """The names of `wide` and what they are in `narrow`; None where `narrow` allows a tensor,
    a constant or a size that `wide` does not."""
    names = dict(zip(ours.names, theirs.names, strict=True))
    leads: dict[str, tuple[str, ...]] = {}
    for name, kind in wide.vars.items():
        other = narrow.vars.get(names.get(name, ""))
        if isinstance(kind, TensorType) and isinstance(other, TensorType):
            if not set(kind.dtypes) >= set(other.dtypes) or kind.is_list != other.is_list:
                return None
            if not kind.any_sizes and not _fits(kind, other, names, leads):
                return None
        elif kind != other and not (
            kind == ConstType("any")
            and isinstance(other, ConstType)
            and other.kind in ("int", "float", "bool")
        ):
            return None
    return names


def _fits(
    kind: TensorType, other: TensorType, names: dict[str, str], leads: dict[str, tuple[str, ...]]
) -> bool:
    """Whether the sizes of `other` are sizes that `kind` allows; adds what its letters are."""
    if other.any_sizes:
        return False
    sizes = [] if other.lead is None else [f"...{other.lead}"]
    sizes += [show(dim, str) for dim in other.dims]
    fixed = len(kind.dims)
    start = len(sizes) - fixed
    if start < 0 or any(size.startswith("...") for size in sizes[start:]):
        return False
    if kind.lead is None:
        if start:
            return False
    elif leads.setdefault(kind.lead, tuple(sizes[:start])) != tuple(sizes[:start]):
        return False
    for dim, size in zip(kind.dims, sizes[start:], strict=True):
        shown = show(dim, str)
        if shown.isidentifier():
            shown = names.setdefault(shown, size)
        else:
            shown = show(dim, lambda name: names.get(name, name))
        if shown != size:
            return False
    return True
