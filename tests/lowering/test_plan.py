"""Memory plans: nothing alive is ever overwritten, and memory is used again."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from eqsat.engine.dtypes import dtype_of
from eqsat.lowering.loops import Program, Store
from eqsat.lowering.plan import MemoryPlan, plan


def byte_sizes(program: Program) -> dict[str, int]:
    sizes = {}
    for name, buffer in program.buffers.items():
        if buffer.role == "temp":
            count = 1
            for size in buffer.shape:
                count *= size
            sizes[name] = count * dtype_of(buffer.dtype).itemsize
    return sizes


def assigned(program: Program) -> tuple[MemoryPlan, dict[str, int], int]:
    """A plan with offsets, checked: what is alive at the same time lies apart."""
    made = plan(program)
    sizes = byte_sizes(program)
    offsets, total = made.assign(sizes)
    alive: set[str] = set()
    for moment in made.moments:
        for name in moment.allocates:
            taken_over = made.reuse.get(name)
            for other in alive:
                if other == taken_over:
                    assert offsets[name] == offsets[other]
                    continue
                apart = (
                    offsets[name] + sizes[name] <= offsets[other]
                    or offsets[other] + sizes[other] <= offsets[name]
                )
                assert apart or not sizes[name] or not sizes[other]
            alive.add(name)
        alive -= set(moment.frees)
    assert all(offset % 64 == 0 for offset in offsets.values())
    assert all(offsets[name] + sizes[name] <= total for name in offsets)
    return made, offsets, total


def call(m: Any, name: str, read: Any, shape: tuple[int, ...], role: str = "temp") -> Any:
    """A step that cannot run in place."""
    out = m.buffer(name, shape, role)
    m.nest(name, shape, (), lambda *at: [Store(name, at, m.load(read, *reversed(at)))])
    return out


def test_a_chain_needs_two_buffers(maker: Any) -> None:
    x = maker.input("x", (16, 16))
    for number in range(6):
        x = call(maker, f"t{number}", x, (16, 16), "output" if number == 5 else "temp")
    _, _, total = assigned(maker.program(x))
    assert total == 2 * 16 * 16 * 4


def test_a_pointwise_chain_runs_in_place(maker: Any) -> None:
    x = maker.input("x", (10,))
    for number in range(4):
        x = maker.pointwise(
            f"t{number}",
            (10,),
            lambda i, x=x: maker.load(x, i),
            "output" if number == 3 else "temp",
        )
    made, _, total = assigned(maker.program(x))
    assert made.reuse == {"t1": "t0", "t2": "t1"}
    assert total == 64


def test_no_takeover_while_somebody_reads(maker: Any) -> None:
    m = maker
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    u = m.pointwise("u", (16,), lambda i: m.op("neg", m.load(t, i)))
    out = m.pointwise("out", (16,), lambda i: m.op("add", m.load(t, i), m.load(u, i)), "output")
    made, _, total = assigned(m.program(out))
    assert (made.reuse, total) == ({}, 128)


def test_no_takeover_while_another_store_reads(maker: Any) -> None:
    """The C++ compiler may run the other store's loop after the one that writes in place."""
    m = maker
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    u, v = m.buffer("u", (16,), "temp"), m.buffer("v", (16,), "output")

    def both(i: Any) -> list[Store]:
        value = m.load(t, i)
        return [Store("u", (i,), m.op("neg", value)), Store("v", (i,), m.op("exp", value))]

    m.nest("both", (16,), (), both)
    out = m.pointwise("out", (16,), lambda i: m.op("add", m.load(u, i), m.load(v, i)), "output")
    assert not assigned(m.program(out))[0].reuse


def test_no_takeover_at_another_element(maker: Any) -> None:
    m = maker
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    u = m.pointwise("u", (16,), lambda i: m.load(t, i * -1 + 15))
    out = m.pointwise("out", (16,), lambda i: m.load(u, i * -1 + 15), "output")
    assert not assigned(m.program(out))[0].reuse


def test_no_takeover_between_widths(maker: Any) -> None:
    m = maker
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    u = m.pointwise("u", (16,), lambda i: m.builder.cast(m.load(t, i), "f64"), dtype="f64")
    out = m.pointwise("out", (16,), lambda i: m.load(u, i), "output", "f64")
    assert not assigned(m.program(out))[0].reuse


@pytest.mark.parametrize("early", [False, True])
def test_a_row_is_taken_over_in_its_last_pass_only(maker: Any, early: bool) -> None:
    """softmax in place is fine; a store in the first pass would spoil the second."""
    m = maker
    x = m.input("x", (4, 8))
    t = m.pointwise("t", (4, 8), lambda *at: m.load(x, *at))
    u = m.buffer("u", (4, 8))
    w = m.buffer("w", (4,), "output")

    def stores(i: Any, j: Any) -> list[Store]:
        value = m.load(t, i, j)
        top = m.builder.make("reduce", (value,), value="max")
        mine = m.op("neg", value) if early else m.op("sub", value, top)
        return [Store("u", (i, j), mine), Store("w", (i,), top)]

    m.nest("rows", (4,), (8,), stores)
    out = call(m, "out", u, (8, 4), "output")
    made, _, _ = assigned(m.program(w, out))
    assert made.reuse == ({} if early else {"u": "t"})


def test_calls_and_results_keep_memory_alive(maker: Any) -> None:
    m = maker
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    u = m.pointwise("u", (16,), lambda i: m.load(x, i))
    late = m.buffer("late", (16,), "extern")
    m.extern("call", torch.ops.aten.sin.default, [t], late)
    v = m.pointwise("v", (16,), lambda i: m.load(late, i))
    made, offsets, _ = assigned(m.program(u, v))
    frees = [name for moment in made.moments for name in moment.frees]
    assert frees == ["t"]
    assert offsets["u"] != offsets["v"]


def test_a_view_made_by_a_call_keeps_its_base_alive(maker: Any) -> None:
    m = maker
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    alias = m.buffer("alias", (16,), "extern")
    m.extern("view", torch.ops.aten.view.default, [t], alias)
    u = m.pointwise("u", (16,), lambda i: m.load(x, i))
    out = m.pointwise("out", (16,), lambda i: m.op("add", m.load(alias, i), m.load(u, i)), "output")
    _, offsets, _ = assigned(m.program(out))
    assert offsets["t"] != offsets["u"]


def test_unequal_sizes_at_run_time_are_not_taken_over() -> None:
    made = MemoryPlan((), {})
    assert made.assign({}) == ({}, 0)


def test_random_programs(maker: Any) -> None:
    random.seed(0)
    pick = random.choice
    shapes = [(3, 3), (0, 2), (40, 40), (7, 7), (100, 2), (2, 100), (16, 16)]
    x = maker.input("x", (200, 200))
    made = [x]
    for number in range(60):
        read, shape = pick(made[-6:]), pick(shapes)
        out = maker.buffer(f"t{number}", shape)

        def stores(*at: Any, read: Any = read, name: str = out.name) -> list[Store]:
            return [Store(name, at, maker.load(read, *[i * 0 for i in at]))]

        maker.nest(out.name, shape, (), stores)
        made.append(out)
    program = maker.program(made[-1])
    _, _, total = assigned(program)
    assert total < sum(byte_sizes(program).values()) / 3
