"""Input tensors for checking a rule: layouts, and values with the awkward ones among them.

Takes a `TensorSpec`, a kind of filling and a seed; gives the tensor. The same arguments give
the same tensor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded")
# From plain to nasty: a failure is shown with the first that shows it.
FILLINGS = ("ones", "counting", "normal", "positive", "scaled", "special", "huge")
# Fillings whose values have neither kinks nor specials in them, for gradients.
SMOOTH = "normal"
# What the values of a tensor may keep to: the assumptions of rules, and "no_extremes" for
# rules that reorder arithmetic, as the largest numbers make any two orders differ.
ASSUMPTIONS = ("no_overflow", "finite", "no_nan", "no_signed_zero", "no_extremes")


@dataclass(frozen=True)
class TensorSpec:
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str = "contiguous"

    @property
    def numel(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


def make_tensor(
    spec: TensorSpec, filling: str, seed: int, assumed: Collection[str] = ()
) -> torch.Tensor:
    """A tensor as `spec` says. `assumed` holds names of ASSUMPTIONS that its values keep."""
    base, view = allocate(spec)
    values = draw_values(base.numel(), spec.dtype, filling, seed, assumed)
    base.copy_(values.view(base.shape))
    return view


def allocate(spec: TensorSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory to be filled, and the view on it that has the wanted shape and layout."""
    shape, rank = spec.shape, len(spec.shape)
    if spec.layout == "transposed":
        base = torch.empty(tuple(reversed(shape)), dtype=spec.dtype)
        return base, base.permute(tuple(reversed(range(rank))))
    if spec.layout == "sliced":
        base = torch.empty(tuple(2 * length + 1 for length in shape), dtype=spec.dtype)
        return base, base[tuple(slice(1, 2 * length + 1, 2) for length in shape)]
    if spec.layout == "expanded" and rank:
        base = torch.empty((1, *shape[1:]), dtype=spec.dtype)
        return base, base.expand(shape)
    base = torch.empty(shape, dtype=spec.dtype)
    return base, base


def draw_values(
    count: int, dtype: torch.dtype, filling: str, seed: int, assumed: Collection[str] = ()
) -> torch.Tensor:
    """`count` values of `dtype`, in one dim."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        if filling == "ones":
            return torch.ones(count, dtype=dtype)
        return torch.rand(count, generator=generator) > 0.5
    if dtype.is_complex:
        part = torch.float32 if dtype is torch.complex64 else torch.float64
        parts = draw_values(2 * count, part, filling, seed, assumed)
        return torch.view_as_complex(parts.view(count, 2))
    if not dtype.is_floating_point:
        return _integers(count, dtype, filling, generator)
    values = _floats(count, filling, generator)
    if filling == "huge" and "no_overflow" not in assumed:
        values = values * (torch.finfo(dtype).max / 16)
    if filling == "special":
        values = _with_specials(values, dtype, generator, assumed)
    return values.to(dtype)


def _floats(count: int, filling: str, generator: torch.Generator) -> torch.Tensor:
    if filling == "ones":
        return torch.ones(count, dtype=torch.float64)
    if filling == "counting":
        return torch.arange(count, dtype=torch.float64) % 7 * 0.5 - 1.0
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    if filling == "positive":
        return values.abs() + 0.25
    if filling == "scaled":
        return values * float(10 ** torch.randint(-2, 3, (), generator=generator))
    return values


def _with_specials(
    values: torch.Tensor,
    dtype: torch.dtype,
    generator: torch.Generator,
    assumed: Collection[str],
) -> torch.Tensor:
    info = torch.finfo(dtype)
    pool = [0.0, 1.0, info.tiny, -info.tiny]
    if "no_signed_zero" not in assumed:
        pool.append(-0.0)
    if "no_overflow" not in assumed and "no_extremes" not in assumed:
        pool += [info.max, info.min]
    if "finite" not in assumed:
        pool += [float("inf"), float("-inf")]
        if "no_nan" not in assumed:
            pool.append(float("nan"))
    count = values.numel()
    picks = torch.randint(len(pool), (count,), generator=generator)
    chosen = torch.rand(count, generator=generator) < 0.4
    specials = torch.tensor(pool, dtype=torch.float64)[picks]
    return torch.where(chosen, specials, values)


def _integers(
    count: int, dtype: torch.dtype, filling: str, generator: torch.Generator
) -> torch.Tensor:
    if filling == "ones":
        return torch.ones(count, dtype=dtype)
    if filling == "counting":
        return (torch.arange(count) % 5).to(dtype)
    low = 0 if dtype is torch.uint8 or filling == "positive" else -5
    values = torch.randint(low, 6, (count,), generator=generator)
    if filling == "special":
        info = torch.iinfo(dtype)
        # Not the least number itself: dividing it by -1 stops the process on x86.
        pool = torch.tensor([0, 1, info.min + 1, info.max])
        picks = torch.randint(4, (count,), generator=generator)
        chosen = torch.rand(count, generator=generator) < 0.3
        values = torch.where(chosen, pool[picks], values)
    return values.to(dtype)
