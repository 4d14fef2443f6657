"""The cheapest choice of an extraction problem, by integer programming (HiGHS).

Takes a `Problem`; gives the cost of a choice and whether it is proven to be the least one. One
binary variable says whether a node is chosen, one per class whether it is needed; classes that
may need each other get places, and a chosen node stands after what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from eqsat.engine.selection import Problem, dag_cost


@dataclass(frozen=True)
class Optimum:
    cost: int
    proven: bool


class _Rows:
    """Linear constraints, low <= sum of coefficients times variables <= high, row by row."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self.entries += [(len(self.low), at, factor) for at, factor in terms]
        self.low.append(low)
        self.high.append(high)

    def constraint(self, variables: int) -> LinearConstraint:
        rows, columns, factors = zip(*self.entries, strict=True)
        shape = (len(self.low), variables)
        return LinearConstraint(coo_array((factors, (rows, columns)), shape), self.low, self.high)


def optimum(problem: Problem, seconds: float = 60.0) -> Optimum:
    """The cheapest choice found within `seconds`. Raises ValueError where there is none."""
    nodes, classes = len(problem.children), len(problem.members)
    knots = _knots(problem)
    needed, place = nodes, nodes + classes  # where the variables of classes begin
    rows = _Rows()
    for owner, members in enumerate(problem.members):
        rows.add([*((node, 1.0) for node in members), (needed + owner, -1.0)], 0, 0)
    for node, children in enumerate(problem.children):
        for child in children:
            rows.add([(needed + child, 1.0), (node, -1.0)], 0, np.inf)
            owner = problem.owner[node]
            if knots[owner] == knots[child]:  # a chosen node comes after what it reads
                terms = [(place + owner, 1.0), (place + child, -1.0), (node, -1.0 - classes)]
                if owner == child:
                    terms = [(node, -1.0)]
                rows.add(terms, -classes if owner != child else 0, np.inf)
    low = np.zeros(nodes + 2 * classes)
    high = np.concatenate([np.ones(nodes + classes), np.full(classes, float(classes))])
    low[[needed + root for root in problem.roots]] = 1
    scale = max(problem.cost, default=1)
    costs = np.concatenate([np.array(problem.cost, float) / scale, np.zeros(2 * classes)])
    whole = np.concatenate([np.ones(nodes), np.zeros(2 * classes)])
    found = milp(
        costs,
        integrality=whole,
        bounds=Bounds(low, high),
        constraints=rows.constraint(len(low)),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise ValueError(f"no choice: {found.message}")
    chosen = [
        next((node for node in members if found.x[node] > 0.5), -1) for members in problem.members
    ]
    cost = dag_cost(problem, chosen)
    if cost is None:
        raise ValueError("the choice of the integer program has a cycle")
    return Optimum(cost, found.status == 0)


def _knots(problem: Problem) -> Sequence[int]:
    """The strongly connected component of every class."""
    pairs = [
        (problem.owner[node], child)
        for node, children in enumerate(problem.children)
        for child in children
    ]
    count = len(problem.members)
    if not pairs:
        return range(count)
    graph = coo_array((np.ones(len(pairs)), tuple(zip(*pairs, strict=True))), (count, count))
    labels: Sequence[int] = connected_components(graph, connection="strong")[1]
    return labels
