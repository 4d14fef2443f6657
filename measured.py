"""What the checker says of the outline of a rule.

Takes an `Outline`; gives it with the numerics class, conditions, assumptions and leading sizes
that were measured to hold, and what is wrong where none do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from .engine.check import CheckResult, check_rule, lost_text, patience
from .engine.draw import Search
from .engine.load import load_book
from .engine.ops import OpTable
from .engine.rule import DTYPE_WORDS, NUMERICS, Rule
from .engine.source import RuleErrors
from .engine.workers import Lost, run_all, usable_cores
from .repairs import Repair, repair
from .scaffold import Outline, TensorVar, leads, of_one_dtype, ordered

Tell = Callable[[str], None]

_UNORDERED = "E601"
_MOST_REPAIRS = 14
_RANKS, _ATTEMPTS = 12, 400  # structures drawn to see which ranks a left side takes
_QUICK = 12  # examples per trial; the outline that is kept is checked with all
_SEEDS = (0, 1, 2)  # each draws other sizes, dtypes and layouts
_SURE = 100  # examples before a claim that was added counts as needless


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


def measure(outline: Outline, table: OpTable, examples: int, tell: Tell, seed: int = 0) -> Measured:
    """The outline with all that can be found out by checking it on `examples` examples; `tell`
    hears what is tried."""
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
    outline = of_one_dtype(outline)
    trials = _Trials(table, seed, tell)
    quick = _holding(outline, trials, _QUICK)
    if quick is None:
        return Measured(outline, trials.last_word(outline, examples))
    found = next((one for one in leads(quick) if trials.varies(one) and trials.holds(one)), quick)
    sure = _holding(found, trials, examples)
    if sure is None:
        return Measured(found, trials.last_word(found, examples))
    found = trials.strictest(sure, examples)
    return Measured(found, trials.last_word(found, examples))


def _holding(outline: Outline, trials: _Trials, examples: int) -> Outline | None:
    """The outline with what it needs to hold; None where nothing helps. Each failure says
    what to try next."""
    current, repairs = outline, list[Repair]()
    result = trials.check(current, examples, "as it is")
    while not result.ok:
        next_one = repair(current, result)
        if next_one is None or len(repairs) == _MOST_REPAIRS:
            return None
        repairs.append(next_one)
        current = next_one.outline
        result = trials.check(current, examples, f"with {next_one.claim}")
    return _pruned(current, outline, trials) if len(repairs) > 1 else current


def _pruned(current: Outline, start: Outline, trials: _Trials) -> Outline:
    """The outline without what turned out not to be needed once all repairs were made."""
    for condition in current.when:
        if condition not in start.when:
            fewer = tuple(one for one in current.when if one != condition)
            without = replace(current, when=fewer)
            if trials.check(without, _SURE, f"without {condition}").ok:
                current = without
    if current.vars != start.vars:
        without = replace(current, vars=start.vars, when=_united(start, current))
        if trials.check(without, _SURE, "for all dtypes").ok:
            current = without
    if current.assumes != start.assumes:
        without = replace(current, assumes=start.assumes)
        if trials.check(without, _SURE, "without assumptions").ok:
            current = without
    return current


def _united(start: Outline, current: Outline) -> tuple[str, ...]:
    """The conditions of both; narrowing the dtypes had made some of `start` needless."""
    return tuple(dict.fromkeys((*start.when, *current.when)))


class _Trials:
    """Checks of outlines, each made once, in processes of their own: a wrong one may crash a
    kernel of torch."""

    def __init__(self, table: OpTable, seed: int, tell: Tell) -> None:
        self.table = table
        self.seed = seed
        self.tell = tell
        self.known: dict[tuple[str, int], CheckResult] = {}
        self.failed: dict[str, CheckResult] = {}

    def check(self, outline: Outline, examples: int, what: str) -> CheckResult:
        """The checker's result, told as `what`; a failure is not shrunk."""
        text = outline.text()
        if text in self.failed:
            return self.failed[text]
        if (text, examples) not in self.known:
            result = self.known[text, examples] = self._check(outline, examples, shrink=False)
            reason = "holds" if result.ok else result.failures[0].partition("\n")[0]
            self.tell(f"{what}: {reason}")
            if not result.ok:
                self.failed[text] = result
        return self.known[text, examples]

    def last_word(self, outline: Outline, examples: int) -> CheckResult:
        """The result to be shown: that of `check`, with a shrunk failure."""
        known = self.known.get((outline.text(), examples))
        return known if known and known.ok else self._check(outline, examples, shrink=True)

    def _check(self, outline: Outline, examples: int, *, shrink: bool) -> CheckResult:
        try:
            rule = load_outline(outline, self.table)
        except RuleErrors as errors:
            return CheckResult(outline.name, (str(errors),), (), 0, outline.numerics)

        def check(seed: int) -> CheckResult:
            return check_rule(
                rule, self.table, seed=self.seed + seed, examples=examples, shrink=shrink
            )

        seeds = _SEEDS if examples > _QUICK else _SEEDS[:1]
        for found in run_all(check, seeds, usable_cores(), patience(examples)):
            result = self._lost(outline, found) if isinstance(found, Lost) else found
            if not result.ok:
                break
        return result

    def _lost(self, outline: Outline, lost: Lost) -> CheckResult:
        return CheckResult(outline.name, (lost_text(lost),), (), 0, outline.numerics)

    def holds(self, outline: Outline) -> bool:
        result = self.check(outline, _QUICK, "with leading sizes as ...")
        return result.ok and result.examples > 0

    def varies(self, outline: Outline) -> bool:
        """Whether the left side takes `...` of more than one rank."""
        try:
            rule = load_outline(outline, self.table)
        except RuleErrors:
            return False
        led = [name for name, kind in outline.vars.items() if getattr(kind, "lead", False)]

        def count_ranks(seed: int) -> int:
            structures = Search(rule, self.table, Random(seed)).collect(_RANKS, _ATTEMPTS)
            return len({len(getattr(s.tensors[led[0]], "shape", ())) for s in structures})

        (count,) = run_all(count_ranks, [self.seed], 1, patience(_RANKS))
        return not isinstance(count, Lost) and count > 1

    def strictest(self, outline: Outline, examples: int) -> Outline:
        """The outline with the strictest class that every example shows."""
        if outline.numerics != "reassociate":
            return outline
        measured = self.check(outline, examples, "as reassociate").measured
        words = {kind.word for kind in outline.vars.values() if isinstance(kind, TensorVar)}
        floats = words & {"float", *DTYPE_WORDS["float"]}
        first = NUMERICS.index(measured) if floats else 0
        for numerics in NUMERICS[first : NUMERICS.index("reassociate")]:
            strict = replace(outline, numerics=numerics)
            if self.check(strict, examples, f"as {numerics}").ok:
                return strict
        return outline
