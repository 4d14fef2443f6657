"""Loop axes after clean-up: fewer, better ordered, same results."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from eqsat.lowering.index import flatten, floor_div, remainder
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Nest, Program, Store
from eqsat.lowering.simplify import simplify


def simplified(program: Program, *inputs: torch.Tensor) -> Nest:
    """The last nest after clean-up, which must not have changed any result."""
    after = simplify(program)
    expected = interpret(program, [tensor.clone() for tensor in inputs])
    for got, want in zip(interpret(after, list(inputs)), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)
    nest = after.steps[-1]
    assert isinstance(nest, Nest)
    return nest


def sizes(nest: Nest) -> tuple[list[Any], list[Any]]:
    return [axis.size for axis in nest.axes], [axis.size for axis in nest.raxes]


def test_axes_of_size_one_go(maker: Any) -> None:
    x = maker.input("x", (1, 5, 1))
    out = maker.pointwise("out", (1, 5, 1), lambda *at: maker.load(x, *at), "output")
    nest = simplified(maker.program(out), torch.randn(1, 5, 1))
    assert sizes(nest) == ([5], [])
    assert [axis.name for axis in nest.axes] == ["i0"]


def test_a_reduction_over_one_point_stays_one(maker: Any) -> None:
    x = maker.input("x", (3, 1))
    out = maker.reduction("out", (3,), (1,), "sum", lambda i, j: maker.load(x, i, j), "output")
    assert len(simplified(maker.program(out), torch.randn(3, 1)).raxes) == 1


def test_contiguous_axes_merge(maker: Any) -> None:
    x, y = maker.input("x", (2, 3, 4)), maker.input("y", (2, 3, 4))
    out = maker.pointwise(
        "out",
        (2, 3, 4),
        lambda *at: maker.op("add", maker.load(x, *at), maker.load(y, *at)),
        "output",
    )
    nest = simplified(maker.program(out), torch.randn(2, 3, 4), torch.randn(2, 3, 4))
    assert sizes(nest) == ([24], [])
    assert str(flatten(nest.stores[0].index, (12, 4, 1))) == "i0"


def test_a_broadcast_stops_merging(maker: Any) -> None:
    x, y = maker.input("x", (2, 3, 4)), maker.input("y", (4,))
    out = maker.pointwise(
        "out",
        (2, 3, 4),
        lambda i, j, k: maker.op("add", maker.load(x, i, j, k), maker.load(y, k)),
        "output",
    )
    nest = simplified(maker.program(out), torch.randn(2, 3, 4), torch.randn(4))
    assert sizes(nest) == ([6, 4], [])


def test_strides_decide(maker: Any) -> None:
    """A slice of a wider tensor: rows do not follow each other in memory."""
    x = maker.input("x", (4, 3), stride=(5, 1))
    out = maker.pointwise("out", (4, 3), lambda *at: maker.load(x, *at), "output")
    nest = simplified(maker.program(out), torch.randn(4, 5)[:, :3])
    assert sizes(nest) == ([4, 3], [])


def test_the_store_walks_one_by_one(maker: Any) -> None:
    x = maker.input("x", (4, 6))
    out = maker.buffer("out", (6, 4), "output")
    maker.nest("turn", (4, 6), (), lambda i, j: [Store("out", (j, i), maker.load(x, i, j))])
    nest = simplified(maker.program(out), torch.randn(4, 6))
    assert sizes(nest) == ([6, 4], [])


def test_reduced_axes_follow_the_load(maker: Any) -> None:
    x = maker.input("x", (3, 4, 5))
    out = maker.reduction(
        "out", (4,), (5, 3), "sum", lambda i, k, j: maker.load(x, j, i, k), "output"
    )
    nest = simplified(maker.program(out), torch.randn(3, 4, 5))
    assert sizes(nest) == ([4], [3, 5])


def test_arg_reductions_keep_their_order(maker: Any) -> None:
    x = maker.input("x", (3, 4, 5))
    out = maker.reduction(
        "out", (4,), (5, 3), "argmax", lambda i, k, j: maker.load(x, j, i, k), "output", "i64"
    )
    nest = simplified(maker.program(out), torch.randn(3, 4, 5))
    assert sizes(nest) == ([4], [5, 3])


def test_pieces_of_an_axis_become_axes(maker: Any) -> None:
    x = maker.input("x", (4, 6))
    out = maker.pointwise(
        "out", (24,), lambda n: maker.load(x, remainder(n, 4), floor_div(n, 4)), "output"
    )
    nest = simplified(maker.program(out), torch.randn(4, 6))
    # 4 is too short an inner loop to give up one long walk through `out`
    assert sizes(nest) == ([24], [])


@pytest.mark.parametrize("inner", [16, 5])
def test_only_long_pieces_are_cut_off(maker: Any, inner: int) -> None:
    x = maker.input("x", (inner, 6))
    value = lambda n: maker.load(x, remainder(n, inner), floor_div(n, inner))  # noqa: E731
    out = maker.pointwise("out", (6 * inner,), value, "output")
    nest = simplified(maker.program(out), torch.randn(inner, 6))
    assert sizes(nest) == (([6, inner], []) if inner == 16 else ([6 * inner], []))


def test_an_axis_used_only_in_pieces_is_always_cut(maker: Any) -> None:
    x = maker.input("x", (6, 4), stride=(5, 1))
    maker.buffer("out", (4, 6), "output")

    def stores(n: Any) -> list[Store]:
        slow, fast = floor_div(n, 4), remainder(n, 4)
        return [Store("out", (fast, slow), maker.load(x, slow, fast))]

    maker.nest("turn", (24,), (), stores)
    program = maker.program(maker.buffers["out"])
    assert sizes(simplified(program, torch.randn(6, 5)[:, :4])) == ([4, 6], [])


def test_symbolic_sizes(maker: Any) -> None:
    rows = sympy.Symbol("s0", integer=True, positive=True)
    width = sympy.Symbol("s1", integer=True, positive=True)
    x = maker.input("x", (rows, width))
    out = maker.pointwise("out", (rows, 1, width), lambda i, j, k: maker.load(x, i, k), "output")
    nest = simplified(maker.program(out), torch.randn(3, 7))
    assert [axis.size for axis in nest.axes] == [rows * width]


def test_index_values_stop_merging(maker: Any) -> None:
    m = maker
    x = m.input("x", (3, 4))

    def value(i: Any, j: Any) -> Any:
        row = m.builder.make("index", (), "i64", index=(i,))
        return m.op("mul", m.load(x, i, j), m.builder.cast(row, "f32"))

    out = m.pointwise("out", (3, 4), value, "output")
    assert sizes(simplified(m.program(out), torch.randn(3, 4))) == ([3, 4], [])


def test_equal_nests_stay_equal(maker: Any) -> None:
    """Names depend on places alone, so that equal kernels are found to be equal."""
    x = maker.input("x", (2, 1, 3))
    one = maker.pointwise("one", (2, 1, 3), lambda *at: maker.load(x, *at), "output")
    two = maker.pointwise("two", (2, 1, 3), lambda *at: maker.load(x, *at), "output")
    first, second = simplify(maker.program(one, two)).steps
    assert isinstance(first, Nest) and isinstance(second, Nest)
    assert first.axes == second.axes
    assert first.stores[0].index == second.stores[0].index
