"""Which rules a numerics profile, `disable` and `enable` leave.

Takes a book; gives the smaller book. An assumption about constants and sizes becomes a
condition, which proves it at every firing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .assumed import speaks_of_frozen
from .expr import Call, Compare, Expr, names
from .kinds import tensor_vars, walk_values
from .naming import left_over
from .rule import (
    DTYPE_WORDS,
    NUMERICS,
    PROFILES,
    Assumption,
    Condition,
    Rule,
    RuleBook,
    TensorType,
    VarType,
)
from .rule_entries import inlined_make

_LOOSEST = {"bitwise": "exact", "default": "reassociate", "fast": "random"}
_CASTS = ("cast", "_to_copy", "to", "Tensor.to", "convert_element_type")


def select(
    book: RuleBook, profile: str, disable: Sequence[str] = (), enable: Sequence[str] = ()
) -> RuleBook:
    """The rules that `profile` allows and `disable` does not name.

    `profile` is "bitwise", "default" or "fast". `disable` holds names and globs as `naming.py`
    reads them (`silu-split`, `attention/*`, `mypack:*`); what `enable` names stays all the same,
    as far as the profile allows it. Raises ValueError for another profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"numerics is one of {', '.join(PROFILES)}, not {profile!r}")
    left = left_over(book, disable, enable)
    kept = (_fitted(rule, profile) for rule in book.rules if rule.name in left)
    parts = (book.hash, profile, *sorted(disable), "enable", *sorted(enable))
    return replace(
        book,
        rules=tuple(rule for rule in kept if rule is not None),
        fuse=tuple(pair for pair in book.fuse if pair.name in left),
        decompose=tuple(
            entry
            for entry in book.decompose
            if entry.name in left
            and (profile == "fast" or _allowed(entry.numerics.float_class, profile))
        ),
        hash=hashlib.sha256("\0".join(parts).encode()).hexdigest(),
    )


def why_refused(rule: Rule, profile: str) -> str:
    """Why `profile` leaves a rule out, or keeps it for some dtypes only; empty where it
    takes the rule as it is."""
    fitted = _fitted(rule, profile)
    kinds = rule.numerics
    but = ", but not signed_zero" if profile == "default" else ""
    loosest = f"numerics {profile!r} takes rules up to {_LOOSEST[profile]}{but}"
    if fitted is not None and fitted.vars == rule.vars:
        return ""
    if _drops_cast(rule):
        reason = "it drops a cast that the user wrote"
    elif not _allowed(kinds.float_class, profile):
        reason = f"its numerics class is {kinds.float_class}"
    else:
        texts = ", ".join(assumption.text for assumption in rule.assumes)
        return f"not loaded under profile {profile}: nothing proves what it assumes ({texts})"
    part = "not loaded" if fitted is None else "loaded for whole numbers only"
    return f"{part} under profile {profile}: {reason}, and {loosest}"


def _fitted(rule: Rule, profile: str) -> Rule | None:
    """The rule as far as `profile` allows it: for fewer dtypes, with more conditions."""
    if profile == "fast":
        return rule
    fitted: Rule | None = rule
    if not _allowed(rule.numerics.float_class, profile) or _drops_cast(rule):
        if not _allowed(rule.numerics.int_class, profile):
            return None
        fitted = _without_floats(rule)
    if fitted is None:
        return None
    when, checked = list(fitted.when), []
    for assumption in rule.assumes:
        if assumption.expr is not None and _provable(assumption.expr, rule):
            when.append(Condition(assumption.expr, assumption.text))
        elif assumption.expr is not None and speaks_of_frozen(assumption.expr, rule):
            checked.append(assumption)
        elif profile == "bitwise" or not _harmless(assumption, rule):
            return None
    return replace(fitted, when=tuple(when), checked=tuple(checked))


def _allowed(numerics: str, profile: str) -> bool:
    if profile == "default" and numerics == "signed_zero":
        return False  # 1 / x shows the sign of a zero, and such rules gain little
    return NUMERICS.index(numerics) <= NUMERICS.index(_LOOSEST[profile])


def _drops_cast(rule: Rule) -> bool:
    """A rounding that the user wrote is only dropped where results may differ more."""
    return rule.numerics.float_class == "fewer_roundings" and _casts(rule.match) > _casts(
        inlined_make(rule)
    )


def _casts(roots: Mapping[str, Expr]) -> int:
    nodes = {node for expr in roots.values() for node in walk_values(expr)}
    return sum(isinstance(node, Call) and node.fn in _CASTS for node in nodes)


def _without_floats(rule: Rule) -> Rule | None:
    """The rule for whole numbers and bools alone; None where it has no such variables."""
    kinds: dict[str, VarType] = {}
    for name, kind in rule.vars.items():
        if isinstance(kind, TensorType):
            kept = tuple(
                word for word in kind.dtypes if word in (*DTYPE_WORDS["int"], *DTYPE_WORDS["bool"])
            )
            if not kept:
                return None
            kind = replace(kind, dtypes=kept)
        kinds[name] = kind
    return replace(rule, vars=kinds)


def _provable(expr: Expr, rule: Rule) -> bool:
    """Whether `expr` speaks of constants, sizes and facts only, not of a tensor's values."""
    tensors = tensor_vars(rule.vars)
    facts = [node for node in walk_values(expr) if isinstance(node, Call)]
    hidden = {name for call in facts for name in names(call)}
    return not (names(expr) - hidden) & tensors


def _harmless(assumption: Assumption, rule: Rule) -> bool:
    """`no_overflow`, and that indices are in range: what eager itself asks for."""
    if assumption.expr is None:
        return assumption.text == "no_overflow"
    tensors = names(assumption.expr) & tensor_vars(rule.vars)
    kinds = [rule.vars[name] for name in tensors]
    ints = set(DTYPE_WORDS["int"])
    return isinstance(assumption.expr, Compare) and all(
        isinstance(kind, TensorType) and set(kind.dtypes) <= ints for kind in kinds
    )
