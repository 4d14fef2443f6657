"""What a compiler without an e-graph makes of the same rules: one after the other, in the order
of their files, each until it matches nowhere.

Takes what a `post_grad` stage is given; gives the rewritten graph. `always` rewrites wherever a
rule matches, as pattern passes do; otherwise only where that rewrite alone makes the graph
cheaper. Matching, conditions and decoding are the engine's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import fx

from eqsat.engine.encode import Encoding
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import Rule, RuleBook
from eqsat.engine.schedule import Phase, Schedule
from eqsat.engine.selection import Choice, Problem, dag_cost, first_choice, needed, topological
from eqsat.engine.stage import StageOptions, StageRun

_ROUNDS, _PASSES = 6, 2  # of one rule, and over all rules: some rules undo each other for ever


class Destructive(StageRun):
    """A stage that takes what its rule makes wherever it fired, or with `guarded` wherever
    that alone makes the graph cheaper."""

    guarded = False

    def _extract(self, encoding: Encoding) -> tuple[Choice, dict[int, list[int]], Problem]:
        assert self.applier is not None
        problem, classes = self.problem(encoding)
        graph = encoding.graph
        place = {owner: at for at, owner in enumerate(classes)}
        index = {node: at for at, node in enumerate(n for group in classes.values() for n in group)}
        node, before = first_choice(problem)
        cost = before
        claimed: set[int] = set()
        for firing in self.applier.firings:
            changes = {place[graph.find(new)]: index[new] for _, new in firing.roots}
            if claimed & changes.keys():  # another match has rewritten this already
                continue
            trial = [changes.get(owner, old) for owner, old in enumerate(node)]
            new_cost = None if topological(problem, trial) is None else dag_cost(problem, trial)
            if new_cost is not None and (not self.guarded or new_cost < cost):
                node, cost = trial, new_cost
                claimed |= changes.keys()
        return Choice(node, frozenset(needed(problem, node)), cost, before), classes, problem


class Guarded(Destructive):
    guarded = True


def in_file_order(
    gm: fx.GraphModule,
    book: RuleBook,
    table: OpTable,
    options: StageOptions,
    names: Collection[str],
    *,
    always: bool,
) -> fx.GraphModule:
    """`gm` after the rules of `names` in the order of `book`, of each pair of directions the
    first. Both bounds of rounds are reached only by rules that undo each other."""
    rules = [r for r in book.rules if r.name in names and not r.name.endswith("/back")]
    for _ in range(_PASSES):
        before = gm
        for rule in rules:
            gm = _apply(gm, rule, book, table, options, always)
        if gm is before:
            break
    return gm


def _apply(
    gm: fx.GraphModule,
    rule: Rule,
    book: RuleBook,
    table: OpTable,
    options: StageOptions,
    always: bool,
) -> fx.GraphModule:
    phase = Phase("alone", (rule.folder,), iterations=1, least=2000)
    alone = replace(options, schedule=Schedule({}, {"post_grad": (phase,)}), alternatives=0)
    one = replace(book, rules=(rule,))
    for _ in range(_ROUNDS):
        run = (Destructive if always else Guarded)(gm, "post_grad", one, table, alone)
        result = run.run()
        if result.report.status != "changed" or not result.report.firings:
            break
        gm = result.gm
    return gm
