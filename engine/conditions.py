"""Conditions that say nothing: those that always hold, and those that never do.

Takes a rule; gives findings about its `when`. Each condition is read as a formula over terms (a
size, a constant, a dtype, a rank); a term only matters by the numbers it is compared with, so a
few values of each, tried in all combinations, decide the formula. What is not understood is a
term that may be true or false.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .alike import show
from .expr import Binary, Call, Compare, Expr, Literal, Logic, Name, Negative, Not, Span
from .expr import Sequence as SequenceExpr
from .kinds import walk_values
from .rule import DTYPE_WORDS, Condition, ConstType, Rule, TensorType
from .scope import size_letters
from .syntax import DTYPES

_MOST = 20_000  # combinations of values that are tried for one set of conditions
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_COUNTS = ("rank", "numel", "size", "len", "bits", "users")
_BY_DTYPE: Mapping[str, frozenset[str]] = {
    "is_floating": frozenset(DTYPE_WORDS["float"]),
    "is_integral": frozenset(DTYPE_WORDS["int"]),
    "is_half": frozenset({"f16", "bf16"}),
}

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What is wrong with the condition (or part of one) at `span`: the text of a message."""

    span: Span
    message: str


@dataclass(frozen=True)
class _Formula:
    terms: frozenset[str]
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class _Part:
    """One conjunct of the `when` list; `shown` names it in messages."""

    span: Span
    shown: str
    formula: _Formula


@dataclass
class _Range:
    """A number: whole or not, from `least` on, and what it is compared with."""

    whole: bool
    least: float = -math.inf
    most: float = math.inf
    may_be_nan: bool = False
    marks: set[float] = field(default_factory=set)

    def values(self) -> tuple[float, ...]:
        """One number from every stretch between the marks, and the marks themselves."""
        bounds = {mark for mark in (self.least, self.most) if math.isfinite(mark)}
        marks = sorted(mark for mark in {0.0} | self.marks | bounds if not math.isnan(mark))
        near = {step for mark in marks for step in (mark - 1, mark, mark + 1)}
        if not self.whole:
            near |= {(a + b) / 2 for a, b in itertools.pairwise(marks) if math.isfinite(b - a)}
        kept = {value for value in near if self.least <= value <= self.most}
        if self.whole:
            kept = {value for value in kept if math.isfinite(value) and value == int(value)}
        return (*sorted(kept), *([math.nan] if self.may_be_nan else []))


def examine(rule: Rule) -> list[Finding]:
    """Conditions that always hold, never hold, or say no more than the others do."""
    reader = _Reader(rule)
    parts = [part for condition in rule.when for part in reader.parts(condition)]
    domains = reader.domains()
    found: list[Finding] = []
    telling: list[_Part] = []
    for part in parts:
        outcomes = _outcomes([part], domains)
        if outcomes == {(True,)}:
            found.append(Finding(part.span, f"{part.shown} always holds"))
        elif outcomes == {(False,)}:
            found.append(Finding(part.span, f"{part.shown} never holds: the rule cannot fire"))
        else:
            telling.append(part)
    for group in _connected(telling):
        found += _examine_together(group, domains)
    return found


def _examine_together(
    group: Sequence[_Part], domains: Mapping[str, tuple[Any, ...]]
) -> list[Finding]:
    outcomes = _outcomes(group, domains)
    if outcomes is None:
        return []
    for count, part in enumerate(group, 1):
        if not any(all(outcome[:count]) for outcome in outcomes):
            message = f"{part.shown} contradicts what stands before it: the rule cannot fire"
            return [Finding(part.span, message)]
    found: list[Finding] = []
    kept = set(range(len(group)))
    for place in reversed(range(len(group))):
        others = kept - {place}
        if others and all(o[place] for o in outcomes if all(o[other] for other in others)):
            kept = others
            part = group[place]
            found.append(Finding(part.span, f"{part.shown} always holds where the others do"))
    return found


