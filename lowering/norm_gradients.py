"""Backward of layer, group and batch norm: sums over what was normalised, then one last map.

Takes the gradient, the operand, the saved statistics and canonical arguments; gives fresh
buffers, None for results that nobody reads. Sums and what passes between nests are f32 (f64
for f64), as in eager's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from .loops import Scalar
from .norms import last
from .promotion import FLOATS, opmath
from .reductions import Space, count_scalar, fold, partial, reduced, space_over
from .values import Indices, Stored, Value
from .views import Lower, reshaped
from .work import Declined, Work, number, sizes, wanted


@dataclass(frozen=True)
class _Norm:
    """What one backward call reads, in `dtype`. `grad`, `off` (the operand less its mean) and
    `scale` (1/std) are read at a place in the operand; `weight` is at a parameter's place."""

    work: Work
    node: fx.Node
    dtype: str

    def read(self, value: Value, at: Indices) -> Scalar:
        return self.work.builder.cast(self.work.load(value, at), self.dtype)

    def make(self, op: str, *args: Scalar) -> Scalar:
        return self.work.builder.make(op, args, self.dtype)

    def number(self, value: float) -> Scalar:
        return self.work.builder.const(value, self.dtype)

    def scaled(self, value: Scalar, weight: Value | None, at: Indices) -> Scalar:
        return value if weight is None else self.make("mul", value, self.read(weight, at))

    def mean(self, suffix: str, value: Scalar, space: Space) -> Scalar:
        """The mean over a space, read within it."""
        total = reduced(self.work, "sum", value, space)
        count = count_scalar(self.work, space.count, self.dtype)
        return partial(self.work, self.node, suffix, space, self.make("div", total, count))()

    def through(self, space: Space, slope: Scalar, off: Scalar, scale: Scalar) -> Scalar:
        """The gradient of the operand whose normalised form has the gradient `slope`:
        scale * (slope - mean(slope) - unit * mean(slope * unit))."""
        unit = self.make("mul", off, scale)
        level = self.mean("level", slope, space)
        tilt = self.mean("tilt", self.make("mul", slope, unit), space)
        flat = self.make("sub", slope, level)
        return self.make("mul", self.make("sub", flat, self.make("mul", unit, tilt)), scale)

    def open_through(
        self, space: Space, slope: Scalar, item: Scalar, center: Scalar, scale: Scalar
    ) -> Scalar:
        """The same as eager's kernel for rows computes it, which shows where something is
        infinite: scale * slope + item * b - (b * center + scale * mean(slope)) with
        b = scale^3 * (center * mean(slope) - mean(slope * item))."""
        level = self.mean("level", slope, space)
        tilt = self.mean("tilt", self.make("mul", slope, item), space)
        lean = self.make("sub", self.make("mul", level, center), tilt)
        for _ in range(3):
            lean = self.make("mul", lean, scale)
        rest = self.make("add", self.make("mul", lean, center), self.make("mul", level, scale))
        total = self.make("add", self.make("mul", slope, scale), self.make("mul", item, lean))
        return self.make("sub", total, rest)

    def total(self, meta: torch.Tensor, space: Space, value: Scalar) -> Stored:
        """The sum over a space, as a result like `meta`."""
        return fold(
            self.work, self.node, meta, space, lambda: reduced(self.work, "sum", value, space)
        )


def _norm(work: Work, node: fx.Node, grad: Value, x: Value) -> _Norm:
    dtype = opmath(x.dtype)
    if dtype not in FLOATS or grad.dtype != x.dtype or 0 in x.shape:
        raise Declined
    return _Norm(work, node, dtype)


def layer_norm_backward(
    work: Work,
    node: fx.Node,
    grad: Value,
    x: Value,
    shape: Any,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Any,
) -> list[Value | None]:
    """Gradients of the operand, the weight and the bias, by `mask`."""
    norm, metas, read = _norm(work, node, grad, x), node.meta["val"], wanted(node)
    for place, parameter in ((1, weight), (2, bias)):
        # eager's kernel rounds the sums of a half type after every row, in each thread, which
        # shows in the float32 gradients of parameters that are not of the half type
        if mask[place] and place in read and parameter is not None and parameter.dtype != x.dtype:
            raise Declined
    rank, tail = len(x.shape), len(sizes(shape))
    lead = rank - tail
    rows = space_over(x.shape, tuple(range(lead, rank)))
    columns = space_over(x.shape, tuple(range(lead)))
    found: list[Value | None] = [None, None, None]
    if mask[0] and 0 in read:
        at = rows.whole
        slope = norm.scaled(norm.read(grad, at), weight, at[lead:])
        center, scale = norm.read(mean, rows.kept), norm.read(rstd, rows.kept)
        value = norm.open_through(rows, slope, norm.read(x, at), center, scale)
        found[0] = last(work, node, metas[0], rows, value)
    at = columns.whole
    row = (*at[:lead], *rows.kept[lead:])
    if mask[1] and weight is not None and 1 in read:
        off = norm.make("sub", norm.read(x, at), norm.read(mean, row))
        unit = norm.make("mul", off, norm.read(rstd, row))
        found[1] = norm.total(metas[1], columns, norm.make("mul", norm.read(grad, at), unit))
    if mask[2] and bias is not None and 2 in read:
        found[2] = norm.total(metas[2], columns, norm.read(grad, at))
    return found


