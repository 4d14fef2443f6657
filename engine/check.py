"""The equivalence test that every rule gets for free.

Takes a rule and the op table; draws examples, computes both sides and compares them by the
rule's numerics class; checks dtypes, shapes, gradients, `fires` and `misses`. A failure is
shrunk by hypothesis and told as a short torch program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .corners import corner_structures
from .draw import TORCH_ERRORS, Search, Structure
from .examples import run_examples
from .measure import Measured, loose_tags, measure
from .ops import OpTable
from .rule import Case, Rule
from .termination import runs_away
from .threads import one_thread
from .trial import Trials
from .witness import is_needed
from .workers import Lost

_ATTEMPTS = 4000  # draws of a structure before a rule counts as one that never fires
_MISS_ATTEMPTS = 300
_FEWEST = 8  # structures, however few examples are wanted
_ENOUGH = 12  # examples before a tag or an assumption may be called loose


@dataclass(frozen=True)
class CheckResult:
    """`failures` make the rule wrong, `warnings` do not. `measured` is the strictest class
    that held in every example, as far as it was measured; `example` the plainest one that was
    found on which the sides differ."""

    rule: str
    failures: tuple[str, ...]
    warnings: tuple[str, ...]
    examples: int
    measured: str
    example: Structure | None = None

    @property
    def ok(self) -> bool:
        return not self.failures


@one_thread()
def check_rule(
    rule: Rule,
    table: OpTable,
    *,
    seed: int = 0,
    examples: int = 100,
    beside: Sequence[Rule] = (),
    shrink: bool = True,
) -> CheckResult:
    """Tests one rule on about `examples` examples; the same seed draws the same ones. `beside`
    are the rules that share its phases (`termination.neighbours`). Without `shrink` the values
    of a failing example stay as they were drawn, which is faster."""
    random = Random(f"{seed} {rule.name}")
    search = Search(rule, table, random)
    drawn = search.collect(max(examples // 2, _FEWEST), _ATTEMPTS)
    fired, failures = _check_fires(rule, table, random)
    failures += _check_misses(rule, table, random)
    tries = 3 + 2 * search.drawn // max(len(drawn), 1)
    cornered = corner_structures(rule, table, random, max(2 * examples, _FEWEST), tries)
    structures = list({s.key: s for s in (*drawn, *fired, *cornered)}.values())
    structures.sort(key=lambda structure: structure.weight)
    if not structures and "CPU" in _obstacles(search):
        return _unchecked(rule, failures, _obstacles(search))
    if not structures:
        text = f"no example could be drawn: {_obstacles(search)}"
        return CheckResult(rule.name, (text, *failures), (), 0, rule.numerics.float_class)
    trials = Trials(rule, table)
    count, wrong = run_examples(trials, structures, seed, examples, shrink)
    if wrong is not None:
        failures.append(wrong.text)
    alone, among = runs_away(trials, _spread(structures), beside)
    failures += [] if alone is None else [alone]
    warnings = [] if among is None else [among]
    if failures or count < _ENOUGH:
        tag = rule.numerics.float_class
        example = None if wrong is None else wrong.example
        return CheckResult(rule.name, tuple(failures), tuple(warnings), count, tag, example)
    try:
        measured = measure(trials, structures)
    except TORCH_ERRORS as error:
        failures.append(f"the right side fails: {error}")
        return CheckResult(
            rule.name, tuple(failures), tuple(warnings), count, rule.numerics.float_class
        )
    warnings += _warnings(trials, structures, measured)
    found = measured.float_class or rule.numerics.float_class
    return CheckResult(rule.name, (), tuple(warnings), count, found)


def patience(examples: int) -> float:
    """Seconds that the check of a rule may take; most take one."""
    return 120.0 + examples


def lost_text(lost: Lost) -> str:
    """What is told of a rule whose check had no end of its own."""
    last = f"\nIn this call:\n{lost.program}" if lost.program else ""
    return f"checking it {lost.reason}{last}"


def _spread(structures: list[Structure]) -> list[Structure]:
    """The simplest, and the most involved of those that are not."""
    return structures[:1] + structures[1:][-1:]


def _unchecked(rule: Rule, failures: list[str], obstacle: str) -> CheckResult:
    """The result for a rule whose left side no kernel of this machine computes."""
    text = f"not checked, as it does not run here: {obstacle}"
    return CheckResult(rule.name, tuple(failures), (text,), 0, rule.numerics.float_class)


def _check_fires(rule: Rule, table: OpTable, random: Random) -> tuple[list[Structure], list[str]]:
    """Structures for every `fires` case, and the cases for which there is none."""
    found: list[Structure] = []
    failures: list[str] = []
    for case in rule.fires:
        search = Search(rule, table, random, case.values)
        structures = search.collect(3, _ATTEMPTS // 4)
        if not structures:
            failures.append(f"does not fire for {_case_text(case)}: {_obstacles(search)}")
        found += structures
    return found, failures


def _check_misses(rule: Rule, table: OpTable, random: Random) -> list[str]:
    return [
        f"fires for {_case_text(case)}, which it must not"
        for case in rule.misses
        if Search(rule, table, random, case.values).collect(1, _MISS_ATTEMPTS)
    ]


def _case_text(case: Case) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in case.values.items()) + "}"


def _obstacles(search: Search) -> str:
    """What stood in the way most often."""
    return "; ".join(text for text, _ in search.failures.most_common(2))


def _warnings(trials: Trials, structures: list[Structure], measured: Measured) -> list[str]:
    found = loose_tags(trials, measured)
    for assumption in trials.rule.assumes:
        if not is_needed(trials, structures, assumption):
            found.append(f"no example shows that '{assumption.text}' is needed")
    return found
