"""Compares the two sides of a rule by numerics class.

Takes tensors; gives the reason two results differ by more than a class allows, or None. The
classes are those of `rule.NUMERICS`, tested as the rule language says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Part of the scale that a reordered result may be off, besides m times the left side's error.
# One rounding for half types: with a handful of elements the left side may be exact by luck
# (`halves.py` holds many examples together to less).
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
_EXACT_ENOUGH = 1e-12  # float64, where nothing wider is at hand
_MULTIPLIER = {torch.float32: 2.0, torch.float16: 3.0, torch.bfloat16: 3.0}


@dataclass(frozen=True)
class Sides:
    """One result of both sides. `wide` is the left side in float64 without roundings, `scale`
    the size of the inputs. `late`, of half results, is the right side rounded no more often than
    a rule can choose (`reference.LateWorld`). With `only_places`, numbers are so large that only
    inf and nan are compared. `soft` says that an op was met whose order of operations is not
    known."""

    left: torch.Tensor
    right: torch.Tensor
    wide: torch.Tensor
    scale: float
    overflow_is_fine: bool = False
    only_places: bool = False
    soft: bool = False
    late: torch.Tensor | None = None

    @property
    def steady(self) -> bool:
        """Whether equal programs have equal bits: in float64 nothing wider hides an order."""
        return not (self.soft and self.left.dtype is torch.float64)

    @property
    def is_float(self) -> bool:
        return self.left.is_floating_point() or self.left.is_complex()

    def holds(self, kind: str) -> bool:
        """Whether nothing speaks against class `kind`: fewer roundings are the same order, so
        that it has to be known, and equal bits must be equal where nothing hides it."""
        if kind == "fewer_roundings" and self.is_float and self.soft:
            return False
        return differs(self, kind) is None


def differs(sides: Sides, kind: str, rtol: float = 0.0, atol: float = 0.0) -> str | None:
    """Why the sides are not equal in the sense of class `kind`; None where they are."""
    if sides.left.shape != sides.right.shape:
        return f"shape {tuple(sides.left.shape)} becomes {tuple(sides.right.shape)}"
    if sides.left.dtype != sides.right.dtype:
        return f"dtype {sides.left.dtype} becomes {sides.right.dtype}"
    if kind == "random":
        return None
    if not sides.is_float and kind == "approximate":
        return _not_close(sides, rtol, atol)
    if kind == "exact" or not sides.is_float:
        return _first_difference(sides.left, sides.right, bits=True)
    if kind == "signed_zero":
        return _first_difference(sides.left, sides.right, bits=False)
    places = _places_differ(sides)
    if places is not None or sides.only_places:
        return places
    if kind == "approximate":
        return _not_close(sides, rtol, atol)
    return _too_far(sides, kind)


def is_rounding(sides: Sides) -> bool:
    """Whether results differ in finite numbers alone, in a dtype that float64 is wider than."""
    left, right = sides.left, sides.right
    alike = sides.is_float and (left.shape, left.dtype) == (right.shape, right.dtype)
    if not alike or sides.only_places or _real(left).dtype not in _MULTIPLIER:
        return False
    return _places_differ(sides) is None


def within(errors: Sequence[Sequence[float]], kind: str, sides: Sides) -> bool:
    """Whether errors of the left and of the right side, as parts of the scale, are all together
    as close as `kind` asks for; the dtype is that of `sides`."""
    dtype = _real(sides.left).dtype
    left, right = (
        math.sqrt(sum(one[side] ** 2 for one in errors) / len(errors)) for side in (0, 1)
    )
    return right <= _factor(kind, dtype) * left + _allowance(kind, dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal bits, any nan being equal to any other."""
    return _first_difference(left, right, bits=True) is None


def is_decisive(sides: Sides) -> bool:
    """Whether an example can tell fewer roundings from another order of operations."""
    narrow = sides.is_float and _real(sides.left).dtype is not torch.float64
    return narrow and not sides.only_places and not same_bits(sides.left, sides.right)


def excess(sides: Sides, rtol: float, atol: float) -> float:
    """The greatest part of a tolerance that an element uses; 1 is all of it."""
    left, right = _real(sides.left).double(), _real(sides.right).double()
    off = (left - right).abs() / (atol + rtol * left.abs())
    off = off[left.isfinite() & right.isfinite() & (left != right)]
    return float(off.max()) if off.numel() else 0.0


def tolerance(kind: str, dtype: torch.dtype, scale: float) -> float:
    """An absolute difference that no pair of results of `kind` stays within where `differs`
    calls its errors too large."""
    if kind not in ("fewer_roundings", "reassociate") or not dtype.is_floating_point:
        return 0.0
    if dtype is torch.float64:
        return _EXACT_ENOUGH * scale
    return _allowance(kind, dtype) * scale


def _factor(kind: str, dtype: torch.dtype) -> float:
    return 1.0 if kind == "fewer_roundings" else _MULTIPLIER[dtype]


def _allowance(kind: str, dtype: torch.dtype) -> float:
    eps = torch.finfo(dtype).eps
    return eps * 0.01 if kind == "fewer_roundings" else _TOLERANCE[dtype]


