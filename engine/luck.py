"""Whether an example fails only because its left side is nearer to the truth by luck.

Takes the sides of a result and a way to compute their errors at other numbers; gives the answer.
Of few elements, or where large terms cancel, one side may happen to round to the true value. At
numbers close by it does not, whereas a wrong formula stays wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .compare import Sides, is_rounding, relative_errors, within

# What neighbours have in place of each float tensor, as factors: no powers of 2.
_BESIDE = (0.83, 0.91, 0.97, 1.03, 1.09, 1.17)

Errors = tuple[float, float, float]  # as `relative_errors` gives them


def is_luck(
    sides: Sides, env: Mapping[str, Any], errors_of: Callable[[Mapping[str, Any]], Errors | None]
) -> bool:
    """Whether the errors of the sides are as close as `reassociate` asks for, once those of
    neighbours of `env` count too. `errors_of` gives None where a neighbour is no example."""
    if not is_rounding(sides):
        return False
    errors = [relative_errors(sides)]
    for turn in range(len(_BESIDE)):
        near = {
            name: _scaled(value, _BESIDE[(turn + at) % len(_BESIDE)])
            for at, (name, value) in enumerate(env.items())
        }
        errors.append(errors_of(near))
    known = [one for one in errors if one is not None]
    return len(known) > 1 and within(known, "reassociate", sides)


def _scaled(value: Any, factor: float) -> Any:
    """A float tensor, or a list of some, times a factor; all else as it is."""
    if isinstance(value, list):
        return [_scaled(item, factor) for item in value]
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value * factor if is_float else value
