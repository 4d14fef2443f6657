"""Softmax and normalisations that rules left whole: opened into reductions and one last map.

Takes the operand and canonical arguments; gives fresh buffers. What passes between the nests
is kept in f32 (f64 for f64), as eager's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from .index import Axis, as_index
from .loops import Scalar, Store
from .promotion import FLOATS, opmath
from .reductions import (
    Row,
    Space,
    count_scalar,
    moments,
    partial,
    reduced,
    space_over,
)
from .rewrite import Rewriter
from .values import Indices, Stored, Value
from .views import Lower, reshaped
from .work import Declined, Work, number, sizes


def softmax(work: Work, node: fx.Node, x: Value, dim: int, *_: Any) -> Value:
    return _softmax(work, node, x, dim, log=False)


def log_softmax(work: Work, node: fx.Node, x: Value, dim: int, *_: Any) -> Value:
    return _softmax(work, node, x, dim, log=True)


def _softmax(work: Work, node: fx.Node, x: Value, dim: int, *, log: bool) -> Value:
    meta = node.meta["val"]
    dtype = opmath(word_of(meta.dtype))
    if dtype not in FLOATS:
        raise Declined
    space = _along(x, dim)
    make = work.builder.make

    def item() -> Scalar:
        return work.builder.cast(work.load(x, space.whole), dtype)

    largest = partial(work, node, "max", space, reduced(work, "max", item(), space))
    shifted = make("sub", (item(), largest()), dtype)
    power = make("exp", (shifted,), dtype)
    total = partial(work, node, "sum", space, reduced(work, "sum", power, space))
    if log:
        value = make("sub", (shifted, make("log", (total(),), dtype)), dtype)
    else:
        value = make("div", (power, total()), dtype)
    return last(work, node, meta, space, value)


def _along(x: Value, dim: int) -> Space:
    rank = len(x.shape)
    return space_over(x.shape, (number(dim) % rank,) if rank else ())


def last(
    work: Work,
    node: fx.Node,
    meta: torch.Tensor,
    space: Space,
    value: Scalar,
    place: Indices | None = None,
) -> Stored:
    """The map over all of `space`, its inner loops made outer ones, into a buffer like `meta`."""
    buffer = work.buffer_like(node, meta)
    outer = {axis: Axis(f"i{axis.name[1:]}", axis.size) for axis in space.raxes}
    writer = Rewriter(work.builder, {axis: as_index(to) for axis, to in outer.items()})
    value = work.builder.cast(value, buffer.dtype)
    store = writer.store(Store(buffer.name, place or space.whole, value))
    axes = sorted((*space.axes, *outer.values()), key=lambda axis: int(axis.name[1:]))
    work.nest(node, tuple(axes), (), [store])
    return Stored(buffer)


def softmax_backward(
    work: Work, node: fx.Node, grad: Value, output: Value, dim: int, *_: Any
) -> Value:
    """(grad - sum(grad * output)) * output."""
    return _softmax_backward(work, node, grad, output, dim, log=False)


def log_softmax_backward(
    work: Work, node: fx.Node, grad: Value, output: Value, dim: int, *_: Any
) -> Value:
    """grad - exp(output) * sum(grad)."""
    return _softmax_backward(work, node, grad, output, dim, log=True)


def _softmax_backward(
    work: Work, node: fx.Node, grad: Value, output: Value, dim: int, *, log: bool
) -> Value:
    meta = node.meta["val"]
    dtype = opmath(grad.dtype)
    space = _along(grad, dim)
    make = work.builder.make
    slope, out = (work.builder.cast(work.load(v, space.whole), dtype) for v in (grad, output))
    part = slope if log else make("mul", (slope, out), dtype)
    total = partial(work, node, "sum", space, reduced(work, "sum", part, space))
    if log:
        power = make("exp", (out,), dtype)
        value = make("sub", (slope, make("mul", (power, total()), dtype)), dtype)
    else:
        value = make("mul", (make("sub", (slope, total()), dtype), out), dtype)
    return last(work, node, meta, space, value)


def layer_norm(
    work: Work,
    node: fx.Node,
    x: Value,
    shape: Any,
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> list[Value | None]:
    rank, tail = len(x.shape), len(sizes(shape))
    space = space_over(x.shape, tuple(range(rank - tail, rank)))
    where = space.whole[rank - tail :]
    return _normalised(work, node, x, space, eps, affine(work, weight, bias, where))


def rms_norm(
    work: Work, node: fx.Node, x: Value, shape: Any, weight: Value | None = None, eps: Any = None
) -> Value:
    """x * rsqrt(mean(x * x) + eps) * weight; eps defaults to that of the computing dtype."""
    meta = node.meta["val"]
    dtype = opmath(word_of(meta.dtype))
    rank, tail = len(x.shape), len(sizes(shape))
    space = space_over(x.shape, tuple(range(rank - tail, rank)))
    make = work.builder.make
    item = work.builder.cast(work.load(x, space.whole), dtype)
    total = reduced(work, "sum", make("mul", (item, item), dtype), space)
    mean = make("div", (total, count_scalar(work, space.count, dtype)), dtype)
    if eps is None:
        eps = torch.finfo(torch.float64 if dtype == "f64" else torch.float32).eps
    shifted = make("add", (mean, work.builder.const(float(eps), dtype)), dtype)
    scale = partial(work, node, "rstd", space, make("rsqrt", (shifted,), dtype))
    value = make("mul", (item, scale()), dtype)
    finish = affine(work, weight, None, space.whole[rank - tail :])
    return last(work, node, meta, space, finish(value))


def affine(
    work: Work, weight: Value | None, bias: Value | None, where: Indices
) -> Callable[[Scalar], Scalar]:
    """value * weight + bias, each optional, read at `where`."""

    def apply(value: Scalar) -> Scalar:
        for op, other in (("mul", weight), ("add", bias)):
            if other is not None:
                factor = work.builder.cast(work.load(other, where), value.dtype)
                value = work.builder.make(op, (value, factor), value.dtype)
        return value

    return apply


def _normalised(
    work: Work,
    node: fx.Node,
    x: Value,
    space: Space,
    eps: Any,
    finish: Callable[[Scalar], Scalar],
    place: Indices | None = None,
) -> list[Value | None]:
    """(out, mean, rstd) of a norm over `space`; `place` is where a point of it lies in `out`."""
    metas = node.meta["val"]
    dtype = opmath(x.dtype)
    if dtype not in FLOATS or not isinstance(eps, int | float):
        raise Declined
    make = work.builder.make
    average, variance = moments(work, node, x, space, dtype, 0.0)
    shifted = make("add", (variance, work.builder.const(float(eps), dtype)), dtype)
    scale = partial(work, node, "rstd", space, make("rsqrt", (shifted,), dtype))
    item = work.builder.cast(work.load(x, space.whole), dtype)
    centred = make("sub", (item, average()), dtype)
    value = finish(make("mul", (centred, scale()), dtype))
    out = last(work, node, metas[0], space, value, place)
    return [out, *_saved(node, metas[1:3], (average, scale))]


def _saved(node: fx.Node, metas: Sequence[torch.Tensor], rows: Sequence[Row]) -> list[Value | None]:
    """Mean and rstd as results, where somebody reads them."""
    used = {user.args[1] for user in node.users if len(user.args) > 1}
    return [
        row.result(node, meta) if place in used else None
        for place, (meta, row) in enumerate(zip(metas, rows, strict=True), start=1)
    ]


def group_norm(
    work: Work,
    node: fx.Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Any,
    channels: Any,
    inner: Any,
    groups: Any,
    eps: float,
) -> list[Value | None]:
    """Norm over (channels of a group, space): the operand seen as (batch, group, channel of the
    group, space...)."""
    if 0 in x.shape:
        raise Declined
    count, per = number(groups), number(channels) // number(groups)
    rows = (x.shape[0], count, per, *x.shape[2:])
    space = space_over(rows, tuple(range(2, len(rows))))
    first, group, inner = space.whole[:3]
    channel = group * per + inner
    finish = affine(work, weight, bias, (channel,))
    place = (first, channel, *space.whole[3:])
    return _normalised(work, node, reshaped(x, rows), space, eps, finish, place)


def batch_norm_inference(
    work: Work,
    node: fx.Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    _momentum: Any,
    eps: float,
) -> list[Value | None]:
    """(x - mean) * rsqrt(variance + eps) * weight + bias per channel; nothing is saved."""
    metas = node.meta["val"]
    dtype = opmath(x.dtype)
    make = work.builder.make

    def value(index: Indices) -> Scalar:
        channel = (index[1],)
        item, average, spread = (
            work.builder.cast(scalar, dtype)
            for scalar in (
                work.load(x, index),
                work.load(mean, channel),
                work.load(variance, channel),
            )
        )
        shifted = make("add", (spread, work.builder.const(float(eps), dtype)), dtype)
        centred = make("sub", (item, average), dtype)
        scaled = make("mul", (centred, make("rsqrt", (shifted,), dtype)), dtype)
        return affine(work, weight, bias, channel)(scaled)

    out = work.pointwise(node, metas[0], value)
    return [out, *(Stored(work.buffer_like(node, meta)) for meta in metas[1:])]


NORMS: Mapping[str, Lower] = {
    "softmax": softmax,
    "_softmax": softmax,
    "log_softmax": log_softmax,
    "_log_softmax": log_softmax,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": log_softmax_backward,
    "native_layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "native_group_norm": group_norm,
    "_native_batch_norm_legit_no_training": batch_norm_inference,
}
