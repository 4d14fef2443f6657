"""The rounding errors of half types, over many examples of a rule.

Takes results of both sides; gives the reason why the right side rounds more often than the left
one does. One example of a few elements says little, as either side may be exact by luck. Over
many examples even one rounding more shows: errors grow by the root of 2, and the luck evens out.
What no rule can choose counts for the right side too: a product of half matrices is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .compare import Sides, relative_errors
from .draw import Structure

HALF_TYPES = (torch.float16, torch.bfloat16)
HALF_MULTIPLIER = 1.1  # well below the root of 2
_SURE = 3.0  # standard errors that the excess has to be above 0
_ENOUGH = 12  # results of one dtype before their errors are judged
_EXAMPLES = 48  # examples per dtype that are run for this alone
_FILLINGS = ("normal", "positive", "scaled")


@dataclass(frozen=True)
class _Errors:
    """Errors of one result against float64, as parts of its scale, and the example it is of.
    `allowed` is the larger one of the left side's and of what nobody can help."""

    right: float
    allowed: float
    structure: Structure
    values: Mapping[str, Any]

    @property
    def excess(self) -> float:
        """By how much the square of the error is beyond its bound, as part of both: from -1 to 1,
        so that no single example weighs more than the others."""
        right, allowed = self.right**2, (HALF_MULTIPLIER * self.allowed) ** 2
        return (right - allowed) / (right + allowed) if right + allowed > 0 else 0.0


@dataclass
class HalfErrors:
    """What examples that were right one by one add up to."""

    _pools: dict[tuple[str, torch.dtype], list[_Errors]] = field(default_factory=dict)

    def add(self, root: str, sides: Sides, structure: Structure, values: Mapping[str, Any]) -> None:
        """Takes note of one result; of other dtypes than half ones nothing."""
        dtype = sides.left.dtype
        if dtype in HALF_TYPES and not sides.only_places:
            errors = relative_errors(sides)
            if errors is not None:
                left, right, late = errors
                pool = self._pools.setdefault((root, dtype), [])
                pool.append(_Errors(right, max(left, late), structure, values))

    def too_large(self) -> tuple[str, Structure, Mapping[str, Any]] | None:
        """Why the errors of the right side are too large, and the example that shows it most;
        None where they are not. That example is beyond the bound by itself: were none, all of
        them together would not be either."""
        for (_, dtype), pool in self._pools.items():
            if len(pool) >= _ENOUGH and _is_clear([one.excess for one in pool]):
                worst = max(pool, key=lambda one: one.excess)
                right = _root_mean_square([one.right for one in pool])
                allowed = _root_mean_square([one.allowed for one in pool])
                text = (
                    f"it rounds more often than the left side: over {len(pool)} examples in"
                    f" {str(dtype).removeprefix('torch.')}, the error against float64 is"
                    f" {right / max(allowed, torch.finfo(dtype).tiny):.3g} times that of the left"
                )
                return text, worst.structure, worst.values
        return None


def half_examples(
    structures: Sequence[Structure],
) -> Iterator[tuple[Structure, dict[str, tuple[str, int]]]]:
    """Ordinary values for structures with half tensors, the largest in turn: a rounding shows
    in many of them."""
    for dtype in HALF_TYPES:
        ours = [one for one in structures if one.has_elements and dtype in one.dtypes]
        for place in range(_EXAMPLES if ours else 0):
            structure = ours[-1 - place % len(ours)]
            kind = _FILLINGS[place % len(_FILLINGS)]
            yield structure, {name: (kind, place + at) for at, name in enumerate(structure.tensors)}


def _is_clear(excesses: Sequence[float]) -> bool:
    """Whether the mean is above 0 by more than chance explains."""
    mean = sum(excesses) / len(excesses)
    spread = sum((one - mean) ** 2 for one in excesses) / (len(excesses) - 1)
    return mean > _SURE * math.sqrt(spread / len(excesses))


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
