"""Branch and bound: the cheapest choice of a small extraction problem, with proof.

Takes a `Problem`, the cost of a choice of it and a limit on the work; gives a cheaper choice
where there is one. The bound is that of landmarks (`engine/bound.py`). The nodes that it has
paid for in full make a choice; a landmark of which that choice has several nodes is paid for
only once, so the search goes on with one of them and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from .bound import Bound, readers_of
from .greedy import greedy
from .selection import Problem, dag_cost, needed

Improve = Callable[[Problem, Sequence[int]], tuple[Sequence[int], int]]
_IMPROVED = 10  # what improving one choice costs, in looks at each node


@dataclass(frozen=True)
class Solved:
    """`node[c]` is the node of class c, -1 where it has none; None where no choice is cheaper
    than the one that was known, or none was found. `cost` is that of the cheapest choice known;
    `proven` says that there is no cheaper one; `steps` counts nodes looked at."""

    node: Sequence[int] | None
    cost: int
    proven: bool
    steps: int


def solve(problem: Problem, cost: int, improve: Improve, steps: int) -> Solved:
    """Looks for a choice that costs less than `cost`, until about `steps` nodes are looked at.
    `improve` gives a choice that is no dearer than the one it is given, and its cost."""
    best: Sequence[int] | None = None
    waiting: list[tuple[int, int, Bound]] = [(0, 0, Bound.of(problem, readers_of(problem)))]
    tried: set[frozenset[int]] = set()
    spent, count, complete = 0, 0, True
    while waiting and spent < steps:
        _, _, bound = heappop(waiting)
        spent += bound.raise_to(cost)
        if bound.total >= cost:
            continue
        paid = bound.paid()
        chosen = greedy(paid)
        if dag_cost(paid, chosen) is None:
            complete = False
            continue
        used = frozenset(chosen[owner] for owner in needed(paid, chosen))
        if used not in tried:
            tried.add(used)
            better, found = improve(problem, chosen)
            spent += _IMPROVED * len(problem.children)
            if found < cost:
                best, cost = better, found
        if bound.total < cost:
            for branch in _branches(bound, used):
                count += 1
                heappush(waiting, (bound.total, count, branch))
    proven = complete and all(low >= cost for low, _, _ in waiting)
    return Solved(best, cost, proven, spent)


def _branches(bound: Bound, used: frozenset[int]) -> list[Bound]:
    """With and without a node of the dearest landmark of which `used` has several."""
    problem = bound.problem
    free = {index for index in used if not bound.settled(problem.owner[index])}
    if not free:
        return [bound.without(())]  # where each of them is paid for by itself
    dearest, several = 0, free
    for price, cut in bound.landmarks:
        both = used.intersection(cut)
        if price * (len(both) - 1) > dearest and not free.isdisjoint(both):
            dearest, several = price * (len(both) - 1), free & both
    index = max(several, key=lambda index: (problem.cost[index], -index))
    owner = problem.owner[index]
    others = [other for other in problem.members[owner] if other != index]
    return [bound.without([index]), bound.without(others, owner)]
