"""Ops on coordinates and small fixed groups of elements: cross products, sampling on a grid.

Takes operands and canonical arguments; gives fresh buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from .index import Index, remainder
from .loops import Scalar
from .promotion import FLOATS, INTS
from .reductions import wide
from .values import Indices, Value
from .views import Lower, broadcast_index
from .work import Declined, Work, number


def cross(work: Work, node: fx.Node, x: Value, y: Value, dim: Any = -1) -> Value:
    """Element k is x[k + 1] y[k + 2] - x[k + 2] y[k + 1], counted in threes; half floats are
    rounded after every step, as in eager."""
    meta = node.meta["val"]
    axis = number(dim) % meta.dim()
    if x.dtype != y.dtype or x.dtype not in (*FLOATS, *INTS):
        raise Declined
    dtype, make = wide(x.dtype), work.builder.make

    def make_point(index: Indices) -> Scalar:
        def item(value: Value, step: int) -> Scalar:
            turned: Index = remainder(index[axis] + step, 3)
            place = (*index[:axis], turned, *index[axis + 1 :])
            return work.builder.cast(work.load(value, broadcast_index(place, value.shape)), dtype)

        def product(first: int, second: int) -> Scalar:
            exact = make("mul", (item(x, first), item(y, second)), dtype)
            return work.builder.cast(work.builder.cast(exact, x.dtype), dtype)

        return make("sub", (product(1, 2), product(2, 1)), dtype)

    return work.pointwise(node, meta, make_point)


def round_decimals(work: Work, node: fx.Node, x: Value, *_: Any, decimals: Any = 0) -> Value:
    """Rounded at a decimal place: scaled, rounded and scaled back."""
    places = number(node.kwargs.get("decimals", decimals))
    if x.dtype not in ("f32", "f64") or abs(places) > 22:
        raise Declined
    make = work.builder.make
    power = work.builder.const(float(10 ** abs(places)), x.dtype)
    there, back = ("mul", "div") if places >= 0 else ("div", "mul")

    def value(index: Indices) -> Scalar:
        item = work.load(x, index)
        if places == 0:
            return make("round", (item,), x.dtype)
        whole = make("round", (make(there, (item, power), x.dtype),), x.dtype)
        return make(back, (whole, power), x.dtype)

    return work.pointwise(node, node.meta["val"], value)


GEOMETRY: Mapping[str, Lower] = {
    "linalg_cross": cross,
    "round.decimals": round_decimals,
}
