"""The sample of mutants that the tests run: drawn by a seed, listed in sample.yaml.

    python -m eqsat.tests.engine.mutants.sample

draws it again after rules have changed. Of every operator in every folder it takes the first
mutant, in the order of a seeded shuffle, that is a mistake; whether it is caught has no part in
the choice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from random import Random
from typing import Any

import yaml

from .entries import Mutant, all_mutants
from .sweep import HERE, Outcome, judge_all

SAMPLE = HERE / "sample.yaml"
_SEED = 1
_TRIES = 4  # candidates of each operator in each folder


def read_sample() -> list[tuple[Mutant, bool]]:
    """The mutants, and whether each is known to be missed."""
    entries = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    return [_read(entry) for entry in entries]


def _read(entry: dict[str, Any]) -> tuple[Mutant, bool]:
    missed = bool(entry.pop("missed", False))
    return Mutant(**{**entry, "place": tuple(entry["place"])}), missed


def shuffled_cells() -> list[list[Mutant]]:
    """The mutants of each operator in each folder, in the order in which they are tried."""
    cells: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in all_mutants():
        cells.setdefault((mutant.folder, mutant.operator), []).append(mutant)
    random = Random(_SEED)
    return [random.sample(cells[cell], min(_TRIES, len(cells[cell]))) for cell in sorted(cells)]


def choose(cells: Sequence[list[Mutant]]) -> Iterator[Outcome]:
    """The first of each cell that counts, if one of its few tries does."""
    for _ in range(_TRIES):
        heads = [cell.pop(0) for cell in cells if cell]
        counting = {o.mutant: o for o in judge_all(heads) if o.counts}
        yield from counting.values()
        cells = [cell for cell, head in zip(cells, heads, strict=True) if head not in counting]
        cells = [cell for cell in cells if cell]


def main() -> int:
    chosen = sorted(choose(shuffled_cells()), key=lambda outcome: outcome.mutant.key)
    entries = []
    for outcome in chosen:
        entry = asdict(outcome.mutant) | {"place": list(outcome.mutant.place)}
        entries.append(entry | ({"missed": True} if outcome.kind == "missed" else {}))
    head = "# Written by `python -m eqsat.tests.engine.mutants.sample`; see sample.py.\n"
    text = yaml.safe_dump(entries, sort_keys=False, width=1000)
    SAMPLE.write_text(head + text, encoding="utf-8")
    print(f"{len(entries)} mutants, {sum(o.kind == 'missed' for o in chosen)} of them missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
