"""Looks for inputs that show why a rule needs an assumption.

Takes trials, structures and an assumption; says whether an example outside it fails, or is
refused by the left side. Examples are ordinary ones in which some tensors hold the numbers that
the assumption keeps out: in all places, in one row, or in one place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from .compare import differs
from .draw import TORCH_ERRORS, Structure
from .expr import names
from .repair import put
from .rule import Assumption
from .trial import Rejected, Trials

_TRIES = 120
_KINDS = ("normal", "special", "counting", "huge", "scaled", "positive")
_REPLACED = 0.6  # how often a tensor is among those that leave the assumption


def is_needed(trials: Trials, structures: Sequence[Structure], assumption: Assumption) -> bool:
    """Whether some example outside an assumption fails, or the left side refuses it."""
    random = Random(f"{trials.rule.name} {assumption.text}")
    for place, structure in enumerate(itertools.islice(itertools.cycle(structures), _TRIES)):
        filling = {
            name: (_KINDS[(place + place // len(_KINDS)) % len(_KINDS)], place + offset)
            for offset, name in enumerate(structure.tensors)
        }
        try:
            values = trials.values(structure, filling, without=assumption.text)
            if assumption.witness:
                _put_witness(values, assumption)
            elif place % len(_KINDS):
                _leave(values, assumption, random)
            if trials.run(values, without=assumption.text) is not None:
                return True
            if _differs_in_principle(trials, values, assumption):
                return True
        except TORCH_ERRORS:
            continue
        except Rejected:
            if assumption.expr is not None:
                return True
    return False


def _differs_in_principle(trials: Trials, values: dict[str, Any], assumption: Assumption) -> bool:
    """Whether the sides differ once every op is rounded once: kernels of this machine may
    overflow alike on both sides where others do not."""
    if trials.strict:  # run did just that
        return False
    numerics = trials.rule.numerics
    return any(
        sides.steady and differs(sides, numerics.float_class, numerics.rtol, numerics.atol)
        for sides in trials.reference_sides(values, without=assumption.text)
        if sides.is_float
    )


def _put_witness(values: dict[str, Any], assumption: Assumption) -> None:
    for name, text in assumption.witness.items():
        if isinstance(values.get(name), torch.Tensor):
            values[name] = torch.full_like(values[name], float(text))


def _leave(values: dict[str, Any], assumption: Assumption, random: Random) -> None:
    """Puts numbers outside an assumption into some of the tensors that it speaks of."""
    concerned = set(values) if assumption.expr is None else names(assumption.expr)
    for name in sorted(concerned & set(values)):
        value = values[name]
        sure = assumption.expr is not None
        if isinstance(value, torch.Tensor) and (sure or random.random() < _REPLACED):
            values[name] = _with_outsiders(value, assumption, random)


def _with_outsiders(value: torch.Tensor, assumption: Assumption, random: Random) -> torch.Tensor:
    if not value.is_floating_point() or not value.numel():
        return value
    outsider = random.choice(_outsiders(assumption, value.dtype))
    flat = value.flatten().clone()
    width = random.choice((flat.numel(), value.shape[-1] if value.dim() else 1, 1))
    start = random.randrange(flat.numel() // width) * width
    flat[start : start + width] = outsider
    return put(value, flat.view(value.shape))


def _outsiders(assumption: Assumption, dtype: torch.dtype) -> tuple[float, ...]:
    largest, inf, nan = torch.finfo(dtype).max, float("inf"), float("nan")
    middle = 4 * largest**0.5
    match assumption.text:
        case "no_overflow":
            return (largest, -largest, largest / 2, middle, -middle, 4 * largest**0.25)
        case "finite":
            return (inf, -inf, nan)
        case "no_nan":
            return (nan,)
        case "no_signed_zero":
            return (-0.0,)
    return (inf, -inf, nan, -1.0, 0.0)
