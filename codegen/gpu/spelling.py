"""How values of each dtype are spelled in Triton: types, literals, loads, stores and casts.

Takes dtype names (`f32`, ...) and Triton expressions; gives Triton expressions. Half floats sit
in variables as float32 that hold representable values, as they do in the C++ kernels.
"""

from __future__ import annotations

import math

from .. import index_text
from ..cpp_types import FLOATS, HALVES

TYPES = {
    "f64": "tl.float64",
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "i16": "tl.int16",
    "i8": "tl.int8",
    "u8": "tl.uint8",
    "bool": "tl.int1",
}
# What the compiler calls a pointer to each.
POINTERS = {
    "f64": "*fp64",
    "f32": "*fp32",
    "f16": "*fp16",
    "bf16": "*bf16",
    "i64": "*i64",
    "i32": "*i32",
    "i16": "*i16",
    "i8": "*i8",
    "u8": "*u8",
    "bool": "*i1",
}
WORDS = index_text.Words(
    exact="({0} // {1})",
    floor_div="floor_div({0}, {1})",
    remainder="floor_mod({0}, {1})",
    largest="tl.maximum({0}, {1})",
    least="tl.minimum({0}, {1})",
    power="whole_power({0}, {1})",
)
_BITS = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}


class IndexPrinter(index_text.IndexPrinter):
    """Indices in Triton, whose `//` and `%` round towards zero, as C does."""

    words = WORDS

    def gathered(self, name: str) -> str:
        return name

    def plain_division(self, value: str, divisor: str, sign: str, *, small: bool) -> str:
        return f"(({value}) {'//' if sign == '/' else sign} {divisor})"


def variable_type(dtype: str) -> str:
    """The type of a variable that holds a value of `dtype`."""
    return TYPES["f32"] if dtype in HALVES else TYPES[dtype]


def constant(value: bool | int | float, dtype: str) -> str:
    """`value` as a scalar of `dtype`. Bare Python numbers take their type from what stands
    beside them, and two of them are folded by Python: neither is wanted."""
    return rounded(f"tl.full([], {_number(value, dtype)}, {variable_type(dtype)})", dtype)


def _number(value: bool | int | float, dtype: str) -> str:
    if dtype == "bool":
        return str(bool(value))
    if dtype not in FLOATS:
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return 'float("nan")'
    if math.isinf(number):
        return f'float("{"-" if number < 0 else ""}inf")'
    return repr(number)


def rounded(value: str, dtype: str) -> str:
    """`value`, a float32, rounded to a half dtype; other dtypes as they are."""
    return f"({value}).to({TYPES[dtype]}).to(tl.float32)" if dtype in HALVES else value


def loaded(value: str, dtype: str) -> str:
    """A word of memory as a variable."""
    if dtype in HALVES:
        return f"{value}.to(tl.float32)"
    return f"({value} != 0)" if dtype == "bool" else value


def cast(value: str, source: str, target: str) -> str:
    """`value` of dtype `source` converted as eager does; nan becomes true."""
    if source == target:
        return value
    if target == "bool":
        return f"({value} != 0)"
    if target in HALVES:
        return rounded(f"({value}).to(tl.float32)", target)
    if source in HALVES and target == "f32":
        return value
    if source in FLOATS and target in ("u8", "i8", "i16"):
        return f"({value}).to(tl.int64).to({TYPES[target]})"
    return f"({value}).to({TYPES[target]})"


def lowest(dtype: str) -> str:
    """The identity of max."""
    if dtype in FLOATS:
        return 'float("-inf")'
    return str(-(2 ** _BITS[dtype])) if dtype in _BITS else "0"


def highest(dtype: str) -> str:
    """The identity of min."""
    if dtype in FLOATS:
        return 'float("inf")'
    return str(2 ** _BITS[dtype] - 1) if dtype in _BITS else "255" if dtype == "u8" else "1"
