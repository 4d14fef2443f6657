"""Dtypes, rounding, wrap-around, nan and signs of zero are those of eager, bit for bit.

Each test compiles many expressions in one function, so that one C++ build covers them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTS, torch.bool)
REALS = [0.0, -0.0, 1.0, -1.0, 2.5, -0.5, 3.0, -7.0, math.nan, math.inf, -math.inf]
REALS += [1e30, -1e-40, 100.3, 65504.0, 0.1]
Expressions = Mapping[str, Callable[..., Any]]


def numbers(dtype: torch.dtype) -> Tensor:
    """16 values: extremes, signs, fractions and what is not finite, as far as the dtype goes."""
    if dtype is torch.bool:
        return torch.tensor([True, False, False, True] * 4)
    if dtype.is_floating_point:
        return torch.tensor(REALS, dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    whole = [0, 1, 2, 3, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1]
    if limits.min < 0:
        whole += [-1, -2, -7]
    if dtype is torch.int64:
        whole += [2**53 + 1, 2**24 + 1, -(2**62)]
    return torch.tensor((whole * 2)[:16], dtype=dtype)


def check(expressions: Expressions, *inputs: Tensor, zeros: bool = True) -> None:
    """Every expression of the inputs is eager's in dtype and bits, but for the payload of a nan
    and, without `zeros`, the sign of a zero."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *given: [one(*given) for one in expressions.values()],
        backend="eqsat",
        dynamic=False,
        options={"strict": True},
    )
    found = compiled(*(value.clone() for value in inputs))
    wrong = []
    for (name, one), got in zip(expressions.items(), found, strict=True):
        want = one(*(value.clone() for value in inputs))
        pairs = zip(_listed(want), _listed(got), strict=True)
        wrong += [f"{name}: {text}" for a, b in pairs if (text := difference(a, b, zeros))]
    assert not wrong, "\n".join(wrong)


