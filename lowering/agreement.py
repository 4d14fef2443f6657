"""Whether two runs of a nest give the same values, as far as rounding lets them.

Takes a nest that was interpreted as it is, and twice with every inexact result moved by a few
units in the last place; gives which elements of another run differ by more than that explains.
So tolerances follow from the nest and its inputs: a copy has to agree bit by bit, a sum may
differ by what the order of its terms can change, and a comparison of two values that nearly
agree may go either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .loops import Scalar

# Scalars whose result is one of their operands, or exact.
_EXACT = frozenset(
    (
        *("load", "const", "index", "neg", "abs", "sign", "copysign", "relu", "where", "cast"),
        *("maximum", "minimum", "fmax", "fmin", "floor", "ceil", "round", "trunc", "nextafter"),
    )
)
_EXTREMES = ("max", "min", "argmax", "argmin")
_UNITS = 2.0  # units in the last place by which a result is moved
_FACTOR = 8.0  # how much more than the runs that were moved another run may differ


@dataclass(frozen=True)
class Disturbance:
    """Moves inexact results up or down; `sign` tells two opposite runs apart, `seed` pairs of
    them: the moves of one pair may cancel out in a result."""

    sign: int
    seed: int = 0

    def __call__(self, scalar: Scalar, value: torch.Tensor) -> torch.Tensor:
        if not value.dtype.is_floating_point or scalar.op in _EXACT:
            return value
        units = _UNITS
        if scalar.op in ("reduce", "scan"):
            if scalar.value in _EXTREMES:
                return value
            units += max(value.numel(), 1) ** 0.5 / 4 if scalar.op == "scan" else _UNITS
        generator = torch.Generator().manual_seed(scalar.serial + 65536 * self.seed)
        up = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8)
        step = (up * 2 - 1).to(value.dtype) * (self.sign * units * torch.finfo(value.dtype).eps)
        return value + value * step


DISTURBANCES = tuple(Disturbance(sign, seed) for seed in range(2) for sign in (1, -1))


def differing(
    got: torch.Tensor,
    wanted: torch.Tensor,
    moved: Sequence[torch.Tensor],
    still: torch.Tensor | None = None,
    terms: int = 1,
) -> torch.Tensor:
    """A mask of the elements of `got` that are not `wanted`, nor near it: as near as `moved`
    are to `still`, which is `wanted` itself unless said otherwise. `terms` is the number of
    values that a reduction of the nest takes in."""
    still = wanted if still is None else still
    unsteady = torch.zeros(wanted.shape, dtype=torch.bool)
    if not wanted.dtype.is_floating_point:
        for other in moved:
            unsteady = unsteady | (other != still)
        differ: torch.Tensor = (got != wanted) & ~unsteady
        return differ
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    spread = torch.zeros_like(wanted, dtype=torch.float64)
    for other in moved:
        unsteady = unsteady | (other.isfinite() != still.isfinite())
        spread = torch.maximum(spread, (other.double() - still.double()).abs().nan_to_num(0.0))
    if spread.numel():  # two moves may cancel out in an element, hardly in all of them
        spread = spread + spread.mean()
    info = torch.finfo(wanted.dtype)
    rounding = 0.0 if bool((spread == 0).all()) else info.eps
    allowed = _FACTOR * (1 + terms**0.5 / 16) * spread + wanted.double().abs() * rounding
    allowed = allowed + info.smallest_normal
    near = (got.double() - wanted.double()).abs() <= allowed
    agree: torch.Tensor = same | near | unsteady
    return ~agree
