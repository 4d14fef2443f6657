"""What nobody reads is taken out; what somebody needs stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sympy
import torch

from eqsat.lowering.dead import without_dead
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Program, SizeValue, Store
from eqsat.lowering.spec import problems


def names(program: Program) -> list[str]:
    return [step.name for step in program.steps]


def test_a_chain_that_leads_nowhere(maker: Any) -> None:
    m = maker
    x = m.input("x", (8,))
    used = m.pointwise("used", (8,), lambda i: m.load(x, i))
    first = m.pointwise("first", (8,), lambda i: m.load(x, i))
    m.pointwise("second", (8,), lambda i: m.op("add", m.load(first, i), m.load(used, i)))
    m.extern("call", torch.ops.aten.sin.default, [first], m.buffer("lost", (8,), "extern"))
    out = m.pointwise("out", (8,), lambda i: m.load(used, i), "output")
    program = without_dead(m.program(out))
    assert names(program) == ["used", "out"]
    assert set(program.buffers) == {"x", "used", "out"}
    assert without_dead(program) is program


def rows(m: Any) -> Any:
    """Row sums and the rows less their sums, in one nest."""
    x = m.input("x", (4, 6))
    total, less = m.buffer("total", (4,), "output"), m.buffer("less", (4, 6), "output")

    def stores(i: Any, j: Any) -> list[Store]:
        value = m.load(x, i, j)
        summed = m.builder.make("reduce", (value,), value="sum")
        copied = Store("copied", (i, j), m.op("neg", value))
        return [
            Store("total", (i,), summed),
            Store("less", (i, j), m.op("sub", value, summed)),
            copied,
        ]

    m.buffer("copied", (4, 6), "output")
    m.nest("rows", (4,), (6,), stores)
    return total, less, m.buffers["copied"]


def test_a_store_that_nobody_reads(maker: Any) -> None:
    total, _, copied = rows(maker)
    for kept in ((total,), (copied,), (total, copied)):
        program = without_dead(maker.program(*kept))
        (nest,) = program.steps
        assert {store.buffer for store in nest.stores} == {buffer.name for buffer in kept}
        assert problems(program) == []
        assert bool(nest.raxes) == (total in kept)
        x = torch.arange(24.0).reshape(4, 6)
        wanted = {"total": x.sum(1), "copied": -x}
        for buffer, got in zip(kept, interpret(program, [x]), strict=True):
            torch.testing.assert_close(got, wanted[buffer.name])


def test_effects_stay(maker: Any) -> None:
    m = maker
    x = m.input("x", (8,))
    lost = m.buffer("lost", (8,), "extern")
    m.extern("draw", torch.ops.aten.bernoulli.default, [x], lost, ordered=True)
    m.nest("write", (8,), (), lambda i: [Store("x", (i,), m.op("neg", m.load(x, i)))])
    m.extern("fill", torch.ops.aten.zero_.default, [x], None, mutates=("x",))
    assert names(without_dead(m.program())) == ["draw", "write", "fill"]


def test_calls_that_tell_sizes_stay(maker: Any) -> None:
    m = maker
    n = sympy.Symbol("u0", integer=True)
    x = m.input("x", (8,))
    m.extern("places", torch.ops.aten.nonzero.default, [x], m.buffer("at", (n, 1), "extern"))
    m.extern("count", torch.ops.aten._local_scalar_dense.default, [x], None, numbers=(n,))
    program = replace(m.program(), outputs=(SizeValue(n),))
    assert names(without_dead(program)) == ["places", "count"]


def test_an_accumulation_keeps_what_it_adds_to(maker: Any) -> None:
    m = maker
    x = m.input("x", (8,))
    t = m.pointwise("zero", (4,), lambda i: m.builder.const(0.0, "f32"), "output")
    m.nest("add", (8,), (), lambda i: [Store("zero", (i * 0,), m.load(x, i), "add")])
    assert names(without_dead(m.program(t))) == ["zero", "add"]
