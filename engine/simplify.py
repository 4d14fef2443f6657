"""Makes a failing example plain: the simplest structure, then zeros and ones.

Hypothesis has shrunk the choices by then; this tries what its choices cannot say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .draw import Structure
from .fill import FILLINGS, TensorSpec
from .repair import put
from .trial import Rejected, Trials

_TRIES = 300
_SEEDS = 6


def simplest(
    trials: Trials, structures: Sequence[Structure], found: Structure, most: int = _TRIES
) -> tuple[Structure, dict[str, Any]] | None:
    """A failing example simpler than `found`, among `structures` (simplest first) and their
    contiguous forms; None where none of at most `most` tries fails."""
    tries = 0
    for structure in _plainer(structures, found):
        for seed in range(_SEEDS):
            for kind in ("counting", *FILLINGS[2:]):
                filling = {name: (kind, seed + i) for i, name in enumerate(structure.tensors)}
                tries += 1
                if tries > most:
                    return None
                try:
                    values = trials.values(structure, filling)
                except Rejected:
                    continue
                if _fails(trials, values):
                    return structure, values
    return None


def _plainer(structures: Sequence[Structure], found: Structure) -> list[Structure]:
    plain = [_contiguous(structure) for structure in (*structures, found)]
    unique = {structure.key: structure for structure in (*plain, *structures)}
    return sorted(
        (structure for structure in unique.values() if structure.weight < found.weight),
        key=lambda structure: structure.weight,
    )


def _contiguous(structure: Structure) -> Structure:
    def plain(item: TensorSpec | tuple[TensorSpec, ...]) -> TensorSpec | tuple[TensorSpec, ...]:
        if isinstance(item, tuple):
            return tuple(replace(spec, layout="contiguous") for spec in item)
        return replace(item, layout="contiguous")

    tensors = {name: plain(item) for name, item in structure.tensors.items()}
    return replace(structure, tensors=tensors)


def simplified(trials: Trials, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with as many elements as possible set to 0 or 1, and still failing: all of a
    tensor at once, then halves, down to single elements, as long as tries are left."""
    best, tries = dict(values), 0
    for name, tensor in values.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        waiting = deque([(0, tensor.numel())])
        while waiting:
            start, end = waiting.popleft()
            for plain in (0, 1):
                flat = best[name].flatten().clone()
                if tries >= _TRIES or _are(flat[start:end], plain):
                    break
                flat[start:end] = plain
                changed = best | {name: put(best[name], flat.view(tensor.shape))}
                tries += 1
                if _fails(trials, changed):
                    best = changed
                    break
            else:
                middle = (start + end) // 2
                if start < middle:
                    waiting += [(start, middle), (middle, end)]
    return best


def _are(values: torch.Tensor, plain: int) -> bool:
    negative = values.is_floating_point() and bool(values.signbit().any())
    return bool((values == plain).all()) and not negative


def _fails(trials: Trials, values: Mapping[str, Any]) -> bool:
    try:
        return trials.run(values) is not None
    except Rejected:
        return False
