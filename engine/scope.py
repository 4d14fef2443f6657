"""Checks of names in a rule: one namespace, everything bound, nothing unused.

Takes a `Draft`; reports clashing, unbound and unused names, and roots that do not fit.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Sequence, Set

from .dtypes import DTYPES as TORCH_DTYPES
from .expr import Binary, Call, Expr, Field, Name, Negative, Span, names
from .kinds import is_tensor, parts, tensor_vars, walk_values
from .rule import Rule, TensorType
from .rule_entries import ROOT, Draft
from .source import Problems, look_alikes, suggestion
from .syntax import DTYPES, FLOAT_WORDS

_RESERVED = (*DTYPES, *FLOAT_WORDS, "true", "false")


def check_scope(draft: Draft, problems: Problems) -> None:
    """Reports E401 to E410 and W702."""
    rule = draft.rule
    letters = size_letters(rule)
    roots, attributes = set(named_roots(rule)), hows(rule)
    pieces = set(rule.lets)
    lost = draft.lost
    if "vars" in draft.broken and not any(field == "vars" for field, _ in draft.spans):
        return  # no name is known
    refused = _check_clashes(draft, problems)
    if not all(map(str.isascii, refused)):
        return  # which names are meant by those that look alike is not known
    _check_sizes(draft, {*letters, *lost}, problems)
    known = {*rule.vars, *letters, *lost, *draft.family}
    for expr in rule.match.values():
        _check_known(expr, known | attributes, roots | pieces, problems)
    for condition in rule.when:
        _check_known(condition.expr, known | attributes, roots | pieces, problems)
    for assumption in rule.assumes:
        if assumption.expr is not None:
            _check_known(assumption.expr, known, roots | pieces, problems)
    known |= attributes
    for name, expr in rule.lets.items():
        _check_known(expr, known, roots | pieces, problems)
        known.add(name)
    for expr in rule.make.values():
        _check_known(expr, known, roots, problems)
    _check_bound(draft, refused, problems)
    _check_lets(draft, problems)
    _check_roots(draft, problems)


def size_letters(rule: Rule) -> dict[str, Span]:
    """Letters that a variable's type binds, and where: those that stand alone as a size."""
    found: dict[str, Span] = {}
    for kind in rule.vars.values():
        for dim in kind.dims if isinstance(kind, TensorType) else ():
            if isinstance(dim, Name):
                found.setdefault(dim.id, dim.span)
    return found


def hows(rule: Rule) -> set[str]:
    """The names of `**how` that the left side binds."""
    return {
        node.how
        for expr in rule.match.values()
        for node in walk_values(expr)
        if isinstance(node, Call) and node.how is not None
    }


def named_roots(rule: Rule) -> tuple[str, ...]:
    """The roots that the author named; none where the left side is one expression."""
    return () if list(rule.match) == [ROOT] else tuple(rule.match)


def _check_clashes(draft: Draft, problems: Problems) -> set[str]:
    """Gives the names that cannot be names."""
    rule, spans = draft.rule, draft.spans
    groups: tuple[tuple[str, Iterable[tuple[str, Span]]], ...] = (
        ("a variable", [(name, spans[("vars", name)]) for name in rule.vars]),
        ("a size", size_letters(rule).items()),
        ("a root", [(name, spans[("match", name)]) for name in named_roots(rule)]),
        ("a piece", [(name, spans[("let", name)]) for name in rule.lets]),
        ("a '**' name", [(name, rule.span) for name in sorted(hows(rule))]),
        ("a family key", draft.family.items()),
    )
    taken: dict[str, str] = {}
    refused: set[str] = set()
    for what, members in groups:
        for name, span in members:
            if name in _RESERVED:
                problems.error(span, "E403", f"'{name}' already means something", "rename it")
            elif not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
                hint = "; ".join(("letters, digits and '_', no Python keyword", *look_alikes(name)))
                problems.error(span, "E403", f"'{name}' cannot be a name", hint)
                refused.add(name)
            elif name in taken:
                message = f"'{name}' is both {taken[name]} and {what}"
                problems.error(span, "E401", message, "all names of a rule share one namespace")
            taken.setdefault(name, what)
    return refused


