"""Index arithmetic against plain integers."""

from __future__ import annotations

import itertools
from typing import Any

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsat.lowering.index import (
    Axis,
    Index,
    Quotient,
    Remainder,
    as_index,
    axes_of,
    bounds,
    flatten,
    floor_div,
    remainder,
    row_major,
    substitute,
    unflatten,
)

Points = dict[Axis, int]


def value(index: Index, at: Points, symbols: dict[Any, int] | None = None) -> int:
    """The index at one point of the iteration space."""

    def number(size: Any) -> int:
        return size if isinstance(size, int) else int(size.subs(symbols or {}))

    total = number(index.const)
    for atom, size in index.terms:
        match atom:
            case Axis():
                part = at[atom]
            case Quotient(value=inner, divisor=divisor):
                part = value(inner, at, symbols) // number(divisor)
            case Remainder(value=inner, divisor=divisor):
                part = value(inner, at, symbols) % number(divisor)
            case _:
                raise AssertionError(atom)
        total += number(size) * part
    return total


def points(axes: list[Axis]) -> list[Points]:
    ranges = [range(axis.size) for axis in axes]
    return [dict(zip(axes, at, strict=True)) for at in itertools.product(*ranges)]


AXES = [Axis("i", 3), Axis("j", 4), Axis("k", 5)]


@st.composite
def indices(draw: Any) -> Index:
    total = as_index(draw(st.integers(-9, 9)))
    for axis in AXES:
        total = total + as_index(axis) * draw(st.integers(-6, 12))
    for _ in range(draw(st.integers(0, 3))):
        divisor = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 12]))
        made = floor_div(total, divisor) if draw(st.booleans()) else remainder(total, divisor)
        total = made * draw(st.integers(1, 6)) + total * draw(st.integers(0, 1))
    return total


@given(indices(), indices(), st.integers(1, 13))
@settings(max_examples=150, deadline=None)
def test_arithmetic_means_what_it_says(a: Index, b: Index, divisor: int) -> None:
    made = [(a + b), (a - b), a * divisor, floor_div(a, divisor), remainder(a, divisor)]
    for at in points(AXES):
        x, y = value(a, at), value(b, at)
        expected = [x + y, x - y, x * divisor, x // divisor, x % divisor]
        assert [value(index, at) for index in made] == expected


@given(indices())
@settings(max_examples=100, deadline=None)
def test_bounds_hold(a: Index) -> None:
    low, high = bounds(a)
    assert all(low <= value(a, at) <= high for at in points(AXES))


@given(indices(), indices())
@settings(max_examples=100, deadline=None)
def test_substitution_replaces_axes_everywhere(a: Index, b: Index) -> None:
    made = substitute(a, {AXES[0]: b})
    for at in points(AXES):
        if 0 <= value(b, at) < 3:
            assert value(made, at) == value(a, {**at, AXES[0]: value(b, at)})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_unflatten_undoes_flatten(shape: list[int]) -> None:
    axes = [Axis(f"i{n}", size) for n, size in enumerate(shape)]
    index = tuple(as_index(axis) for axis in axes)
    flat = flatten(index, row_major(tuple(shape)))
    assert unflatten(flat, tuple(shape)) == index


def test_symbolic_shapes_simplify() -> None:
    n, m = sympy.symbols("n m", integer=True, positive=True)
    axes = [Axis("i", n), Axis("j", m), Axis("k", 4)]
    index = tuple(as_index(axis) for axis in axes)
    flat = flatten(index, row_major((n, m, 4)))
    assert unflatten(flat, (n, m, 4)) == index
    assert str(floor_div(flat, 4 * m)) == "i"
    assert str(remainder(flat, 4)) == "k"
    assert axes_of(floor_div(flat, 3)) == set(axes)


def test_an_axis_of_size_one_is_zero() -> None:
    assert as_index(Axis("i", 1)) == as_index(0)
