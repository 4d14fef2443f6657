"""Ops that make a tensor from numbers: they stay formulas until something needs memory.

Takes canonical arguments; gives `Computed` values. Sizes and dtype are those of meta["val"].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from ..engine.dtypes import word_of
from .index import as_index
from .loops import Builder, Scalar
from .promotion import FLOATS
from .values import Computed, Indices, Value, dense_stride, shape_of, stride_of
from .views import Lower
from .work import Declined, Work, is_size, number, sizes


def constant(node: fx.Node, value: Any) -> Computed:
    """Every element is `value`, a Python number or a symbolic size."""
    meta = node.meta["val"]
    dtype = word_of(meta.dtype)
    if not isinstance(value, bool | int | float) and not is_size(value):
        raise Declined

    def make(builder: Builder, index: Indices) -> Scalar:
        if isinstance(value, bool | int | float):
            return builder.const(_converted(value, dtype), dtype)
        size = builder.make("index", (), "i64", index=(as_index(value),))
        return builder.cast(size, dtype)

    return Computed(shape_of(meta), dtype, make)


def _converted(value: bool | int | float, dtype: str) -> bool | int | float:
    if dtype == "bool":
        return bool(value)
    if dtype in FLOATS:
        return float(value)
    if isinstance(value, float) and value != int(value):
        raise Declined
    return int(value)


def full(work: Work, node: fx.Node, _: Any, value: Any, *rest: Any) -> Value:
    if isinstance(value, float) and word_of(node.meta["val"].dtype) not in (*FLOATS, "bool"):
        value = int(value)
    return constant(node, value)


def zeros(work: Work, node: fx.Node, *_: Any) -> Value:
    return constant(node, 0)


def ones(work: Work, node: fx.Node, *_: Any) -> Value:
    return constant(node, 1)


def empty_strided(work: Work, node: fx.Node, *_: Any) -> Value:
    """Zeros are as good as any values. Elements that share memory are left to eager, as no nest
    fills them."""
    shape, stride = shape_of(node.meta["val"]), stride_of(node.meta["val"])
    if dense_stride(shape, stride) != stride:
        raise Declined
    return constant(node, 0)


def scalar_tensor(work: Work, node: fx.Node, value: Any, *_: Any) -> Value:
    return full(work, node, None, value)


def arange(work: Work, node: fx.Node, *args: Any) -> Value:
    """arange(end), arange(start, end, step) in any spelling: the numbers among the first three
    arguments say which. Only whole numbers; a fractional step needs eager's rounding."""
    numbers = [value for value in args[:3] if is_size(value)]
    if any(isinstance(value, float) for value in args[:3]) or not numbers:
        raise Declined
    start, step = 0, 1
    if len(numbers) > 1:
        start = numbers[0]
    if len(numbers) > 2:
        step = number(numbers[2])
    return steps(node, start, step)


def iota(work: Work, node: fx.Node, _: Any, start: Any, step: Any, *rest: Any) -> Value:
    return steps(node, sizes(start)[0], number(step))


def steps(node: fx.Node, start: Any, step: int) -> Value:
    meta = node.meta["val"]
    dtype = word_of(meta.dtype)

    def make(builder: Builder, index: Indices) -> Scalar:
        return builder.cast(
            builder.make("index", (), "i64", index=(index[0] * step + start,)), dtype
        )

    return Computed(shape_of(meta), dtype, make)


def eye(work: Work, node: fx.Node, *_: Any) -> Value:
    meta = node.meta["val"]
    dtype = word_of(meta.dtype)

    def make(builder: Builder, index: Indices) -> Scalar:
        row, column = (builder.make("index", (), "i64", index=(at,)) for at in index)
        return builder.cast(builder.make("eq", (row, column), "bool"), dtype)

    return Computed(shape_of(meta), dtype, make)


CREATION: Mapping[str, Lower] = {
    "full": full,
    "full_like": full,
    "new_full": lambda work, node, x, size, value, *rest: full(work, node, size, value),
    "zeros": zeros,
    "zeros_like": zeros,
    "new_zeros": zeros,
    "ones": ones,
    "ones_like": ones,
    "new_ones": ones,
    "empty": zeros,
    "empty_like": zeros,
    "new_empty": zeros,
    "empty_strided": empty_strided,
    "new_empty_strided": empty_strided,
    "empty_permuted": zeros,
    "scalar_tensor": scalar_tensor,
    "arange": arange,
    "iota": iota,
    "eye": eye,
}
