"""Extraction: optimal on small graphs, never cyclic, deterministic."""

import pytest

import eqsat.engine.extract as extracting
from eqsat.engine.extract import extract
from eqsat.engine.search import Search
from eqsat.engine.selection import dag_cost, first_choice, topological
from eqsat.tests.engine.problems import make, optimum, random_problem


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


def test_random_graphs_are_solved_optimally():
    for problem in map(random_problem, range(300)):
        assert extract(problem).cost == optimum(problem)


def test_no_time_for_proof_still_gives_a_sound_choice(monkeypatch):
    monkeypatch.setattr(extracting, "STEPS", 0)
    choices = [(problem, extract(problem)) for problem in map(random_problem, range(100))]
    assert all(dag_cost(problem, choice.node) == choice.cost for problem, choice in choices)
    solved = sum(choice.cost == optimum(problem) for problem, choice in choices)
    assert solved >= 95


@pytest.mark.parametrize("seed", range(100))
def test_a_far_start_is_made_the_cheapest_by_parts(seed):
    """Branch and bound alone, from the original graph, without the searches before it."""
    problem = random_problem(seed)
    node, _ = first_choice(problem)
    search, proven = extracting._parted(Search(problem, node))
    assert proven and search.total == optimum(problem) == dag_cost(problem, search.node)
    assert topological(problem, search.node) is not None


def test_unused_classes_follow_where_keeping_theirs_would_make_a_cycle():
    # 0 input; 1 and 2 may read each other; 3 is the root and may read any of them
    problem = make(
        members=[[0], [1, 2], [3, 4], [5, 6]],
        children=[(), (0,), (2,), (1,), (0,), (1,), (2,)],
        cost=[1, 9, 1, 1, 5, 1, 1],
        roots=[3],
    )
    search = Search(problem, [0, 1, 3, 5])
    better = extracting._combined(search, [0, 2, 4, 5])
    assert better.total == 1 + 5 + 1 + 1
    kept = extracting._combined(search, [0, -1, 4, 6])
    assert kept.total == 1 + 5 + 1 and kept.node[1] == 1
    turned = extracting._combined(Search(problem, [0, 2, 4, 6]), [0, 1, -1, 5])
    assert turned.total == 1 + 5 + 1, "a dearer choice is not taken"


def test_a_root_without_a_node_is_refused():
    with pytest.raises(ValueError, match="root"):
        extract(make(members=[[]], children=[], cost=[], roots=[0]))
