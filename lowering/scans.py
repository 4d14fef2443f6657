"""Scans along one dim: cumsum, cumprod, cummax, cummin, logcumsumexp.

Takes the operand and canonical arguments; gives fresh buffers, whose every element is the
reduction of the operand up to there. Accumulates as eager does: f32 in f64, half floats in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from .loops import Scalar, Store
from .promotion import FLOATS, opmath
from .reductions import Space, dims_of, space_over, wide
from .values import Stored, Value, plain
from .views import Lower
from .work import Declined, Work, number, wanted


def _space(x: Value, dim: Any) -> Space:
    return space_over(x.shape, dims_of(number(dim), len(x.shape)))


def scanned(work: Work, kind: str, value: Scalar, space: Space) -> Scalar:
    """The scan of `value` over the inner loop; over one point it is the point."""
    place = kind in ("argmax", "argmin")
    if all(axis.size == 1 for axis in space.raxes):
        return work.builder.const(0, "i64") if place else value
    return work.builder.make("scan", (value,), "i64" if place else value.dtype, value=kind)


def _fill(
    work: Work,
    node: fx.Node,
    metas: list[torch.Tensor],
    space: Space,
    make: Callable[[], list[Scalar]],
) -> list[Stored]:
    """Fresh buffers like `metas`, each with one of the scalars that `make` gives at its points."""
    buffers = [work.buffer_like(node, meta) for meta in metas]
    if any(axis.size == 0 for axis in (*space.axes, *space.raxes)):
        return [Stored(buffer) for buffer in buffers]
    stores = [
        Store(buffer.name, space.whole, work.builder.cast(value, buffer.dtype))
        for buffer, value in zip(buffers, make(), strict=True)
    ]
    work.nest(node, space.axes, space.raxes, stores)
    return [Stored(buffer) for buffer in buffers]


def accumulated(dtype: str) -> str:
    """The dtype that eager adds up in on the CPU."""
    return "f64" if dtype == "f32" else opmath(dtype)


def _running(kind: str) -> Lower:
    """cumsum, cumprod and logcumsumexp: every element is converted before it is taken in."""

    def lower(work: Work, node: fx.Node, x: Value, dim: Any, *_: Any) -> Value:
        meta = node.meta["val"]
        result = word_of(meta.dtype)
        if kind == "logaddexp" and result not in FLOATS:
            raise Declined
        space = _space(x, dim)

        def make() -> list[Scalar]:
            item = work.builder.cast(work.load(x, space.whole), result)
            wider = work.builder.cast(item, accumulated(result))
            if wider.dtype == "bool":
                raise Declined
            return [scanned(work, kind, wider, space)]

        return _fill(work, node, [meta], space, make)[0]

    return lower


def _running_extremum(kind: str) -> Lower:
    """cummax and cummin: the values, and where the last of equal ones is."""

    def lower(work: Work, node: fx.Node, x: Value, dim: Any) -> list[Value | None]:
        metas = node.meta["val"]
        space, read = _space(x, dim), sorted(wanted(node))

        def make() -> list[Scalar]:
            item = work.builder.cast(work.load(x, space.whole), wide(x.dtype))
            return [scanned(work, (kind, f"arg{kind}")[k], item, space) for k in read]

        made = _fill(work, node, [metas[k] for k in read], space, make)
        found: list[Value | None] = [None, None]
        for k, stored in zip(read, made, strict=True):
            found[k] = stored
            if k == 1:
                work.ranges[stored.buffer.name] = (0, plain(space.count - 1))
        return found

    return lower


SCANS: Mapping[str, Lower] = {
    "cumsum": _running("sum"),
    "cumprod": _running("prod"),
    "logcumsumexp": _running("logaddexp"),
    "cummax": _running_extremum("max"),
    "cummin": _running_extremum("min"),
}