def _first_difference(left: torch.Tensor, right: torch.Tensor, bits: bool) -> str | None:
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    left, right = left.detach(), right.detach()
    equal = left == right
    if left.is_floating_point():
        if bits:
            equal &= torch.signbit(left) == torch.signbit(right)
        equal |= left.isnan() & right.isnan()
    if bool(equal.all()):
        return None
    place = tuple((~equal).nonzero()[0].tolist())
    return f"at {list(place)}: {left[place].item()!r} becomes {right[place].item()!r}"


def _places_differ(sides: Sides) -> str | None:
    """inf and nan must be in the same places, overflow of the left side perhaps aside."""
    left, right = _real(sides.left), _real(sides.right)
    differ = left.isnan() != right.isnan()
    infinite = left.isinf() | right.isinf()
    differ |= infinite & (left != right) & ~(left.isnan() & right.isnan())
    if sides.overflow_is_fine:
        differ &= ~_overflowed(sides)
    if not bool(differ.any()):
        return None
    place = tuple(differ.nonzero()[0].tolist())
    return f"at {list(place)}: {left[place].item()!r} becomes {right[place].item()!r}"


def _overflowed(sides: Sides) -> torch.Tensor:
    """Where a side is not finite though the true value is."""
    left, right, wide = _real(sides.left), _real(sides.right), _real(sides.wide)
    return wide.isfinite() & ~(left.isfinite() & right.isfinite())


def _not_close(sides: Sides, rtol: float, atol: float) -> str | None:
    left, right = _real(sides.left).double(), _real(sides.right).double()
    both = left.isfinite() & right.isfinite()
    off = torch.where(both, (left - right).abs() - atol - rtol * left.abs(), 0.0)
    if off.numel() == 0 or bool((off <= 0).all()):
        return None
    place = tuple((off > 0).nonzero()[0].tolist())
    return (
        f"at {list(place)}: {left[place].item()!r} becomes {right[place].item()!r}, "
        f"beyond rtol {rtol} and atol {atol}"
    )


def _too_far(sides: Sides, kind: str) -> str | None:
    left, right, wide = _usable(sides)
    if left.numel() == 0:
        return None
    dtype = _real(sides.left).dtype
    scale = max(rms(wide), sides.scale)
    if dtype == torch.float64:
        error, limit = rms(right - left), _EXACT_ENOUGH * scale + torch.finfo(dtype).tiny
        return None if error <= limit else f"float64 results are {error:.3g} apart"
    error_left, error_right = rms(left - wide), rms(right - wide)
    allowed = _allowance(kind, dtype) * scale + torch.finfo(dtype).tiny  # what underflow leaves
    if error_right <= _factor(kind, dtype) * error_left + allowed:
        return None
    return f"error against float64 {error_right:.3g}, on the left {error_left:.3g}"


def relative_errors(sides: Sides) -> tuple[float, float, float] | None:
    """The errors against float64 of the left side, of the right side and of `late`, as parts of
    the scale; None where there is nothing to measure."""
    late = sides.right if sides.late is None else sides.late
    wide, *results = (_real(t).double() for t in (sides.wide, sides.left, sides.right, late))
    usable = torch.stack([result.isfinite() for result in (wide, *results)]).all(0)
    scale = max(rms(wide[usable]), sides.scale)
    if not bool(usable.any()) or scale == 0:
        return None
    left, right, least = (rms((result - wide)[usable]) / scale for result in results)
    return left, right, least


def _usable(sides: Sides) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both sides and the truth in float64, where all of them are finite (in one dim)."""
    left, right, wide = (_real(t).double() for t in (sides.left, sides.right, sides.wide))
    usable = left.isfinite() & right.isfinite() & wide.isfinite()
    return left[usable], right[usable], wide[usable]


def rms(values: torch.Tensor) -> float:
    """The root of the mean square; 0 for no values."""
    if values.numel() == 0:
        return 0.0
    largest = float(values.abs().max())
    if largest == 0 or largest != largest or largest == float("inf"):
        return largest
    return largest * float((values / largest).square().mean().sqrt())


def _real(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return torch.view_as_real(value) if value.is_complex() else value


def too_far_apart(expected: torch.Tensor, found: torch.Tensor) -> str | None:
    """Why `found` is no result of another kernel for `expected`: its shape, its dtype, inf or
    nan in other places, or an error beyond a few roundings. None where it is one."""
    sides = Sides(expected, found, expected, 0.0)
    if not sides.is_float or found.dtype != expected.dtype or found.shape != expected.shape:
        return differs(sides, "exact")
    places = _places_differ(sides)
    if places is not None:
        return places
    left, right = _real(expected).double(), _real(found).double()
    finite = left.isfinite() & right.isfinite()
    left, right = left[finite], right[finite]
    dtype = _real(expected).dtype
    allowed = 3 * _TOLERANCE.get(dtype, _EXACT_ENOUGH) * max(1.0, rms(left))
    error = rms(right - left)
    return None if error <= allowed else f"{error:.3g} apart, {allowed:.3g} is allowed"
