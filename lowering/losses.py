"""The negative log likelihood: a guarded read for each target, and a backward that is one map
over all classes, without a scatter.

Takes operands, targets and canonical arguments; gives fresh buffers. Sums are f32 (f64 for
f64).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from .guards import Wanted, guard
from .index import Size, as_index
from .indexing import position
from .loops import Builder, Scalar
from .promotion import FLOATS, opmath
from .reductions import fold, reduced, space_over
from .values import Computed, Indices, Value, load
from .views import Lower
from .work import Declined, Work, is_size, number, wanted

NONE, MEAN = 0, 1  # ATen's numbers of reductions


def nll_loss_forward(
    work: Work,
    node: fx.Node,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: Any,
    ignored: Any,
) -> list[Value | None]:
    """The loss, and the total weight it is divided by for a mean (0 where nothing is added)."""
    if x.dtype not in FLOATS or not x.shape or target.dtype not in ("i64", "u8"):
        raise Declined
    dim, make, kind = _class_dim(x), work.builder.make, number(reduction)
    dtype, metas = opmath(x.dtype), node.meta["val"]
    safe = _without_ignored(target, _ignored(ignored))
    (flag,) = guard(work, node, [Wanted(safe, x.shape[dim], given=target)])
    zero = work.builder.const(0.0, dtype)

    def read(value: Value, at: Indices) -> Scalar:
        return work.builder.cast(work.load(value, at), dtype)

    def share(at: Indices) -> tuple[Scalar, Scalar]:
        """The loss and the weight of one target."""
        live = _is_live(work.builder, target, at, _ignored(ignored))
        place = position(work, work.load(safe, at), x.shape[dim], wraps=False, guard=flag)
        item = make("neg", (read(x, (*at[:dim], place, *at[dim:])),), dtype)
        factor = work.builder.const(1.0, dtype) if weight is None else read(weight, (place,))
        item = item if weight is None else make("mul", (item, factor), dtype)
        return make("where", (live, item, zero), dtype), make("where", (live, factor, zero), dtype)

    if kind == NONE:
        each = work.pointwise(node, metas[0], lambda at: share(at)[0])
        total = work.pointwise(node, metas[1], lambda _: zero) if 1 in wanted(node) else None
        return [each, total]
    space = space_over(target.shape, tuple(range(len(target.shape))))
    losses, weights = (reduced(work, "sum", part, space) for part in share(space.whole))
    whole = make("div", (losses, weights), dtype) if kind == MEAN else losses
    found: list[Value | None] = [fold(work, node, metas[0], space, lambda: whole), None]
    if 1 in wanted(node):
        found[1] = fold(work, node, metas[1], space, lambda: weights)
    return found


def _ignored(value: Any) -> Size:
    if not is_size(value):
        raise Declined
    return value


def _class_dim(x: Value) -> int:
    return min(1, len(x.shape) - 1)


def _is_live(builder: Builder, target: Value, at: Indices, ignored: Size) -> Scalar:
    label = builder.cast(load(builder, target, at), "i64")
    if isinstance(ignored, int):
        skip = builder.const(ignored, "i64")
    else:
        skip = builder.make("index", (), "i64", index=(as_index(ignored),))
    return builder.make("ne", (label, skip), "bool")


def _without_ignored(target: Value, ignored: Size) -> Computed:
    """The targets, 0 for those that are ignored and may lie anywhere."""

    def make(builder: Builder, at: Indices) -> Scalar:
        label = builder.cast(load(builder, target, at), "i64")
        live = _is_live(builder, target, at, ignored)
        return builder.make("where", (live, label, builder.const(0, "i64")), "i64")

    return Computed(target.shape, "i64", make)


def nll_loss_backward(
    work: Work,
    node: fx.Node,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: Any,
    ignored: Any,
    total: Value,
) -> Value:
    """-grad, times the weight of the class, over the total weight for a mean, where the class
    is the target and not ignored; else 0. Each step rounds to the dtype of the operand."""
    if x.dtype not in FLOATS or not x.shape or grad.dtype != x.dtype:
        raise Declined
    dim, make, kind = _class_dim(x), work.builder.make, number(reduction)
    dtype = opmath(x.dtype)

    def step(op: str, *args: Scalar) -> Scalar:
        rounded = work.builder.cast(make(op, args, dtype), x.dtype)
        return work.builder.cast(rounded, dtype)

    def read(value: Value, at: Indices) -> Scalar:
        return work.builder.cast(work.load(value, at), dtype)

    def value(index: Indices) -> Scalar:
        pixel = (*index[:dim], *index[dim + 1 :])
        label = work.builder.cast(work.load(target, pixel), "i64")
        here = make("eq", (label, make("index", (), "i64", index=(index[dim],))), "bool")
        live = _is_live(work.builder, target, pixel, _ignored(ignored))
        live = make("logical_and", (here, live), "bool")
        slope = read(grad, pixel if kind == NONE else ())
        if kind == MEAN:
            slope = step("div", slope, read(total, ()))
        slope = make("neg", (slope,), dtype)
        if weight is not None:
            slope = step("mul", slope, read(weight, (index[dim],)))
        return make("where", (live, slope, work.builder.const(0.0, dtype)), dtype)

    return work.pointwise(node, node.meta["val"], value)


LOSSES: Mapping[str, Lower] = {
    "nll_loss_forward": nll_loss_forward,
    "nll_loss2d_forward": nll_loss_forward,
    "nll_loss_backward": nll_loss_backward,
    "nll_loss2d_backward": nll_loss_backward,
}
