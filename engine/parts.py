"""Independent parts of an extraction problem.

Takes a `Problem`; gives smaller ones, so that the cheapest choices of all of them together are a
cheapest choice of the whole. What every choice pays anyway joins nothing: a class that each of
them needs only joins the classes with which it may form a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .selection import Problem


@dataclass(frozen=True)
class Part:
    """`problem` has the classes `classes` and the nodes `nodes` of the whole, under new numbers;
    what it need not count, as every choice pays it, is left out of `children`."""

    problem: Problem
    classes: Sequence[int]
    nodes: Sequence[int]


def parts(problem: Problem) -> Iterator[Part]:
    """The parts with a class of several nodes, by their first class."""
    forced = _forced(problem)
    knot = _knots(problem)
    kept = [
        tuple(child for child in children if not forced[child] or knot[child] == knot[owner])
        for children, owner in zip(problem.children, problem.owner, strict=True)
    ]
    for classes in _components(problem, kept, forced):
        if any(len(problem.members[owner]) > 1 for owner in classes):
            yield _part(problem, classes, kept, forced)


def _forced(problem: Problem) -> list[bool]:
    """Whether a class is a root, or is read by every node of a class that is forced."""
    members = problem.members
    forced = [False] * len(members)
    stack = list(problem.roots)
    while stack:
        owner = stack.pop()
        if not forced[owner]:
            forced[owner] = True
            if members[owner]:
                first, *others = (problem.children[index] for index in members[owner])
                stack += [child for child in first if all(child in other for other in others)]
    return forced


def _components(
    problem: Problem, kept: Sequence[Sequence[int]], forced: Sequence[bool]
) -> list[list[int]]:
    """Classes that the roots may need, in groups that are joined by `kept` children."""
    leader = list(range(len(problem.members)))
    seen = list(forced)
    stack = [owner for owner, needed in enumerate(forced) if needed]
    while stack:
        owner = stack.pop()
        for index in problem.members[owner]:
            for child in kept[index]:
                one, other = _leader(leader, owner), _leader(leader, child)
                leader[max(one, other)] = min(one, other)
                if not seen[child]:
                    seen[child] = True
                    stack.append(child)
    groups: dict[int, list[int]] = {}
    for owner, needed in enumerate(seen):
        if needed:
            groups.setdefault(_leader(leader, owner), []).append(owner)
    return list(groups.values())


def _leader(leader: list[int], owner: int) -> int:
    while leader[owner] != owner:
        leader[owner] = leader[leader[owner]]
        owner = leader[owner]
    return owner


def _part(
    problem: Problem,
    classes: Sequence[int],
    kept: Sequence[Sequence[int]],
    forced: Sequence[bool],
) -> Part:
    place = {owner: at for at, owner in enumerate(classes)}
    nodes = [index for owner in classes for index in problem.members[owner]]
    members: list[list[int]] = [[] for _ in classes]
    for at, index in enumerate(nodes):
        members[place[problem.owner[index]]].append(at)
    smaller = Problem(
        members=members,
        children=[tuple(place[child] for child in kept[index]) for index in nodes],
        owner=[place[problem.owner[index]] for index in nodes],
        cost=[problem.cost[index] for index in nodes],
        roots=[place[owner] for owner in classes if forced[owner]],
        start=[-1] * len(classes),
    )
    return Part(smaller, classes, nodes)


def _knots(problem: Problem) -> list[int]:
    """The number of every class's strongly connected component (Tarjan, 1972)."""
    total = len(problem.members)
    low, knot = [-1] * total, [-1] * total
    open_classes: list[int] = []
    count = 0
    for first in range(total):
        if low[first] >= 0:
            continue
        stack = [(first, _reads(problem, first))]
        entered = {first: count}
        low[first] = count
        count += 1
        open_classes.append(first)
        while stack:
            owner, reads = stack[-1]
            child = next(reads, -1)
            if child < 0:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    low[above] = min(low[above], low[owner])
                if low[owner] == entered[owner]:
                    while True:
                        member = open_classes.pop()
                        knot[member] = owner
                        if member == owner:
                            break
            elif low[child] < 0:
                low[child] = entered[child] = count
                count += 1
                open_classes.append(child)
                stack.append((child, _reads(problem, child)))
            elif knot[child] < 0:
                low[owner] = min(low[owner], low[child])
    return knot


def _reads(problem: Problem, owner: int) -> Iterator[int]:
    return iter([child for index in problem.members[owner] for child in problem.children[index]])
