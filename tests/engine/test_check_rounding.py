"""Roundings of half types are counted over many examples; a lucky left side is no fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from eqsat.engine import examples
from eqsat.engine.check import CheckResult, check_rule
from eqsat.engine.compare import Sides, differs
from eqsat.engine.draw import Search, Structure
from eqsat.engine.load import RULES, load_book
from eqsat.engine.luck import Errors, is_luck
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import Rule
from eqsat.engine.trial import Trials

TABLE = OpTable(load_book([RULES / "ops"]).ops)
MISH = """
  vars:
    x: float[...]
  match: mish(x)
  let:
    wide: cast(x, promoted(dtype(x), f32))
  make: cast(wide * tanh(softplus(wide)), dtype(x))
  numerics: reassociate
"""
JOINED = """
  vars:
    b: float[n]
    x: float[m, k]
    w: float[k, n]
  match: addmm(b, x, w)
  when:
    - same_dtype(b, x, w)
  make: mm(x, w) + b
  numerics: reassociate
  assumes: [no_overflow]
"""


def load_one(tmp_path: Path, body: str) -> Rule:
    path = tmp_path / "rules.yaml"
    path.write_text("- rule: one-rule\n  doc: A rule for tests.\n" + body)
    return load_book([path], TABLE).rules[0]


def check(tmp_path: Path, body: str, seed: int = 1) -> CheckResult:
    return check_rule(load_one(tmp_path, body), TABLE, seed=seed, examples=30)


def test_a_formula_that_rounds_once_passes(tmp_path: Path) -> None:
    result = check(tmp_path, MISH)
    assert result.ok, result.failures


def test_a_formula_that_rounds_in_between_fails(tmp_path: Path) -> None:
    result = check(tmp_path, MISH.replace("cast(x, promoted(dtype(x), f32))", "x * 1"))
    assert not result.ok
    assert "rounds more often than the left side" in result.failures[0]
    program = result.failures[0].partition("\n")[2]
    with pytest.raises(AssertionError):
        exec(compile(program, "<example>", "exec"), {})


def test_a_product_of_half_matrices_may_be_rounded(tmp_path: Path) -> None:
    result = check(tmp_path, JOINED)
    assert result.ok, result.failures
    narrow = JOINED.replace("mm(x, w) + b", "(mm(x, w) * 3 + b * 3) / 3")
    assert not check(tmp_path, narrow).ok


def sides_of(left: float, right: float) -> Sides:
    """Results of one element, the truth being 1."""
    one, two = torch.tensor([left]), torch.tensor([right])
    return Sides(one, two, torch.tensor([1.0], dtype=torch.float64), 1.0)


def test_a_left_side_that_is_exact_by_luck_proves_nothing() -> None:
    values = {"x": torch.tensor([3.0])}
    lucky = sides_of(1.0, 1.002)
    assert differs(lucky, "reassociate") is not None
    assert is_luck(lucky, values, lambda _: (2e-3, 2e-3, 2e-3))
    assert not is_luck(lucky, values, lambda _: (1e-8, 2e-3, 2e-3))  # a wrong formula
    assert not is_luck(lucky, values, lambda _: None)  # nothing close by to compare with
    assert not is_luck(sides_of(1.0, math.inf), values, lambda _: (2e-3, 2e-3, 2e-3))


def test_numbers_close_by_are_those_of_all_tensors_scaled() -> None:
    seen: list[float] = []

    def errors_of(near: Mapping[str, Any]) -> Errors:
        seen.append(float(near["xs"][0]))
        assert near["n"] == 5 and near["at"].tolist() == [4]
        return 0.0, 0.0, 0.0

    values = {"xs": [torch.tensor([8.0])], "n": 5, "at": torch.tensor([4])}
    is_luck(sides_of(1.0, 1.5), values, errors_of)
    assert len(set(seen)) == len(seen) >= 4 and 8.0 not in seen


class Wavering(Trials):
    """Trials whose every other run finds a difference."""

    runs = 0

    def run(self, *args: object, **kwargs: object) -> str | None:
        Wavering.runs += 1
        return "one differs" if Wavering.runs % 2 else None


def test_two_runs_that_differ_are_told(tmp_path: Path) -> None:
    Wavering.runs = 0
    trials = Wavering(load_one(tmp_path, MISH), TABLE)
    structure = structure_of(trials.rule)
    count, told = examples.run_examples(trials, [structure], seed=0, examples=5, shrink=True)
    assert count == 1 and told is not None
    assert told.text.startswith(f"{examples.UNSTEADY}: one differs")
    assert "import torch" in told.text and told.example == structure


def test_two_runs_that_differ_while_shrinking_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "corner_examples", lambda _: ())  # hypothesis finds it
    Wavering.runs = 0
    trials = Wavering(load_one(tmp_path, MISH), TABLE)
    _, told = examples.run_examples(
        trials, [structure_of(trials.rule)], seed=0, examples=20, shrink=True
    )
    assert told is not None and told.text.startswith(examples.UNSTEADY)


def structure_of(rule: Rule) -> Structure:
    return Search(rule, TABLE, Random(0)).collect(1, 50)[0]
