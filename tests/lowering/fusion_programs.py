"""Small programs, each of which some condition of the fusion rules keeps right.

`PROGRAMS` maps names to functions that take a `Maker` and give a program with its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from eqsat.lowering.index import Gathered, Index
from eqsat.lowering.loops import Program, Store

Case = Callable[[Any], tuple[Program, list[torch.Tensor]]]
PROGRAMS: dict[str, Case] = {}


def program(case: Case) -> Case:
    PROGRAMS[case.__name__] = case
    return case


def zeros(m: Any, name: str, size: int) -> Any:
    """A buffer that is filled before something else is stored there."""
    out = m.buffer(name, (size,))
    m.nest(f"{name}_zero", (size,), (), lambda i: [Store(name, (i,), m.builder.const(0.0, "f32"))])
    return out


def twice(m: Any, x: Any, *at: Any) -> Any:
    return m.op("add", m.load(x, *at), m.load(x, *at))


@program
def other_rows(m: Any) -> Any:
    """Both read x, one of them only half of it."""
    x = m.input("x", (8,))
    whole = m.pointwise("whole", (8,), lambda i: twice(m, x, i), "output")
    half = m.pointwise("half", (4,), lambda i: twice(m, x, i), "output")
    return m.program(whole, half), [torch.randn(8)]


@program
def every_other(m: Any) -> Any:
    """Only even elements are written, and only they are read."""
    x = m.input("x", (8,))
    zeros(m, "t", 16)
    m.nest("spread", (8,), (), lambda i: [Store("t", (i * 2,), twice(m, x, i))])
    out = m.pointwise("out", (8,), lambda i: twice(m, m.buffers["t"], i * 2), "output")
    return m.program(out), [torch.randn(8)]


@program
def every_other_for_two(m: Any) -> Any:
    def value(i: Any) -> Any:
        return m.builder.make("cast", (m.builder.make("index", (), "i64", index=(i,)),), "f32")

    t = zeros(m, "t", 8)
    m.nest("spread", (4,), (), lambda i: [Store("t", (i * 2,), value(i))])
    out = m.pointwise("out", (16, 4), lambda i, j: m.op("neg", m.load(t, j * 2)), "output")
    also = m.pointwise("also", (16, 4), lambda i, j: m.op("abs", m.load(t, j * 2)), "output")
    return m.program(out, also), []


@program
def changed_in_between(m: Any) -> Any:
    """row is needed twice, and what it was made of is overwritten before the second time."""
    x = m.input("x", (8,))
    row = m.pointwise("row", (8,), lambda i: m.op("neg", m.load(x, i)))
    sin = m.buffer("sin", (8,), "extern")
    m.extern("call", torch.ops.aten.sin.default, [row], sin)
    m.nest("clear", (8,), (), lambda i: [Store("x", (i,), m.builder.const(5.0, "f32"))])
    out = m.pointwise(
        "out", (64, 8), lambda i, j: m.op("mul", m.load(row, j), m.load(x, j)), "output"
    )
    return m.program(sin, out), [torch.randn(8)]


@program
def added_to_in_between(m: Any) -> Any:
    """One of the two that a nest makes has changed by the time both are read."""
    x = m.input("x", (8,))
    old, sums = m.buffer("old", (8,)), m.buffer("sums", (8,))
    m.nest(
        "both",
        (8,),
        (),
        lambda i: [Store("old", (i,), twice(m, x, i)), Store("sums", (i,), twice(m, x, i))],
    )
    m.nest("more", (8,), (), lambda i: [Store("sums", (i,), m.load(x, i), "add")])
    out = m.pointwise(
        "out", (64, 8), lambda i, j: m.op("mul", m.load(old, j), m.load(sums, j)), "output"
    )
    return m.program(out), [torch.randn(8)]


@program
def nothing_to_reduce(m: Any) -> Any:
    """A value that is stored beside a reduction over no points is stored all the same."""
    x = m.input("x", (16, 1))
    t = m.pointwise("t", (16, 1), lambda i, j: twice(m, x, i, j))
    total = m.reduction("total", (16,), (0,), "sum", lambda i, j: m.load(t, i, j + 1), "output")
    out = m.pointwise("out", (16, 3), lambda i, j: m.op("neg", m.load(t, i, Index())), "output")
    return m.program(total, out), [torch.randn(16, 1)]


@program
def overlapping_parts(m: Any) -> Any:
    """The second part overwrites some of the first."""
    x, y = m.input("x", (4,)), m.input("y", (4,))
    t = m.buffer("t", (8,))
    m.nest("low", (4,), (), lambda i: [Store("t", (i,), twice(m, x, i))])
    m.nest("mid", (4,), (), lambda i: [Store("t", (i + 2,), twice(m, y, i))])
    m.nest("high", (2,), (), lambda i: [Store("t", (i + 6,), twice(m, y, i))])
    out = m.pointwise("out", (8,), lambda i: twice(m, t, i), "output")
    return m.program(out), [torch.randn(4), torch.randn(4)]


@program
def changed_around(m: Any) -> Any:
    x = m.input("x", (8,))
    old = m.pointwise("old", (8,), lambda i: twice(m, x, i))
    m.extern("clear", torch.ops.aten.zero_.default, [x], None, mutates=("x",))
    out = m.pointwise("out", (8,), lambda i: m.op("add", m.load(old, i), m.load(x, i)), "output")
    return m.program(out), [torch.randn(8)]


def row_sums(m: Any, role: str = "output") -> Any:
    x = m.input("x", (16, 8))
    return x, m.reduction("t", (16,), (8,), "sum", lambda *at: m.load(x, *at), role)


@program
def half_of_the_rows(m: Any) -> Any:
    x, total = row_sums(m)
    out = m.pointwise(
        "out", (8, 8), lambda i, j: m.op("sub", m.load(x, i, j), m.load(total, i)), "output"
    )
    return m.program(total, out), [torch.randn(16, 8)]


@program
def fewer_columns(m: Any) -> Any:
    x, total = row_sums(m)
    out = m.pointwise(
        "out", (16, 4), lambda i, j: m.op("sub", m.load(x, i, j), m.load(total, i)), "output"
    )
    return m.program(total, out), [torch.randn(16, 8)]


@program
def two_rows(m: Any) -> Any:
    x = m.input("x", (16, 8))
    total = m.reduction("t", (4, 4), (8,), "sum", lambda i, j, k: m.load(x, i * 4 + j, k))
    out = m.pointwise(
        "out", (4, 4), lambda i, j: m.op("sub", m.load(total, i, j), m.load(total, j, i)), "output"
    )
    return m.program(out), [torch.randn(16, 8)]


@program
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


@program
def pointwise_after_a_call(m: Any) -> Any:
    x, total = row_sums(m, "temp")
    sin = m.buffer("sin", (16,), "extern")
    m.extern("call", torch.ops.aten.sin.default, [total], sin)
    out = m.pointwise(
        "out", (16, 8), lambda i, j: m.op("add", m.load(x, i, j), m.load(sin, i)), "output"
    )
    return m.program(out), [torch.randn(16, 8)]


@program
def sums_of_other_widths(m: Any) -> Any:
    x, total = row_sums(m)
    less = m.reduction("less", (16,), (4,), "sum", lambda *at: m.load(x, *at), "output")
    return m.program(total, less), [torch.randn(16, 8)]


@program
def two_devices(m: Any) -> Any:
    """A number in host memory is added to two tensors, one of them elsewhere."""
    x = m.input("x", ())
    near = m.pointwise("near", (2,), lambda i: twice(m, x), "output")
    far = m.pointwise("far", (2,), lambda i: m.op("neg", m.load(x)), "output")
    m.buffers["far"] = replace(far, device="cuda:0")
    return m.program(near, far), [torch.randn(())]


@program
def added_to(m: Any) -> Any:
    x, y = m.input("x", (8,)), m.input("y", (8,))
    t = m.pointwise("t", (8,), lambda i: twice(m, x, i))
    m.nest("more", (8,), (), lambda i: [Store("t", (i,), m.load(y, i), "add")])
    out = m.pointwise("out", (8,), lambda i: twice(m, t, i), "output")
    return m.program(out), [torch.randn(8), torch.randn(8)]


def put(m: Any, name: str, sizes: tuple[int, int], place: Any, value: Any) -> Any:
    """A buffer of 4 with `value` at each point put where `place` says, the last one staying."""
    out = m.buffer(name, (4,), "output")
    row = lambda i, j: Index(((Gathered(m.load(place, i, j), 4), 1),))  # noqa: E731
    m.nest(f"{name}_zero", (4,), (), lambda i: [Store(name, (i,), m.builder.const(0.0, "f32"))])
    m.nest(f"{name}_put", sizes, (), lambda i, j: [Store(name, (row(i, j),), value(i, j))])
    return out


@program
def put_beside_a_transpose(m: Any) -> Any:
    x, ids = m.input("x", (4, 8)), m.input("ids", (4, 8), dtype="i64")
    out = put(m, "out", (4, 8), ids, lambda i, j: m.load(x, i, j))
    turned = m.pointwise("turned", (8, 4), lambda i, j: twice(m, x, j, i), "output")
    return m.program(out, turned), [torch.randn(4, 8), torch.randint(0, 4, (4, 8))]


@program
def put_scaled_columns(m: Any) -> Any:
    x, ids = m.input("x", (4, 8)), m.input("ids", (4, 8), dtype="i64")
    total = m.reduction("total", (8,), (4,), "sum", lambda i, r: m.load(x, r, i))
    value = lambda i, j: m.op("mul", m.load(x, i, j), m.load(total, j))  # noqa: E731
    out = put(m, "out", (4, 8), ids, value)
    return m.program(out), [torch.randn(4, 8), torch.randint(0, 4, (4, 8))]


@program
def turned_in_place(m: Any) -> Any:
    x = m.input("x", (4, 4))
    t = m.pointwise("t", (4, 4), lambda i, j: twice(m, x, i, j))
    m.nest("write", (4, 4), (), lambda i, j: [Store("x", (i, j), m.load(t, j, i))])
    return m.program(x), [torch.randn(4, 4)]


@program
def sums_around_a_call(m: Any) -> Any:
    """The last sum may run with the first, and then must run before the one in the middle."""
    x, first = row_sums(m, "temp")
    sin = m.buffer("sin", (16,), "extern")
    m.extern("call", torch.ops.aten.sin.default, [first], sin)
    value = lambda i, j: m.op("mul", m.load(x, i, j), m.load(sin, i))  # noqa: E731
    middle = m.reduction("middle", (16,), (8,), "sum", value, "output")
    last = m.reduction("last", (16,), (8,), "max", lambda *at: m.load(x, *at), "output")
    return m.program(middle, last), [torch.randn(16, 8)]


@program
def every_other_beside(m: Any) -> Any:
    """Like `every_other`, with a reader that has the same shape and reads the same memory."""
    x = m.input("x", (8,))
    zeros(m, "t", 16)
    m.nest("spread", (8,), (), lambda i: [Store("t", (i * 2,), twice(m, x, i))])
    t = m.buffers["t"]
    out = m.pointwise("out", (8,), lambda i: m.op("add", m.load(t, i * 2), m.load(x, i)), "output")
    return m.program(out), [torch.randn(8)]


@program
def parts_of_one_shape(m: Any) -> Any:
    """Three parts of what a call reads, side by side."""
    parts = [m.input(name, (4, 4)) for name in "abc"]
    t = m.buffer("t", (4, 12))
    for place, part in enumerate(parts):

        def stores(i: Any, j: Any, part: Any = part, place: int = place) -> list[Store]:
            return [Store("t", (i, j + place * 4), twice(m, part, j, i))]

        m.nest(f"part{place}", (4, 4), (), stores)
    out = m.buffer("out", (4, 12), "extern")
    m.extern("call", torch.ops.aten.sin.default, [t], out)
    return m.program(out), [torch.randn(4, 4) for _ in parts]


@program
def running_mean(m: Any) -> Any:
    """A statistic of a row is also written in place, where rows read the old one."""
    x, total = row_sums(m, "temp")
    running = m.input("running", (16,))
    out = m.pointwise(
        "out",
        (16, 8),
        lambda i, j: m.op(
            "sub", m.load(x, i, j), m.op("add", m.load(total, i), m.load(running, i))
        ),
        "output",
    )
    value = lambda i: m.op("add", m.load(running, i), m.load(total, i))  # noqa: E731
    m.nest("write", (16,), (), lambda i: [Store("running", (i,), value(i))])
    return m.program(out, running), [torch.randn(16, 8), torch.randn(16)]


@program
def softmax(m: Any) -> Any:
    x = m.input("x", (6, 5))
    top = m.reduction("top", (6,), (5,), "max", lambda *at: m.load(x, *at))
    exp = lambda i, j: m.op("exp", m.op("sub", m.load(x, i, j), m.load(top, i)))  # noqa: E731
    total = m.reduction("total", (6,), (5,), "sum", exp)
    out = m.pointwise(
        "out", (6, 5), lambda i, j: m.op("div", exp(i, j), m.load(total, i)), "output"
    )
    return m.program(out), [torch.randn(6, 5)]
