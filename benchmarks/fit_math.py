"""Fits the polynomials of codegen/eqsat_math.h; run it to see every coefficient again.

Takes nothing; prints one C array per function. Each fit is a weighted least-squares
solution on Chebyshev points whose weights are raised where the error is largest (Lawson's
iteration), so that it ends close to the minimax polynomial. The error printed is that of
the real polynomial, before its coefficients are rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np

Function = Callable[[mpmath.mpf], mpmath.mpf]
mpmath.mp.dps = 50


def fit(
    target: Function, scale: Function, low: float, high: float, degree: int, rounds: int = 60
) -> tuple[list[float], float]:
    """Coefficients (constant first) of p with |p - target| * scale small on [low, high]."""
    count = 12 * (degree + 1)
    nodes = [mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    points = [(low + high) / 2 + (high - low) / 2 * node for node in nodes]
    values = np.array([float(target(point)) for point in points])
    scales = np.array([float(scale(point)) for point in points])
    basis = np.polynomial.chebyshev.chebvander(np.array([float(n) for n in nodes]), degree)
    weights = np.ones(count)
    best, smallest = np.zeros(degree + 1), np.inf
    for _ in range(rounds):
        root = np.sqrt(weights) * scales
        series, *_ = np.linalg.lstsq(basis * root[:, None], values * root, rcond=None)
        error = np.abs(basis @ series - values) * scales
        if error.max() < smallest:
            best, smallest = series, error.max()
        weights = weights * (error + 1e-30)
        weights /= weights.sum()
    line = np.polynomial.chebyshev.Chebyshev(best, domain=[low, high])
    return list(line.convert(kind=np.polynomial.Polynomial).coef), float(smallest)


def show(name: str, single: bool, result: tuple[list[float], float]) -> None:
    coefficients, error = result
    words = [f"{np.float32(c):.9e}f" if single else f"{c:.17e}" for c in coefficients]
    print(f"// {name}: error {error:.2e}")
    print("{" + ", ".join(words) + "}")


def series(function: Function, taken: int, point: mpmath.mpf) -> mpmath.mpf:
    """The Taylor series of `function` at 0 without its first `taken` terms, over x**taken."""
    terms = mpmath.taylor(function, 0, taken + 30)[taken:]
    return mpmath.polyval(terms[::-1], point)


def one(_: mpmath.mpf) -> mpmath.mpf:
    return mpmath.mpf(1)


@dataclass(frozen=True)
class Fit:
    """One polynomial: what it stands for, whether its coefficients are floats, and what is
    fitted where, to which degree, with errors weighted by `scale`."""

    name: str
    single: bool
    target: Function
    scale: Function
    low: float
    high: float
    degree: int


HALF = float(mpmath.log(2)) / 2 + 1e-6
ROOT = float(mpmath.sqrt(2))
QUARTER = float(mpmath.pi) / 4 + 2e-3  # the quotient is rounded before the remainder is known
EDGE = ((ROOT - 1) / (ROOT + 1) + 1e-6) ** 2


def exponentials() -> list[Fit]:
    return [
        Fit(
            "exp(r) = 1 + r + r^2 q(r)",
            True,
            lambda r: series(mpmath.exp, 2, r),
            lambda r: r * r,
            -HALF,
            HALF,
            4,
        ),
        Fit(
            "expm1(r) = r + r^2 q(r)",
            True,
            lambda r: series(mpmath.exp, 2, r),
            lambda r: abs(r) + 1e-3,
            -HALF,
            HALF,
            5,
        ),
        Fit(
            "exp2(r) = 1 + r q(r)",
            True,
            lambda r: series(lambda v: 2**v, 1, r),
            abs,
            -0.5001,
            0.5001,
            5,
        ),
    ]


def logarithm() -> list[Fit]:
    return [
        Fit(
            "log(1 + f) = f - f^2 / 2 + f^3 q(f)",
            True,
            lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3 if f else mpmath.mpf(1) / 3,
            lambda f: f * f + 1e-4,
            1 / ROOT - 1 - 1e-6,
            ROOT - 1 + 1e-6,
            8,
        )
    ]


def sigmoids() -> list[Fit]:
    """Functions with two flat ends."""
    return [
        Fit(
            "tanh(x) = x + x^3 q(x^2), |x| < 0.625",
            True,
            lambda t: (mpmath.tanh(mpmath.sqrt(t)) / mpmath.sqrt(t) - 1) / t,
            lambda t: t + 1e-3,
            0.0,
            0.625**2,
            4,
        ),
        Fit(
            "erf(x) = x + x q(x^2), |x| < 1",
            True,
            lambda t: mpmath.erf(mpmath.sqrt(t)) / mpmath.sqrt(t) - 1,
            one,
            1e-9,
            1.0,
            6,
        ),
        Fit(
            "erfc(y + 2.5) = q(y), |y| <= 1.5",
            True,
            lambda y: mpmath.erfc(y + 2.5),
            one,
            -1.5,
            1.5,
            12,
        ),
    ]


def circular() -> list[Fit]:
    return [
        Fit(
            "sin(r) = r + r^3 q(r^2)",
            True,
            lambda t: (mpmath.sin(mpmath.sqrt(t)) / mpmath.sqrt(t) - 1) / t,
            lambda t: t + 1e-3,
            1e-9,
            QUARTER**2,
            3,
        ),
        Fit(
            "cos(r) = 1 - r^2 / 2 + r^4 q(r^2)",
            True,
            lambda t: (mpmath.cos(mpmath.sqrt(t)) - 1 + t / 2) / (t * t),
            lambda t: t * t + 1e-3,
            1e-9,
            QUARTER**2,
            2,
        ),
    ]


def powers() -> list[Fit]:
    """Both halves of pow, in f64."""
    return [
        Fit(
            "log2((1 + s) / (1 - s)) = s q(s^2)",
            False,
            lambda t: 2 * mpmath.atanh(mpmath.sqrt(t)) / mpmath.sqrt(t) / mpmath.log(2),
            one,
            1e-12,
            EDGE,
            5,
        ),
        Fit(
            "exp2(r) = q(r)",
            False,
            lambda r: mpmath.mpf(2) ** r,
            one,
            -0.5001,
            0.5001,
            8,
        ),
    ]


def main() -> None:
    groups = (exponentials, logarithm, sigmoids, circular, powers)
    for wanted in [found for group in groups for found in group()]:
        result = fit(wanted.target, wanted.scale, wanted.low, wanted.high, wanted.degree)
        show(wanted.name, wanted.single, result)


if __name__ == "__main__":
    main()
