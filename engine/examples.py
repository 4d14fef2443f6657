"""Runs examples of a rule until one fails, and tells of the plainest that does.

Takes trials and structures; gives how many examples ran, and the failure in words with a short
torch program. The corners come first, in a fixed order; then hypothesis draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import strategies

from .corners import Filling, corner_examples
from .draw import Structure
from .fill import DRAWN
from .halves import HalfErrors, half_examples
from .program import ALIASING, DISTRIBUTION, GRADIENTS, ROUNDING, VALUES, program_text
from .simplify import simplest, simplified
from .trial import Rejected, Trials

UNSTEADY = "two runs of one example differ"
_HASTE = 60  # tries for a plainer structure
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
class Told:
    """A failure in words, with a program; `example` is what it fails on."""

    text: str
    example: Structure | None = None


class _Wrong(Exception):
    """Raised where an example fails; inside a hypothesis test, to be shrunk."""

    def __init__(
        self, kind: str, reason: str, structure: Structure, values: Mapping[str, Any]
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.structure = structure
        self.values = values


def run_examples(
    trials: Trials, structures: Sequence[Structure], seed: int, examples: int, shrink: bool
) -> tuple[int, Told | None]:
    """How many examples ran, and the failure, for the plainest example. All of `structures`
    (simplest first) are used at least once, then `examples` are drawn by `seed`. Without
    `shrink` the values of a failing example stay as they were."""
    run = _Run(trials)
    try:
        for structure, filling in corner_examples(structures):
            run.example(structure, filling)
        _draw(run, structures, seed, examples, shrink)
        run.judge_halves(structures)
    except _Wrong as wrong:
        return run.count, _plainest(trials, structures, wrong, shrink)
    except hypothesis.errors.Flaky as flaky:
        return run.count, _unsteady(trials, flaky)
    if not run.count:
        return 0, Told(f"no example could be run: {run.refusals.most_common(1)[0][0]}")
    return run.count, None


@dataclass
class _Run:
    """The examples of one rule so far. `refusals` counts why draws were none."""

    trials: Trials
    count: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    halves: HalfErrors = field(default_factory=HalfErrors)

    def example(self, structure: Structure, filling: Filling) -> bool:
        """Runs one; False where the draw is none. Raises _Wrong."""
        try:
            values = self.trials.values(structure, filling)
            found = self._difference(structure, values)
        except Rejected as rejected:
            self.refusals[str(rejected).partition("\n")[0]] += 1
            return False
        self.count += 1
        if found is not None:
            raise _Wrong(*found, structure, values)
        return True

    def judge_halves(self, structures: Sequence[Structure]) -> None:
        """Raises _Wrong where the right side rounds half types more often."""
        if self.trials.rule.numerics.float_class != "reassociate":
            return
        for structure, filling in half_examples(structures):
            self.example(structure, filling)
        found = self.halves.too_large()
        if found is not None:
            raise _Wrong(ROUNDING, *found)

    def _difference(
        self, structure: Structure, values: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        """What differs, and how; None where nothing does. Raises Rejected."""
        reordered: list[tuple[str, Any]] = []
        reason = self.trials.run(values, reordered=reordered)
        if reason is not None:
            return VALUES, reason
        for root, sides in reordered:
            self.halves.add(root, sides, structure, values)
        for kind in (ALIASING, DISTRIBUTION, GRADIENTS):
            reason = _found(self.trials, structure, kind)
            if reason is not None:
                return kind, reason
        return None


def _draw(
    run: _Run, structures: Sequence[Structure], seed: int, examples: int, shrink: bool
) -> None:
    """Runs examples that hypothesis draws. Raises _Wrong, or Flaky."""
    names = sorted({name for structure in structures for name in structure.tensors})
    kinds = strategies.tuples(strategies.sampled_from(DRAWN), strategies.integers(0, 3))
    fillings = strategies.fixed_dictionaries(dict.fromkeys(names, kinds))

    @hypothesis.seed(seed)
    @hypothesis.settings(_QUIET if shrink else _HASTY, max_examples=examples)
    @hypothesis.given(strategies.sampled_from(structures), fillings)
    def sides_agree(structure: Structure, filling: Filling) -> None:
        if not run.example(structure, filling):
            hypothesis.reject()

    try:
        sides_agree()
    except hypothesis.errors.Unsatisfiable:
        return  # `run.refusals` says why


def _unsteady(trials: Trials, flaky: hypothesis.errors.Flaky) -> Told:
    """What is told of an example that failed once and passed once."""
    wrongs = [one for one in getattr(flaky, "exceptions", ()) if isinstance(one, _Wrong)]
    if not wrongs:
        return Told(f"{UNSTEADY}: {flaky}")
    one = wrongs[0]
    return _told(trials, _Wrong(one.kind, f"{UNSTEADY}: {one.reason}", one.structure, one.values))


def _plainest(trials: Trials, structures: Sequence[Structure], wrong: _Wrong, shrink: bool) -> Told:
    """The reason and a program, for the plainest example that fails."""
    structure, values, reason = wrong.structure, wrong.values, wrong.reason
    if wrong.kind == VALUES:
        if trials.run(values) is None:
            return _told(trials, _Wrong(VALUES, f"{UNSTEADY}: {reason}", structure, values))
        plainer = simplest(trials, structures, structure, *(() if shrink else (_HASTE,)))
        if plainer is not None:
            structure, values = plainer
        if shrink:
            values = simplified(trials, values)
        reason = trials.run(values) or reason
    elif wrong.kind != ROUNDING:  # a matter of the structure alone
        for plain in structures:
            found = _found(trials, plain, wrong.kind)
            if found is not None:
                structure, reason = plain, found
                break
        values = trials.smooth_values(structure)
    return _told(trials, _Wrong(wrong.kind, reason, structure, values))


def _told(trials: Trials, wrong: _Wrong) -> Told:
    structure, reason = wrong.structure, wrong.reason
    constants = ", ".join(f"{name}={value}" for name, value in structure.constants.items())
    where = f" with {constants}" if constants else ""
    program = program_text(trials, wrong.values, structure.tensors, wrong.kind)
    return Told(f"{reason}{where}\n{program}", structure)


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
