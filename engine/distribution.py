"""Whether two random results have one distribution: for rules of the class `random`.

Takes two functions that draw a result; gives the reason they differ, or None. The test is the
two-sample one of Kolmogorov and Smirnov, for every element and for a mix of all of them (which
sees whether elements depend on each other). At fixed seeds the answer is always the same, and
a right rule fails with a chance below `_LEVEL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

DRAWS = 3000
ELEMENTS = 16  # the first elements of a result are tested
_LEVEL = 1e-6


def distribution_differs(
    left: Callable[[], torch.Tensor], right: Callable[[], torch.Tensor], seed: int
) -> str | None:
    """Why the results do not have one distribution, None where nothing speaks against it.
    The random state of the process is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        samples = [_draw(side) for side in (left, right)]
    one, two = samples
    if one.shape != two.shape or not one.numel():
        return None
    critical = critical_gap(one.shape[1])
    for place in range(one.shape[1]):
        distance = largest_gap(one[:, place], two[:, place])
        if distance > critical:
            return (
                f"the distributions are {distance:.3g} apart (Kolmogorov-Smirnov,"
                f" {DRAWS} draws; {critical:.3g} is allowed): means"
                f" {float(one[:, place].mean()):.4g} and {float(two[:, place].mean()):.4g}"
            )
    return None


def critical_gap(columns: int) -> float:
    """The gap that samples of one distribution do not exceed: in none of that many columns,
    which are elements and a mix of them."""
    return math.sqrt(-math.log(_LEVEL / (2 * columns)) / DRAWS)


def largest_gap(one: torch.Tensor, two: torch.Tensor) -> float:
    """The greatest distance between the empirical distributions of two samples (1-d)."""
    one, two = one.sort().values, two.sort().values
    points = torch.cat([one, two])
    below = torch.searchsorted(one, points, right=True) / one.numel()
    others = torch.searchsorted(two, points, right=True) / two.numel()
    return float((below - others).abs().max())


def _draw(side: Callable[[], torch.Tensor]) -> torch.Tensor:
    """`DRAWS` rows: the first elements of a result in float64, and a fixed mix of them."""
    rows = torch.stack([side().detach().double().flatten()[:ELEMENTS] for _ in range(DRAWS)])
    mix = torch.cos(torch.arange(rows.shape[1], dtype=torch.float64) + 1)
    return torch.cat([rows, (rows * mix).sum(1, keepdim=True)], dim=1) if rows.numel() else rows
