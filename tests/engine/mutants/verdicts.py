"""What becomes of a mutant: whether it is caught, and whether it is one at all.

Takes `Mutant`s; loads them as `eqsat check` loads a file, and checks them as it does by default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import torch

from eqsat.engine import check
from eqsat.engine.compare import same_bits
from eqsat.engine.draw import TORCH_ERRORS, Search, Structure
from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.reference import ReferenceWorld
from eqsat.engine.rule import Rule
from eqsat.engine.source import RuleErrors
from eqsat.engine.trial import Rejected, Trials

from .entries import Mutant, mutant_text, original_text

EXAMPLES = 30  # the default of `eqsat check`
# What a rule says of its sides; these operators leave both as they are.
_CLAIMS = ("strict-tag", "dropped-assumption", "violated-case", "lost-gradient")
_STRUCTURES, _ATTEMPTS = 40, 800


@lru_cache(maxsize=1)
def op_table() -> OpTable:
    return OpTable(builtin_book().ops)


def verdict(mutant: Mutant, seed: int = 0, examples: int = EXAMPLES) -> str | None:
    """What the loader, lint or check says against the mutant; None where nothing."""
    return _verdict(mutant.file, mutant_text(mutant), seed, examples)


def original_verdict(mutant: Mutant) -> str | None:
    """The same for the rule that it was made of."""
    return _verdict(mutant.file, original_text(mutant), 0, EXAMPLES)


def _verdict(file: str, text: str, seed: int, examples: int) -> str | None:
    try:
        rules = _load(file, text)
    except RuleErrors as errors:
        return str(errors).partition("\n")[0]
    for rule in rules:
        result = check.check_rule(rule, op_table(), seed=seed, examples=examples, shrink=False)
        if not result.ok:
            return result.failures[0].partition("\n")[0]
    return None


def _load(file: str, text: str) -> Sequence[Rule]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file  # the folder says which stage the rule belongs to
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        return load_book([folder], op_table()).rules


def is_the_same_program(mutant: Mutant) -> bool:
    """Whether both rules make the same of the same: on everything that the mutant fires on, the
    original fires too, and each side has the bits of the original's side.

    Such a change is no mistake (swapped factors, a cast that promotion repeats, a condition
    that follows from the others).
    """
    if mutant.operator in _CLAIMS:
        return False
    try:
        changed = _load(mutant.file, mutant_text(mutant))
    except RuleErrors:
        return False
    original = {rule.name: rule for rule in _load(mutant.file, original_text(mutant))}
    return all(
        rule.name in original and _are_the_same(rule, original[rule.name]) for rule in changed
    )


def _are_the_same(changed: Rule, original: Rule) -> bool:
    search = Search(changed, op_table(), Random(f"same {changed.name}"))
    structures = search.collect(_STRUCTURES, _ATTEMPTS)
    return bool(structures) and all(
        _agree(changed, original, structure, kind)
        for structure in structures
        for kind in ("normal", "special")
    )


def _agree(changed: Rule, original: Rule, structure: Structure, kind: str) -> bool:
    filling = {name: (kind, place) for place, name in enumerate(structure.tensors)}
    worlds = (ReferenceWorld(op_table()), ReferenceWorld(op_table()))
    trials = Trials(changed, op_table())
    try:
        values = trials.values(structure, filling)
        ours = trials.both_sides(values, *worlds)
    except (Rejected, *TORCH_ERRORS):
        return kind == "special"  # values that the left side refuses
    try:
        theirs = Trials(original, op_table()).both_sides(values, *worlds)
    except (Rejected, *TORCH_ERRORS):
        return False
    return all(
        left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)
        for left, right in zip(ours, theirs, strict=True)
    )


def _equal(left: Any, right: Any) -> bool:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(left) is type(right)
    return (left.shape, left.dtype) == (right.shape, right.dtype) and same_bits(left, right)
