"""A first good choice of nodes: per class the set of needed classes that costs least.

Takes a `Problem`; gives a node per class. As a class that several others need is paid once, each
carries the set of all that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from .selection import Problem

_PASSES = 6


def greedy(problem: Problem) -> list[int]:
    """Per class the node whose set of needed classes is cheapest, in passes to a fixpoint; -1
    where a class has none. Passes are few, so the choice may have a cycle.

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
    for _ in range(_PASSES):
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
