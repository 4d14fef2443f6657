"""Fusion on hand-built programs: what joins, and that nothing changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sympy
import torch

from eqsat.engine.load import load_book
from eqsat.lowering.conditions import ConditionError
from eqsat.lowering.fuse import FusionReport, fuse
from eqsat.lowering.index import Gathered, Index, floor_div, remainder
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Nest, Program, Store
from eqsat.lowering.simplify import simplify

ROWS, WIDTH = 16, 8


def run(program: Program, *inputs: torch.Tensor) -> list[Any]:
    return [out.clone() for out in interpret(program, [tensor.clone() for tensor in inputs])]


def fused_equal(
    program: Program, rules: Any, *inputs: torch.Tensor
) -> tuple[Program, FusionReport]:
    """Fuses, checks that results are the same before, after and after clean-up."""
    joined, report = fuse(program, rules)
    expected = run(program, *inputs)
    for candidate in (joined, simplify(joined)):
        for got, want in zip(run(candidate, *inputs), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6, equal_nan=True)
    json.dumps(report.to_json())
    return joined, report


def nests(program: Program) -> list[Nest]:
    return [step for step in program.steps if isinstance(step, Nest)]


def softmax(m: Any, x: Any, name: str = "") -> Any:
    rows, width = x.shape
    top = m.reduction(f"{name}max", (rows,), (width,), "max", lambda i, j: m.load(x, i, j))
    exp = m.pointwise(
        f"{name}exp",
        (rows, width),
        lambda i, j: m.op("exp", m.op("sub", m.load(x, i, j), m.load(top, i))),
    )
    total = m.reduction(f"{name}sum", (rows,), (width,), "sum", lambda i, j: m.load(exp, i, j))
    return m.pointwise(
        f"{name}div", (rows, width), lambda i, j: m.op("div", m.load(exp, i, j), m.load(total, i))
    )


def double(m: Any, name: str, x: Any, role: str = "temp") -> Any:
    return m.pointwise(name, x.shape, lambda *at: m.op("add", m.load(x, *at), m.load(x, *at)), role)


def test_pointwise_chain(maker: Any, fusion_rules: Any) -> None:
    x = maker.input("x", (ROWS, WIDTH))
    out = x
    for number in range(5):
        out = double(maker, f"t{number}", out, "output" if number == 4 else "temp")
    joined, report = fused_equal(maker.program(out), fusion_rules, torch.randn(ROWS, WIDTH))
    (nest,) = nests(joined)
    assert nest.origins == ("t0", "t1", "t2", "t3", "t4")
    assert set(joined.buffers) == {"x", "t4"}
    assert {entry.rule for entry in report.joined} == {"pointwise-inline"}
    assert (report.before, report.after) == (5, 1)


def test_softmax_is_one_nest(maker: Any, fusion_rules: Any) -> None:
    x = maker.input("x", (ROWS, WIDTH))
    probabilities = softmax(maker, x)
    out = double(maker, "out", probabilities, "output")
    joined, _ = fused_equal(maker.program(out), fusion_rules, torch.randn(ROWS, WIDTH))
    (nest,) = nests(joined)
    assert [axis.size for axis in nest.axes] == [ROWS]
    assert [axis.size for axis in nest.raxes] == [WIDTH]
    assert len(nest.stores) == 1


def layer_norm(m: Any, x: Any, shape: tuple[int, ...], role: str = "output") -> Any:
    *rows, width = shape
    count = m.builder.const(float(width), "f32")
    total = m.reduction("total", rows, (width,), "sum", lambda *at: m.load(x, *at))
    mean = m.pointwise("mean", rows, lambda *at: m.op("div", m.load(total, *at), count))
    centred = m.pointwise(
        "centred", shape, lambda *at: m.op("sub", m.load(x, *at), m.load(mean, *at[:-1]))
    )
    square = m.pointwise("square", shape, lambda *at: m.op("square", m.load(centred, *at)))
    spread = m.reduction("spread", rows, (width,), "sum", lambda *at: m.load(square, *at))
    scale = m.pointwise("scale", rows, lambda *at: m.op("rsqrt", m.load(spread, *at)))
    return m.pointwise(
        "normal",
        shape,
        lambda *at: m.op("mul", m.load(centred, *at), m.load(scale, *at[:-1])),
        role,
    )


def test_residual_and_layer_norm_with_two_readers(maker: Any, fusion_rules: Any) -> None:
    x, y = maker.input("x", (4, 16, 8)), maker.input("y", (4, 16, 8))
    res = maker.pointwise(
        "res", (4, 16, 8), lambda *at: maker.op("add", maker.load(x, *at), maker.load(y, *at))
    )
    normal = layer_norm(maker, res, (4, 16, 8), "temp")
    matmul = maker.buffer("matmul", (4, 16, 8), "extern")
    maker.extern("sin", torch.ops.aten.sin.default, [normal], matmul)
    out = maker.pointwise(
        "out",
        (4, 16, 8),
        lambda *at: maker.op("add", maker.load(res, *at), maker.load(matmul, *at)),
        "output",
    )
    joined, report = fused_equal(
        maker.program(out), fusion_rules, torch.randn(4, 16, 8), torch.randn(4, 16, 8)
    )
    first, last = nests(joined)
    assert {store.buffer for store in first.stores} == {"res", "normal"}
    assert [len(nest.origins) for nest in (first, last)] == [8, 1]
    reasons = {(r.producer, r.consumer): r for r in report.rejected}
    assert reasons[first.name, last.name].rule == "around-another-step"
    assert reasons[first.name, last.name].values["reaches_around(producer, consumer)"] is True


def test_mean_and_scale_are_results_too(maker: Any, fusion_rules: Any) -> None:
    x = maker.input("x", (ROWS, WIDTH))
    normal = layer_norm(maker, x, (ROWS, WIDTH))
    scale, mean = maker.buffers["scale"], maker.buffers["mean"]
    maker.buffer("scale", scale.shape, "output")
    maker.buffer("mean", mean.shape, "output")
    joined, _ = fused_equal(
        maker.program(normal, scale, mean), fusion_rules, torch.randn(ROWS, WIDTH)
    )
    (nest,) = nests(joined)
    assert {store.buffer for store in nest.stores} == {"normal", "scale", "mean"}


@pytest.mark.parametrize("flat", [False, True])
def test_views_between_do_not_matter(maker: Any, fusion_rules: Any, flat: bool) -> None:
    """The reduction runs over (b, s) rows, its reader over (b*s, h, d) or over one flat axis."""
    b, s, h, d = 4, 5, 2, 3
    x = maker.input("x", (b, s, h * d))
    top = maker.reduction("top", (b, s), (h * d,), "max", lambda *at: maker.load(x, *at))

    def value(position: Any) -> Any:
        row, column = floor_div(position, h * d), remainder(position, h * d)
        at = floor_div(row, s), remainder(row, s)
        return maker.op("sub", maker.load(x, *at, column), maker.load(top, *at))

    if flat:
        out = maker.pointwise("out", (b * s * h * d,), value, "output")
    else:
        place = lambda t, i, j: t * (h * d) + i * d + j  # noqa: E731
        out = maker.pointwise("out", (b * s, h, d), lambda *at: value(place(*at)), "output")
    joined, _ = fused_equal(maker.program(out), fusion_rules, torch.randn(b, s, h * d))
    (nest,) = nests(joined)
    assert len(nest.stores) == 1


def test_group_norm_cuts_an_axis(maker: Any, fusion_rules: Any) -> None:
    n, groups, size, pixels = 4, 4, 3, 5
    x = maker.input("x", (n, groups * size, pixels))
    total = maker.reduction(
        "total",
        (n, groups),
        (size, pixels),
        "sum",
        lambda i, g, c, p: maker.load(x, i, g * size + c, p),
    )
    out = maker.pointwise(
        "out",
        (n, groups * size, pixels),
        lambda i, c, p: maker.op(
            "sub", maker.load(x, i, c, p), maker.load(total, i, floor_div(c, size))
        ),
        "output",
    )
    joined, _ = fused_equal(maker.program(out), fusion_rules, torch.randn(n, 12, pixels))
    (nest,) = nests(joined)
    assert sorted(axis.size for axis in nest.raxes) == [3, 5]


def test_columns_are_reduced_where_rows_are_inner(maker: Any, fusion_rules: Any) -> None:
    x = maker.input("x", (WIDTH, ROWS))
    total = maker.reduction("t", (ROWS,), (WIDTH,), "sum", lambda i, j: maker.load(x, j, i))
    out = maker.pointwise(
        "out",
        (WIDTH, ROWS),
        lambda j, i: maker.op("div", maker.load(x, j, i), maker.load(total, i)),
        "output",
    )
    joined, _ = fused_equal(maker.program(out), fusion_rules, torch.rand(WIDTH, ROWS) + 1)
    assert len(nests(joined)) == 1


def test_symbolic_sizes(maker: Any, fusion_rules: Any) -> None:
    rows = sympy.Symbol("s0", integer=True, positive=True)
    width = sympy.Symbol("s1", integer=True, positive=True)
    x = maker.input("x", (rows, width))
    probabilities = softmax(maker, x)
    flat = maker.pointwise(
        "flat",
        (rows * width,),
        lambda n: maker.load(probabilities, floor_div(n, width), remainder(n, width)),
        "output",
    )
    joined, _ = fused_equal(maker.program(flat), fusion_rules, torch.randn(5, 7))
    assert len(nests(joined)) == 1


def test_a_masked_load_takes_the_mask_along(maker: Any, fusion_rules: Any) -> None:
    """Padding of a computed value: outside, the producer's own loads must not happen."""
    m = maker
    x = m.input("x", (6,))
    half = m.pointwise("half", (6,), lambda i: m.op("exp", m.load(x, i)))

    def padded(i: Any) -> Any:
        inside = m.op(
            "logical_and",
            m.op(
                "ge",
                m.builder.make("index", (), "i64", index=(i,)),
                m.builder.const(2, "i64"),
                dtype="bool",
            ),
            m.op(
                "lt",
                m.builder.make("index", (), "i64", index=(i,)),
                m.builder.const(8, "i64"),
                dtype="bool",
            ),
            dtype="bool",
        )
        return m.masked(half, (i - 2,), inside, 7.0)

    out = m.pointwise("out", (10,), padded, "output")
    joined, _ = fused_equal(m.program(out), fusion_rules, torch.randn(6))
    assert len(nests(joined)) == 1


