"""Orders of steps: legal, the same every time, with a peak that is lower where it can be."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Program, Store
from eqsat.lowering.order import peak, peak_bytes, with_least_memory
from eqsat.lowering.placement import order_problems, placement_problems
from eqsat.lowering.plan import plan
from eqsat.lowering.spec import problems
from eqsat.tests.lowering.conftest import Maker
from eqsat.tests.lowering.test_plan import byte_sizes


def names(program: Program) -> list[str]:
    return [step.name for step in program.steps]


def test_a_small_result_is_made_before_the_next_large_one(maker: Any) -> None:
    """Both large buffers first would keep them alive together."""
    m = maker
    x = m.input("x", (64,))
    large = [m.pointwise(f"large{k}", (64, 64), lambda i, j: m.load(x, i)) for k in range(2)]
    small = [
        m.reduction(f"small{k}", (), (64, 64), "sum", lambda i, j, t=t: m.load(t, j, i))
        for k, t in enumerate(large)
    ]
    out = m.pointwise("out", (), lambda: m.op("add", *(m.load(t) for t in small)), "output")
    program = m.program(out)
    better = with_least_memory(program)
    assert names(better) == ["large0", "small0", "large1", "small1", "out"]
    assert peak_bytes(better) == 64 * 64 * 4 + 4 + 4
    assert peak_bytes(program) == 2 * 64 * 64 * 4 + 4
    assert list(order_problems(program.steps, better.steps)) == []


def test_a_mask_is_made_late(maker: Any) -> None:
    """Something large that only the last step reads waits until then."""
    m = maker
    x = m.input("x", (64,))
    mask = m.pointwise("mask", (64, 64), lambda i, j: m.load(x, i))
    t = x
    for k in range(3):
        t = m.pointwise(f"t{k}", (64, 32), lambda i, j, t=t: m.load(t, *(i, j)[: len(t.shape)]))
    both = lambda i, j: m.op("add", m.load(mask, j, i), m.load(t, i, j * 0))  # noqa: E731
    out = m.reduction("out", (), (64, 64), "sum", both, "output")
    better = with_least_memory(m.program(out))
    assert names(better) == ["t0", "t1", "t2", "mask", "out"]


def test_effects_and_writes_keep_their_order(maker: Any) -> None:
    m = maker
    x = m.input("x", (4,))
    for k in range(4):
        draw = m.buffer(f"draw{k}", (4,), "extern")
        m.extern(f"draw{k}", torch.ops.aten.bernoulli.default, [x], draw, ordered=True)
        m.nest(f"write{k}", (4,), (), lambda i, d=draw: [Store("x", (i,), m.load(d, i))])
    program = m.program(x)
    assert names(with_least_memory(program)) == names(program)


@st.composite
def programs(draw: Any) -> Program:
    """Steps that read some earlier buffers at some element, and write a new one."""
    m = Maker()
    made = [m.input("x", (9, 9))]
    for number in range(draw(st.integers(1, 12))):
        shape = draw(st.sampled_from([(3, 3), (0, 2), (9, 9), (2, 5), (40,)]))
        reads = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
        reads = [read for read in reads if 0 not in read.shape] or made[:1]

        def value(*at: Any, reads: Any = reads, m: Maker = m) -> Any:
            loads = [m.load(read, *(at[0] * 0 for _ in read.shape)) for read in reads]
            total = loads[0]
            for load in loads[1:]:
                total = m.op("add", total, load)
            return total

        made.append(m.pointwise(f"t{number}", shape, value))
    outs = draw(st.lists(st.sampled_from(made[1:]), min_size=1, max_size=3, unique=True))
    return m.program(*outs)


@given(programs())
def test_random_programs(program: Program) -> None:
    """The order is legal, gives the same results, and its plan keeps apart what is alive."""
    better = with_least_memory(program)
    assert list(order_problems(program.steps, better.steps)) == []
    assert problems(better) == []
    assert peak_bytes(better) <= peak_bytes(program)
    assert names(with_least_memory(better)) == names(better)
    sizes = byte_sizes(better)
    made = plan(better)
    assert placement_problems(better, made, sizes) == []
    x = torch.arange(81.0).reshape(9, 9)
    torch.testing.assert_close(interpret(better, [x]), interpret(program, [x]), equal_nan=True)


def test_a_peak_counts_what_lives_together() -> None:
    sizes = {"a": 4, "b": 2, "c": 1}
    touched = [frozenset("a"), frozenset("ab"), frozenset("bc")]
    assert peak(touched, sizes, frozenset()) == 6
    assert peak(touched, sizes, frozenset("a")) == 7


def test_what_only_the_graph_holds_is_read_early(maker: Any) -> None:
    """In a backward, a step that reads a saved tensor last frees it."""
    m = maker
    saved = [m.input(f"saved{k}", (64, 64)) for k in range(3)]
    grown = [
        m.pointwise(f"grown{k}", (64, 128), lambda i, j, s=s: m.load(s, j * 0, i))
        for k, s in enumerate(saved)
    ]
    totals = [
        m.reduction(f"total{k}", (), (64, 128), "sum", lambda i, j, g=g: m.load(g, i, j), "output")
        for k, g in enumerate(grown)
    ]
    program = m.program(*totals)
    held = frozenset(buffer.name for buffer in saved)
    better = with_least_memory(program, held)
    size = 64 * 64 * 4
    assert peak_bytes(program, held) == 7 * size
    assert 5 * size <= peak_bytes(better, held) < 6 * size
    assert peak_bytes(better) < peak_bytes(program)


def test_inputs_count_from_the_start_until_they_are_read() -> None:
    touched = [frozenset("x"), frozenset("xa"), frozenset("ab"), frozenset("yb")]
    sizes = {"x": 8, "y": 4, "a": 1, "b": 2}
    assert peak(touched, sizes, frozenset(), frozenset("xy")) == 13
    assert peak(touched, sizes, frozenset(), frozenset("x")) == 9
    assert peak(touched, sizes, frozenset("x"), frozenset("xy")) == 15
