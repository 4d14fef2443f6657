"""Every built-in rule fires on a program made of its own left side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import fx

from eqsat.capture import CaptureError, capture_graph
from eqsat.config import config
from eqsat.engine.draw import TORCH_ERRORS, Search, Structure
from eqsat.engine.expr import Call, Expr, walk
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.profile import select
from eqsat.engine.rule import Rule, RuleBook
from eqsat.engine.stage import StageOptions, compiled_pattern, run_stage
from eqsat.engine.target import load_target
from eqsat.engine.termination import graph_of
from eqsat.engine.threads import one_thread
from eqsat.engine.trial import Rejected, Trials
from eqsat.session import open_session

BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)
ALL = select(BOOK, "fast")
SESSION = open_session(config.snapshot(), lambda _: None)
RULES = [rule for rule in BOOK.rules if rule.stage != "trace"]  # AOTAutograd applies the others
_STRUCTURES, _ATTEMPTS = 12, 4000
# Torch calls these on a GPU only, and traces what they are made of on a CPU.
_ON_GPU = {"_fused_rms_norm", "_fused_rms_norm_backward"}


@one_thread()
def fires(rule: Rule) -> str:
    """How a rule fires on its own left side: as torch.compile traces it on this machine, or as
    it is (where only other rules, or another device, give such a graph). "" for not at all,
    "not here" where no kernel computes the left side."""
    alone = replace(ALL, rules=(next(r for r in ALL.rules if r.name == rule.name),))
    structures = Search(rule, TABLE, Random(rule.name)).collect(_STRUCTURES, _ATTEMPTS)
    for structure in structures:
        gm = traced(rule, structure)
        if gm is None:
            continue
        for how, book in (("alone", alone), ("beside others", ALL)):
            if rule.name in fired(gm, rule, book):
                return how
    if not compiled_pattern(rule, TABLE).ops & (_ON_GPU | made_by_rules()):
        return ""
    for structure in structures:
        gm = graph_of(Trials(rule, TABLE), structure.fill({}), left_alone=True)
        if rule.name in fired(gm, rule, alone):
            return "as it is"
    return "" if structures else "not here"


def made_by_rules() -> set[str]:
    """The ops that rules make from others: no user's graph may hold them, and yet they come."""
    return {
        fn for rule in BOOK.rules for fn in called({**rule.lets, **rule.make}) - called(rule.match)
    }


def called(side: Mapping[str, Expr]) -> set[str]:
    return {node.fn for e in side.values() for node in walk(e) if isinstance(node, Call)}


def traced(rule: Rule, structure: Structure) -> fx.GraphModule | None:
    """The left side as the rule's stage sees it; None for what does not run."""
    trials = Trials(rule, TABLE)
    try:
        values = trials.smooth_values(structure)
        gm = graph_of(trials, values, left_alone=True)
    except (Rejected, *TORCH_ERRORS):
        return None
    inputs = {}
    for name, value in values.items():
        if isinstance(value, list):
            inputs |= {f"{name}_{at}": item for at, item in enumerate(value)}
        elif isinstance(value, torch.Tensor):
            inputs[name] = value
    stage = "pre_grad" if rule.stage == "pre_grad" else "post_grad"
    try:
        return capture_graph(gm, inputs, stage, SESSION, earlier=False).gm
    except CaptureError:
        return None


def fired(gm: fx.GraphModule, rule: Rule, book: RuleBook) -> set[str]:
    """The rules that fire in a graph whose inputs all are parameters."""
    places = {node.name: at for at, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    options = StageOptions(
        profile="fast",
        weights=places,
        frozen=frozenset(places),
        target=load_target("cpu" if rule.device is None else "h200"),
        inference=True,
    )
    report = run_stage(gm, rule.stage, book, TABLE, options).report
    return {firing.rule for firing in report.firings}


# Some of all; and those whose left side has lists, or binds which result is meant.
SOME = [*RULES[::80], *(rule for rule in RULES if "-piece" in rule.name)]


@pytest.mark.parametrize("rule", SOME, ids=lambda rule: rule.name)
def test_some_rules_fire_on_their_own_left_side(rule: Rule) -> None:
    assert fires(rule)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_rule_is_dead(rule: Rule) -> None:
    how = fires(rule)
    assert how, f"{rule.where} {rule.name} does not fire on its own left side"
    assert how != "not here" or rule.device, f"{rule.where} {rule.name}: no example of it runs"