def test_a_producer_that_stays_is_copied_when_cheap(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (8,))
    row = m.pointwise("row", (8,), lambda i: m.op("neg", m.load(x, i)))
    sin = m.buffer("sin", (8,), "output")
    m.extern("call", torch.ops.aten.sin.default, [row], sin)
    out = m.pointwise("out", (16, 8), lambda i, j: m.op("abs", m.load(row, j)), "output")
    _, report = fused_equal(m.program(sin, out), fusion_rules, torch.randn(8))
    assert not report.joined  # eight bytes for eight bytes: nothing saved
    mask = m.pointwise("mask", (8,), lambda i: m.op("neg", m.builder.const(1.0, "f32")))
    cos = m.buffer("cos", (8,), "output")
    m.extern("call2", torch.ops.aten.cos.default, [mask], cos)
    out2 = m.pointwise("out2", (16, 8), lambda i, j: m.op("abs", m.load(mask, j)), "output")
    program = m.program(sin, out, cos, out2)
    _, report = fused_equal(program, fusion_rules, torch.randn(8))
    (entry,) = [e for e in report.joined if e.producer == "mask"]
    assert entry.rule == "pointwise-copy" and entry.copied


def test_sibling_reductions_and_several_results(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (ROWS, WIDTH))
    low = m.reduction("low", (ROWS,), (WIDTH,), "min", lambda *at: m.load(x, *at), "output")
    high = m.reduction("high", (ROWS,), (WIDTH,), "max", lambda *at: m.load(x, *at), "output")
    both = double(m, "both", x, "output")
    joined, report = fused_equal(m.program(low, high, both), fusion_rules, torch.randn(ROWS, WIDTH))
    (nest,) = nests(joined)
    assert len(nest.stores) == 3
    assert {entry.rule for entry in report.joined} <= {"neighbours", "siblings"}


