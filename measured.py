"""What the checker says of the outline of a rule.

Takes an `Outline`; gives it with the numerics class, assumptions and leading sizes that were
measured to hold, and what is wrong where none do.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from hypothesis.errors import FlakyFailure

from .engine.check import CheckResult, check_rule
from .engine.draw import Search
from .engine.load import load_book
from .engine.ops import OpTable
from .engine.rule import Rule
from .engine.source import RuleErrors
from .scaffold import Outline, leads, narrowed, ordered

_UNORDERED = "E601"
_TOLERANCES = "{approximate: {rtol: 1.0e-3, atol: 1.0e-5}}"
_ASSUMPTIONS = ((), ("no_overflow",), ("no_overflow", "no_nan"), ("finite",))
_MOST_TRIALS = 8
_RANKS, _ATTEMPTS = 12, 400  # structures drawn to see which ranks a left side takes
_QUICK = 12  # examples per trial; the outline that is kept is checked with all


@dataclass(frozen=True)
class Measured:
    """`errors` are the loader's, `check` the checker's last word (None after errors)."""

    outline: Outline
    check: CheckResult | None
    errors: str = ""

    @property
    def ok(self) -> bool:
        return self.check is not None and self.check.ok


def load_outline(outline: Outline, table: OpTable) -> Rule:
    """The rule as the loader reads it. Raises RuleErrors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{outline.name}.yaml"
        path.write_text(outline.text(), encoding="utf-8")
        try:
            return load_book([path], table).rules[0]
        except RuleErrors as errors:
            shown = (
                replace(one, span=one.span._replace(path=path.name)) for one in errors.diagnostics
            )
            raise RuleErrors(shown) from None


def measure(outline: Outline, table: OpTable, examples: int, seed: int = 0) -> Measured:
    """The outline with all that can be found out by checking it."""
    try:
        load_outline(outline, table)
    except RuleErrors as errors:
        if _UNORDERED not in {problem.code for problem in errors.diagnostics}:
            return Measured(outline, None, str(errors))
        outline = ordered(outline)
        try:
            load_outline(outline, table)
        except RuleErrors as again:
            return Measured(outline, None, str(again))
    trials = _Trials(table, seed)
    found = _holding(outline, trials)
    if found is None:
        return Measured(outline, trials.check(outline, _QUICK))
    found = next((one for one in leads(found) if trials.varies(one) and trials.holds(one)), found)
    found = trials.strictest(found, examples)
    return Measured(found, trials.check(found, examples))


def _holding(outline: Outline, trials: _Trials) -> Outline | None:
    """The outline with what it needs to hold; None where nothing helps. Each failure says
    what to try next."""
    current = outline
    for _ in range(_MOST_TRIALS):
        result = trials.check(current, _QUICK)
        if result is None:
            return None
        if result.ok:
            return current
        weaker = _weaker(current, result.failures[0].partition("\n")[0])
        if weaker is None:
            return None
        current = weaker
    return None


def _weaker(outline: Outline, reason: str) -> Outline | None:
    """The outline with less claimed, as `reason` asks for."""
    divisors = [f"{name} != 0" for name, kind in outline.vars.items() if kind == "const"]
    if "division by zero" in reason and divisors and not set(divisors) <= set(outline.when):
        return replace(outline, when=(*outline.when, *divisors))
    if "gradient" in reason and outline.grad:
        return replace(outline, grad=False)
    if ("inf" in reason or "nan" in reason) and outline.assumes != _ASSUMPTIONS[-1]:
        later = _ASSUMPTIONS.index(outline.assumes) + 1
        return replace(outline, assumes=_ASSUMPTIONS[later])
    if narrowed(outline) != outline:
        return narrowed(outline)
    if outline.numerics == "reassociate":
        return replace(outline, numerics=_TOLERANCES)
    return None


def _unsteady(outline: Outline, flaky: FlakyFailure) -> CheckResult:
    """The result for a side that does not compute the same twice."""
    reason = "; ".join(str(error).partition("\n")[0] for error in flaky.exceptions)
    text = f"a side gives another result for the same inputs when it runs again: {reason}"
    return CheckResult(outline.name, (text,), (), 0, outline.numerics)


class _Trials:
    """Checks of outlines, each made once."""

    def __init__(self, table: OpTable, seed: int) -> None:
        self.table = table
        self.seed = seed
        self.known: dict[tuple[str, int], CheckResult | None] = {}

    def check(self, outline: Outline, examples: int) -> CheckResult | None:
        """The checker's result; None where the outline does not load."""
        key = (outline.text(), examples)
        if key not in self.known:
            try:
                rule = load_outline(outline, self.table)
                self.known[key] = check_rule(rule, self.table, seed=self.seed, examples=examples)
            except RuleErrors:
                self.known[key] = None
            except FlakyFailure as flaky:
                self.known[key] = _unsteady(outline, flaky)
        return self.known[key]

    def holds(self, outline: Outline) -> bool:
        result = self.check(outline, _QUICK)
        return result is not None and result.ok and result.examples > 0

    def varies(self, outline: Outline) -> bool:
        """Whether the left side takes `...` of more than one rank."""
        try:
            rule = load_outline(outline, self.table)
        except RuleErrors:
            return False
        led = [name for name, kind in outline.vars.items() if getattr(kind, "lead", False)]
        structures = Search(rule, self.table, Random(self.seed)).collect(_RANKS, _ATTEMPTS)
        ranks = {len(getattr(s.tensors[led[0]], "shape", ())) for s in structures}
        return len(ranks) > 1

    def strictest(self, outline: Outline, examples: int) -> Outline:
        """The outline with the strictest class that every example shows."""
        if outline.numerics != "reassociate":
            return outline
        for numerics in ("exact", "signed_zero"):
            strict = replace(outline, numerics=numerics)
            result = self.check(strict, examples)
            if result is not None and result.ok:
                return strict
        return outline
