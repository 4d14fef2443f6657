"""Batch norm by the statistics of the batch: a mean and a variance per channel, one last map,
and the running statistics moved towards them.

Takes the operand and canonical arguments; gives fresh buffers. Statistics are f32 (f64 for
f64), as in eager's kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .loops import Scalar
from .norms import Parameters, last
from .promotion import FLOATS, opmath
from .reductions import (
    Row,
    Space,
    count_scalar,
    fold,
    moments,
    partial,
    plain_mean,
    space_over,
)
from .values import Value
from .views import Lower
from .work import Declined, Work, wanted


def batch_norm_training(
    work: Work,
    node: fx.Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: Any,
    momentum: Any,
    eps: Any,
) -> list[Value | None]:
    """(out, mean, 1/std, new running mean, new running variance)."""
    if training is not True:
        raise Declined
    found, average, variance = _normalised(work, node, x, weight, bias, eps)
    metas, read = node.meta["val"], wanted(node)
    dtype, make = average.stored.dtype, work.builder.make
    count = count_scalar(work, average.space.count, dtype)
    less = make("sub", (count, work.builder.const(1.0, dtype)), dtype)
    unbiased = make("mul", (variance(), make("div", (count, less), dtype)), dtype)
    found += [None, None]
    for place, old, new in ((3, running_mean, average()), (4, running_var, unbiased)):
        if old is not None and place in read:
            found[place] = _moved(work, node, metas[place], average.space, old, new, momentum)
    return found


def _moved(
    work: Work,
    node: fx.Node,
    meta: torch.Tensor,
    space: Space,
    old: Value,
    new: Scalar,
    momentum: Any,
) -> Value:
    """new * momentum + old * (1 - momentum), per channel."""
    make, const = work.builder.make, work.builder.const
    kept = work.builder.cast(work.load(old, space.outer), new.dtype)
    share = make("mul", (new, const(float(momentum), new.dtype)), new.dtype)
    rest = make("mul", (kept, const(1.0 - float(momentum), new.dtype)), new.dtype)
    points = replace(space, raxes=())
    return fold(work, node, meta, points, lambda: make("add", (share, rest), new.dtype))


def batch_norm_no_stats(
    work: Work,
    node: fx.Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: Any,
    momentum: Any,
    eps: Any,
) -> list[Value | None]:
    """(out, mean, 1/std)."""
    if training is not True:
        raise Declined
    return _normalised(work, node, x, weight, bias, eps)[0]


def _normalised(
    work: Work, node: fx.Node, x: Value, weight: Value | None, bias: Value | None, eps: Any
) -> tuple[list[Value | None], Row, Row]:
    """(out, mean, 1/std), and the mean and variance in memory."""
    dtype, make = opmath(x.dtype), work.builder.make
    if dtype not in FLOATS or len(x.shape) < 2 or 0 in x.shape:
        raise Declined
    metas, read = node.meta["val"], wanted(node)
    space = space_over(x.shape, (0, *range(2, len(x.shape))))
    average, spread = moments(work, node, x, space, dtype, 0.0, plain_mean)
    variance = partial(work, node, "var", space, spread)
    shifted = make("add", (variance(), work.builder.const(float(eps), dtype)), dtype)
    scale = partial(work, node, "rstd", replace(space, raxes=()), make("rsqrt", (shifted,), dtype))
    item = work.builder.cast(work.load(x, space.whole), dtype)
    value = Parameters(work, weight, bias, space.outer).by_batch(item, average(), scale())
    out = last(work, node, metas[0], space, value)
    saved = [
        row.result(node, meta) if place in read else None
        for place, meta, row in ((1, metas[1], average), (2, metas[2], scale))
    ]
    return [out, *saved], average, variance


BATCH_NORMS: Mapping[str, Lower] = {
    "_native_batch_norm_legit_functional": batch_norm_training,
    "_native_batch_norm_legit.no_stats": batch_norm_no_stats,
}