def test_pointwise_neighbour_of_a_column_reduction(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (WIDTH, ROWS))
    total = m.reduction("t", (ROWS,), (WIDTH,), "sum", lambda i, j: m.load(x, j, i), "output")
    both = double(m, "both", x, "output")
    joined, _ = fused_equal(m.program(total, both), fusion_rules, torch.randn(WIDTH, ROWS))
    assert len(nests(joined)) == 1


def test_arg_reduction_shares_a_row(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (ROWS, 2, 4))
    top = m.reduction("top", (ROWS,), (2, 4), "argmax", lambda *at: m.load(x, *at), "output", "i64")
    total = m.reduction("total", (ROWS,), (2, 4), "sum", lambda *at: m.load(x, *at), "output")
    joined, _ = fused_equal(m.program(top, total), fusion_rules, torch.randn(ROWS, 2, 4))
    assert len(nests(joined)) == 1


def test_gather_reads_a_computed_table(maker: Any, fusion_rules: Any) -> None:
    m = maker
    from_table = m.input("table", (10, 4))
    which = m.input("which", (6,), dtype="i64")
    scaled = double(m, "scaled", from_table)

    def value(i: Any, j: Any) -> Any:
        return m.load(scaled, gathered(m.load(which, i), 10), j)

    out = m.pointwise("out", (6, 4), value, "output")
    joined, _ = fused_equal(
        m.program(out), fusion_rules, torch.randn(10, 4), torch.randint(0, 10, (6,))
    )
    (nest,) = nests(joined)
    assert len(nest.stores) == 1


