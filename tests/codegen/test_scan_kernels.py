"""Kernels with scans, and pointwise kernels cut into regions, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch

from eqsat.codegen.cpp import KernelText, emit_nest
from eqsat.codegen.cpp_regions import Turn, turn_of
from eqsat.lowering.index import Axis, as_index
from eqsat.lowering.loops import Builder, Scalar
from eqsat.tests.codegen.drafts import (
    INF,
    NAN,
    Draft,
    check,
    compile_texts,
    random,
    scalar_table,
)

CASES: dict[str, Callable[[], Draft]] = {}


def case(make: Callable[[], Draft]) -> Callable[[], Draft]:
    CASES[make.__name__] = make
    return make


def scan(d: Draft, kind: str, x: Scalar) -> Scalar:
    dtype = "i64" if kind.startswith("arg") else x.dtype
    return d.make("scan", x, dtype=dtype, value=kind)


def spoiled(*shape: int) -> torch.Tensor:
    x = random(*shape)
    x[0, 1], x[1, 2], x[2, 0], x[3, ::5] = NAN, INF, -INF, -0.0
    return x


@case
def sums_along_rows() -> Draft:
    d = Draft(tolerance=1e-6)
    d.tensor("x", spoiled(9, 71)), d.tensor("o", torch.empty(9, 71))
    i, k = d.over(9, 71, reduce=1)
    total = scan(d, "sum", d.builder.cast(d.load("x", i, k), "f64"))
    d.store("o", i, k, value=d.builder.cast(total, "f32"))
    return d


@case
def sum_and_product_at_once() -> Draft:
    d = Draft(tolerance=1e-6)
    d.tensor("x", random(5, 40)), d.tensor("o", torch.empty(5, 40))
    i, k = d.over(5, 40, reduce=1)
    x = d.load("x", i, k)
    value = d.make("add", scan(d, "sum", x), scan(d, "prod", d.make("cos", x)))
    d.store("o", i, k, value=d.make("mul", value, x))
    return d


@case
def extremes_and_places() -> Draft:
    d = Draft()
    d.tensor("x", spoiled(6, 33)), d.tensor("o", torch.empty(4, 6, 33))
    i, k = d.over(6, 33, reduce=1)
    x = d.load("x", i, k)
    for place, kind in enumerate(("max", "argmax", "argmin", "min")):
        d.store("o", place, i, k, value=d.builder.cast(scan(d, kind, x), "f32"))
    return d


@case
def logarithms_along_columns() -> Draft:
    d = Draft(tolerance=1e-6)
    d.tensor("x", spoiled(12, 70)), d.tensor("o", torch.empty(12, 70))
    k, i = Axis("r", 12), Axis("p", 70)
    d.axes, d.raxes = (i,), (k,)
    d.store("o", k, i, value=scan(d, "logaddexp", d.load("x", k, i)))
    return d


@case
def columns_with_a_result_per_column() -> Draft:
    d = Draft(tolerance=1e-5)
    (
        d.tensor("x", random(30, 70)),
        d.tensor("o", torch.empty(30, 70)),
        d.tensor("s", torch.empty(70)),
    )
    k, i = Axis("r", 30), Axis("p", 70)
    d.axes, d.raxes = (i,), (k,)
    running = scan(d, "sum", d.load("x", k, i))
    d.store("o", k, i, value=running)
    d.store("s", i, value=d.reduce("max", running))
    return d


@case
def behind_a_reduction_in_rows_that_are_kept() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("x", random(8, 90)), d.tensor("o", torch.empty(8, 90))
    i, k = d.over(8, 90, reduce=1)
    power = d.make("exp", d.load("x", i, k))
    share = d.make("div", power, d.reduce("sum", power))
    d.store("o", i, k, value=scan(d, "sum", share))
    return d


@case
def a_scan_read_again_by_a_later_pass() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("x", random(8, 90)), d.tensor("o", torch.empty(8, 90))
    i, k = d.over(8, 90, reduce=1)
    running = scan(d, "sum", d.load("x", i, k))
    d.store("o", i, k, value=d.make("div", running, d.reduce("max", d.make("abs", running))))
    return d


@case
def of_what_does_not_move() -> Draft:
    d = Draft()
    d.tensor("x", random(6)), d.tensor("o", torch.empty(6, 20))
    i, k = d.over(6, 20, reduce=1)
    d.store("o", i, k, value=scan(d, "max", d.load("x", i)))
    return d


@case
def over_two_axes_in_order() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("x", random(3, 7, 9)), d.tensor("o", torch.empty(3, 7, 9))
    i, j, k = d.over(3, 7, 9, reduce=2)
    d.store("o", i, j, k, value=scan(d, "sum", d.load("x", i, j, k)))
    return d


@case
def one_long_row() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("x", random(1, 50_001)), d.tensor("o", torch.empty(1, 50_001))
    i, k = d.over(1, 50_001, reduce=1)
    total = scan(d, "sum", d.builder.cast(d.load("x", i, k), "f64"))
    d.store("o", i, k, value=d.builder.cast(total, "f32"))
    return d


@case
def rows_of_unknown_length() -> Draft:
    d = Draft(tolerance=1e-5)
    size = sympy.Symbol("n", integer=True, positive=True)
    d.tensor("x", random(4, 37), (4, size), (size, 1))
    d.tensor("o", torch.empty(4, 37), (4, size), (size, 1))
    d.symbols = {"n": 37}
    i, k = d.over(4, size, reduce=1)
    d.store("o", i, k, value=scan(d, "sum", d.load("x", i, k)))
    return d


def padded(d: Draft, rows: int, columns: int) -> None:
    """A border of one around an image, and a comparison that always holds."""
    d.tensor("x", random(rows, columns))
    d.tensor("o", torch.empty(rows + 2, columns + 2))
    i, j = d.over(rows + 2, columns + 2)
    one, zero = d.const(1, "i64"), d.const(0.5)
    tests = [
        d.make("ge", d.position(i), one, dtype="bool"),
        d.make("lt", d.position(i), d.const(rows + 1, "i64"), dtype="bool"),
        d.make("gt", d.position(j), d.const(0, "i64"), dtype="bool"),
        d.make("ge", d.position(as_index(columns) - as_index(j)), d.const(0, "i64"), dtype="bool"),
        d.make("le", d.position(j), d.const(columns, "i64"), dtype="bool"),
        d.make("lt", d.position(j), d.const(10**6, "i64"), dtype="bool"),
    ]
    mask = tests[0]
    for test in tests[1:]:
        mask = d.make("logical_and", mask, test, dtype="bool")
    place = as_index(i) - 1, as_index(j) - 1
    d.store("o", i, j, value=d.masked("x", mask, zero, *place))


@case
def a_border() -> Draft:
    d = Draft()
    padded(d, 17, 23)
    return d


@case
def a_border_of_a_row_cut_into_tiles() -> Draft:
    d = Draft()
    padded(d, 1, 60_000)
    return d


@case
def a_border_that_leaves_nothing_inside() -> Draft:
    d = Draft()
    padded(d, 1, 1)
    return d


@pytest.fixture(scope="module")
def kernels() -> dict[str, tuple[Draft, KernelText, object]]:
    drafts = {name: make() for name, make in CASES.items()}
    texts = {
        name: emit_nest(draft.nest, draft.buffers, scalar_table()) for name, draft in drafts.items()
    }
    built = compile_texts(texts)
    return {name: (draft, texts[name], built[name]) for name, draft in drafts.items()}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_interpreter(
    name: str, kernels: dict[str, tuple[Draft, KernelText, object]]
) -> None:
    check(*kernels[name])


def test_sums_are_scanned_in_lanes(kernels: dict[str, tuple[Draft, KernelText, object]]) -> None:
    assert "inscan" in kernels["sums_along_rows"][1].text
    assert "inscan" not in kernels["extremes_and_places"][1].text


def test_the_inside_has_a_loop_without_a_mask(
    kernels: dict[str, tuple[Draft, KernelText, object]],
) -> None:
    text = kernels["a_border"][1].text
    assert "i1 = 1; i1 < 24" in text and "if (i0 < 1)" in text


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("step", [-3, -1, 1, 2])
@pytest.mark.parametrize("limit", [-4, 0, 3, 7])
def test_a_turn_is_where_the_comparison_turns(op: str, step: int, limit: int) -> None:
    builder, axis = Builder(), Axis("i", 9)
    position = builder.make("index", (), "i64", index=(as_index(axis) * step + 5,))
    test = builder.make(op, (position, builder.const(limit, "i64")), "bool")
    turn = turn_of(test)
    assert isinstance(turn, Turn)
    holds = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}[op]
    for point in range(axis.size):
        assert holds(step * point + 5, limit) == (
            turn.before if point < turn.at else not turn.before
        )
