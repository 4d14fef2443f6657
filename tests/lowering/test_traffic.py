"""What no legal program does to memory: each mistake made once, in a program that was right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from eqsat.lowering.index import Axis, Index, as_index, floor_div, remainder
from eqsat.lowering.loops import Nest, Program, Store, View
from eqsat.lowering.regions import Box, filled_box, leaves_out, tried, whole_box
from eqsat.lowering.spec import problems
from eqsat.lowering.verify import VerifyError, check_program


def two_steps(maker: Any) -> Program:
    """t = -x; out = t + t, over 6 x 8."""
    x = maker.input("x", (6, 8))
    t = maker.pointwise("t", (6, 8), lambda *at: maker.op("neg", maker.load(x, *at)))
    twice = lambda *at: maker.op("add", maker.load(t, *at), maker.load(t, *at))  # noqa: E731
    return maker.program(maker.pointwise("out", (6, 8), twice, "output"))


def with_first(program: Program, change: Callable[[Nest], Nest]) -> Program:
    first, *rest = program.steps
    assert isinstance(first, Nest)
    return replace(program, steps=(change(first), *rest))


def shrunk_axis(nest: Nest) -> Nest:
    axis = nest.axes[1]
    small = Axis(axis.name, 7)
    index = (nest.stores[0].index[0], as_index(small))
    value = replace(nest.stores[0].value.args[0], index=index)
    value = replace(nest.stores[0].value, args=(value,))
    return replace(nest, axes=(nest.axes[0], small), stores=(Store("t", index, value),))


def moved_store(nest: Nest) -> Nest:
    store = nest.stores[0]
    return replace(nest, stores=(replace(store, index=(store.index[0], store.index[1] + 1)),))


def lost_axis(nest: Nest) -> Nest:
    store = nest.stores[0]
    return replace(nest, stores=(replace(store, index=(store.index[0], as_index(0))),))


def moved_load(nest: Nest) -> Nest:
    store = nest.stores[0]
    (load,) = store.value.args
    wrong = replace(load, index=(load.index[0], load.index[1] * 2))
    return replace(nest, stores=(replace(store, value=replace(store.value, args=(wrong,))),))


def stored_twice(nest: Nest) -> Nest:
    store = nest.stores[0]
    inner = Axis("k", 4)
    place = (store.index[0], as_index(inner))
    more = replace(store, index=place)
    return replace(nest, axes=(*nest.axes, inner), stores=(store, more))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (shrunk_axis, "out reads t from (0, 7) to (6, 8), which nobody wrote"),
        (moved_store, "outside a dim of t, 8"),
        (lost_axis, "several points write the same element of t"),
        (moved_load, "outside a dim of x, 8"),
        (stored_twice, "several points write the same element of t"),
    ],
)
def test_a_broken_nest_is_seen(maker: Any, change: Callable[[Nest], Nest], text: str) -> None:
    program = two_steps(maker)
    assert problems(program) == []
    found = problems(with_first(program, change))
    assert any(text in problem for problem in found), found


def test_a_missing_or_late_store_is_seen(maker: Any) -> None:
    program = two_steps(maker)
    late = replace(program, steps=program.steps[::-1])
    missing = replace(program, steps=program.steps[1:])
    for broken in (late, missing):
        assert any("before it is written" in problem for problem in problems(broken))
        with pytest.raises(VerifyError, match=r"after fuse.*before it is written"):
            check_program("fuse", broken)


def test_a_view_beyond_its_buffer_is_seen(maker: Any) -> None:
    program = two_steps(maker)
    for view in (
        View("out", (6, 8), (8, 1), 1),
        View("out", (6, 9), (8, 1)),
        View("out", (1,), (1,), -1),
    ):
        assert any("looks at out" in text for text in problems(replace(program, outputs=(view,))))
    fine = View("out", (6, 7), (8, 1), 1)
    assert problems(replace(program, outputs=(fine,))) == []


def test_pieces_have_to_fill_a_buffer(maker: Any) -> None:
    """cat of two pieces, and the same with a gap in between."""
    m = maker
    x, y = m.input("x", (3, 4)), m.input("y", (3, 2))
    t = m.buffer("t", (3, 6))
    m.nest("left", (3, 4), (), lambda i, j: [Store("t", (i, j), m.load(x, i, j))])
    m.nest("right", (3, 2), (), lambda i, j: [Store("t", (i, j + 4), m.load(y, i, j))])
    out = m.pointwise("out", (3, 6), lambda i, j: m.op("neg", m.load(t, i, j)), "output")
    program = m.program(out)
    assert problems(program) == []
    left = program.steps[0]
    assert isinstance(left, Nest)
    short = replace(left, axes=(left.axes[0], Axis(left.axes[1].name, 3)))
    short = replace(
        short, stores=tuple(_renamed(s, left.axes[1], short.axes[1]) for s in left.stores)
    )
    (found,) = problems(replace(program, steps=(short, *program.steps[1:])))
    assert "from (0, 3) to (3, 4), which nobody wrote" in found


def _renamed(store: Store, old: Axis, new: Axis) -> Store:
    places = tuple(as_index(new) if part == as_index(old) else part for part in store.index)
    load = replace(store.value, index=places)
    return replace(store, index=places, value=load)


def test_a_strided_store_leaves_gaps(maker: Any) -> None:
    m = maker
    x = m.input("x", (4,))
    t = m.buffer("t", (8,))
    m.nest("even", (4,), (), lambda i: [Store("t", (i * 2,), m.load(x, i))])
    out = m.pointwise("out", (8,), lambda i: m.load(t, i), "output")
    assert any("nobody wrote" in problem for problem in problems(m.program(out)))
    m.steps.insert(1, m.steps.pop())
    m.nest("odd", (4,), (), lambda i: [Store("t", (i * 2 + 1,), m.load(x, i))])
    m.steps.insert(1, m.steps.pop())
    assert problems(m.program(out)) == []


def test_overwriting_what_another_point_reads_is_seen(maker: Any) -> None:
    m = maker
    x = m.input("x", (8,))
    m.nest("flip", (8,), (), lambda i: [Store("x", (i,), m.load(x, i * -1 + 7))])
    assert any("other points overwrite" in problem for problem in problems(m.program(x)))
    m.steps.clear()
    m.nest("same", (8,), (), lambda i: [Store("x", (i,), m.op("neg", m.load(x, i)))])
    assert problems(m.program(x)) == []


def test_symbols_are_not_doubted(maker: Any) -> None:
    """What holds for some sizes only is left to the first call."""
    m = maker
    n = sympy.Symbol("n", integer=True, positive=True)
    x = m.input("x", (n, 8))
    t = m.buffer("t", (n * 8,))
    m.nest(
        "flat",
        (n * 8,),
        (),
        lambda i: [Store("t", (i,), m.load(x, floor_div(i, 8), remainder(i, 8)))],
    )
    program = m.program(m.pointwise("out", (n * 8,), lambda i: m.load(t, i), "output"))
    assert problems(program) == []
    beyond = with_first(program, lambda nest: _shifted(nest, n * 8))
    assert any("outside a dim of t" in problem for problem in problems(beyond))


def _shifted(nest: Nest, by: Any) -> Nest:
    store = nest.stores[0]
    return replace(nest, stores=(replace(store, index=(store.index[0] + by,)),))


SIZES = st.integers(1, 5)


@given(st.data())
def test_boxes_hold_what_points_fill(data: st.DataObject) -> None:
    """filled_box names exactly the elements that the points of a nest reach."""
    axes = tuple(Axis(f"i{k}", data.draw(SIZES)) for k in range(2))
    part = st.sampled_from([*map(as_index, axes), as_index(0)])
    index = tuple(
        data.draw(part) * data.draw(st.integers(1, 3))
        + data.draw(part)
        + data.draw(st.integers(0, 2))
        for _ in range(2)
    )
    shape = tuple(int(_top(part)) for part in index)
    box = filled_box(index, shape)
    places = tried(index, axes)
    assert places is not None
    marks = torch.zeros(shape, dtype=torch.bool)
    marks[tuple(places.T)] = True
    if box is not None:
        spans = tuple(slice(int(a), int(b)) for a, b in zip(box.low, box.high, strict=True))
        wanted = torch.zeros(shape, dtype=torch.bool)
        wanted[spans] = True
        assert torch.equal(marks, wanted)


def _top(part: Index) -> int:
    places = tried((part,), sorted({a for a, _ in part.terms if isinstance(a, Axis)}, key=str))
    return 1 + (int(places.max()) if places is not None else 0)


@given(st.lists(st.tuples(st.tuples(SIZES, SIZES), st.tuples(SIZES, SIZES)), max_size=5))
def test_what_boxes_leave_out(corners: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    boxes = [
        Box(low, tuple(a + b for a, b in zip(low, size, strict=True))) for low, size in corners
    ]
    marks = torch.zeros(6, 6, dtype=torch.bool)
    for box in boxes:
        marks[box.low[0] : box.high[0], box.low[1] : box.high[1]] = True
    left = leaves_out(whole_box((6, 6)), boxes)
    assert (left is None) == bool(marks.all())
    if left is not None:
        assert not marks[left.low[0] : left.high[0], left.low[1] : left.high[1]].any()