def _listed(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def difference(want: Tensor, got: Tensor, zeros: bool) -> str:
    if (want.dtype, want.shape) != (got.dtype, got.shape):
        return f"{got.dtype} {got.shape} for {want.dtype} {want.shape}"
    same = want == got
    if want.dtype.is_floating_point:
        if zeros:
            same &= want.signbit() == got.signbit()
        same |= want.isnan() & got.isnan()
    return "" if same.all() else f"{got[~same].tolist()} for {want[~same].tolist()}"


def test_the_comparison_sees_bits() -> None:
    zero, nan = torch.tensor([0.0]), torch.tensor([math.nan])
    assert difference(zero, -zero, True) and not difference(zero, -zero, False)
    assert difference(zero, zero.double(), True) and difference(nan, zero, True)
    assert not difference(nan, -nan, True)


def pairs(operation: Callable[[Tensor, Tensor], Tensor]) -> Expressions:
    """`operation` on tensors of every two dtypes, in one order or the other."""
    return {
        f"{first} {second}": lambda *xs, a=a, b=b: operation(xs[a], xs[b].roll(5))
        for a, first in enumerate(DTYPES)
        for b, second in enumerate(DTYPES)
        if (a < b) == ((a + b) % 2 == 0) and a != b
    }


@pytest.mark.parametrize("operation", [operator.add, operator.lt])
def test_two_dtypes_meet_as_in_eager(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    check(pairs(operation), *map(numbers, DTYPES))


def test_a_tensor_without_dims_yields_to_one_with_dims() -> None:
    single = [numbers(dtype)[2] for dtype in DTYPES]
    tensors = list(map(numbers, DTYPES))
    count = len(DTYPES)
    expressions = {
        f"{first} {second}": lambda *xs, a=a, b=b: xs[a] * xs[count + b] + xs[count + b]
        for a, first in enumerate(DTYPES)
        for b, second in enumerate(DTYPES)
    }
    check(expressions, *tensors, *single)


NUMBERS = (True, -2, 2.5, 0.1, math.inf, 300, 2**31)
WITH_NUMBERS: Mapping[str, Callable[[Tensor, Any], Tensor]] = {
    "x + s": operator.add,
    "s - x": lambda x, s: s - x,
    "x * s": operator.mul,
    "s / x": lambda x, s: s / x,
    "x < s": operator.lt,
    "where": lambda x, s: torch.where(x > 1, x, s),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_python_numbers_are_rounded_as_in_eager(name: str) -> None:
    operation = WITH_NUMBERS[name]
    expressions = {}
    for place, dtype in enumerate(DTYPES):
        for number in NUMBERS:
            try:
                operation(numbers(dtype), number)
            except (RuntimeError, TypeError):  # eager refuses the number
                continue
            expressions[f"{dtype} {number}"] = lambda *xs, at=place, s=number: operation(xs[at], s)
    check(expressions, *map(numbers, DTYPES))


def test_halves_are_rounded_where_eager_rounds() -> None:
    torch.manual_seed(0)
    expressions = {
        "chain": lambda x, y: x * y + x - y * 0.1,
        "casts stay": lambda x, y: (x.float() * 3.1).to(x.dtype).float() * y.float(),
        "alpha": lambda x, y: torch.add(x, y, alpha=0.3),
        "alpha of sub": lambda x, y: torch.sub(x, y, alpha=0.7),
        "alpha of rsub": lambda x, y: torch.rsub(x, y, alpha=0.3),
        "number with alpha": lambda x, y: torch.add(x, 0.77, alpha=0.3),
        "power": lambda x, y: x**3 + y**2,
        "comparison": lambda x, y: (x < 0.1, x == 0.3, y >= 2.6),
        "division": lambda x, y: (x / 3, x / y, torch.div(x, y, rounding_mode="trunc")),
        "remainder": lambda x, y: (x % y, torch.fmod(x, 0.7), x % 0.7),
        "clamp": lambda x, y: (x.clamp(-0.3, 2.7), x.clamp(y.neg(), y.abs())),
        "lerp": lambda x, y: torch.lerp(x, y, 0.3),
        "addcmul": lambda x, y: torch.addcmul(x, y, y, value=2),
    }
    for dtype in (torch.bfloat16, torch.float16):
        check(expressions, torch.randn(640).mul(4).to(dtype), torch.randn(640).mul(4).to(dtype))


def test_integers_wrap_around() -> None:
    expressions: dict[str, Callable[..., Any]] = {}
    for place, dtype in enumerate(INTS):

        def wrapped(*xs: Tensor, at: int = place) -> list[Tensor]:
            x = xs[at][:, None]
            y = xs[at]
            found = [x + y, x - y, x * y, torch.add(x, y, alpha=3), -y, y.abs(), y * y * y, y**5]
            return [*found, y.sum(), y.prod(), y.cumsum(0), y.square(), y.sum(dtype=y.dtype)]

        def split(*xs: Tensor, at: int = place) -> list[Tensor]:
            x = xs[at]
            found = [x & 6, x | 3, x ^ x.roll(1), ~x, x.sign(), x.to(torch.float32)]
            for divisor in (3, -7 if x.dtype.is_signed else 7):
                found += [x // divisor, x % divisor, torch.fmod(x, divisor)]
                found.append(torch.div(x, divisor, rounding_mode="trunc"))
            return found

        def shifted(*xs: Tensor, at: int = place) -> list[Tensor]:
            x, amount = xs[at][:, None], xs[at].clamp(max=70)
            return [x << amount, x >> amount, xs[at] << 3, xs[at] >> 1]

        expressions |= {f"{dtype} {one.__name__}": one for one in (wrapped, split, shifted)}
    check(expressions, *map(numbers, INTS))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_division_by_zero_is_eagers_error(dtype: torch.dtype) -> None:
    x, zero = numbers(dtype), torch.zeros(16, dtype=dtype)
    for operation in (operator.floordiv, operator.mod, torch.fmod):
        torch._dynamo.reset()
        compiled = torch.compile(operation, backend="eqsat", options={"strict": True})
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, zero)
        assert torch.equal(compiled(x, zero + 3), operation(x, zero + 3))


def test_bools_are_numbers_where_eager_takes_them_as_such() -> None:
    x, y = numbers(torch.bool), numbers(torch.bool).roll(1)
    check(
        {
            "arithmetic": lambda x, y: (x + y, x * y, x / y, x + 1, x * 2.5),
            "logic": lambda x, y: (x & y, x | y, x ^ y, ~x, x.logical_not()),
            "order": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x < y, x <= y),
            "sums": lambda x, y: (x.sum(), x.cumsum(0), x.prod(), x.any(), x.all(), x.max()),
            "scaled": lambda x, y: (torch.add(x, y, alpha=3), torch.add(x, x, alpha=-1)),
            "sums in bool": lambda x, y: (x.sum(dtype=torch.bool), x.float().mean()),
            "where": lambda x, y: (torch.where(x, 1, 2), torch.where(x, 1.5, y)),
            "powers": lambda x, y: (x**2, x.to(torch.int8) ** 3),
        },
        x,
        y,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nan_wins_and_places_are_first(dtype: torch.dtype) -> None:
    x = numbers(dtype).reshape(4, 4)
    calm = x.nan_to_num(0.0, 2.5, -0.5)
    check(
        {
            "max": lambda x, calm: (x.max(), x.amax(0), *x.max(1), *calm.max(0)),
            "min": lambda x, calm: (x.min(), x.amin(0), *x.min(1), *calm.min(0)),
            "places": lambda x, calm: (x.argmax(), x.argmin(1), calm.argmax(1), calm.argmin()),
            "two": lambda x, calm: (torch.maximum(x, calm), torch.minimum(calm, x)),
            "numbers win": lambda x, calm: (torch.fmax(x, calm), torch.fmin(calm, x)),
            "clamp": lambda x, calm: (x.clamp(-1, 2), x.clamp(max=2.5), x.clamp(math.nan, 1)),
            "sort": lambda x, calm: (*x.sort(dim=1, stable=True), *calm.sort(dim=0, stable=True)),
            "scan": lambda x, calm: (*x.cummax(1), *x.cummin(0)),
            "tests": lambda x, calm: (x.isnan(), x.isinf(), x.isfinite(), x.signbit(), x != x),
            "replaced": lambda x, calm: (x.nan_to_num(), x.nan_to_num(1.0, 2.0, -2.0)),
            "sums": lambda x, calm: (x.sum(0), x.any(1), x.all(0), x.bool()),
        },
        x,
        calm,
        zeros=False,  # of equal zeros eager's own kernels take one or the other
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_whole_numbers_have_no_negative_zero(dtype: torch.dtype) -> None:
    """C compilers take the way through an integer and back for a rounding of the float."""
    expressions = {
        f"{through}, {back}": lambda x, through=through, back=back: x.to(through).to(back)
        for through in (torch.int64, torch.int32, torch.int8)
        for back in FLOATS
    }
    check(expressions, torch.linspace(-3, 3, 41).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_keep_their_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0] * 20, dtype=dtype)
    functional = torch.nn.functional
    check(
        {
            "clamp": lambda x: (x.clamp(0.0, 1.0), x.clamp(-1.0, 0.0), x.clamp(-0.0, None)),
            "one bound": lambda x: (x.clamp_min(0.0), x.clamp_max(-0.0), x.clamp(max=0)),
            "relu": lambda x: (x.relu(), functional.relu6(x), functional.hardtanh(x, 0.0, 1.0)),
            "arithmetic": lambda x: (-x, x + 0.0, x - 0.0, x * -1.0, x * 0.0, 0.0 - x, x / -3.0),
            "inverse": lambda x: (1 / x, x.reciprocal(), x.sqrt(), x.sign(), x.abs()),
            "whole": lambda x: (x.floor(), x.ceil(), (x - 0.3).round(), x.trunc(), x.frac()),
            "rest": lambda x: (x % 3, torch.fmod(x, -2), x // 3, torch.copysign(x + 1, x)),
            "functions": lambda x: (x.sin(), x.tanh(), x.expm1(), x.atan(), x.asinh()),
            "choice": lambda x: (torch.where(x == 0, x, 1.0), x.masked_fill(x < 0, 1.0)),
            "chain": lambda x: (functional.leaky_relu(x), functional.hardswish(x), x.square()),
        },
        x,
    )


def casts(sources: tuple[torch.dtype, ...], targets: tuple[torch.dtype, ...]) -> Expressions:
    return {
        f"{source} to {target}": lambda *xs, at=at, target=target: xs[at].to(target)
        for at, source in enumerate(sources)
        for target in targets
    }


def test_casts_of_extremes() -> None:
    check(casts((*INTS, torch.bool), DTYPES), *map(numbers, (*INTS, torch.bool)))
    check(casts(FLOATS, (*FLOATS, torch.bool)), *map(numbers, FLOATS))
    small = [numbers(dtype).nan_to_num(0.0, 3.0, -3.0).clamp(0, 100) for dtype in FLOATS]
    check(casts(FLOATS, INTS), *small)


def test_casts_out_of_range_end() -> None:
    """What they give nobody says; they must give something."""
    expressions = casts(FLOATS, INTS)
    compiled = torch.compile(
        lambda *xs: [one(*xs) + 1 for one in expressions.values()],
        backend="eqsat",
        options={"strict": True},
    )
    found = compiled(*map(numbers, FLOATS))
    assert [one.dtype for one in found] == [*INTS] * len(FLOATS)


def test_large_integers_meet_floats_as_in_eager() -> None:
    whole = torch.tensor([2**53, 2**53 + 1, 2**53 - 1, 2**63 - 1, -(2**63), 2**24 + 1, 0, 3])
    real = torch.tensor(
        [2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 16777216.0, -0.0, 3.5, math.nan]
    )
    expressions: dict[str, Callable[..., Any]] = {}
    for operation in (operator.lt, operator.ge, operator.eq, operator.add, operator.truediv):
        name = operation.__name__
        expressions[f"{name} tensors"] = lambda i, d, of=operation: (
            *(of(i[:, None], d.to(dtype)) for dtype in FLOATS),
            of(d[:, None], i.int()),
        )
        for number in (2**53 + 1, 2**63 - 1, -(2**63), 9007199254740993.0, 16777217.0, 0.1):
            expressions[f"{name} {number!r}"] = lambda i, d, of=operation, s=number: (
                of(i, s),
                *(of(d.to(dtype), s) for dtype in FLOATS),
            )
    check(expressions, whole, real.double())
