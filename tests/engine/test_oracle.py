"""Extraction against the optimum, which an integer program finds: on random problems, and on
pieces of models after saturation."""

import random

import pytest
import torch

import eqsat.backend as backend
from eqsat.benchmarks import pieces
from eqsat.benchmarks.optimum import optimum
from eqsat.engine.extract import extract
from eqsat.engine.selection import Problem
from eqsat.engine.stage import run_stage

OPTIMAL, WORST = 0.95, 1.03  # the part that must be optimal; how much dearer any may be


def random_problem(seed, count=40):
    """Layered classes with one node that reads earlier ones; the other nodes read any classes
    near by, so that cycles and sharing are common."""
    rng = random.Random(seed)
    members, children, cost, owner = [], [], [], []
    for group in range(count):
        nodes = []
        for place in range(rng.choice((1, 1, 2, 3))):
            low, high = max(0, group - 6), group if place == 0 else min(count, group + 3)
            near = [other for other in range(low, high) if other != group]
            width = rng.randint(0 if place == 0 and group < 3 else 1, 3)
            children.append(tuple(sorted(rng.sample(near, min(width, len(near))))))
            cost.append(rng.choice((1, 2, 5, 20, 100)))
            owner.append(group)
            nodes.append(len(children) - 1)
        members.append(sorted(nodes, key=lambda node: (cost[node], node)))
    start = [min(nodes) for nodes in members]
    return Problem(members, children, owner, cost, sorted({count - 1, rng.randrange(count)}), start)


def problems_of(model, inputs, length, step):
    """Extraction problems of the windows of all graphs of one compile."""
    torch._dynamo.reset()
    runs = []

    def keep(gm, stage, *how):
        runs.append((gm, stage, *how))
        if stage == "post_grad":
            raise RuntimeError("nothing after this stage is wanted")
        return run_stage(gm, stage, *how)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(backend, "run_stage", keep)
        with pytest.warns(backend.EqsatWarning, match="nothing after"):
            torch.compile(model, backend="eqsat")(**inputs)
    return [
        problem
        for gm, stage, *how in runs
        for problem in pieces.problems_of(gm, stage, how, length, step)
    ]


def excess(problems):
    """How much dearer than the optimum each choice is, as factors."""
    found = []
    for problem in problems:
        best = optimum(problem)
        assert best.proven
        choice = extract(problem)
        assert choice.cost >= best.cost
        found.append(choice.cost / best.cost)
    return found


def assert_close_to_optimal(problems):
    found = excess(problems)
    optimal = sum(factor == 1 for factor in found) / len(found)
    print(f"{len(found)} problems, {optimal:.0%} optimal, worst {max(found):.4f}")
    assert optimal >= OPTIMAL and max(found) <= WORST


def test_random_problems():
    assert_close_to_optimal([random_problem(seed) for seed in range(40)])


def test_pieces_of_a_model():
    models = pytest.importorskip("eqsat.benchmarks.models")
    problems = problems_of(*models.encoder(1, width=64), 24, 8)
    assert len(problems) >= 5
    assert_close_to_optimal(problems)


@pytest.mark.slow
def test_small_pieces_of_convolutions():
    graphs = pytest.importorskip("eqsat.benchmarks.graphs")
    model = graphs.inception().eval()
    problems = problems_of(model, {"input": torch.randn(1, 3, 32, 32)}, 24, 24)
    assert len(problems) >= 10
    assert_close_to_optimal(problems)


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, 5000])
def test_many_random_problems(first):
    assert_close_to_optimal([random_problem(seed, 60) for seed in range(first, first + 200)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2 12", "vit 12", "mobilenet", "unet", "t5 12+12"])
def test_larger_pieces_of_models(name):
    graphs = pytest.importorskip("eqsat.benchmarks.graphs")
    assert_close_to_optimal(problems_of(*graphs.build(name), 80, 60))
