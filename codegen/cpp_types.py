"""How values of each dtype are spelled in C++: types, literals, loads, stores and casts.

Takes dtype names (`f32`, ...) and C++ expressions; gives C++ expressions. Half floats sit in
memory as 16-bit words and in variables as floats that hold representable values, so a chain
of casts costs one rounding and no packing.
"""

from __future__ import annotations

import math

VALUE_TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "float",
    "bf16": "float",
    "i64": "int64_t",
    "i32": "int32_t",
    "i16": "int16_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "bool": "bool",
}
MEMORY_TYPES = {**VALUE_TYPES, "f16": "uint16_t", "bf16": "uint16_t"}
HALVES = ("f16", "bf16")
FLOATS = ("f64", "f32", "f16", "bf16")
_LOWEST = {
    "i64": "INT64_MIN",
    "i32": "INT32_MIN",
    "i16": "INT16_MIN",
    "i8": "INT8_MIN",
    "u8": "0",
    "bool": "false",
}
_HIGHEST = {
    "i64": "INT64_MAX",
    "i32": "INT32_MAX",
    "i16": "INT16_MAX",
    "i8": "INT8_MAX",
    "u8": "UINT8_MAX",
    "bool": "true",
}


def literal(value: bool | int | float, dtype: str) -> str:
    """`value` as a C++ constant of `dtype`; safe to put beside any operator."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in FLOATS:
        return _integer(int(value), dtype)
    number = float(value)
    if math.isnan(number):
        text = "EQ_NAN"
    elif math.isinf(number):
        text = "EQ_INF" if number > 0 else "(-EQ_INF)"
    else:
        text = repr(abs(number)) + ("" if dtype == "f64" else "f")
        if "." not in text and "e" not in text:
            text = text.replace("f", ".0f")
        if math.copysign(1.0, number) < 0:
            text = f"(-{text})"
    if dtype == "f64" and not math.isfinite(number):
        return f"(double)({text})"
    return text if dtype not in HALVES else rounded(text, dtype)


def _integer(value: int, dtype: str) -> str:
    if dtype == "i64":
        return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"
    if dtype == "i32" and value == -(2**31):
        return "INT32_MIN"
    return f"(({VALUE_TYPES[dtype]}){value})"


def load(dtype: str, place: str) -> str:
    """The value read from memory word `place`."""
    return f"eq_from_{dtype}({place})" if dtype in HALVES else place


def stored(dtype: str, value: str) -> str:
    """The memory word for `value`, which is of `dtype` already."""
    return f"eq_to_{dtype}({value})" if dtype in HALVES else value


def packed(value: str, dtype: str) -> str:
    """The memory word for `value`, a float that is not rounded to a half dtype yet."""
    return f"eq_pack_{dtype}({value})" if dtype in HALVES else value


def rounded(value: str, dtype: str) -> str:
    """`value`, a float, rounded to a half dtype; other dtypes as they are."""
    return f"eq_round_{dtype}({value})" if dtype in HALVES else value


def cast(value: str, source: str, target: str) -> str:
    """`value` of dtype `source` converted as eager does; nan becomes true."""
    if source == target:
        return value
    if target == "bool":
        return f"({value} != 0)"
    if target in HALVES:
        return rounded(f"(float){value}", target)
    if source in HALVES and target == "f32":
        return value
    if source in FLOATS and target in ("u8", "i8", "i16"):
        return f"({VALUE_TYPES[target]})(int64_t){value}"
    return f"({VALUE_TYPES[target]}){value}"


def joined(mode: str, old: str, new: str, dtype: str) -> str:
    """What a store of this mode leaves in place of `old`."""
    if dtype == "bool":
        return f"{old} {'|' if mode in ('add', 'max') else '&'} {new}"
    if mode in ("max", "min"):  # of equal ones (0.0 and -0.0) the first stays
        return f"eq_{mode}({new}, {old})"
    return f"{old} {'+' if mode == 'add' else '*'} {new}"


def lowest(dtype: str) -> str:
    """The identity of max."""
    return literal(-math.inf, dtype) if dtype in FLOATS else _LOWEST[dtype]


def highest(dtype: str) -> str:
    """The identity of min."""
    return literal(math.inf, dtype) if dtype in FLOATS else _HIGHEST[dtype]
