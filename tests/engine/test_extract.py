"""Extraction: optimal on small graphs, never cyclic, deterministic."""

import itertools
import random

import pytest

from eqsat.engine.extract import extract
from eqsat.engine.selection import Problem, dag_cost, topological


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


def test_a_shared_class_is_paid_once():
    problem = make(
        members=[[0], [1], [2], [3, 4]],
        children=[(), (0,), (0,), (1, 2), ()],
        cost=[10, 1, 1, 1, 14],
        roots=[3],
    )
    choice = extract(problem)
    assert choice.cost == 13
    assert choice.node[3] == 3


def test_three_products_become_one_though_no_single_one_gains():
    # 0 input; 1..3 products; 4 the wide product; slices of it are cheap
    problem = make(
        members=[[0], [1, 5], [2, 6], [3, 7], [4]],
        children=[(), (0,), (0,), (0,), (0,), (4,), (4,), (4,)],
        cost=[1, 10, 10, 10, 15, 1, 1, 1],
        roots=[1, 2, 3],
    )
    choice = extract(problem)
    assert choice.cost == 1 + 15 + 3
    assert choice.before == 31


def test_a_class_that_needs_itself_is_never_chosen():
    problem = make(
        members=[[0], [1, 2], [3, 4]],
        children=[(), (0,), (2,), (1,), (0,)],
        cost=[1, 50, 1, 1, 40],
        roots=[1, 2],
    )
    choice = extract(problem)
    assert choice.cost == 1 + 40 + 1
    assert topological(problem, choice.node) is not None


@pytest.mark.parametrize("seed", range(300))
def test_random_graphs_against_all_choices(seed):
    problem = random_problem(seed)
    choice = extract(problem)
    assert dag_cost(problem, choice.node) == choice.cost
    best = optimum(problem)
    assert best <= choice.cost <= choice.before
    again = extract(problem)
    assert again.node == choice.node


def test_most_random_graphs_are_solved_optimally():
    solved = sum(
        extract(problem).cost == optimum(problem) for problem in map(random_problem, range(300))
    )
    assert solved >= 285


def test_a_root_without_a_node_is_refused():
    with pytest.raises(ValueError, match="root"):
        extract(make(members=[[]], children=[], cost=[], roots=[0]))
