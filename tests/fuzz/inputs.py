"""The tensors that random programs start from: values from a seed, in many layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0)
LAYOUTS = ("dense", "transposed", "strided", "expanded", "offset", "channels_last")


def tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    seed: int,
    values: str = "tame",
    layout: str = "dense",
    digits: torch.dtype | None = None,
) -> torch.Tensor:
    """A tensor that depends on the arguments alone; `digits` is the dtype that its values are
    rounded to before they become those of `dtype`.

    `values`: "tame" (about -2 to 2, whole numbers for integers), "special" (a part of them
    nan, infinite or a zero of either sign), "ties" (few distinct ones), "index N" (0 to N - 1),
    "unique N" (the same, no two alike along the first dim).
    """
    generator = torch.Generator().manual_seed(seed)
    made = _values(shape, digits or dtype, values, generator).to(dtype)
    return _LAYOUTS[layout](made)


def _values(
    shape: Sequence[int], dtype: torch.dtype, values: str, generator: torch.Generator
) -> torch.Tensor:
    kind, _, number = values.partition(" ")
    if kind == "index":
        return torch.randint(0, int(number), list(shape), generator=generator).to(dtype)
    if kind == "unique":
        order = torch.randperm(int(number), generator=generator)[: shape[0]]
        return order.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).to(dtype).contiguous()
    if dtype == torch.bool:
        return _draw(shape, generator) < 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -4
        return torch.randint(low, 5, list(shape), generator=generator).to(dtype)
    if kind == "ties":
        made = torch.randint(-2, 3, list(shape), generator=generator) * 0.5
    else:
        made = torch.randn(list(shape), generator=generator, dtype=torch.float64).clamp(-3, 3)
    if kind == "special":
        picks = torch.randint(0, len(SPECIAL), list(shape), generator=generator)
        mask = _draw(shape, generator) < 0.2
        made = torch.where(mask, torch.tensor(SPECIAL, dtype=made.dtype)[picks], made)
    return made.to(dtype)


def _draw(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """The same whatever the default dtype is."""
    return torch.rand(list(shape), generator=generator, dtype=torch.float32)


def _transposed(made: torch.Tensor) -> torch.Tensor:
    """The dims lie in memory in the opposite order."""
    backwards = list(range(made.dim()))[::-1]
    return made.permute(backwards).contiguous().permute(backwards)


def _strided(made: torch.Tensor) -> torch.Tensor:
    """Every second element of each dim of a larger tensor."""
    base = made.new_zeros([size * 2 for size in made.shape])
    view = base[tuple(slice(None, None, 2) for _ in made.shape)]
    return view.copy_(made)


def _expanded(made: torch.Tensor) -> torch.Tensor:
    """The first element of the first dim again and again (stride 0)."""
    return made[:1].clone().expand(made.shape) if made.dim() and made.shape[0] else made


def _offset(made: torch.Tensor) -> torch.Tensor:
    """Begins in the middle of a larger tensor, at an address that is not aligned."""
    base = made.new_zeros(made.numel() + 3)
    return base[3:].view(made.shape).copy_(made)


def _channels_last(made: torch.Tensor) -> torch.Tensor:
    if made.dim() != 4:
        return made
    return made.contiguous(memory_format=torch.channels_last)


_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = dict(
    zip(
        LAYOUTS,
        (lambda made: made, _transposed, _strided, _expanded, _offset, _channels_last),
        strict=True,
    )
)
