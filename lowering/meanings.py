"""What each scalar op computes, as torch functions on tensors of its dtype.

Takes nothing; gives `MEANINGS`. The interpreter evaluates with these, so they are the
reference that the spellings in rules/scalar are held to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

Meaning = Callable[..., torch.Tensor]


def _true_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y)


def _floor_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="floor")


def _trunc_divide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def _fused_multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(z, x, y)


def _random_bits(seed: torch.Tensor, draw: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Philox 4x32-10; products of two words wrap to the same 64 bits, signed or not."""
    word = 0xFFFFFFFF
    a, b, c, d = (part & word for part in (position, position >> 32, draw, draw >> 32))
    low, high = seed & word, (seed >> 32) & word
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = ((second >> 32) & word) ^ b ^ low, second & word
        c, d = ((first >> 32) & word) ^ d ^ high, first & word
        low, high = (low + 0x9E3779B9) & word, (high + 0xBB67AE85) & word
    return (b << 32) | a


MEANINGS: Mapping[str, Meaning] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "fma": _fused_multiply_add,
    "lerp": torch.lerp,
    "div": _true_divide,
    "floor_div": _floor_divide,
    "trunc_div": _trunc_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "where": torch.where,
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "bit_not": torch.bitwise_not,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "random_bits": _random_bits,
    **{
        name: getattr(torch, name)
        for name in (
            *("neg", "abs", "sign", "reciprocal", "sqrt", "rsqrt", "square", "relu"),
            *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
            *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
            *("erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid"),
            *("floor", "ceil", "round", "trunc", "isnan", "isinf", "signbit"),
            *("copysign", "hypot", "nextafter"),
            *("logical_and", "logical_or", "logical_not", "logical_xor"),
        )
    },
}
