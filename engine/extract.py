"""Chooses one node per class so that the whole graph is cheapest.

Takes a `Problem` (classes, nodes, integer costs, roots); gives a `Choice`. A class that many nodes
read is paid once. Nodes that cannot win are left out. First the whole: greedy over sets of classes
(`engine/greedy.py`), then changes that make it cheaper (`engine/search.py`): single swaps; pivots
(every class that can be rebuilt through one unused class switches to it at once, which is how
three products become one); chains (a class takes a dearer node, and those that share with it
follow). Then, in problems that are not large, each independent part (`engine/parts.py`) by branch
and bound (`engine/exact.py`), which proves most of them the cheapest. Where that has no time, the
changes again from small random ones. Deterministic: costs are integers, work is counted and not
timed, ties go to the earlier node of a class. The result never has a cycle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from .exact import Solved, solve
from .greedy import greedy
from .parts import Part, parts
from .search import PASSES, Search
from .selection import Choice, Problem, dag_cost, first_choice, needed, topological, useful

MOST_KICKS, KICK = 30, 4  # searches from elsewhere; how many classes begin with another node
KICKED_PAIRS = 1_500_000  # kicks times the square of the nodes
PARTED = 1_000  # nodes of a problem that is taken apart
HARD = 4  # times the steps left: the square of the nodes of a part that is not tried
STEPS = 25_000  # of branch and bound, each a look at one node; for all parts together


def extract(problem: Problem) -> Choice:
    """The cheapest choice found. Raises ValueError where a root has no node at all."""
    problem = useful(problem)
    search, before = _searched(problem)
    proven = False
    if len(problem.children) <= PARTED:
        search, proven = _parted(search)
    if not proven:
        search = _kicked(search)
    return Choice(search.node, frozenset(search.used()), search.total, before)


def _searched(problem: Problem) -> tuple[Search, int]:
    """What greedy and the changes find, and the cost of the original graph."""
    fallback, before = first_choice(problem)
    node = fallback
    cheap = greedy(problem)
    complete = all(new >= 0 or old < 0 for new, old in zip(cheap, fallback, strict=True))
    if complete and topological(problem, cheap) is not None:
        total = dag_cost(problem, cheap)
        node = cheap if total is not None and total <= before else node
    search = Search(problem, node)
    _change(search)
    return search, before


def _change(search: Search) -> None:
    """All changes until none helps."""
    _descend(search)
    if search.force_all():
        _descend(search)


def _parted(search: Search) -> tuple[Search, bool]:
    """The search with each part as cheap as branch and bound can make it, and whether no choice
    is cheaper. Parts that are alike are solved once."""
    node, proven, left = list(search.node), True, STEPS
    known: dict[object, Solved] = {}
    for part in parts(search.problem):
        cost, smaller = _paid_in(search, part), part.problem
        key = (
            cost,
            *(
                tuple(field)
                for field in (smaller.children, smaller.owner, smaller.cost, smaller.roots)
            ),
        )
        solved = known.get(key)
        if solved is None:
            hopeless = len(part.nodes) ** 2 > HARD * left
            solved = known[key] = solve(smaller, cost, _improve, 0 if hopeless else left)
            left -= solved.steps
        proven &= solved.proven
        if solved.node is not None:
            for owner, at in zip(part.classes, solved.node, strict=True):
                node[owner] = part.nodes[at] if at >= 0 else -1
    if node != search.node:
        search = _combined(search, node)
    return search, proven


def _paid_in(search: Search, part: Part) -> int:
    """What the search pays for the classes of a part, or more."""
    used = [search.node[owner] for owner in part.classes if search.count[owner]]
    if not set(part.nodes).issuperset(used):  # and for what only nodes left out read
        return search.total
    return sum([search.problem.cost[index] for index in used])


def _improve(problem: Problem, node: Sequence[int]) -> tuple[Sequence[int], int]:
    search = Search(problem, node)
    _change(search)
    return search.node, search.total


def _descend(search: Search) -> None:
    """Swaps and pivots until neither helps."""
    for _ in range(PASSES):
        swapped = search.swap_all()
        pivoted = search.pivot_all()
        if not (swapped or pivoted):
            return


def _combined(search: Search, node: Sequence[int]) -> Search:
    """A search that begins at `node`, if that is cheaper. Classes without one keep theirs if
    this makes no cycle; else what is not used gets any node that makes none."""
    problem = search.problem
    whole = [old if new < 0 else new for new, old in zip(node, search.node, strict=True)]
    if topological(problem, whole) is None:
        if dag_cost(problem, whole) is None:
            return search
        used = needed(problem, whole)
        start = [index if owner in used else -1 for owner, index in enumerate(whole)]
        whole, _ = first_choice(replace(problem, start=start))
    better = Search(problem, whole)
    return better if better.total < search.total else search


def _kicked(best: Search) -> Search:
    """The best of searches that begin at small random changes of `best`. The smaller a problem
    is, the more there are: large ones have no time for any."""
    problem, rng = best.problem, random.Random(0)
    size = max(1, len(problem.children))
    for _ in range(min(MOST_KICKS, KICKED_PAIRS // size**2)):
        owners = [owner for owner in best.used() if len(problem.members[owner]) > 1]
        search = Search(problem, best.node)
        for owner in rng.sample(owners, min(KICK, len(owners))):
            search.switch(owner, rng.choice(problem.members[owner]))
        _descend(search)
        if search.total < best.total:
            best = search
    return best