def group_norm_backward(
    work: Work,
    node: fx.Node,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    batch: Any,
    channels: Any,
    inner: Any,
    groups: Any,
    mask: Any,
) -> list[Value | None]:
    """The operand is seen as (batch, group, channel of the group, space...)."""
    norm, metas, read = _norm(work, node, grad, x), node.meta["val"], wanted(node)
    count, per = number(groups), number(channels) // number(groups)
    shape = (x.shape[0], count, per, *x.shape[2:])
    grad, x = reshaped(grad, shape), reshaped(x, shape)
    statistic = (x.shape[0], count)
    mean, rstd = reshaped(mean, statistic), reshaped(rstd, statistic)
    rows = space_over(shape, tuple(range(2, len(shape))))
    columns = space_over(shape, (0, *range(3, len(shape))))
    found: list[Value | None] = [None, None, None]
    if mask[0] and 0 in read:
        at = rows.whole
        channel = at[1] * per + at[2]
        slope = norm.scaled(norm.read(grad, at), weight, (channel,))
        off = norm.make("sub", norm.read(x, at), norm.read(mean, at[:2]))
        value = norm.through(rows, slope, off, norm.read(rstd, at[:2]))
        found[0] = last(work, node, metas[0], rows, value, (at[0], channel, *at[3:]))
    at = columns.whole
    if mask[1] and 1 in read:
        off = norm.make("sub", norm.read(x, at), norm.read(mean, at[:2]))
        unit = norm.make("mul", off, norm.read(rstd, at[:2]))
        found[1] = _channels(norm, metas[1], columns, norm.make("mul", norm.read(grad, at), unit))
    if mask[2] and 2 in read:
        found[2] = _channels(norm, metas[2], columns, norm.read(grad, at))
    return found


def _channels(norm: _Norm, meta: torch.Tensor, space: Space, value: Scalar) -> Value:
    """Sums for each group and channel of the group, as a row of channels."""
    total = reduced(norm.work, "sum", value, space)
    rounded = norm.work.builder.cast(total, word_of(meta.dtype))
    return partial(norm.work, norm.node, "sum", space, rounded).result(norm.node, meta)


def batch_norm_backward(
    work: Work,
    node: fx.Node,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    mean: Value | None,
    rstd: Value | None,
    training: Any,
    eps: Any,
    mask: Any,
) -> list[Value | None]:
    """By the statistics of the batch where it was normalised by them, else by the running ones,
    which do not depend on the operand."""
    norm, metas, read = _norm(work, node, grad, x), node.meta["val"], wanted(node)
    center, spread = (mean, rstd) if training else (running_mean, running_var)
    if center is None or spread is None or len(x.shape) < 2 or 0 in center.shape:
        raise Declined
    space = space_over(x.shape, (0, *range(2, len(x.shape))))
    at, channel = space.whole, space.outer
    scale = norm.read(spread, channel)
    if not training:
        scale = norm.make("rsqrt", norm.make("add", scale, norm.number(float(eps))))
    slope = norm.read(grad, at)
    off = norm.make("sub", norm.read(x, at), norm.read(center, channel))
    found: list[Value | None] = [None, None, None]
    if mask[0] and 0 in read:
        value = (
            norm.through(space, slope, off, scale) if training else norm.make("mul", slope, scale)
        )
        found[0] = last(work, node, metas[0], space, norm.scaled(value, weight, channel))
    if mask[1] and 1 in read:
        unit = norm.make("mul", off, scale)
        found[1] = norm.total(metas[1], space, norm.make("mul", slope, unit))
    if mask[2] and 2 in read:
        found[2] = norm.total(metas[2], space, slope)
    return found


NORM_GRADIENTS: Mapping[str, Lower] = {
    "native_layer_norm_backward": layer_norm_backward,
    "native_group_norm_backward": group_norm_backward,
    "native_batch_norm_backward": batch_norm_backward,
}
