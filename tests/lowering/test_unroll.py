"""Reductions over a few points are written out, and give what the loop gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eqsat.engine.loop_choices import LoopChoices
from eqsat.engine.target import load_target
from eqsat.lowering.fuse import fuse
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Nest, Program
from eqsat.lowering.spec import problems
from eqsat.lowering.unroll import unrolled

NAN, INF = float("nan"), float("inf")
LOOPS = load_target("cpu").loops
LONGEST = LOOPS.unrolled_points


def written_out(m: Any, program: Program, loops: LoopChoices = LOOPS) -> Program:
    steps = tuple(
        unrolled(step, m.builder, loops) if isinstance(step, Nest) else step
        for step in program.steps
    )
    return replace(program, steps=steps)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
@pytest.mark.parametrize("sizes", [(1,), (2, 3), (LONGEST,)])
def test_same_values(maker: Any, kind: str, dtype: str, sizes: tuple[int, ...]) -> None:
    m = maker
    x = m.input("x", (5, *sizes), dtype=dtype)
    out = m.reduction("out", (5,), sizes, kind, lambda *at: m.load(x, *at), "output", dtype)
    program = m.program(out)
    short = written_out(m, program)
    assert not short.steps[0].raxes and not problems(short)
    values = torch.randn(5, *sizes) * 9
    if dtype == "i64":
        values = torch.randint(-(2**62), 2**62, (5, *sizes))
    else:
        values.view(-1)[:5] = torch.tensor([NAN, INF, -INF, -0.0, 0.0])
        values = values.to(torch.float64 if dtype == "f64" else torch.float32)
    (want,) = interpret(program, [values.clone()])
    (got,) = interpret(short, [values.clone()])
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("kind", ["any", "all"])
def test_truth(maker: Any, kind: str) -> None:
    m = maker
    x = m.input("x", (4, 3), dtype="bool")
    out = m.reduction("out", (4,), (3,), kind, lambda *at: m.load(x, *at), "output", "bool")
    values = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 1, 1], [1, 0, 1]], dtype=torch.bool)
    short = written_out(m, m.program(out))
    assert not short.steps[0].raxes
    assert torch.equal(interpret(short, [values])[0], getattr(values, kind)(1))


@pytest.mark.parametrize(
    ("kind", "size", "dtype"),
    [("sum", LONGEST + 1, "f32"), ("argmax", 3, "i64"), ("sum", 3, "f16")],
)
def test_left_as_a_loop(maker: Any, kind: str, size: int, dtype: str) -> None:
    m = maker
    x = m.input("x", (5, size), dtype="f16" if dtype == "f16" else "f32")
    out = m.reduction("out", (5,), (size,), kind, lambda *at: m.load(x, *at), "output", dtype)
    program = m.program(out)
    assert written_out(m, program).steps == program.steps


@pytest.mark.parametrize("changed", [{"unrolled_points": 2}, {"unrolled_scalars": 5}])
def test_the_target_says_what_is_short(maker: Any, changed: dict[str, int]) -> None:
    m = maker
    x = m.input("x", (5, 3))
    program = m.program(m.reduction("out", (5,), (3,), "sum", lambda *at: m.load(x, *at), "output"))
    assert not written_out(m, program).steps[0].raxes
    assert written_out(m, program, replace(LOOPS, **changed)).steps == program.steps


def test_fusion_asks_the_target(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (5, 3))
    program = m.program(m.reduction("out", (5,), (3,), "sum", lambda *at: m.load(x, *at), "output"))
    assert not fuse(program, fusion_rules)[0].steps[0].raxes
    loops = replace(LOOPS, unrolled_points=2)
    assert fuse(program, fusion_rules, loops)[0].steps[0].raxes


def test_a_row_that_others_walk_stays_a_loop(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (6, 4))
    total = m.reduction("total", (6,), (4,), "sum", lambda *at: m.load(x, *at))
    half = m.pointwise("half", (6,), lambda i: m.op("neg", m.load(total, i)))
    out = m.pointwise(
        "out", (6, 4), lambda i, j: m.op("sub", m.load(x, i, j), m.load(half, i)), "output"
    )
    program = m.program(out)
    joined, _ = fuse(program, fusion_rules)
    (nest,) = joined.steps
    assert nest.raxes
    inputs = [torch.randn(6, 4)]
    torch.testing.assert_close(interpret(joined, inputs), interpret(program, inputs))


def test_a_sum_over_groups_is_computed_where_it_is_read(maker: Any, fusion_rules: Any) -> None:
    """Gradients of shared heads, read at other places again: one kernel."""
    m = maker
    x = m.input("x", (6, 2, 4))
    total = m.reduction("total", (6, 4), (2,), "sum", lambda i, j, k: m.load(x, i, k, j))
    out = m.pointwise(
        "out",
        (6, 4),
        lambda i, j: m.op("sub", m.load(total, i, j), m.load(total, i, j * -1 + 3)),
        "output",
    )
    program = m.program(out)
    joined, _ = fuse(program, fusion_rules)
    assert len(joined.steps) == 1
    inputs = [torch.randn(6, 2, 4)]
    torch.testing.assert_close(interpret(joined, inputs), interpret(program, inputs))