def gathered(scalar: Any, size: int) -> Any:
    return Index(((Gathered(scalar, size), 1),))


@pytest.mark.parametrize(
    ("rows", "reader", "count"),
    [(4, "nest", 1), (8192, "nest", 1), (4, "call", 1), (8192, "call", 3)],
)
def test_parts_of_a_concatenation(
    maker: Any, fusion_rules: Any, rows: int, reader: str, count: int
) -> None:
    """One nest where a nest reads the whole; large parts of what a call needs stay apart."""
    m = maker
    x = m.input("x", (rows, 6))
    t = m.buffer("t", (rows, 6))
    box = (rows, 3), (rows, 2), (rows, 1)
    m.nest("low", box[0], (), lambda i, j: [Store("t", (i, j), m.op("neg", m.load(x, i, j + 3)))])
    m.nest("high", box[1], (), lambda i, j: [Store("t", (i, j + 3), m.load(x, i, j))])
    m.nest("last", box[2], (), lambda i, j: [Store("t", (i, j + 5), m.load(x, i, j + 2))])
    if reader == "nest":
        out = m.pointwise("out", (6, rows), lambda j, i: m.op("exp", m.load(t, i, j)), "output")
    else:
        out = m.buffer("out", (rows, 6), "output")
        m.extern("call", torch.ops.aten.sin.default, [t], out)
    joined, _ = fused_equal(m.program(out), fusion_rules, torch.randn(rows, 6))
    assert len(nests(joined)) == count
    assert ("t" in joined.buffers) == (reader == "call")


@pytest.mark.parametrize("size", [4, 512])
def test_parts_of_one_shape_run_side_by_side(maker: Any, fusion_rules: Any, size: int) -> None:
    """Three weights next to one another for one product: one loop with three stores."""
    m = maker
    parts = [m.input(name, (size, size)) for name in "abc"]
    wide = m.buffer("wide", (size, 3 * size))
    for place, part in enumerate(parts):

        def stores(i: Any, j: Any, part: Any = part, place: int = place) -> list[Store]:
            return [Store("wide", (i, j + place * size), m.load(part, j, i))]

        m.nest(f"part{place}", (size, size), (), stores)
    out = m.buffer("out", (size, 3 * size), "output")
    m.extern("call", torch.ops.aten.sin.default, [wide], out)
    inputs = [torch.randn(size, size) for _ in parts]
    joined, _ = fused_equal(m.program(out), fusion_rules, *inputs)
    assert len(nests(joined)) == 1


def test_slices_of_one_buffer_are_copied_together(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (8, 12))
    outs = [
        m.pointwise(name, (8, 4), lambda i, j, low=low: m.load(x, i, j + low), "output")
        for name, low in (("q", 0), ("k", 4), ("v", 8))
    ]
    joined, report = fused_equal(m.program(*outs), fusion_rules, torch.randn(8, 12))
    assert len(nests(joined)) == 1
    assert {entry.rule for entry in report.joined} == {"siblings"}


def test_a_long_chain_becomes_a_few_nests(maker: Any, fusion_rules: Any) -> None:
    x = maker.input("x", (4,))
    out = x
    for number in range(300):
        out = double(maker, f"t{number}", out, "output" if number == 299 else "temp")
    joined, report = fuse(maker.program(out), fusion_rules)
    assert 1 <= len(nests(joined)) <= 3
    assert report.before == 300


