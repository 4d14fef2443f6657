"""Half types and single numbers: what eager rounds, checked on every half number there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

Function = Callable[..., torch.Tensor]
BITS = torch.arange(-32768, 32768).to(torch.int16)
HALVES = (torch.float16, torch.bfloat16)


def _compiled(function: Function) -> Function:
    return torch.compile(function, backend="eqsat", fullgraph=True)


def _equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    if ours.is_floating_point():
        zero = theirs == 0
        assert torch.equal(ours.signbit() & zero, theirs.signbit() & zero)


@pytest.mark.parametrize("dtype", HALVES)
def test_constant_powers(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x**power for power in (0.5, -0.5, 2, 3, -1, -2)]

    x = BITS.view(dtype)
    for ours, theirs in zip(torch.compile(f, backend="eqsat")(x), f(x), strict=True):
        _equal(ours, theirs)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("number", [0.1, -0.7, 1e-3])
def test_comparisons_round_the_number(dtype: torch.dtype, number: float) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        tests = [x == number, x != number, x < number, x <= number, x > number, x >= number]
        return torch.stack(tests)

    x = BITS.view(dtype)
    _equal(_compiled(f)(x), f(x))


@pytest.mark.parametrize("dtype", HALVES)
def test_truncated_quotient_by_a_single_number(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        by_number = torch.div(x, 0.1, rounding_mode="trunc")
        return torch.stack([by_number, torch.div(x, y, rounding_mode="trunc")])

    x = BITS.view(dtype)
    for y in (torch.tensor(0.3), torch.tensor([0.3], dtype=dtype), x.roll(5)):
        torch._dynamo.reset()
        _equal(_compiled(f)(x, y), f(x, y))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_tensor_without_dims_keeps_its_digits(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * y, x / y, y * x, x + y, y / x])

    x = BITS.view(dtype)
    for y in (torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64)):
        torch._dynamo.reset()
        _equal(_compiled(f)(x, y), f(x, y))


def test_error_function_of_large_numbers_is_one() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x) + torch.erf(x) * 1e30

    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e20, 1e20, -1e30])])
    torch.testing.assert_close(_compiled(f)(x), f(x))


@pytest.mark.parametrize("dtype", HALVES)
def test_stores_round_to_the_nearest(dtype: torch.dtype) -> None:
    """Both ways to round: into memory, and on the way to another operation."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = x.to(dtype)
        return half, half.float() * 2

    halves = BITS.view(dtype).float()
    steps = torch.tensor([-1, 0, 1], dtype=torch.int32)[:, None]
    close = (halves.view(torch.int32) + steps).view(torch.float32)
    between = (halves.double() + (halves.double().roll(1))).mul(0.5).float()  # ties
    every = torch.arange(-(2**31), 2**31, 40961).to(torch.int32).view(torch.float32)
    x = torch.cat([close.flatten(), between, every])
    for ours, theirs in zip(_compiled(f)(x), f(x), strict=True):
        _equal(ours, theirs)
