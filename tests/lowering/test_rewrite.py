"""Rewriting scalars: axes moved, loads replaced, gathered indices followed."""

from __future__ import annotations

import sys

from eqsat.lowering.index import Axis, Gathered, Index, as_index
from eqsat.lowering.loops import Buffer, Builder, Nest, Scalar, Store
from eqsat.lowering.ranges import inside, interval
from eqsat.lowering.rewrite import Rewriter, rewrite, rewrite_nest

I, J = Axis("i", 8), Axis("j", 4)  # noqa: E741
DATA = Buffer("data", "f32", (8,), (1,))
TABLE = Buffer("table", "i64", (8,), (1,))


def gathered(builder: Builder) -> Scalar:
    """data[table[i]]"""
    row = builder.load(TABLE, (as_index(I),))
    return builder.load(DATA, (Index(((Gathered(row, 8), 1),)),))


def test_axes_move_inside_gathered_indices() -> None:
    builder = Builder()
    made = rewrite(gathered(builder), builder, {I: as_index(J) * 2})
    ((atom, _),) = made.index[0].terms
    assert isinstance(atom, Gathered)
    assert atom.scalar.index == (as_index(J) * 2,)


def test_a_gathered_load_is_replaced_by_plain_arithmetic() -> None:
    builder = Builder()

    def replace(load: Scalar) -> Scalar | None:
        if load.buffer != "table":
            return None
        return builder.make("index", (), "i64", index=(load.index[0] + 1,))

    made = rewrite(gathered(builder), builder, {}, replace)
    assert made.index == (as_index(I) + 1,)


def test_equal_scalars_stay_shared() -> None:
    builder = Builder()
    x = builder.load(DATA, (as_index(I),))
    twice = builder.make("add", (x, x), "f32")
    made = rewrite(twice, builder, {I: as_index(J)})
    assert made.args[0] is made.args[1]
    assert rewrite(twice, builder, {}) is twice


def test_a_chain_may_be_longer_than_the_stack() -> None:
    builder = Builder()
    value = builder.load(DATA, (as_index(I),))
    for _ in range(sys.getrecursionlimit() * 3):
        value = builder.make("neg", (value,), "f32")
    made = rewrite(value, builder, {I: as_index(J)})
    assert made is not value and made.op == "neg"


def test_a_nest_moves_as_a_whole() -> None:
    builder = Builder()
    store = Store("out", (as_index(I),), builder.load(DATA, (as_index(I),)))
    nest = Nest("n", (I,), (), (store,), ("n",), ("a.yaml:1 r",))
    made = rewrite_nest(nest, builder, {I: as_index(J)}, (J,), ())
    assert made.axes == (J,) and made.origins == ("n",) and made.rules == nest.rules
    assert made.stores[0].index == (as_index(J),) == made.stores[0].value.index


def test_masks_are_rewritten_too() -> None:
    builder = Builder()
    place = builder.make("index", (), "i64", index=(as_index(I),))
    mask = builder.make("lt", (place, builder.const(3, "i64")), "bool")
    args = (mask, builder.const(0.0, "f32"))
    load = builder.make("load", args, "f32", buffer="data", index=(as_index(I),))
    made = Rewriter(builder, {I: as_index(J)}).scalar(load)
    assert made.args[0].args[0].index == (as_index(J),)


def test_ranges_follow_arithmetic() -> None:
    builder = Builder()
    place = builder.make("index", (), "i64", index=(as_index(I) * 2 + 1,))
    unknown = builder.load(TABLE, (as_index(I),))
    low, high = builder.const(-2, "i64"), builder.const(5, "i64")
    clamped = builder.make("minimum", (builder.make("maximum", (unknown, low), "i64"), high), "i64")
    assert interval(place, {}) == (1, 15)
    assert interval(unknown, {}) is None
    assert interval(unknown, {"table": (0, 7)}) == (0, 7)
    assert interval(clamped, {"table": (-9, 99)}) == (-2, 5)
    assert interval(builder.make("remainder", (unknown, high), "i64"), {"table": (0, 7)}) == (0, 4)
    assert inside((0, 7), 8) and not inside((0, 8), 8) and not inside(None, 8)


def test_a_narrow_cast_that_wraps_forgets_the_range() -> None:
    builder = Builder()
    place = builder.make("index", (), "i64", index=(as_index(I) * 100,))
    assert interval(builder.cast(place, "i8"), {}) is None
    assert interval(builder.cast(place, "i32"), {}) == (0, 700)
