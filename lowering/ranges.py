"""Which values an integer scalar can take.

Takes scalars and the known ranges of buffers; gives inclusive bounds, or None. This is what
lets a gather run without a check of its indices: an index made from a range, a clamp or an
argmax is known to lie within the dim it indexes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..engine.dtypes import dtype_of
from .index import Size, bounds
from .loops import Scalar
from .promotion import INTS
from .values import plain

Range = tuple[Size, Size]


def interval(scalar: Scalar, known: Mapping[str, Range]) -> Range | None:
    """Bounds of an integer or bool scalar, None where nothing is known."""
    if scalar.dtype == "bool":
        return (0, 1)
    if scalar.dtype not in INTS:
        return None
    match scalar.op:
        case "index":
            return bounds(scalar.index[0])
        case "const":
            return (int(scalar.value), int(scalar.value))
        case "load":
            found = known.get(scalar.buffer or "")
            return found if not scalar.args else hull(found, interval(scalar.args[1], known))
        case "cast":
            return _cast(interval(scalar.args[0], known), scalar.dtype)
        case "where":
            return hull(interval(scalar.args[1], known), interval(scalar.args[2], known))
        case "reduce" | "scan" if scalar.value in ("max", "min"):
            return interval(scalar.args[0], known)
    parts = [interval(arg, known) for arg in scalar.args]
    if scalar.op in ("maximum", "minimum", "remainder"):  # bounds of one operand are enough
        parts = [part or _every(arg) for part, arg in zip(parts, scalar.args, strict=True)]
    if any(part is None for part in parts):
        return None
    made = _arithmetic(scalar.op, [part for part in parts if part is not None])
    return _cast(made, scalar.dtype)


def inside(found: Range | None, size: Size) -> bool:
    """Whether 0 <= value < size for every value of the range."""
    return found is not None and at_most(0, found[0]) and at_most(found[1], size - 1)


def at_most(low: Size, high: Size) -> bool:
    """Whether low <= high is known."""
    if isinstance(low, int) and isinstance(high, int):
        return low <= high
    gap = plain(high - low)
    return gap >= 0 if isinstance(gap, int) else bool(gap.is_nonnegative)


def _arithmetic(op: str, parts: list[Range]) -> Range | None:
    (low, high), (other_low, other_high) = parts[0], parts[-1]
    match op:
        case "add":
            return (plain(low + other_low), plain(high + other_high))
        case "sub":
            return (plain(low - other_high), plain(high - other_low))
        case "neg":
            return (plain(-high), plain(-low))
        case "maximum":
            return _pair(_larger(low, other_low), _larger(high, other_high))
        case "minimum":
            return _pair(_smaller(low, other_low), _smaller(high, other_high))
    if not isinstance(other_low, int) or other_low != other_high or other_low <= 0:
        return None
    match op:
        case "mul":
            return (plain(low * other_low), plain(high * other_low))
        case "remainder":
            return (0, other_low - 1)
        case "floor_div" if isinstance(low, int) and isinstance(high, int):
            return (low // other_low, high // other_low)
        case "bit_and":
            return (0, other_low)
    return None


def hull(first: Range | None, second: Range | None) -> Range | None:
    """The range that holds both."""
    if first is None or second is None:
        return None
    return _pair(_smaller(first[0], second[0]), _larger(first[1], second[1]))


def _pair(low: Size | None, high: Size | None) -> Range | None:
    return None if low is None or high is None else (low, high)


def _smaller(a: Size, b: Size) -> Size | None:
    return a if at_most(a, b) else b if at_most(b, a) else None


def _larger(a: Size, b: Size) -> Size | None:
    return b if at_most(a, b) else a if at_most(b, a) else None


def _every(scalar: Scalar) -> Range | None:
    """All values of an integer dtype."""
    if scalar.dtype not in INTS:
        return None
    info = torch.iinfo(dtype_of(scalar.dtype))
    return info.min, info.max


def _cast(found: Range | None, dtype: str) -> Range | None:
    """The range after a conversion or wrapping arithmetic: unchanged where it fits."""
    if found is None:
        return None
    if not isinstance(found[0], int) or not isinstance(found[1], int):
        return found if dtype == "i64" else None
    info = torch.iinfo(dtype_of(dtype))
    return found if info.min <= found[0] and found[1] <= info.max else None
