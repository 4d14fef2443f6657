"""Which node each class of an e-graph may take, and what a choice of them costs.

Takes classes, nodes and integer costs as a `Problem`; gives choices that have no cycle, their
cost and their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Problem:
    """`members[c]` are the nodes of class c, preferred ones first; `children[n]` the distinct
    classes that node n reads; `cost[n]` is a positive integer; `start[c]` is a node of c that
    is known to be part of an acyclic graph, or -1."""

    members: Sequence[Sequence[int]]
    children: Sequence[Sequence[int]]
    owner: Sequence[int]
    cost: Sequence[int]
    roots: Sequence[int]
    start: Sequence[int]


@dataclass(frozen=True)
class Choice:
    """`node[c]` is the node of class c (-1 where it has none that ends). `used` are the
    classes needed for the roots; `cost` is the sum over them, `before` that of `start`."""

    node: Sequence[int]
    used: frozenset[int]
    cost: int
    before: int


def useful(problem: Problem) -> Problem:
    """The problem without nodes that a cheapest choice can do without: those that read their own
    class, and those that read all that another one of the class reads and are no cheaper."""
    members = [_undominated(problem, group) for group in problem.members]
    return replace(problem, members=members)


def _undominated(problem: Problem, group: Sequence[int]) -> Sequence[int]:
    if len(group) == 1:
        return group
    found: dict[int, set[int]] = {}
    for index in sorted(group, key=lambda index: problem.cost[index]):
        reads = set(problem.children[index])
        if problem.owner[index] not in reads and not any(less <= reads for less in found.values()):
            found[index] = reads
    return [index for index in group if index in found]


def first_choice(problem: Problem) -> tuple[list[int], int]:
    """A choice without cycles, the original graph where there is one, and its cost. Raises
    ValueError where a root has no node at all."""
    node = _sound_start(problem)
    cost = dag_cost(problem, node)
    if cost is None:
        raise ValueError("a root has no acyclic choice")
    return node, cost


def dag_cost(problem: Problem, node: Sequence[int]) -> int | None:
    """The sum over all classes that the roots need; None where one has no node or needs
    itself."""
    state: dict[int, bool] = {}
    total = 0
    stack = [(root, False) for root in problem.roots]
    while stack:
        owner, done = stack.pop()
        if done:
            state[owner] = True
            continue
        if owner in state:
            if not state[owner]:
                return None
            continue
        if node[owner] < 0:
            return None
        state[owner] = False
        total += problem.cost[node[owner]]
        stack.append((owner, True))
        for child in problem.children[node[owner]]:
            if state.get(child) is False:
                return None
            if child not in state:
                stack.append((child, False))
    return total


def needed(problem: Problem, node: Sequence[int]) -> set[int]:
    """The classes that the roots need under a choice."""
    found: set[int] = set()
    waiting = list(problem.roots)
    while waiting:
        owner = waiting.pop()
        if owner not in found:
            found.add(owner)
            waiting += problem.children[node[owner]]
    return found


def topological(problem: Problem, node: Sequence[int]) -> list[int] | None:
    """A place for every class such that chosen children come first; None on a cycle.
    Classes without a node come last."""
    place = [-1] * len(problem.members)
    count = 0
    for first in range(len(problem.members)):
        stack = [first]
        while stack:
            owner = stack[-1]
            if place[owner] >= 0 or node[owner] < 0:
                stack.pop()
                continue
            if place[owner] == -2:
                place[owner] = count
                count += 1
                stack.pop()
                continue
            place[owner] = -2
            for child in problem.children[node[owner]]:
                if place[child] == -2:
                    return None
                if place[child] == -1:
                    stack.append(child)
    return [count if at < 0 else at for at in place]


def _sound_start(problem: Problem) -> list[int]:
    """`start` where there is one; elsewhere the node that is complete earliest, so that no
    class can need itself."""
    node = list(problem.start)
    ready = [first >= 0 for first in node]
    readers: list[list[int]] = [[] for _ in problem.members]
    missing = []
    for index, children in enumerate(problem.children):
        missing.append(len(children))
        for child in children:
            readers[child].append(index)
    wave = [owner for owner, done in enumerate(ready) if done]
    for index, count in enumerate(missing):
        owner = problem.owner[index]
        if count == 0 and not ready[owner]:
            ready[owner], node[owner] = True, index
            wave.append(owner)
    at = 0
    while at < len(wave):
        for index in readers[wave[at]]:
            missing[index] -= 1
            owner = problem.owner[index]
            if missing[index] == 0 and not ready[owner]:
                ready[owner], node[owner] = True, index
                wave.append(owner)
        at += 1
    return node
