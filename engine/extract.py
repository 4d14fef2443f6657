"""Chooses one node per class so that the whole graph is cheapest.

Takes a `Problem` (classes, nodes, integer costs, roots); gives a `Choice`. A class that many
nodes read is paid once. The searches, each starting from the last: greedy over sets of
classes; single swaps; pivots (every class that can be rebuilt through one unused class
switches to it at once, which is how three products become one); chains (a class takes a dearer
node, and those that share with it follow); and, on small problems, all of it again from small
random changes. Deterministic: costs are
integers, ties go to the earlier node of a class. The result never has a cycle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from .search import PASSES, Search
from .selection import Choice, Problem, dag_cost, first_choice, topological

MOST_KICKS, KICK = 100, 4  # searches from elsewhere; how many classes begin with another node
KICKED_PAIRS = 1_500_000  # kicks times the square of the nodes


def extract(problem: Problem) -> Choice:
    """The cheapest choice found. Raises ValueError where a root has no node at all."""
    fallback, before = first_choice(problem)
    node = fallback
    greedy = _greedy(problem)
    complete = all(new >= 0 or old < 0 for new, old in zip(greedy, fallback, strict=True))
    if complete and topological(problem, greedy) is not None:
        total = dag_cost(problem, greedy)
        node = greedy if total is not None and total <= before else node
    search = Search(problem, node)
    _descend(search)
    if search.force_all():
        _descend(search)
    search = _kicked(search)
    return Choice(search.node, frozenset(search.used()), search.total, before)


def _descend(search: Search) -> None:
    """Swaps and pivots until neither helps."""
    for _ in range(PASSES):
        swapped = search.swap_all()
        pivoted = search.pivot_all()
        if not (swapped or pivoted):
            return


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


def _greedy(problem: Problem) -> list[int]:
    """Per class the node whose set of needed classes is cheapest, in passes to a fixpoint.

    Sets are bit masks; a set's price is its largest part's plus what the other parts add.
    The first pass goes by number, as every class has an original node or one that a rule
    made of earlier ones. Then children come before what reads them, whatever rule made them,
    so that a few passes do for chains of any length.
    """
    count = len(problem.members)
    node, needs, price = [-1] * count, [0] * count, [0] * count
    paid = [0] * count
    order: Sequence[int] = range(count)
    upwards = _postorder(problem)
    for _ in range(PASSES):
        changed = False
        for owner in order:
            bit = 1 << owner
            for index in problem.members[owner]:
                children = problem.children[index]
                if any(node[child] < 0 or needs[child] & bit for child in children):
                    continue
                mask, total = _union(children, needs, price, paid)
                total += problem.cost[index]
                if node[owner] < 0 or total < price[owner]:
                    node[owner], price[owner] = index, total
                    needs[owner], paid[owner] = mask | bit, problem.cost[index]
                    changed = True
        if not changed:
            break
        order = upwards
    return node


def _postorder(problem: Problem) -> list[int]:
    """All classes, each after those that any of its nodes reads, but where that is a cycle."""
    order: list[int] = []
    seen = [False] * len(problem.members)
    for first in range(len(problem.members)):
        stack = [(first, False)]
        while stack:
            owner, done = stack.pop()
            if done:
                order.append(owner)
            elif not seen[owner]:
                seen[owner] = True
                stack.append((owner, True))
                stack.extend(
                    (child, False)
                    for index in reversed(problem.members[owner])
                    for child in reversed(problem.children[index])
                    if not seen[child]
                )
    return order


def _union(
    children: Sequence[int], needs: list[int], price: list[int], paid: list[int]
) -> tuple[int, int]:
    if not children:
        return 0, 0
    if len(children) == 1:
        return needs[children[0]], price[children[0]]
    ordered = sorted(children, key=lambda child: -price[child])
    mask, total = needs[ordered[0]], price[ordered[0]]
    for child in ordered[1:]:
        extra = needs[child] & ~mask
        mask |= extra
        while extra:
            low = extra & -extra
            total += paid[low.bit_length() - 1]
            extra ^= low
    return mask, total
