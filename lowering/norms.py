"""Softmax and normalisations that rules left whole: opened into reductions and one last map.

Takes the operand and canonical arguments; gives fresh buffers. What passes between the nests
is kept in f32 (f64 for f64), as eager's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    plain_mean,
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
    parameters = Parameters(work, weight, bias, space.whole[rank - tail :])
    return _normalised(work, node, x, space, eps, parameters.centred)


def rms_norm(
    work: Work, node: fx.Node, x: Value, shape: Any, weight: Value | None = None, eps: Any = None
) -> Value:
    """x * rsqrt(mean(x * x) + eps) * weight; eps defaults to that of the computing dtype."""
    out, _ = _rms_norm(work, node, node.meta["val"], x, shape, weight, eps)
    return out


def fused_rms_norm(
    work: Work, node: fx.Node, x: Value, shape: Any, weight: Value | None = None, eps: Any = None
) -> list[Value | None]:
    """The same, and the factor of each row."""
    out, scale = _rms_norm(work, node, node.meta["val"][0], x, shape, weight, eps)
    return [out, *_saved(node, node.meta["val"][1:], (scale,))]


def _rms_norm(
    work: Work,
    node: fx.Node,
    meta: torch.Tensor,
    x: Value,
    shape: Any,
    weight: Value | None,
    eps: Any,
) -> tuple[Value, Row]:
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
    parameters = Parameters(work, weight, None, space.whole[rank - tail :])
    return last(work, node, meta, space, parameters.times(value)), scale


@dataclass(frozen=True)
class Parameters:
    """Weight and bias of a norm, each optional, read at `place`."""

    work: Work
    weight: Value | None
    bias: Value | None
    place: Indices

    def centred(self, value: Scalar, center: Scalar, scale: Scalar) -> Scalar:
        """(value - center) * scale * weight + bias, as eager's kernels of norms per row."""
        make, dtype = self.work.builder.make, value.dtype
        off = make("sub", (value, center), dtype)
        result = self.times(make("mul", (off, scale), dtype))
        return (
            result
            if self.bias is None
            else make("add", (result, self._read(self.bias, dtype)), dtype)
        )

    def line(self, value: Scalar, center: Scalar, scale: Scalar) -> Scalar:
        """value * factor + shift, as eager's kernels of norms per channel: the factor is
        scale * weight, the shift is bias - center * factor. Where the factor is infinite,
        that is nan more often than `centred` is."""
        make, dtype = self.work.builder.make, value.dtype
        factor = self.times(scale)
        shift = make("mul", (center, factor), dtype)
        if self.bias is None:
            return make("sub", (make("mul", (value, factor), dtype), shift), dtype)
        shift = make("sub", (self._read(self.bias, dtype), shift), dtype)
        return make("add", (make("mul", (value, factor), dtype), shift), dtype)

    def by_batch(self, value: Scalar, center: Scalar, scale: Scalar) -> Scalar:
        """The same by statistics of the values themselves. Without a weight, the factor is
        infinite where all values are the center alone, which is nan in either form."""
        form = self.centred if self.weight is None else self.line
        return form(value, center, scale)

    def times(self, value: Scalar) -> Scalar:
        """value * weight."""
        if self.weight is None:
            return value
        factor = self._read(self.weight, value.dtype)
        return self.work.builder.make("mul", (value, factor), value.dtype)

    def _read(self, parameter: Value, dtype: str) -> Scalar:
        return self.work.builder.cast(self.work.load(parameter, self.place), dtype)


def _normalised(
    work: Work,
    node: fx.Node,
    x: Value,
    space: Space,
    eps: Any,
    finish: Callable[[Scalar, Scalar, Scalar], Scalar],
    place: Indices | None = None,
) -> list[Value | None]:
    """(out, mean, rstd) of a norm over `space`; `finish` takes an element, the mean and 1/std;
    `place` is where a point of the space lies in `out`."""
    metas = node.meta["val"]
    dtype = opmath(x.dtype)
    if dtype not in FLOATS or not isinstance(eps, int | float):
        raise Declined
    make = work.builder.make
    average, variance = moments(work, node, x, space, dtype, 0.0, plain_mean)
    shifted = make("add", (variance, work.builder.const(float(eps), dtype)), dtype)
    scale = partial(work, node, "rstd", space, make("rsqrt", (shifted,), dtype))
    item = work.builder.cast(work.load(x, space.whole), dtype)
    value = finish(item, average(), scale())
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
    parameters = Parameters(work, weight, bias, (channel,))
    place = (first, channel, *space.whole[3:])
    return _normalised(work, node, reshaped(x, rows), space, eps, parameters.by_batch, place)


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
        scale = make("rsqrt", (shifted,), dtype)
        return Parameters(work, weight, bias, channel).line(item, average, scale)

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
    "_fused_rms_norm": fused_rms_norm,
    "native_group_norm": group_norm,
    "_native_batch_norm_legit_no_training": batch_norm_inference,
}