def test_input_is_written_after_its_readers(maker: Any, fusion_rules: Any) -> None:
    """x is read by a reduction that must run first, then written in place."""
    m = maker
    x = m.input("x", (ROWS, WIDTH))
    total = m.reduction("total", (ROWS,), (WIDTH,), "sum", lambda *at: m.load(x, *at), "output")
    more = double(m, "more", x)
    m.nest("write", (ROWS, WIDTH), (), lambda *at: [Store("x", at, m.load(more, *at))])
    program = m.program(total, x)
    joined, _ = fused_equal(program, fusion_rules, torch.randn(ROWS, WIDTH))
    assert nests(joined)[-1].stores[-1].buffer == "x"


def test_user_rules_forbid_and_prefer(maker: Any, fusion_rules: Any, tmp_path: Any) -> None:
    x = maker.input("x", (ROWS, WIDTH))
    mid = double(maker, "mid", x)
    out = double(maker, "out", mid, "output")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "- forbid: no-doubling\n  doc: Not here.\n  producer: pointwise\n  consumer: any\n"
        "  when:\n    - flops(producer) == 1\n"
        "- prefer: doubling\n  doc: Likes it.\n  producer: any\n  consumer: any\n"
        "  when:\n    - feeds(producer, consumer)\n  gain: 100000\n"
    )
    mine = load_book([path]).fuse
    _, report = fuse(maker.program(out), (*fusion_rules, *mine))
    (entry,) = report.rejected
    assert (entry.rule, entry.condition) == ("no-doubling", "flops(producer) == 1")
    assert entry.where == f"{path}:1" and entry.values == {"flops(producer)": 1}
    _, liked = fuse(maker.program(out), (*fusion_rules, mine[1]))
    assert liked.joined[0].gain > 100000


def test_unknown_fact_names_the_place(maker: Any, tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "- forbid: odd\n  doc: Odd.\n  producer: any\n  consumer: any\n"
        "  when:\n    - flop(producer) == 1\n"
    )
    x = maker.input("x", (4,))
    program = maker.program(double(maker, "out", x, "output"))
    with pytest.raises(ConditionError, match=r"mine.yaml:6:7.*flop.*did you mean 'flops'"):
        fuse(program, load_book([path]).fuse)


def test_empty_and_scalar_programs(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", ())
    mid = double(m, "mid", x)
    out = double(m, "out", mid, "output")
    y = m.input("y", (0, 3))
    none = double(m, "none", double(m, "some", y), "output")
    joined, _ = fused_equal(m.program(out, none), fusion_rules, torch.tensor(2.0), torch.ones(0, 3))
    assert len(nests(joined)) == 2


def test_running_statistics_are_written_where_they_are_made(maker: Any, fusion_rules: Any) -> None:
    """Batch norm in training: the mean of a channel, and the running one in place."""
    m = maker
    x, running = m.input("x", (6, 4, 5)), m.input("running", (4,))
    mean = m.reduction("mean", (4,), (6, 5), "sum", lambda c, n, p: m.load(x, n, c, p))
    out = m.pointwise(
        "out", (6, 4, 5), lambda n, c, p: m.op("sub", m.load(x, n, c, p), m.load(mean, c)), "output"
    )
    value = lambda c: m.op("add", m.load(running, c), m.load(mean, c))  # noqa: E731
    m.nest("write", (4,), (), lambda c: [Store("running", (c,), value(c))])
    joined, _ = fused_equal(
        m.program(out, running), fusion_rules, torch.randn(6, 4, 5), torch.randn(4)
    )
    (nest,) = nests(joined)
    assert {store.buffer for store in nest.stores} == {"out", "running"}


def test_a_row_is_normalised_in_place(maker: Any, fusion_rules: Any) -> None:
    m = maker
    x = m.input("x", (ROWS, WIDTH))
    top = m.reduction("top", (ROWS,), (WIDTH,), "max", lambda *at: m.load(x, *at))
    value = lambda i, j: m.op("sub", m.load(x, i, j), m.load(top, i))  # noqa: E731
    m.nest("write", (ROWS, WIDTH), (), lambda i, j: [Store("x", (i, j), value(i, j))])
    joined, _ = fused_equal(m.program(x), fusion_rules, torch.randn(ROWS, WIDTH))
    assert len(nests(joined)) == 1
