"""Several good choices from one extraction problem, for whoever can measure which is fastest.

Takes a `Problem`, its best `Choice` and the nodes that each rule made; gives other choices. A
runner-up does without a rule that the best choice uses, or has to use one that it does not: the
nodes of the rule are priced out, or given away, and the whole is chosen again and then paid at
the true prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .extract import extract
from .selection import Choice, Problem, dag_cost, first_choice, needed

MOST_TRIES = 24  # extractions
WITHIN = 4.0  # a choice dearer than this many times the best is not worth measuring
_PRICED_OUT = 1000


@dataclass(frozen=True)
class RunnerUp:
    """`how` says what it does otherwise: "without RULE", "with RULE"."""

    how: str
    choice: Choice


def runners_up(
    problem: Problem, best: Choice, made: Mapping[str, Sequence[int]], count: int
) -> list[RunnerUp]:
    """At most `count` choices other than `best` and the graph as it came, cheapest first.
    `made` gives the nodes of the problem that each rule made."""
    seen = {_nodes(best), _nodes(_original(problem))}
    used = {best.node[owner] for owner in best.used}
    found: list[RunnerUp] = []
    for rule, nodes in sorted(made.items(), key=lambda item: -_saved(problem, item[1], used))[
        :MOST_TRIES
    ]:
        keeps = not used.isdisjoint(nodes)
        other = _again(problem, nodes, dear=keeps)
        if other is None or _nodes(other) in seen or other.cost > WITHIN * best.cost:
            continue
        seen.add(_nodes(other))
        found.append(RunnerUp(f"{'without' if keeps else 'with'} {rule}", other))
    return sorted(found, key=lambda one: one.choice.cost)[:count]


def _original(problem: Problem) -> Choice:
    node, cost = first_choice(problem)
    return Choice(node, frozenset(needed(problem, node)), cost, cost)


def _saved(problem: Problem, nodes: Sequence[int], used: set[int]) -> int:
    """How much of the problem's cost depends on a rule: what it made is worth a try first."""
    return max(problem.cost[node] for node in nodes) * (2 if used & set(nodes) else 1)


def _again(problem: Problem, nodes: Sequence[int], *, dear: bool) -> Choice | None:
    cost = list(problem.cost)
    for node in nodes:
        cost[node] = cost[node] * _PRICED_OUT if dear else 1
    other = extract(replace(problem, cost=cost))
    paid = dag_cost(problem, other.node)
    return None if paid is None else replace(other, cost=paid)


def _nodes(choice: Choice) -> frozenset[int]:
    return frozenset(choice.node[owner] for owner in choice.used)
