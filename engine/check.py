"""The equivalence test that every rule gets for free.

Takes a rule and the op table; draws examples, computes both sides and compares them by the
rule's numerics class; checks dtypes, shapes, gradients, `fires` and `misses`. A failure is
shrunk by hypothesis and told as a short torch program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import hypothesis
from hypothesis import strategies

from .draw import Search, Structure
from .fill import DRAWN
from .measure import Measured, loose_tags, measure
from .ops import OpTable
from .program import ALIASING, DISTRIBUTION, GRADIENTS, VALUES, program_text
from .rule import Case, Rule
from .simplify import simplest, simplified
from .termination import runs_away
from .trial import Rejected, Trials
from .witness import is_needed

_ATTEMPTS = 4000  # draws of a structure before a rule counts as one that never fires
_MISS_ATTEMPTS = 300
_ENOUGH = 12  # examples before a tag or an assumption may be called loose

_UNSTEADY = "results differ between two runs of the same example"
_QUIET = hypothesis.settings(
    deadline=None,
    database=None,
    phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    suppress_health_check=list(hypothesis.HealthCheck),
    report_multiple_bugs=False,
    print_blob=False,
)
_HASTY = hypothesis.settings(_QUIET, phases=(hypothesis.Phase.generate,))


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


class _Wrong(Exception):
    """Raised inside a hypothesis test, to be shrunk."""

    def __init__(
        self, kind: str, reason: str, structure: Structure, values: Mapping[str, Any]
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.structure = structure
        self.values = values


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
    structures = search.collect(max(examples // 2, 8), _ATTEMPTS)
    fired, failures = _check_fires(rule, table, random)
    failures += _check_misses(rule, table, random)
    structures = sorted({s.key: s for s in (*structures, *fired)}.values(), key=lambda s: s.weight)
    if not structures and "CPU" in _obstacles(search):
        return _unchecked(rule, failures, _obstacles(search))
    if not structures:
        text = f"no example could be drawn: {_obstacles(search)}"
        return CheckResult(rule.name, (text, *failures), (), 0, rule.numerics.float_class)
    trials = Trials(rule, table)
    count, wrong = _run(trials, structures, seed, examples, shrink)
    if wrong is not None:
        failures.append(wrong.text)
    alone, among = runs_away(trials, _spread(structures), beside)
    failures += [] if alone is None else [alone]
    warnings = [] if among is None else [among]
    if failures or count < _ENOUGH:
        tag = rule.numerics.float_class
        example = None if wrong is None else wrong.example
        return CheckResult(rule.name, tuple(failures), tuple(warnings), count, tag, example)
    measured = measure(trials, structures)
    warnings += _warnings(trials, structures, measured)
    found = measured.float_class or rule.numerics.float_class
    return CheckResult(rule.name, (), tuple(warnings), count, found)


def _spread(structures: list[Structure]) -> list[Structure]:
    """The simplest, and the most involved of those that are not."""
    return structures[:1] + structures[1:][-1:]


def _unchecked(rule: Rule, failures: list[str], obstacle: str) -> CheckResult:
    """The result for a rule whose left side no kernel of this machine computes."""
    text = f"not checked, as it does not run here: {obstacle}"
    return CheckResult(rule.name, tuple(failures), (text,), 0, rule.numerics.float_class)


@dataclass(frozen=True)
class _Told:
    """A failure in words, with a program; `example` is what it fails on."""

    text: str
    example: Structure | None = None


def _run(
    trials: Trials, structures: list[Structure], seed: int, examples: int, shrink: bool
) -> tuple[int, _Told | None]:
    """How many examples ran, and the failure, for the plainest example."""
    names = sorted({name for structure in structures for name in structure.tensors})
    kinds = strategies.tuples(strategies.sampled_from(DRAWN), strategies.integers(0, 3))
    fillings = strategies.fixed_dictionaries(dict.fromkeys(names, kinds))
    count = 0
    refusals: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(_QUIET if shrink else _HASTY, max_examples=examples)
    @hypothesis.given(strategies.sampled_from(structures), fillings)
    def sides_agree(structure: Structure, filling: dict[str, tuple[str, int]]) -> None:
        nonlocal count
        try:
            values = trials.values(structure, filling)
            found = _difference(trials, structure, values)
        except Rejected as rejected:
            refusals[str(rejected).partition("\n")[0]] += 1
            hypothesis.reject()
        count += 1
        if found is not None:
            raise _Wrong(*found, structure, values)

    try:
        sides_agree()
    except _Wrong as wrong:
        return count, _plainest(trials, structures, wrong, shrink)
    except hypothesis.errors.Flaky as flaky:
        return count, _unsteady(trials, flaky)
    except hypothesis.errors.Unsatisfiable:
        return count, _Told(f"no example could be run: {refusals.most_common(1)[0][0]}")
    return count, None


def _unsteady(trials: Trials, flaky: hypothesis.errors.Flaky) -> _Told:
    """What is told of an example that failed once and passed once."""
    wrongs = [one for one in getattr(flaky, "exceptions", ()) if isinstance(one, _Wrong)]
    if not wrongs:
        return _Told(f"{_UNSTEADY}: {flaky}")
    one = wrongs[0]
    reason = f"{_UNSTEADY}: {one.reason}"
    return _told(trials, _Wrong(one.kind, reason, one.structure, one.values))


def _plainest(trials: Trials, structures: list[Structure], wrong: _Wrong, shrink: bool) -> _Told:
    """The reason and a program, for the plainest example that fails."""
    structure, values, reason = wrong.structure, wrong.values, wrong.reason
    if wrong.kind == VALUES:
        plainer = simplest(trials, structures, structure)
        if plainer is not None:
            structure, values = plainer
        if shrink:
            values = simplified(trials, values)
        reason = trials.run(values) or reason
    else:  # a matter of the structure alone
        for plain in structures:
            found = _found(trials, plain, wrong.kind)
            if found is not None:
                structure, reason = plain, found
                break
        values = trials.smooth_values(structure)
    return _told(trials, _Wrong(wrong.kind, reason, structure, values))


def _told(trials: Trials, wrong: _Wrong) -> _Told:
    structure, reason = wrong.structure, wrong.reason
    constants = ", ".join(f"{name}={value}" for name, value in structure.constants.items())
    where = f" with {constants}" if constants else ""
    program = program_text(trials, wrong.values, structure.tensors, wrong.kind)
    return _Told(f"{reason}{where}\n{program}", structure)


def _difference(
    trials: Trials, structure: Structure, values: Mapping[str, Any]
) -> tuple[str, str] | None:
    """What differs, and how; None where nothing does. Raises Rejected."""
    reason = trials.run(values)
    if reason is not None:
        return VALUES, reason
    for kind in (ALIASING, DISTRIBUTION, GRADIENTS):
        reason = _found(trials, structure, kind)
        if reason is not None:
            return kind, reason
    return None


def _found(trials: Trials, structure: Structure, kind: str) -> str | None:
    """Why something other than values differs. What is no example differs in nothing."""
    tests = {
        ALIASING: trials.aliasing,
        DISTRIBUTION: trials.distribution,
        GRADIENTS: trials.gradients,
    }
    try:
        return tests[kind](structure)
    except Rejected:
        return None


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
