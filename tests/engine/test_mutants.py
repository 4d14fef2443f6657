"""Right rules made wrong on purpose are caught, by the loader, lint or check.

`mutants/operators.py` and `entries.py` make every mutant of every built-in rule; a stratified
sample of them runs here, and `python -m eqsat.tests.engine.mutants.sweep` runs all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from eqsat.engine.schedule import load_schedule
from eqsat.tests.engine.mutants.entries import Mutant, all_mutants
from eqsat.tests.engine.mutants.sample import read_sample
from eqsat.tests.engine.mutants.sweep import excuse_of
from eqsat.tests.engine.mutants.verdicts import original_verdict, verdict

SAMPLE = read_sample()
MISSED = 0.02  # the part of the sample that may get past
CAUGHT = [mutant for mutant, missed in SAMPLE if not missed]
ORIGINALS = {mutant.rule: mutant for mutant, _ in SAMPLE}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing by more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_sample_is_large_and_spread() -> None:
    assert len(SAMPLE) >= 100
    folders = Counter(mutant.folder for mutant, _ in SAMPLE)
    assert set(folders) == set(load_schedule().folders) and min(folders.values()) >= 5
    assert len({mutant.operator for mutant, _ in SAMPLE}) >= 25
    assert len({mutant.rule for mutant, _ in SAMPLE}) >= 60
    assert not any(excuse_of(mutant) for mutant, _ in SAMPLE)


def test_the_sample_is_of_the_rules_as_they_are() -> None:
    """Where this fails, run `python -m eqsat.tests.engine.mutants.sample`."""
    gone = {mutant for mutant, _ in SAMPLE} - set(all_mutants())
    assert not gone


@pytest.mark.parametrize("mutant", CAUGHT, ids=[mutant.key for mutant in CAUGHT])
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """With one of three seeds, so that a change of what is drawn first does not matter."""
    assert any(verdict(mutant, seed) is not None for seed in (0, 1, 2))


@pytest.mark.slow
def test_the_default_check_catches_most() -> None:
    """With the seed and the number of examples that `eqsat check` has by default."""
    missed = [mutant.key for mutant, _ in SAMPLE if verdict(mutant) is None]
    print(f"{len(SAMPLE) - len(missed)} of {len(SAMPLE)} caught, missed:", *missed, sep="\n")
    assert len(missed) <= MISSED * len(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ORIGINALS.values(), ids=list(ORIGINALS))
def test_the_original_passes(mutant: Mutant) -> None:
    assert original_verdict(mutant) is None
