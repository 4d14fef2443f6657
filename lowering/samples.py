"""Elements of random tensors as scalars of a nest.

Takes a `Source`, which stands for one element; gives its value. Uniform numbers have 24 bits, those
of float64 53, those of half floats as many as these hold; normal ones are those of Box and Muller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .index import ZERO, Size, row_major
from .loops import Buffer, Builder, Scalar
from .promotion import opmath
from .values import Indices

WIDEST = 1 << 31  # of the ranges that `whole` draws from
_WORD = (1 << 32) - 1
_BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
_COIN = 62


@dataclass(frozen=True)
class Source:
    """Random bits for the element at `index` of a tensor of `shape`: those of draw `number` under
    a seed, which is one i64 in memory."""

    builder: Builder
    seed: Buffer
    number: int
    shape: Sequence[Size]
    index: Indices

    def bits(self, more: int = 0) -> Scalar:
        """64 bits; with `more` = 1 another 64."""
        make, position = self.builder.make, ZERO
        for at, step in zip(self.index, row_major(tuple(self.shape)), strict=True):
            position = position + at * step
        where = make("index", (), "i64", index=(position,))
        draw = self.builder.const(2 * self.number + more, "i64")
        return make("random_bits", (self.builder.load(self.seed, ()), draw, where), "i64")

    def upper(self, bits: Scalar, count: int) -> Scalar:
        """The upper `count` bits, as a whole number in the narrowest dtype that holds them."""
        make, const = self.builder.make, self.builder.const
        moved = make("shift_right", (bits, const(64 - count, "i64")), "i64")
        low = make("bit_and", (moved, const((1 << count) - 1, "i64")), "i64")
        return self.builder.cast(low, "i32" if count < 32 else "i64")


def uniform(source: Source, dtype: str) -> Scalar:
    """In [0, 1), in the dtype that `dtype` computes in; exact in `dtype`."""
    return _fraction(source, source.upper(source.bits(), _BITS[dtype]), _BITS[dtype], dtype)


def _fraction(source: Source, whole: Scalar, count: int, dtype: str) -> Scalar:
    wide = opmath(dtype)
    factor = source.builder.const(2.0**-count, wide)
    return source.builder.make("mul", (source.builder.cast(whole, wide), factor), wide)


def _above_zero(source: Source, dtype: str) -> Scalar:
    """In (0, 1], with more bits near 0 than `uniform` has; of the lower word but for float64."""
    make, const, wide = source.builder.make, source.builder.const, opmath(dtype)
    count = 53 if wide == "f64" else 31
    bits = source.bits()
    if wide == "f64":
        whole = source.upper(bits, count)
    else:
        low = make("bit_and", (bits, const((1 << count) - 1, "i64")), "i64")
        whole = source.builder.cast(low, "i32")
    middle = make("add", (source.builder.cast(whole, wide), const(0.5, wide)), wide)
    return make("mul", (middle, const(2.0**-count, wide)), wide)


def between(source: Source, low: float, high: float, dtype: str) -> Scalar:
    """Uniform in [low, high), of `dtype`."""
    make, const, wide = source.builder.make, source.builder.const, opmath(dtype)
    part = _fraction(source, source.upper(source.bits(), _BITS[wide]), _BITS[wide], wide)
    moved = make("mul", (part, const(high - low, wide)), wide)
    value = source.builder.cast(make("add", (moved, const(low, wide)), wide), dtype)
    reached = make("ge", (value, const(high, dtype)), "bool")  # by rounding
    return make("where", (reached, const(low, dtype), value), dtype)


def normal(source: Source, dtype: str) -> Scalar:
    """Of mean 0 and standard deviation 1, in the dtype that `dtype` computes in."""
    make, const, wide = source.builder.make, source.builder.const, opmath(dtype)
    logarithm = make("log", (_above_zero(source, dtype),), wide)
    radius = make("sqrt", (make("mul", (logarithm, const(-2.0, wide)), wide),), wide)
    bits = source.bits(1) if wide == "f64" else source.bits()
    turn = _fraction(source, source.upper(bits, _BITS[wide]), _BITS[wide], wide)
    angle = make("mul", (turn, const(2 * math.pi, wide)), wide)
    return make("mul", (radius, make("cos", (angle,), wide)), wide)


def exponential(source: Source, rate: float, dtype: str) -> Scalar:
    """Above 0 with density rate * exp(-rate x), in the dtype that `dtype` computes in."""
    make, const, wide = source.builder.make, source.builder.const, opmath(dtype)
    logarithm = make("log", (_above_zero(source, dtype),), wide)
    least = const(2.0 ** -(_BITS[wide] + 1), wide)
    positive = make("maximum", (make("neg", (logarithm,), wide), least), wide)
    return make("div", (positive, const(rate, wide)), wide)


def coin(source: Source, probability: float) -> Scalar:
    """True with a probability that is known beforehand, to 62 bits."""
    make, const = source.builder.make, source.builder.const
    low = make("bit_and", (source.bits(), const((1 << _COIN) - 1, "i64")), "i64")
    return make("lt", (low, const(round(probability * 2**_COIN), "i64")), "bool")


def whole(source: Source, low: int, high: int) -> Scalar:
    """An i64 in [low, high), a range of at most `WIDEST`: the upper half of 64 bits times its
    size, so that no number is likelier than another by more than one part in 2**33."""
    make, const = source.builder.make, source.builder.const
    bits, size, half = source.bits(), const(high - low, "i64"), const(32, "i64")
    words = (source.upper(bits, 32), make("bit_and", (bits, const(_WORD, "i64")), "i64"))
    upper, lower = (make("mul", (word, size), "i64") for word in words)
    total = make("add", (upper, make("shift_right", (lower, half), "i64")), "i64")
    scaled = make("shift_right", (total, half), "i64")
    return make("add", (scaled, const(low, "i64")), "i64")
