"""Every entry of rules/scalar in C++ against what torch computes eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from eqsat.codegen.cpp import KernelText, emit_nest
from eqsat.codegen.scalars import MissingScalar, find, pick
from eqsat.engine.rule import ScalarEntry
from eqsat.lowering.index import Axis, as_index
from eqsat.lowering.loops import Buffer, Builder, Nest, Scalar, Store
from eqsat.lowering.meanings import MEANINGS
from eqsat.tests.codegen.drafts import call, compile_texts, scalar_table

TYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
FLOATS = ("f32", "f64", "f16", "bf16")
WIDE = ("f32", "f64")
INTS = ("i64", "i32", "i16", "i8", "u8")
NUMBERS = (*FLOATS, *INTS)
EVERY = (*NUMBERS, "bool")
INF, NAN = float("inf"), float("nan")
COUNT = 4096

Function = Callable[..., torch.Tensor]


def _line(name: str) -> Function:
    return getattr(torch, name)


def _bools(wanted: Function) -> Function:
    """Int division is by constants that are never zero."""
    return lambda x, y: wanted(x, torch.where(y == 0, torch.ones_like(y), y))


def _by_numbers(wanted: Function) -> Function:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.is_floating_point():
            return wanted(x, y)
        return _bools(wanted)(x, y)

    return run


SPELLED: dict[str, tuple[Function, tuple[str, ...]]] = {
    **{name: (_line(name), EVERY) for name in ("add", "mul", "maximum", "minimum", "fmax", "fmin")},
    **{name: (_line(name), EVERY) for name in ("eq", "ne", "lt", "le", "gt", "ge", "sign")},
    **{
        name: (_line(name), EVERY)
        for name in ("logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf")
    },
    **{name: (_line(name), EVERY) for name in ("isfinite", "isposinf", "isneginf")},
    **{name: (_line(name), NUMBERS) for name in ("sub", "neg", "abs", "square")},
    **{name: (_line(name), NUMBERS) for name in ("floor", "ceil", "round", "trunc", "signbit")},
    **{name: (_line(name), FLOATS) for name in ("div", "reciprocal", "copysign", "frac", "lerp")},
    **{
        name: (_line(name), FLOATS)
        for name in (
            *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh"),
            *("acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma", "sigmoid"),
            *("atan2", "logit"),
        )
    },
    **{name: (_line(name), WIDE) for name in ("hypot", "nextafter", "logaddexp", "ldexp")},
    "fma": (lambda x, y, z: torch.addcmul(z, x, y), FLOATS),
    "floor_div": (_by_numbers(torch.floor_divide), NUMBERS),
    "remainder": (_by_numbers(torch.remainder), NUMBERS),
    "fmod": (_by_numbers(torch.fmod), NUMBERS),
    "trunc_div": (_by_numbers(lambda x, y: torch.div(x, y, rounding_mode="trunc")), NUMBERS),
    "pow": (torch.pow, NUMBERS),
    "where": (torch.where, ()),
    "relu": (torch.relu, NUMBERS),
    "clamp": (torch.clamp, NUMBERS),
    "heaviside": (torch.heaviside, NUMBERS),
    "gcd": (torch.gcd, INTS),
    "xlogy": (torch.special.xlogy, WIDE),
    "xlog1py": (torch.special.xlog1py, WIDE),
    "bit_and": (torch.bitwise_and, (*INTS, "bool")),
    "bit_or": (torch.bitwise_or, (*INTS, "bool")),
    "bit_xor": (torch.bitwise_xor, (*INTS, "bool")),
    "bit_not": (torch.bitwise_not, (*INTS, "bool")),
    "shift_left": (torch.bitwise_left_shift, INTS),
    "shift_right": (torch.bitwise_right_shift, INTS),
    "random_bits": (MEANINGS["random_bits"], ("i64",)),
    "silu": (F.silu, FLOATS),
    "log_sigmoid": (F.logsigmoid, WIDE),
    "mish": (F.mish, WIDE),
    "hardsigmoid": (F.hardsigmoid, WIDE),
    "hardswish": (F.hardswish, WIDE),
    "leaky_relu": (lambda x, y: torch.where(x > 0, x, x * y), WIDE),
}
# Where eager's own rounding, not only ours, is further than a few ulps from the real value.
LOOSE = {
    "lgamma": 1e-4,
    "digamma": 1e-3,
    "mish": 1e-4,
    "log_sigmoid": 1e-4,
    "erfinv": 1e-5,
    "logit": 1e-4,
    "logaddexp": 1e-5,
    "xlog1py": 1e-5,
    "sinh": 1e-5,
    "cosh": 1e-5,
    "tan": 1e-5,
}
RELATIVE = {"f64": 1e-12, "f32": 1e-6, "f16": 2e-3, "bf16": 1.6e-2}
CASES = [(name, dtype) for name, (_, dtypes) in SPELLED.items() for dtype in dtypes]


def _values(dtype: str, seed: int, op: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(COUNT, generator=generator) > 0.5
    if dtype in INTS:
        info = torch.iinfo(TYPES[dtype])
        small = torch.randint(0 if dtype == "u8" else -12, 70, (COUNT,), generator=generator)
        values = small.clamp(info.min, info.max).to(TYPES[dtype])
        values[:4] = torch.tensor([info.max, info.min, 0, 1], dtype=TYPES[dtype])
        return values
    values = torch.randn(COUNT, generator=generator, dtype=torch.float64) * 3
    if op == "erfinv":
        values = values.tanh()
    values[::7] = values[::7].round()
    specials = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.5, -2.5, 1e-3, 60.0, -60.0]
    for place, special in enumerate(specials):
        values[place * (3 if seed else 1) :: 97] = special
    return values.to(TYPES[dtype])


def _operands(entry: ScalarEntry, dtype: str) -> list[torch.Tensor]:
    return [_values(dtype, seed, entry.name) for seed in range(len(entry.args))]


def nest_of(entry: ScalarEntry, dtype: str) -> tuple[Nest, dict[str, Buffer]]:
    builder, axis = Builder(), Axis("i", COUNT)
    result = "bool" if entry.type.endswith("bool") else dtype
    names = [f"x{place}" for place in range(len(entry.args))]
    buffers = {name: Buffer(name, dtype, (COUNT,), (1,), "input") for name in names}
    buffers["o"] = Buffer("o", result, (COUNT,), (1,), "output")
    args = tuple(builder.load(buffers[name], (as_index(axis),)) for name in names)
    value = builder.make(entry.name, args, result)
    return Nest("n", (axis,), (), (Store("o", (as_index(axis),), value),)), buffers


@pytest.fixture(scope="module")
def table() -> Mapping[str, ScalarEntry]:
    return scalar_table()


@pytest.fixture(scope="module")
def kernels(table: Mapping[str, ScalarEntry]) -> dict[tuple[str, str], tuple[KernelText, Any]]:
    texts = {(name, dtype): emit_nest(*nest_of(table[name], dtype), table) for name, dtype in CASES}
    built = compile_texts({f"{n}_{d}": text for (n, d), text in texts.items()})
    return {(n, d): (text, built[f"{n}_{d}"]) for (n, d), text in texts.items()}


def arguments(entry: ScalarEntry, dtype: str) -> list[torch.Tensor]:
    """Operands on which eager and every spelling are defined."""
    name, operands = entry.name, _operands(entry, dtype)
    if name in ("floor_div", "remainder", "fmod", "trunc_div") and dtype in INTS:
        operands[1][operands[1] == 0] = 3
        if dtype != "u8":  # the one quotient that overflows traps
            operands[1][operands[1] == -1] = 5
    if name == "pow" and dtype in INTS:
        operands[1] = operands[1].abs() % 7
    return operands


def compare(actual: torch.Tensor, expected: torch.Tensor, entry: ScalarEntry, dtype: str) -> None:
    """Equal, or within what the entry's `ulp` and eager's own rounding allow."""
    tolerance = 0.0
    if entry.ulp and dtype in RELATIVE:
        loose = LOOSE.get(entry.name, 0.0)
        tolerance = max(RELATIVE[dtype], loose if dtype == "f32" else 0.0)
        tolerance = max(tolerance, 1e-9 if dtype == "f64" and loose else 0.0)
    # Below this magnitude eager's half and float kernels differ in denormals.
    floor = {"f32": 1e-7, "f64": 1e-14, "f16": 1e-5, "bf16": 1e-6}.get(dtype, 0.0)
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=floor if tolerance else 0.0, equal_nan=True
    )


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_scalar_agrees_with_eager(
    name: str, dtype: str, table: Mapping[str, ScalarEntry], kernels: Any
) -> None:
    operands = arguments(table[name], dtype)
    expected = expected_of(name, dtype, operands)
    actual = torch.empty(COUNT, dtype=expected.dtype)
    text, kernel = kernels[name, dtype]
    tensors = {f"x{place}": operand for place, operand in enumerate(operands)} | {"o": actual}
    call(kernel, text, tensors)
    compare(actual, expected, table[name], dtype)
    tolerance = table[name].ulp and dtype in RELATIVE
    signed = name not in ("fmax", "fmin")  # eager itself is of two minds about fmax(0.0, -0.0)
    if signed and dtype in FLOATS and expected.dtype != torch.bool and not tolerance:
        zeros = expected == 0
        assert torch.equal(actual[zeros].signbit(), expected[zeros].signbit())


def expected_of(name: str, dtype: str, operands: list[torch.Tensor]) -> torch.Tensor:
    """Eager's result. Some half kernels round between their steps, depending on whether an
    operand is a number; the scalar op is the form that works in float32 and rounds once."""
    wanted = SPELLED[name][0]
    if dtype in ("f16", "bf16") and name in ("floor_div", "trunc_div", "logit"):
        return wanted(*(operand.float() for operand in operands)).to(TYPES[dtype])
    return wanted(*operands)


def test_every_name_is_spelled_and_tested(table: Mapping[str, ScalarEntry]) -> None:
    assert len(table) >= 90
    assert set(SPELLED) == set(table)
    for entry in table.values():
        assert entry.doc.endswith("."), entry.name
        assert entry.cpp, entry.name


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_casts_agree_with_eager(source: str, target: str, casts: Any) -> None:
    values = _cast_values(source, target)
    expected = values.to(TYPES[target])
    actual = torch.empty_like(expected)
    text, kernel = casts[source, target]
    tensors = {"x": values, "o": actual}
    call(kernel, text, tensors)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def _cast_values(source: str, target: str) -> torch.Tensor:
    values = _values(source, 0, "cast")
    if source in FLOATS and target in INTS:  # out of range is undefined in eager too
        values = values.nan_to_num(0, 7, 0 if target == "u8" else -7)
        values = values.abs() if target == "u8" else values
    return values


@pytest.fixture(scope="module")
def casts(table: Mapping[str, ScalarEntry]) -> dict[tuple[str, str], tuple[KernelText, Any]]:
    texts: dict[tuple[str, str], KernelText] = {}
    for source in TYPES:
        for target in TYPES:
            builder, axis = Builder(), Axis("i", COUNT)
            buffers = {
                "x": Buffer("x", source, (COUNT,), (1,), "input"),
                "o": Buffer("o", target, (COUNT,), (1,), "output"),
            }
            value = builder.cast(builder.load(buffers["x"], (as_index(axis),)), target)
            nest = Nest("n", (axis,), (), (Store("o", (as_index(axis),), value),))
            texts[source, target] = emit_nest(nest, buffers, table)
    built = compile_texts({f"{s}_{d}": text for (s, d), text in texts.items()})
    return {(s, d): (text, built[f"{s}_{d}"]) for (s, d), text in texts.items()}


def test_missing_entries_and_spellings_are_named(table: Mapping[str, ScalarEntry]) -> None:
    with pytest.raises(MissingScalar, match="no entry for scalar op 'soften'"):
        find(table, Scalar("soften"))
    assert pick({"f32": "a", "float": "b"}, "bf16") == "a"
    assert pick({"float": "b", "num": "c"}, "i8") == "c"
    assert pick({"float": "b"}, "bool") is None
