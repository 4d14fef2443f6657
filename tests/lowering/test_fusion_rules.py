"""Every legality condition of the built-in fusion rules is there for a reason.

Each case is a small program in which one condition alone stands between a pair of nests and a
wrong result: with the rule as it is nothing breaks, without the condition something does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from eqsat.engine.rule import FuseRule
from eqsat.lowering.dependence import CycleError
from eqsat.lowering.fuse import fuse
from eqsat.lowering.interpret import BadProgram, interpret
from eqsat.lowering.loops import Nest, Program, Store, scalars

Case = Callable[[Any], tuple[Program, list[torch.Tensor]]]
CASES: dict[tuple[str, str], Case] = {}

# Conditions that choose between rules or weigh gains: without them results stay right.
TASTE = {
    ("pointwise-inline", "recompute"),
    ("pointwise-copy", "flops"),
    ("reduction-into-rows", "feeds"),
    ("reduction-into-rows", "rows"),
    ("pieces", "outside"),
    ("pieces", "readers"),
    ("pieces", "scalars"),
    ("neighbours", "distance"),
    ("neighbours", "common"),
    ("neighbours", "shared"),
}


def breaks(rule: str, condition: str) -> Callable[[Case], Case]:
    def note(case: Case) -> Case:
        CASES[rule, condition] = case
        return case

    return note


def twice(m: Any, x: Any, *at: Any) -> Any:
    return m.op("add", m.load(x, *at), m.load(x, *at))


@breaks("pointwise-inline", "feeds")
@breaks("pointwise-copy", "stays")
@breaks("neighbours", "same_rows")
def other_rows(m: Any) -> Any:
    """Both read x, one of them only half of it."""
    x = m.input("x", (8,))
    whole = m.pointwise("whole", (8,), lambda i: twice(m, x, i), "output")
    half = m.pointwise("half", (4,), lambda i: twice(m, x, i), "output")
    return m.program(whole, half), [torch.randn(8)]


@breaks("pointwise-inline", "invertible")
def every_other(m: Any) -> Any:
    """Only even elements are written, and only they are read."""
    x = m.input("x", (8,))
    m.buffer("t", (16,))
    m.nest("spread", (8,), (), lambda i: [Store("t", (i * 2,), twice(m, x, i))])
    out = m.pointwise("out", (8,), lambda i: twice(m, m.buffers["t"], i * 2), "output")
    return m.program(out), [torch.randn(8)]


@breaks("pointwise-copy", "invertible")
def every_other_for_two(m: Any) -> Any:
    def value(i: Any) -> Any:
        return m.builder.make("cast", (m.builder.make("index", (), "i64", index=(i,)),), "f32")

    m.nest("spread", (4,), (), lambda i: [Store("t", (i * 2,), value(i))])
    t = m.buffer("t", (8,))
    out = m.pointwise("out", (16, 4), lambda i, j: m.op("neg", m.load(t, j * 2)), "output")
    also = m.pointwise("also", (16, 4), lambda i, j: m.op("abs", m.load(t, j * 2)), "output")
    return m.program(out, also), []


@breaks("pointwise-inline", "not stays")
@breaks("pointwise-copy", "not overwritten")
def changed_in_between(m: Any) -> Any:
    """row is needed twice, and what it was made of is overwritten before the second time."""
    x = m.input("x", (8,))
    row = m.pointwise("row", (8,), lambda i: m.op("neg", m.load(x, i)))
    sin = m.buffer("sin", (8,), "output")
    m.extern("call", torch.ops.aten.sin.default, [row], sin)
    m.nest("clear", (8,), (), lambda i: [Store("x", (i,), m.builder.const(5.0, "f32"))])
    out = m.pointwise(
        "out", (64, 8), lambda i, j: m.op("mul", m.load(row, j), m.load(x, j)), "output"
    )
    return m.program(sin, out), [torch.randn(8)]


@breaks("pieces", "beside")
def overlapping_parts(m: Any) -> Any:
    """The second part overwrites some of the first."""
    x, y = m.input("x", (4,)), m.input("y", (4,))
    t = m.buffer("t", (8,))
    m.nest("low", (4,), (), lambda i: [Store("t", (i,), twice(m, x, i))])
    m.nest("mid", (4,), (), lambda i: [Store("t", (i + 2,), twice(m, y, i))])
    m.nest("high", (2,), (), lambda i: [Store("t", (i + 6,), twice(m, y, i))])
    out = m.pointwise("out", (8,), lambda i: twice(m, t, i), "output")
    return m.program(out), [torch.randn(4), torch.randn(4)]


@breaks("around-another-step", "reaches_around")
@breaks("around-another-step", "not stays")
def changed_around(m: Any) -> Any:
    x = m.input("x", (8,))
    old = m.pointwise("old", (8,), lambda i: twice(m, x, i))
    m.extern("clear", torch.ops.aten.zero_.default, [x], None, mutates=("x",))
    out = m.pointwise("out", (8,), lambda i: m.op("add", m.load(old, i), m.load(x, i)), "output")
    return m.program(out), [torch.randn(8)]


def row_sums(m: Any, role: str = "output") -> Any:
    x = m.input("x", (16, 8))
    return x, m.reduction("t", (16,), (8,), "sum", lambda *at: m.load(x, *at), role)


@breaks("reduction-into-rows", "same_rows")
def half_of_the_rows(m: Any) -> Any:
    x, total = row_sums(m)
    out = m.pointwise(
        "out", (8, 8), lambda i, j: m.op("sub", m.load(x, i, j), m.load(total, i)), "output"
    )
    return m.program(total, out), [torch.randn(16, 8)]


@breaks("reduction-into-rows", "same_columns")
def fewer_columns(m: Any) -> Any:
    x, total = row_sums(m)
    out = m.pointwise(
        "out", (16, 4), lambda i, j: m.op("sub", m.load(x, i, j), m.load(total, i)), "output"
    )
    return m.program(total, out), [torch.randn(16, 8)]


@breaks("reduction-into-rows", "exact_reads")
def two_rows(m: Any) -> Any:
    x = m.input("x", (16, 8))
    total = m.reduction("t", (4, 4), (8,), "sum", lambda i, j, k: m.load(x, i * 4 + j, k))
    out = m.pointwise(
        "out", (4, 4), lambda i, j: m.op("sub", m.load(total, i, j), m.load(total, j, i)), "output"
    )
    return m.program(out), [torch.randn(16, 8)]


@breaks("reduction-into-rows", "same_positions")
def positions_turned(m: Any) -> Any:
    x = m.input("x", (16, 2, 4))
    m.buffer("top", (16,), dtype="i64")
    m.buffer("y", (16, 2, 4))

    def stores(i: Any, a: Any, b: Any) -> list[Store]:
        top = m.builder.make("reduce", (m.load(x, i, a, b),), "i64", value="argmax")
        return [Store("top", (i,), top), Store("y", (i, a, b), twice(m, x, i, a, b))]

    m.nest("both", (16,), (2, 4), stores)
    top, y = m.buffers["top"], m.buffers["y"]
    out = m.pointwise(
        "out",
        (16, 4, 2),
        lambda i, b, a: m.op("add", m.load(y, i, a, b), m.builder.cast(m.load(top, i), "f32")),
        "output",
    )
    return m.program(out), [torch.randn(16, 2, 4)]


@breaks("neighbours", "independent")
def pointwise_after_a_call(m: Any) -> Any:
    x, total = row_sums(m, "temp")
    sin = m.buffer("sin", (16,), "extern")
    m.extern("call", torch.ops.aten.sin.default, [total], sin)
    out = m.pointwise(
        "out", (16, 8), lambda i, j: m.op("add", m.load(x, i, j), m.load(sin, i)), "output"
    )
    return m.program(out), [torch.randn(16, 8)]


@breaks("neighbours", "same_columns")
def sums_of_other_widths(m: Any) -> Any:
    x, total = row_sums(m)
    less = m.reduction("less", (16,), (4,), "sum", lambda *at: m.load(x, *at), "output")
    return m.program(total, less), [torch.randn(16, 8)]


@breaks("across-devices", "not same_device")
def two_devices(m: Any) -> Any:
    """A number in host memory is added to two tensors, one of them elsewhere."""
    x = m.input("x", ())
    near = m.pointwise("near", (2,), lambda i: twice(m, x), "output")
    far = m.pointwise("far", (2,), lambda i: m.op("neg", m.load(x)), "output")
    m.buffers["far"] = replace(far, device="cuda:0")
    return m.program(near, far), [torch.randn(())]


@breaks("unfinished-sums", "feeds")
@breaks("unfinished-sums", "atomics")
def added_to(m: Any) -> Any:
    x, y = m.input("x", (8,)), m.input("y", (8,))
    t = m.pointwise("t", (8,), lambda i: twice(m, x, i))
    m.nest("more", (8,), (), lambda i: [Store("t", (i,), m.load(y, i), "add")])
    out = m.pointwise("out", (8,), lambda i: twice(m, t, i), "output")
    return m.program(out), [torch.randn(8), torch.randn(8)]


@breaks("overwrites-what-it-reads", "hazard")
def turned_in_place(m: Any) -> Any:
    x = m.input("x", (4, 4))
    t = m.pointwise("t", (4, 4), lambda i, j: twice(m, x, i, j))
    m.nest("write", (4, 4), (), lambda i, j: [Store("x", (i, j), m.load(t, j, i))])
    return m.program(x), [torch.randn(4, 4)]


@breaks("too-many-scalars", "scalars")
def long_body(m: Any) -> Any:
    x = m.input("x", (8,))
    out = x
    for number in range(2):
        value = lambda i, out=out: many(m, m.load(out, i), 300)  # noqa: E731
        out = m.pointwise(f"t{number}", (8,), value, "output")
    return m.program(out), [torch.randn(8)]


def many(m: Any, value: Any, count: int) -> Any:
    for _ in range(count):
        value = m.op("neg", value)
    return value


@breaks("too-many-stores", "stores")
def many_results(m: Any) -> Any:
    x = m.input("x", (8,))
    outs = []
    value = lambda i: m.load(x, i)  # noqa: E731
    for number in range(14):
        outs.append(m.pointwise(f"t{number}", (8,), value, "output"))
        value = lambda i, last=outs[-1]: twice(m, last, i)  # noqa: E731
    return m.program(*outs), [torch.randn(8)]


@breaks("too-many-buffers", "buffers")
def many_inputs(m: Any) -> Any:
    ins = [m.input(f"x{number}", (8,)) for number in range(52)]

    def total(some: Sequence[Any]) -> Callable[[Any], Any]:
        def value(i: Any) -> Any:
            made = m.load(some[0], i)
            for other in some[1:]:
                made = m.op("add", made, m.load(other, i))
            return made

        return value

    left = m.pointwise("left", (8,), total(ins[:26]))
    right = m.pointwise("right", (8,), total(ins[26:]))
    out = m.pointwise("out", (8,), total([left, right]), "output")
    return m.program(out), [torch.randn(8) for _ in ins]


def conditions(rules: Sequence[FuseRule]) -> list[tuple[str, str, int]]:
    found = []
    for rule in rules:
        for number, condition in enumerate(rule.when):
            text = condition.text
            words = text.split("(")[0] if not text.startswith(("4 ", "scalars")) else ""
            name = words or next(w for w in ("shared", "common", "scalars") if w in text)
            found.append((rule.name, name, number))
    return found


def sound(program: Program, inputs: list[torch.Tensor], joined: Program) -> bool:
    """Whether `joined` gives what `program` gives and each nest could run in any order, on one
    device, within bounds."""
    try:
        expected = interpret(program, [tensor.clone() for tensor in inputs])
        got = interpret(joined, [tensor.clone() for tensor in inputs])
    except BadProgram:
        return False
    same = all(torch.allclose(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True))
    return same and all(
        well_formed(step, joined) for step in joined.steps if isinstance(step, Nest)
    )


def well_formed(nest: Nest, program: Program) -> bool:
    body = scalars(nest)
    loads = [scalar for scalar in body if scalar.op == "load"]
    names = {load.buffer for load in loads} | {store.buffer for store in nest.stores}
    places = {store.buffer: store.index for store in nest.stores}
    return (
        all(load.index == places.get(load.buffer, load.index) for load in loads)
        and len({program.buffers[name].device for name in places}) == 1
        and len(body) <= 400
        and len(nest.stores) <= 12
        and len(names) <= 48
    )


def test_every_condition_has_a_case(fusion_rules: Any) -> None:
    listed = {(rule, word) for rule, word, _ in conditions(fusion_rules)}
    assert listed == {*CASES, *TASTE}


@pytest.mark.parametrize("case", sorted({case.__name__: case for case in CASES.values()}.items()))
def test_rules_keep_the_program_sound(maker: Any, fusion_rules: Any, case: Any) -> None:
    program, inputs = case[1](maker)
    joined, _ = fuse(program, fusion_rules)
    assert sound(program, inputs, joined)


@pytest.mark.parametrize("key", CASES)
def test_without_the_condition_it_breaks(
    maker: Any, fusion_rules: Any, key: tuple[str, str]
) -> None:
    program, inputs = CASES[key](maker)
    (number,) = [n for rule, word, n in conditions(fusion_rules) if (rule, word) == key]
    rules = [without(rule, number) if rule.name == key[0] else rule for rule in fusion_rules]
    try:
        joined, _ = fuse(program, [rule for rule in rules if rule is not None])
    except CycleError:
        return
    assert not sound(program, inputs, joined)


def without(rule: FuseRule, number: int) -> FuseRule | None:
    """The rule without one condition; a `forbid` is dropped as a whole, as less of it would
    forbid more."""
    if rule.kind == "forbid":
        return None
    return replace(rule, when=(*rule.when[:number], *rule.when[number + 1 :]))