def _outcomes(
    group: Sequence[_Part], domains: Mapping[str, tuple[Any, ...]]
) -> set[tuple[bool, ...]] | None:
    """What the parts may be together, for all values of their terms; None for too many."""
    terms = sorted(frozenset().union(*(part.formula.terms for part in group)))
    if math.prod(len(domains[term]) for term in terms) > _MOST:
        return None
    choices = itertools.product(*(domains[term] for term in terms))
    worlds = (dict(zip(terms, choice, strict=True)) for choice in choices)
    return {tuple(part.formula.holds(world) for part in group) for world in worlds}


def _connected(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """The parts in groups that share no term, in order."""
    left = list(range(len(parts)))
    while left:
        group, terms = [left.pop(0)], frozenset[str]()
        for place in group:  # grows while it is walked
            terms |= parts[place].formula.terms
            more = [other for other in left if parts[other].formula.terms & terms]
            left = [other for other in left if other not in more]
            group += more
        yield [parts[place] for place in sorted(group)]


class _Reader:
    """Conditions to formulas; remembers which values each term may have."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.letters = frozenset(size_letters(rule))
        self.ranges: dict[str, _Range] = {}
        self.choices: dict[str, tuple[Any, ...]] = {}

    def domains(self) -> dict[str, tuple[Any, ...]]:
        return self.choices | {term: numbers.values() for term, numbers in self.ranges.items()}

    def parts(self, condition: Condition) -> Iterator[_Part]:
        expr = condition.expr
        if not isinstance(expr, Logic) or expr.op == "or":
            yield _Part(expr.span, f"'{condition.text}'", self.formula(expr))
            return
        for part in expr.parts:
            yield _Part(part.span, f"this part of '{condition.text}'", self.formula(part))

    def formula(self, expr: Expr) -> _Formula:
        match expr:
            case Not(value=value):
                inner = self.formula(value)
                return _Formula(inner.terms, lambda world: not inner.holds(world))
            case Logic(op=op, parts=parts):
                return _joined(list(map(self.formula, parts)), all if op == "and" else any)
            case Compare(first=first, ops=ops, rest=rest):
                steps = zip((first, *rest), ops, rest, strict=False)
                return _joined([self._compare(*step) for step in steps], all)
            case Call(fn=fn, args=(arg,)) if fn in _BY_DTYPE:
                term = self._dtype(arg)
                if term is not None:
                    return _of(term, lambda word: word in _BY_DTYPE[fn])
        return self._opaque(show(expr, str))

    def _compare(self, left: Expr, op: str, right: Expr) -> _Formula:
        if op in ("in", "not in"):
            return self._member(left, op, right)
        if show(left, str) == show(right, str):
            return self._with_itself(left, op)
        if _number(left) is not None or _dtype_word(left) is not None:
            left, op, right = right, _TURNED[op], left
        number, word = _number(right), _dtype_word(right)
        first, second = self._dtype(left), self._dtype(right)
        if number is not None and first is None:
            term = self._number_term(left)
            self.ranges[term].marks.add(number)
            return _of(term, lambda value: _COMPARE[op](value, number))
        if word is not None and first is not None:
            return _of(first, lambda value: _COMPARE[op](value, word))
        if first is not None and second is not None:
            both = first, second
            return _Formula(
                frozenset(both), lambda world: _COMPARE[op](world[both[0]], world[both[1]])
            )
        return self._ordered(left, op, right)

    def _with_itself(self, expr: Expr, op: str) -> _Formula:
        """Equal sides: only a nan differs from itself."""
        if isinstance(expr, Name) and isinstance(self.rule.vars.get(expr.id), ConstType):
            term = self._number_term(expr)
            return _of(term, lambda value: _COMPARE[op](value, value))
        return _Formula(frozenset(), lambda world: op in ("==", "<=", ">="))

    def _ordered(self, left: Expr, op: str, right: Expr) -> _Formula:
        """Two values that are not known: what matters is which is larger."""
        first, second = show(left, str), show(right, str)
        if first > second:
            first, second, op = second, first, _TURNED[op]
        term = f"{first} ? {second}"
        self.choices[term] = (-1, 0, 1)
        return _of(term, lambda sign: _COMPARE[op](sign, 0))

    def _member(self, left: Expr, op: str, right: Expr) -> _Formula:
        items = right.items if isinstance(right, SequenceExpr) else ()
        wanted = op == "in"
        term = self._dtype(left)
        words = [word for word in map(_dtype_word, items) if word is not None]
        if term is not None and items and len(words) == len(items):
            return _of(term, lambda word: (word in words) is wanted)
        numbers = [number for number in map(_number, items) if number is not None]
        if items and len(numbers) == len(items):
            counted = self._number_term(left)
            self.ranges[counted].marks.update(numbers)
            return _of(counted, lambda value: (value in numbers) is wanted)
        text = f"{show(left, str)} in {show(right, str)}"
        self.choices[text] = (True, False)
        return _of(text, lambda value: value is wanted)

    def _opaque(self, text: str) -> _Formula:
        self.choices[text] = (True, False)
        return _of(text, bool)

    def _dtype(self, expr: Expr) -> str | None:
        """The term for a dtype that is a variable, or that of one."""
        if isinstance(expr, Call) and expr.fn == "dtype" and len(expr.args) == 1:
            expr = expr.args[0]
        kind = self.rule.vars.get(expr.id) if isinstance(expr, Name) else None
        if isinstance(kind, TensorType) and not kind.is_list:
            words = kind.dtypes
        elif isinstance(kind, ConstType) and kind.kind == "dtype":
            words = DTYPES
        else:
            return None
        term = f"dtype({show(expr, str)})"
        self.choices[term] = words
        return term

    def _number_term(self, expr: Expr) -> str:
        term = show(expr, str)
        self.ranges.setdefault(term, self._range(expr))
        return term

    def _range(self, expr: Expr) -> _Range:
        match expr:
            case Name(id=name) if name in self.letters:
                return _Range(whole=True, least=0)
            case Name(id=name):
                kind = self.rule.vars.get(name)
                word = kind.kind if isinstance(kind, ConstType) else "any"
                return _Range(word == "int", may_be_nan=word in ("any", "float"))
            case Call(fn="rank", args=(Name(id=name),)):
                kind = self.rule.vars.get(name)
                if isinstance(kind, TensorType):
                    fixed = len(kind.dims)
                    return _Range(True, fixed, fixed if kind.lead is None else math.inf)
            case Call(fn="abs", args=(inner,)):
                whole = self._whole(inner)
                return _Range(whole, 0, may_be_nan=not whole)
            case Binary(op="%", right=Literal(value=int(divisor))) if divisor > 0:
                whole = self._whole(expr)
                return _Range(whole, 0, divisor - 1 if whole else divisor)
        counted = isinstance(expr, Call) and expr.fn in _COUNTS
        sized = all(self._sized(node) for node in walk_values(expr))
        least = 0 if counted or sized else -math.inf
        return _Range(counted or self._whole(expr), least, may_be_nan=not (counted or sized))

    def _sized(self, node: Expr) -> bool:
        """Whether `node` is part of a sum or product of sizes, which is never negative."""
        match node:
            case Name(id=name):
                return name in self.letters
            case Literal(value=int(value)):
                return value >= 0
            case Binary(op=op):
                return op in ("+", "*", "//", "%")
        return False

    def _whole(self, expr: Expr) -> bool:
        """Whether `expr` is a whole number whatever its variables are."""
        match expr:
            case Name(id=name):
                kind = self.rule.vars.get(name)
                return name in self.letters or kind == ConstType("int")
            case Literal(value=value):
                return isinstance(value, int)
            case Binary(op=op, left=left, right=right):
                return op not in ("/", "**") and self._whole(left) and self._whole(right)
        return False


def _of(term: str, test: Callable[[Any], bool]) -> _Formula:
    return _Formula(frozenset({term}), lambda world: test(world[term]))


def _joined(formulas: Sequence[_Formula], join: Callable[[Iterator[bool]], bool]) -> _Formula:
    terms = frozenset[str]().union(*(formula.terms for formula in formulas))
    return _Formula(terms, lambda world: join(formula.holds(world) for formula in formulas))


def _dtype_word(expr: Expr) -> str | None:
    return expr.id if isinstance(expr, Name) and expr.id in DTYPES else None


def _number(expr: Expr) -> float | None:
    match expr:
        case Literal(value=bool() | int() | float() as value):
            return value
        case Negative(value=Literal(value=int() | float() as value)):
            return -value
    return None
