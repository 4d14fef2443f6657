"""Quantisation: rounding to a grid of `scale` around `zero point`, and back.

Takes the operand, the grid (numbers, tensors of one element, or one value per channel) and
canonical arguments; gives fresh buffers. Ops of torch.ao (`quantized_decomposed`), as exported
graphs have them, and fake quantisation as trained graphs have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from .externs import VALUES
from .index import ZERO
from .loops import Scalar
from .promotion import FLOATS, INTS
from .values import Indices, Value
from .views import Lower
from .work import Declined, Work, number, wanted

LIBRARY = "quantized_decomposed"
LARGEST = 2**63 - 2**39  # the largest f32 that is a whole number of 64 bits
SMALL = ("i8", "u8", "i16")  # whole numbers that differences and f32 hold exactly
Grid = Callable[[Indices], tuple[Scalar, Scalar]]  # scale (f32) and zero point at a place


def _per_tensor(work: Work, scale: Any, zero: Any) -> Grid:
    """One scale and zero point for all: numbers, or tensors of one element."""

    def read(what: Any, dtype: str) -> Scalar:
        if isinstance(what, VALUES):
            if any(size != 1 for size in what.shape):
                raise Declined
            return work.builder.cast(work.load(what, (ZERO,) * len(what.shape)), dtype)
        if isinstance(what, bool) or not isinstance(what, int | float):
            raise Declined
        return work.builder.const(float(what) if dtype in FLOATS else int(what), dtype)

    return lambda at: (read(scale, "f64"), read(zero, "i64"))


def _per_channel(work: Work, x: Value, scales: Value, zeros: Value | None, axis: Any) -> Grid:
    """A scale and a zero point for each place along `axis`."""
    dim = number(axis) % len(x.shape)
    if scales.dtype != "f32" or (zeros is not None and zeros.dtype not in INTS):
        raise Declined
    none = work.builder.const(0, "i64")

    def read(at: Indices) -> tuple[Scalar, Scalar]:
        zero = none if zeros is None else work.load(zeros, (at[dim],))
        return work.load(scales, (at[dim],)), work.builder.cast(zero, "i64")

    return read


def _quantize(work: Work, node: fx.Node, x: Value, grid: Grid, low: Any, high: Any) -> Value:
    """clamp(round(x * (1 / scale)) + zero, low, high) as whole numbers, by way of f32."""
    meta = node.meta["val"]
    info = torch.iinfo(meta.dtype) if word_of(meta.dtype) in INTS else None
    if info is None or x.dtype not in ("f32", "f16", "bf16"):
        raise Declined
    if number(low) < info.min or number(high) > info.max:
        raise Declined  # eager refuses this
    const, cast = work.builder.const, work.builder.cast

    def value(at: Indices) -> Scalar:
        scale, zero = grid(at)
        inverse = cast(_make(work, "div", const(1.0, scale.dtype), scale), "f32")
        steps = _make(work, "round", _make(work, "mul", cast(work.load(x, at), "f32"), inverse))
        placed = _make(work, "add", steps, cast(zero, "f32"))
        least = _make(work, "maximum", placed, const(float(number(low)), "f32"))
        return _make(work, "minimum", least, const(float(number(high)), "f32"))

    return work.pointwise(node, meta, value)


def _dequantize(work: Work, node: fx.Node, x: Value, grid: Grid, dtype: Any) -> Value:
    """(x - zero) * scale, in f32."""
    meta = node.meta["val"]
    if x.dtype not in SMALL or word_of(meta.dtype) != "f32" or word_of(dtype) != x.dtype:
        raise Declined

    def value(at: Indices) -> Scalar:
        scale, zero = grid(at)
        off = _make(work, "sub", work.builder.cast(work.load(x, at), "i64"), zero)
        factor = work.builder.cast(scale, "f32")
        return _make(work, "mul", work.builder.cast(off, "f32"), factor)

    return work.pointwise(node, meta, value)


def _make(work: Work, op: str, *args: Scalar) -> Scalar:
    return work.builder.make(op, args, args[0].dtype)


def quantize_per_tensor(
    work: Work, node: fx.Node, x: Value, scale: Any, zero: Any, low: Any, high: Any, *_: Any
) -> Value:
    return _quantize(work, node, x, _per_tensor(work, scale, zero), low, high)


def dequantize_per_tensor(
    work: Work,
    node: fx.Node,
    x: Value,
    scale: Any,
    zero: Any,
    _low: Any,
    _high: Any,
    dtype: Any,
    *_: Any,
) -> Value:
    return _dequantize(work, node, x, _per_tensor(work, scale, zero), dtype)


def quantize_per_channel(
    work: Work,
    node: fx.Node,
    x: Value,
    scales: Value,
    zeros: Value,
    axis: Any,
    low: Any,
    high: Any,
    *_: Any,
) -> Value:
    return _quantize(work, node, x, _per_channel(work, x, scales, zeros, axis), low, high)


def dequantize_per_channel(
    work: Work,
    node: fx.Node,
    x: Value,
    scales: Value,
    zeros: Value | None,
    axis: Any,
    _low: Any,
    _high: Any,
    dtype: Any,
    *_: Any,
) -> Value:
    return _dequantize(work, node, x, _per_channel(work, x, scales, zeros, axis), dtype)


def _fake(
    work: Work, node: fx.Node, x: Value, grid: Grid, low: Any, high: Any, far: float
) -> list[Value | None]:
    """The operand rounded to the grid, and where it lay within the bounds. Places beyond `far`,
    and nan, count as below the least: eager's kernels make whole numbers of them."""
    if x.dtype != "f32":
        raise Declined
    metas, read, make = node.meta["val"], wanted(node), work.builder.make
    const, cast = work.builder.const, work.builder.cast

    def place(at: Indices) -> tuple[Scalar, Scalar, Scalar]:
        scale, zero = (cast(part, "f32") for part in grid(at))
        inverse = _make(work, "div", const(1.0, "f32"), scale)
        steps = _make(work, "round", _make(work, "mul", work.load(x, at), inverse))
        placed = _make(work, "add", steps, zero)
        near = make("le", (_make(work, "abs", placed), const(far, "f32")), "bool")
        return make("where", (near, placed, const(-math.inf, "f32")), "f32"), scale, zero

    least, most = (const(float(number(bound)), "f32") for bound in (low, high))

    def rounded(at: Indices) -> Scalar:
        placed, scale, zero = place(at)
        kept = _make(work, "minimum", _make(work, "maximum", placed, least), most)
        return _make(work, "mul", _make(work, "sub", kept, zero), scale)

    def inside(at: Indices) -> Scalar:
        placed = place(at)[0]
        tests = (make("ge", (placed, least), "bool"), make("le", (placed, most), "bool"))
        return make("logical_and", tests, "bool")

    out = work.pointwise(node, metas[0], rounded)
    return [out, work.pointwise(node, metas[1], inside) if 1 in read else None]


