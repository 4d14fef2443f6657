"""Branch and bound on extraction problems: bounds that hold, parts that are independent, proofs
that are true."""

import pytest

from eqsat.engine.bound import Bound, readers_of
from eqsat.engine.exact import solve
from eqsat.engine.parts import parts
from eqsat.engine.search import Search
from eqsat.engine.selection import dag_cost, useful
from eqsat.tests.engine.problems import make, optimum, random_problem

MUCH = 10**9


def unchanged(problem, node):
    return node, Search(problem, node).total


def bound_of(problem):
    return Bound.of(problem, readers_of(problem))


@pytest.mark.parametrize("seed", range(300))
def test_no_choice_is_below_the_bound(seed):
    problem = random_problem(seed)
    best = optimum(problem)
    bound = bound_of(problem)
    bound.raise_to(MUCH)
    assert 0 < bound.total <= best
    assert bound.total == sum(price for price, _ in bound.landmarks)
    paid = [0] * len(problem.children)
    for price, cut in bound.landmarks:
        assert price > 0
        for index in cut:
            paid[index] += price
    for index, cost in enumerate(problem.cost):
        assert bound.reduced[index] == cost - paid[index] >= 0


@pytest.mark.parametrize("seed", range(200))
def test_what_is_ruled_out_is_in_no_cheaper_choice(seed):
    problem = random_problem(seed)
    best = optimum(problem)
    bound = bound_of(problem)
    bound.raise_to(best + 1)
    members = [[index for index in group if bound.alive[index]] for group in problem.members]
    left = make(members, problem.children, problem.cost, bound.roots)
    assert optimum(left) == best
    bound = bound_of(problem)
    bound.raise_to(best)
    assert bound.total <= best, "more than the best choice was paid for"


def test_the_bound_reaches_the_limit_where_there_is_no_choice():
    problem = make(members=[[0], [1]], children=[(1,), (0,)], cost=[1, 1], roots=[0])
    bound = bound_of(problem)
    bound.raise_to(MUCH)
    assert bound.total >= MUCH
    assert solve(problem, MUCH, unchanged, 1000).proven


@pytest.mark.parametrize("seed", range(200))
def test_a_proof_is_true(seed):
    """From no known choice, without help by local search."""
    problem = random_problem(seed)
    best = optimum(problem)
    solved = solve(problem, MUCH, unchanged, 100_000)
    assert solved.proven and solved.cost == best == dag_cost(problem, solved.node)
    again = solve(problem, best, unchanged, 100_000)
    assert again.node is None and again.proven and again.cost == best


def test_nothing_is_proven_without_steps():
    problem = random_problem(3)
    solved = solve(problem, MUCH, unchanged, 0)
    assert solved.node is None and not solved.proven and solved.steps == 0


@pytest.mark.parametrize("seed", range(300))
def test_the_cheapest_choices_of_parts_are_one_of_the_whole(seed):
    problem = random_problem(seed)
    node = [group[0] for group in problem.members]
    for part in parts(problem):
        solved = solve(part.problem, MUCH, unchanged, 100_000)
        for owner, index in zip(part.classes, solved.node, strict=True):
            node[owner] = part.nodes[index] if index >= 0 else node[owner]
    assert dag_cost(problem, node) == optimum(problem)


def test_classes_that_all_choices_need_join_nothing():
    # two choices over one input, which is paid in any case
    problem = make(
        members=[[0], [1, 2], [3, 4], [5], [6]],
        children=[(), (3,), (0,), (4,), (0,), (0,), (0,)],
        cost=[7, 1, 5, 1, 5, 1, 9],
        roots=[0, 1, 2],
    )
    first, second = parts(problem)
    assert (list(first.classes), list(second.classes)) == ([1, 3], [2, 4])
    assert first.problem.children == [(1,), (), ()]


def test_classes_that_may_form_a_cycle_stay_together():
    # 1 and 2 are needed; each is cheapest by the other
    problem = make(
        members=[[0], [1, 2], [3, 4]],
        children=[(), (2,), (0,), (1,), (0,)],
        cost=[1, 1, 9, 1, 8],
        roots=[0, 1, 2],
    )
    (part,) = parts(problem)
    assert set(part.classes) == {1, 2}
    assert solve(part.problem, MUCH, unchanged, 10_000).cost == 1 + 8


def test_a_node_that_reads_more_and_costs_no_less_is_left_out():
    problem = make(
        members=[[0], [1], [2, 3, 4]],
        children=[(), (), (0,), (0, 1), (2,)],
        cost=[1, 1, 3, 3, 1],
        roots=[2],
    )
    assert useful(problem).members[2] == [2]
