"""Extraction problems that are small enough to try every choice."""

import itertools
import random

from eqsat.engine.selection import Problem, dag_cost


def make(members, children, cost, roots, start=None):
    owner = [0] * len(children)
    for group, nodes in enumerate(members):
        for node in nodes:
            owner[node] = group
    first = [nodes[0] if nodes else -1 for nodes in members]
    return Problem(members, children, owner, cost, roots, start or first)


def optimum(problem):
    costs = [
        dag_cost(problem, pick)
        for pick in itertools.product(*(group or [-1] for group in problem.members))
    ]
    return min((cost for cost in costs if cost is not None), default=None)


def random_problem(seed):
    """Layered classes whose first node reads earlier classes; others read any class, so that
    cycles are possible."""
    rng = random.Random(seed)
    count = rng.randint(2, 8)
    members, children, cost = [], [], []
    for group in range(count):
        nodes = []
        for place in range(rng.randint(1, 3)):
            reach = group if place == 0 else count
            width = rng.randint(0, min(2, reach))
            children.append(tuple(sorted(set(rng.sample(range(reach), width)))))
            cost.append(rng.randint(1, 20))
            nodes.append(len(children) - 1)
        members.append(nodes)
    roots = sorted(set(rng.choices(range(count), k=rng.randint(1, 2))))
    return make(members, children, cost, roots)