def fake_quantize_per_tensor(
    work: Work, node: fx.Node, x: Value, scale: Any, zero: Any, low: Any, high: Any
) -> list[Value | None]:
    return _fake(work, node, x, _per_tensor(work, scale, zero), low, high, math.inf)


def fake_quantize_per_channel(
    work: Work, node: fx.Node, x: Value, scales: Value, zeros: Value, axis: Any, low: Any, high: Any
) -> list[Value | None]:
    grid = _per_channel(work, x, scales, zeros, axis)
    return _fake(work, node, x, grid, low, high, float(LARGEST))


QUANTIZE: Mapping[str, Lower] = {
    **{
        f"{LIBRARY}.quantize_per_tensor{overload}": quantize_per_tensor
        for overload in ("", ".tensor", ".tensor2")
    },
    **{
        f"{LIBRARY}.dequantize_per_tensor{overload}": dequantize_per_tensor
        for overload in ("", ".tensor", ".tensor2")
    },
    f"{LIBRARY}.quantize_per_channel": quantize_per_channel,
    f"{LIBRARY}.dequantize_per_channel": dequantize_per_channel,
    "fake_quantize_per_tensor_affine_cachemask": fake_quantize_per_tensor,
    "fake_quantize_per_channel_affine_cachemask": fake_quantize_per_channel,
}