def _check_sizes(draft: Draft, letters: Set[str], problems: Problems) -> None:
    for kind in draft.rule.vars.values():
        for dim in kind.dims if isinstance(kind, TensorType) else ():
            for name in walk_values(dim):
                if isinstance(name, Name) and name.id not in letters:
                    message = f"size '{name.id}' never stands alone, so nothing binds it"
                    hint = f"give a variable the size '{name.id}' alone"
                    problems.error(name.span, "E404", message, hint)


def _check_known(expr: Expr, known: Set[str], misplaced: Set[str], problems: Problems) -> None:
    for node in walk_values(expr):
        match node:
            case Name(id=word) if word in DTYPES:
                continue
            case Name(id=word) | Field(base=word) | Call(how=str(word)):
                pass
            case _:
                continue
        if word in misplaced and word not in known:
            hint = "pieces stand on the right side, in order; a root is written out"
            problems.error(node.span, "E405", f"'{word}' cannot be used here", hint)
        elif word not in known:
            message = f"'{word}' is not bound by vars or match"
            problems.error(node.span, "E402", message, _meant(node, word, known))


def _meant(node: Expr, word: str, known: Set[str]) -> str | None:
    """A hint for an unknown name: the rule language's word for a dtype, or a name like it."""
    spelled = node.name if isinstance(node, Field) and word == "torch" else word
    dtype = next((w for w, dtype in TORCH_DTYPES.items() if str(dtype) == f"torch.{spelled}"), None)
    return f"write {dtype}" if dtype is not None else suggestion(word, known)


def _check_bound(draft: Draft, refused: Set[str], problems: Problems) -> None:
    """Every variable must be found by matching the left side."""
    rule = draft.rule
    if "match" in draft.broken:
        return
    tensors = tensor_vars(rule.vars)
    used: set[str] = set()
    bound: set[str] = set()
    methods: set[str] = set()
    for expr in rule.match.values():
        used |= names(expr)
        # `x.relu()` is no call of the language, but it does speak of x.
        methods |= {n.fn.split(".")[0] for n in walk_values(expr) if isinstance(n, Call)}
        bound |= {expr.id} if isinstance(expr, Name) else _binding(expr, tensors)
    for name in rule.vars.keys() - refused - (methods - used):
        span = draft.spans[("vars", name)]
        if name not in used and draft.back:
            message = f"'{name}' would be unbound from right to left"
            problems.error(span, "E407", message, "both sides must name it, or drop both_ways")
        elif name not in used:
            problems.error(span, "E406", f"'{name}' is declared but match never uses it")
        elif name not in bound:
            message = f"'{name}' stands in match only inside arithmetic, so nothing binds it"
            problems.error(span, "E408", message)


def _binding(expr: Expr, tensors: Set[str]) -> set[str]:
    """Names that stand alone as an argument or operand of an op."""
    if isinstance(expr, Binary | Negative | Call) and not is_tensor(expr, tensors):
        return set()
    found: set[str] = set()
    for part in parts(expr):
        found |= {part.id} if isinstance(part, Name) else _binding(part, tensors)
    return found


def _check_lets(draft: Draft, problems: Problems) -> None:
    rule = draft.rule
    if draft.broken & {"let", "make"}:
        return
    used: set[str] = set()
    for expr in (*rule.lets.values(), *rule.make.values()):
        used |= names(expr)
    for name in rule.lets:
        if name not in used:
            span = draft.spans[("let", name)]
            problems.warning(span, "W702", f"'{name}' is named but never used")


def _check_roots(draft: Draft, problems: Problems) -> None:
    rule, spans = draft.rule, draft.spans
    if not draft.broken & {"match", "make"} and set(rule.match) != set(rule.make):
        left, right = list(rule.match), list(rule.make)
        surplus = [root for root in right if root not in left and ("make", root) in spans]
        span = spans[("make", surplus[0])] if surplus else next(iter(rule.make.values())).span
        message = f"make has {_listed(right)}, but match has {_listed(left)}"
        problems.error(span, "E409", message, "both sides have the same roots")


def _listed(roots: Sequence[str]) -> str:
    return "one expression" if list(roots) == [ROOT] else f"the roots {', '.join(roots)}"
