"""Reductions and scans of tiles in Triton.

Takes `reduce` and `scan` scalars; gives expressions over tiles. A tile is reduced along its last
dim; where a row is walked in steps, one running tile per reduction collects the steps, and is
reduced after the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...lowering.loops import Scalar
from ..cpp_types import FLOATS
from . import spelling


@dataclass(frozen=True)
class Fold:
    """How a reduction combines values of `dtype`: `first` is the identity, `pair` a helper or
    function of two values, `fold` the expression that reduces a tile (of {0}, along dim {1})."""

    dtype: str
    first: str
    pair: str
    fold: str
    places: bool = False  # an arg-reduction: values come with their places

    @property
    def type(self) -> str:
        return spelling.variable_type(self.dtype)


def fold_of(scalar: Scalar) -> Fold:
    """The fold behind a `reduce` scalar."""
    kind, dtype = str(scalar.value), scalar.dtype
    match kind:
        case "sum":
            return Fold(dtype, "0", "{0} + {1}", "tl.sum({0}, {1})")
        case "prod":
            return Fold(dtype, "1", "{0} * {1}", "tl.reduce({0}, {1}, times)")
        case "any":
            return Fold("i32", "0", "{0} | {1}", "tl.max({0}, {1})")
        case "all":
            return Fold("i32", "1", "{0} & {1}", "tl.min({0}, {1})")
    held = scalar.args[0].dtype
    held = "i32" if held == "bool" else held
    most = kind.endswith("max")
    first = spelling.lowest(held) if most else spelling.highest(held)
    word = "max" if most else "min"
    if kind.startswith("arg"):
        fold = f"tl.reduce({{0}}, {{1}}, first_{word})"
        return Fold(held, first, f"first_{word}({{0}}, {{1}})", fold, places=True)
    fold = f"tl.reduce({{0}}, {{1}}, nan_{word})" if held in FLOATS else f"tl.{word}({{0}}, {{1}})"
    return Fold(held, first, f"nan_{word}({{0}}, {{1}})", fold)


def folded(scalar: Scalar, fold: Fold, value: str) -> str:
    """The result of a reduction, `value`, in the dtype of `scalar`."""
    if scalar.dtype == "bool":
        return f"({value}) != 0"
    return spelling.rounded(f"({value}).to({spelling.variable_type(scalar.dtype)})", scalar.dtype)


def operand(scalar: Scalar, fold: Fold, value: str) -> str:
    """`value`, the operand of a reduction, as its fold takes it."""
    held = scalar.args[0].dtype
    if scalar.value in ("any", "all"):
        return f"({spelling.cast(value, held, 'bool')}).to(tl.int32)"
    return f"({value}).to({fold.type})"


@dataclass(frozen=True)
class Scan:
    """`states` are the identities of the tiles that a scan carries; `pair` combines them."""

    pair: str
    states: tuple[str, ...]
    types: tuple[str, ...]


def scan_of(scalar: Scalar) -> Scan:
    """The scan behind a `scan` scalar."""
    dtype = scalar.args[0].dtype
    dtype = "i32" if dtype == "bool" else dtype
    kind, type_ = str(scalar.value), spelling.variable_type(dtype)
    if kind in ("sum", "prod"):
        return Scan(*{"sum": ("plus", ("0",)), "prod": ("times", ("1",))}[kind], (type_,))
    if kind == "logaddexp":
        return Scan("join_powers", (spelling.lowest(dtype), "0"), (type_, type_))
    most = kind.endswith("max")
    first = spelling.lowest(dtype) if most else spelling.highest(dtype)
    return Scan("last_max" if most else "last_min", (first, "0"), (type_, "tl.int64"))


def scanned(scalar: Scalar, states: tuple[str, ...]) -> str:
    """The value of a scan at each point, from its states there."""
    if str(scalar.value).startswith("arg"):
        return f"{states[1]}.to({spelling.variable_type(scalar.dtype)})"
    value = states[0]
    if scalar.value == "logaddexp":
        value = f"({value} + tl.log({states[1]}))"
    if scalar.dtype == "bool":
        return f"({value}) != 0"
    return spelling.rounded(f"({value}).to({spelling.variable_type(scalar.dtype)})", scalar.dtype)
