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
FILLINGS = (
    *("ones", "counting", "normal", "positive", "scaled", "shifted"),
    *("marked", "special", "huge"),
)
# What a check draws from: awkward values are worth more examples than plain ones.
DRAWN = (*FILLINGS, "marked", "special", "special")
# Fillings whose values have neither kinks nor specials in them, for gradients.
SMOOTH = "normal"
# What the values of a tensor may keep to: the assumptions of rules, and "no_extremes" for
# rules that reorder arithmetic, as the largest numbers make any two orders differ.
ASSUMPTIONS = ("no_overflow", "finite", "no_nan", "no_signed_zero", "no_extremes")


_SPECIAL = 0.6  # the part of a "special" filling that is special
_MARKED = 0.8  # the part of a "marked" filling that lies at a mark
_SHIFT = 24.0  # how far from 0 a "shifted" filling lies, in standard deviations
_HUGE = (16.0, 4.0, 2.0)  # the largest number is so many times what a "huge" filling deviates by
_BESIDE = 0.004  # how far beside a mark, as part of it
_LARGEST_MARK = 128.0  # products of a few of them fit into every float dtype


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
    spec: TensorSpec,
    filling: str,
    seed: int,
    assumed: Collection[str] = (),
    marks: Collection[float] = (),
) -> torch.Tensor:
    """A tensor as `spec` says. `assumed` holds names of ASSUMPTIONS that its values keep; the
    "marked" filling lies on and right beside `marks`, the numbers at which a formula may bend."""
    base, view = allocate(spec)
    values = draw_values(base.numel(), spec.dtype, filling, seed, assumed)
    if filling == "marked":
        values = _with_marks(values, marks, seed)
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
        largest = torch.finfo(dtype).max
        values = (values * (largest / _HUGE[seed % len(_HUGE)])).clamp(-largest, largest)
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
    if filling == "shifted":
        return values + _SHIFT
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
    pool = [0.0, 1.0]
    if "no_overflow" not in assumed:  # nor do products of small numbers leave the range
        pool += [info.tiny, -info.tiny]
    if "no_signed_zero" not in assumed:
        pool.append(-0.0)
    if "no_overflow" not in assumed and "no_extremes" not in assumed:
        pool += [info.max, info.min]
    if "finite" not in assumed:
        pool += [float("inf"), float("-inf")]
        if "no_nan" not in assumed:
            pool.append(float("nan"))
    count = values.numel()
    # All of them take turns, in an order of their own, so that a few elements hold most.
    order = torch.randperm(len(pool), generator=generator)
    specials = torch.tensor(pool, dtype=torch.float64)[order[torch.arange(count) % len(pool)]]
    chosen = torch.rand(count, generator=generator) < _SPECIAL
    return torch.where(chosen, specials, values)


def _with_marks(values: torch.Tensor, marks: Collection[float], seed: int) -> torch.Tensor:
    """Most of `values` replaced by marks, a third of these a little below or above."""
    usable = [mark + 0.0 for mark in marks if abs(mark) <= _LARGEST_MARK]  # no -0.0
    if not usable or values.dtype is torch.bool or values.dtype.is_complex:
        return values
    if values.dtype is torch.uint8:
        usable = [abs(mark) for mark in usable]
    generator = torch.Generator().manual_seed(seed)
    count = values.numel()
    picks = torch.randint(len(usable), (count,), generator=generator)
    at = torch.tensor(usable, dtype=torch.float64)[picks]
    if values.is_floating_point():
        at = at * (1 + _BESIDE * torch.randint(-1, 2, (count,), generator=generator))
    chosen = torch.rand(count, generator=generator) < _MARKED
    return torch.where(chosen, at.to(values.dtype), values)


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
