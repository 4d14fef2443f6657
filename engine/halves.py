"""The rounding errors of half types, pooled over all examples of a rule.

Takes results of both sides; gives the reason why the right side's errors are larger than
`reassociate` allows. One example of a few elements says little, as either side may be exact by
luck; over many examples the luck evens out, so that the language's own bound can be held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .compare import Sides, relative_errors
from .draw import Structure

HALF_MULTIPLIER = 3.0
# A tenth of what torch's own tests allow.
HALF_TOLERANCE = {torch.float16: 1e-4, torch.bfloat16: 1.6e-3}
_ENOUGH = 4  # examples before the errors of a dtype are judged


@dataclass(frozen=True)
class _Errors:
    """Errors of one result against float64, as parts of its scale, and the example it is of."""

    left: float
    right: float
    dtype: torch.dtype
    structure: Structure
    values: Mapping[str, Any]

    @property
    def beyond(self) -> float:
        return beyond(self.left, self.right, self.dtype)


@dataclass
class HalfErrors:
    """What examples that were right one by one add up to."""

    _pools: dict[tuple[str, torch.dtype], list[_Errors]] = field(default_factory=dict)

    def add(self, root: str, sides: Sides, structure: Structure, values: Mapping[str, Any]) -> None:
        """Takes note of one result; of other dtypes than half ones nothing."""
        dtype = sides.left.dtype
        if dtype in HALF_TOLERANCE and not sides.only_places:
            errors = relative_errors(sides)
            if errors is not None:
                pool = self._pools.setdefault((root, dtype), [])
                pool.append(_Errors(*errors, dtype, structure, values))

    def too_large(self) -> tuple[str, Structure, Mapping[str, Any]] | None:
        """Why the errors of the right side are too large, and the example that shows it most;
        None where they are not. That example is beyond the bound by itself: were none, all of
        them together would not be either."""
        for (_, dtype), pool in self._pools.items():
            left = _root_mean_square([one.left for one in pool])
            right = _root_mean_square([one.right for one in pool])
            if len(pool) >= _ENOUGH and beyond(left, right, dtype) > 0:
                worst = max(pool, key=lambda one: one.beyond)
                text = (
                    f"over {len(pool)} examples in {str(dtype).removeprefix('torch.')}, the error"
                    f" against float64 is {right:.3g} of the scale, on the left {left:.3g}"
                )
                return text, worst.structure, worst.values
        return None


def beyond(left: float, right: float, dtype: torch.dtype) -> float:
    """By how much the right side's error exceeds the bound, as part of the scale."""
    return right - HALF_MULTIPLIER * left - HALF_TOLERANCE[dtype]


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
