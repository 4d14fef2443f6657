"""Every legality condition of the built-in fusion rules is there for a reason.

A mutant is the rules without one line under a `when:` of a `fuse`, or without one `forbid`. For
each of them some small program must come out wrong: another result, a program that is not legal,
steps that wait for each other, or a nest whose points may not run in any order. What stands under
`worth:` and in an `avoid` is about speed alone: without all of it nothing may break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from eqsat.engine.load import RULES, load_book
from eqsat.engine.rule import FuseRule
from eqsat.lowering.dependence import CycleError
from eqsat.lowering.fuse import fuse
from eqsat.lowering.interpret import BadProgram, interpret
from eqsat.lowering.loops import Nest, Program, scalars
from eqsat.lowering.spec import problems

from .conftest import Maker
from .fusion_programs import PROGRAMS

Rules = Sequence[FuseRule]
BUILT_IN = load_book([RULES / "fusion"]).fuse


def mutants(rules: Rules) -> Iterator[tuple[str, Rules]]:
    """Name and rules of each mutant."""
    for place, rule in enumerate(rules):
        others = (*rules[:place], *rules[place + 1 :])
        if rule.kind == "forbid":
            yield rule.name, others
        for number, condition in enumerate(rule.when if rule.kind == "fuse" else ()):
            less = replace(rule, when=(*rule.when[:number], *rule.when[number + 1 :]))
            yield f"{rule.name}: {condition.text}", (*rules[:place], less, *rules[place + 1 :])


def without_worth(rules: Rules) -> Rules:
    return [replace(rule, worth=()) for rule in rules if rule.kind != "avoid"]


def is_sound(name: str, rules: Rules) -> bool:
    """Whether the program `name` joined by `rules` is legal and gives what it gave."""
    torch.manual_seed(0)
    program, inputs = PROGRAMS[name](Maker())
    expected = interpret(program, [tensor.clone() for tensor in inputs])
    try:
        joined, _ = fuse(program, rules)
        got = interpret(joined, [tensor.clone() for tensor in inputs])
    except (CycleError, BadProgram):
        return False
    same = all(torch.allclose(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True))
    steps = [step for step in joined.steps if isinstance(step, Nest)]
    return same and not problems(joined) and all(is_orderless(step, joined) for step in steps)


def is_orderless(nest: Nest, program: Program) -> bool:
    """Whether points may run in any order, on one device."""
    places = {store.buffer: store.index for store in nest.stores}
    loads = [scalar for scalar in scalars(nest) if scalar.op == "load"]
    return (
        all(load.index == places.get(str(load.buffer), load.index) for load in loads)
        and len({program.buffers[name].device for name in places}) == 1
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_rules_keep_programs_right(name: str) -> None:
    assert is_sound(name, BUILT_IN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_worth_is_about_speed_alone(name: str) -> None:
    assert is_sound(name, without_worth(BUILT_IN))


@pytest.mark.parametrize("mutant", list(mutants(BUILT_IN)), ids=lambda mutant: mutant[0])
def test_without_a_condition_something_breaks(mutant: tuple[str, Any]) -> None:
    assert not all(is_sound(name, mutant[1]) for name in PROGRAMS)
