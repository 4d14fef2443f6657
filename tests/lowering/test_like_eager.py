"""Bits that eager's formulas decide: roundings within one op, signs of zeros, exact zeros and
infinities of variances; and sums that lose no more digits than eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

FLOATS = (torch.float32, torch.float64)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="eqsat", options={"strict": True, "verify": True})


def check(function: Callable[..., Any], *inputs: Tensor) -> None:
    """The bits of eager, but for which nan."""
    wanted, got = (pytree.tree_leaves(f(*inputs)) for f in (function, compiled(function)))
    for want, have in zip(wanted, got, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        same = (have == want) & (have.signbit() == want.signbit())
        assert (same | (have.isnan() & want.isnan())).all(), (want, have)


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


# Roundings.


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8])
def test_products_within_an_op_are_not_rounded(dtype: torch.dtype) -> None:
    x, y = (noise(1003, dtype=dtype, seed=seed).abs().mul(3).to(dtype) for seed in (1, 2))
    check(lambda x, y: (torch.add(x, y, alpha=3), torch.sub(x, y, alpha=3)), x, y)
    check(lambda x, y: (torch.sub(x, y), torch.sub(x, y, alpha=-1), torch.rsub(x, y)), x, y)
    check(lambda x, y: torch.addcmul(x, y, y.flip(0)), x, y)
    if dtype.is_floating_point:
        check(lambda x, y: (torch.add(x, y, alpha=-0.7), torch.rsub(x, y, alpha=0.3)), x, y)
        check(lambda x, y: torch.lerp(x, y, y.flip(0)), x, y)
        check(lambda x, y: torch.lerp(x, y, torch.ones_like(x)), x, y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_difference_that_is_scaled_by_zero(dtype: torch.dtype) -> None:
    """An integer 0 has no sign, a float one has."""
    x, y = torch.tensor([-0.0, 0.0] * 2, dtype=dtype), torch.tensor([1.0, -1.0] * 2, dtype=dtype)
    check(lambda x, y: [torch.sub(x, y, alpha=a) for a in (0, 0.0, -0.0)], x, y.sort().values)
    check(lambda x, y: [torch.add(x, y, alpha=a) for a in (0, 0.0, -0.0)], x, y.sort().values)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.sum(0),
    "all": lambda x: x.sum(),
    "rows that skip": lambda x: x[:, ::2].sum(1),
    "variance of columns": lambda x: x.var(0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_sums_of_like_numbers_lose_few_digits(name: str) -> None:
    """With few distinct values the roundings of one running sum all go one way."""
    generator = torch.Generator().manual_seed(3)
    for rows in (64, 1000, 4096):
        x = torch.randint(0, 5, (rows, 4096), generator=generator) * 0.1 + 0.3
        exact = LAYOUTS[name](x.double())
        errors = [
            ((run(x) - exact) / exact).abs().max().item()
            for run in (LAYOUTS[name], compiled(LAYOUTS[name]))
        ]
        assert errors[1] < max(3 * errors[0], 4e-7), (rows, errors)


# Zeros.


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5, 7), (40, 300), (3, 5, 33), (2, 2000)])
def test_an_extreme_with_its_place_is_the_first(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = -noise(*shape, dtype=dtype).abs().round()
    x = torch.where(noise(*shape, dtype=dtype, seed=1) > 0, x.abs() * 0, x)
    assert (x.signbit() & (x == 0)).any() and (~x.signbit() & (x == 0)).any()
    for dim in range(len(shape)):
        for values in (x, x.transpose(0, 1)):
            check(lambda x, dim=dim: torch.max(x, dim), values)
            check(lambda x, dim=dim: torch.min(-x, dim), values)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_extreme_of_a_few_is_the_first(count: int) -> None:
    x = torch.where(noise(40, count) > 0, 0.0, -0.0)
    check(lambda x: torch.max(x, 1).values, x)
    check(lambda x: torch.min(x, 1).values, x)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "windows": lambda x: F.avg_pool2d(x, 2),
    "windows that overlap": lambda x: F.avg_pool2d(x, 3, stride=1, padding=1),
    "shares": lambda x: F.adaptive_avg_pool2d(x, 3),
    "all": lambda x: F.adaptive_avg_pool2d(x, 1),
    "few": lambda x: x[..., :3].sum(-1),
    "one": lambda x: x[..., :1].sum(-1),
    "mean": lambda x: x[..., :2].mean(-1),
}


@pytest.mark.parametrize("name", POOLS)
def test_sums_start_from_zero(name: str) -> None:
    """That of negative zeros is a positive one, in pools and in their gradients, too."""
    pool = POOLS[name]

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        y = pool(x)
        return y, torch.autograd.grad(y, x, torch.full_like(y, -0.0))[0]

    x = torch.full((1, 2, 8, 8), -0.0, requires_grad=True)
    y = compiled(pool)(x)
    (got,) = torch.autograd.grad(y, x, torch.full_like(y, -0.0))
    for want, have in zip(both(x), (y, got), strict=True):
        assert torch.equal(want.signbit(), have.signbit()) and torch.equal(want, have)


# Variances.

SPREADS: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda x: (x.var(1), x.std(1), *torch.var_mean(x, 1)),
    "columns": lambda x: (x.var(0), x.std(0), *torch.std_mean(x, 0, correction=0)),
    "all": lambda x: (x.var(), x.std((0, 1), keepdim=True)),
    "of products": lambda x: ((x * 3).var(1), (x * 3).exp().std(0)),
    "of what is joined": lambda x: torch.cat([x, x]).std(0),
    "of what is padded": lambda x: F.pad(x, (1, 0, 0, 1), value=0.1).var(1),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SPREADS)
def test_equal_values_do_not_vary(name: str, dtype: torch.dtype) -> None:
    """Programs ask for that: `std[std == 0] = 1`. Eager's own of all elements are off by a bit."""
    x = torch.full((101, 37), 0.1, dtype=dtype)
    want, got = (pytree.tree_leaves(f(x)) for f in (SPREADS[name], compiled(SPREADS[name])))
    for some, other in zip(want, got, strict=True):
        torch.testing.assert_close(other, some, rtol=1e-6, atol=1e-7)
        assert (other[some.abs() < 1e-7] == 0).all()


def test_the_mean_of_an_infinity_with_its_variance() -> None:
    """Of the infinity alone it is infinite; a running mean makes nan of one that others follow."""
    x = noise(6, 7)
    x[0, 0], x[1, 3], x[3, 2] = math.inf, -math.inf, math.nan
    function = lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, 0))  # noqa: E731
    for want, have in zip(function(x), compiled(function)(x), strict=True):
        torch.testing.assert_close(have, want, equal_nan=True)
    single = x[:, :1].contiguous()
    check(lambda x: torch.var_mean(x, 1, correction=0), single)
    assert math.isinf(compiled(lambda x: torch.mean(x, 1))(x)[0].item())
