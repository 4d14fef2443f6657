"""Functions that generated Triton kernels call. Only kernel files import this."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def floor_div(a, b):
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floor_mod(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def nan_max(a, b):
    return tl.where((a >= b) | (a != a), a, b)


@triton.jit
def nan_min(a, b):
    return tl.where((a <= b) | (a != a), a, b)


@triton.jit
def first_max(a, i, b, j):
    """The larger value, nan before all; of equal ones the first."""
    other = (b != b) & (a == a)
    same = (a == b) | ((a != a) & (b != b))
    take = (b > a) | other | (same & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def first_min(a, i, b, j):
    """The smaller value, nan before all; of equal ones the first."""
    other = (b != b) & (a == a)
    same = (a == b) | ((a != a) & (b != b))
    take = (b < a) | other | (same & (j < i))
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def last_max(a, i, b, j):
    """For scans: the later of equal values, and a nan against anything."""
    take = (b >= a) | (b != b)
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def last_min(a, i, b, j):
    """For scans: the later of equal values, and a nan against anything."""
    take = (b <= a) | (b != b)
    return tl.where(take, b, a), tl.where(take, j, i)


@triton.jit
def join_powers(a, s, b, t):
    """Sums of exponentials, each as the largest exponent and the sum relative to it."""
    take = (b >= a) | (b != b)
    most = tl.where(take, b, a)
    left = tl.where(a == most, s, s * tl.exp(a - most))
    right = tl.where(b == most, t, t * tl.exp(b - most))
    return most, left + right


@triton.jit
def whole_power(base, exponent):
    """base to a power that is no negative integer, by squaring."""
    result = base * 0 + 1
    factor = base
    left = exponent
    for _ in range(63):
        result = tl.where(left & 1 == 1, result * factor, result)
        factor = factor * factor
        left = left >> 1
    return result


@triton.jit
def float_floor_div(a, b):
    """As eager: through the remainder, so that the quotient is never one too large."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1, whole)
    whole = tl.where(quotient == 0, libdevice.copysign(0.0 * a, a / b), whole)
    return tl.where(b == 0, a / b, whole)


@triton.jit
def int_power(base, exponent):
    """A negative exponent leaves only powers of 1 and -1 other than 0."""
    sign = tl.where(exponent % 2 == 0, 1, -1).to(base.dtype)
    below = tl.where(base == 1, 1, tl.where(base == -1, sign, 0)).to(base.dtype)
    return tl.where(exponent < 0, below, whole_power(base, exponent))


@triton.jit
def gcd(a, b):
    """Euclid's algorithm; 93 steps are enough for 64 bits."""
    high = tl.where(a < 0, -a, a)
    low = tl.where(b < 0, -b, b)
    for _ in range(93):
        safe = tl.where(low == 0, 1, low).to(low.dtype)
        rest = tl.where(low == 0, 0, high % safe).to(low.dtype)
        high = tl.where(low == 0, high, low)
        low = rest
    return tl.where(high < 0, -high, high)


@triton.jit
def random_bits(seed, draw, position):
    """The first two words of Philox 4x32-10 (Salmon et al., SC'11) for the counter (position,
    draw) and the key `seed`, low halves first."""
    a, b = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    c, d = draw.to(tl.uint32), (draw >> 32).to(tl.uint32)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    first = tl.full([], 0xD2511F53, tl.uint32)
    second = tl.full([], 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        e = tl.umulhi(c, second) ^ b ^ low
        f = tl.umulhi(a, first) ^ d ^ high
        b = c * second
        d = a * first
        a = e
        c = f
        low += tl.full([], 0x9E3779B9, tl.uint32)
        high += tl.full([], 0xBB67AE85, tl.uint32)
    return (b.to(tl.int64) << 32) | a.to(tl.int64)


@triton.jit
def digamma(x):
    """Reflection below zero, recurrence up to 10, then the asymptotic series (Abramowitz and
    Stegun, 6.3.7, 6.3.5 and 6.3.18)."""
    wide = x.to(tl.float64)
    whole = tl.floor(wide) == wide
    positive = tl.where(wide < 0.5, 1 - wide, wide)
    total = 0.0 * positive
    at = positive
    for _ in range(10):
        small = at < 10
        total = tl.where(small, total - 1 / at, total)
        at = tl.where(small, at + 1, at)
    inverse = 1 / (at * at)
    series = inverse * (
        1.0 / 12
        - inverse
        * (
            1.0 / 120
            - inverse
            * (
                1.0 / 252
                - inverse
                * (1.0 / 240 - inverse * (1.0 / 132 - inverse * (691.0 / 32760 - inverse / 12)))
            )
        )
    )
    total += tl.log(at) - 0.5 / at - series
    angle = 3.141592653589793 * (wide - tl.floor(wide))
    cotangent = libdevice.cos(angle) / libdevice.sin(angle)
    total = tl.where(wide < 0.5, total - 3.141592653589793 * cotangent, total)
    total = tl.where((wide < 0) & whole, float("nan"), total)
    pole = tl.where(libdevice.signbit(wide) != 0, float("inf"), float("-inf"))
    total = tl.where(wide == 0, pole, total)
    total = tl.where(wide == float("inf"), wide, total)
    return tl.where(wide == float("-inf"), float("nan"), total).to(x.dtype)
