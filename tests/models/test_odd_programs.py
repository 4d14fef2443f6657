"""Programs that broke the compiler once: constants, empty tensors, numbers as inputs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn


def _compiled(function: Any, **how: Any) -> Any:
    return torch.compile(function, backend="eqsat", fullgraph=True, **how)


def test_constant_tensors_in_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[torch.tensor([2, 0])] = 5.0
        return y[[1, 1]] + torch.tensor([1.0, 2.0])

    x = torch.randn(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(_compiled(f)(x), f(x))


def test_reductions_and_maps_over_nothing() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.t() * 2, x.flatten().sum(), x.reshape(2, 0, 3).exp(), x.softmax(1)

    x = torch.empty(0, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ours, theirs in zip(_compiled(f)(x), f(x), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_float_of_a_tensor_without_dims_is_traced_again() -> None:
    def f(x: torch.Tensor, s: float) -> torch.Tensor:
        return torch.full((3,), s) * x

    compiled = _compiled(f)
    x = torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for s in (1.5, 2.5, -0.5):
            torch.testing.assert_close(compiled(x, s), f(x, s))


def test_empty_outputs_that_no_step_writes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.amax(1), x[torch.arange(x.shape[0] - 1, -1, -1)]

    compiled = _compiled(f, dynamic=True)
    for rows in (4, 0, 5):
        x = torch.randn(rows, 3)
        for ours, theirs in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_integer_arguments_and_results() -> None:
    def f(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return x * n, x[:n], torch.full((n,), 1.5), n + 1

    compiled = _compiled(f, dynamic=True)
    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 3, 1):
            ours, theirs = compiled(x, n), f(x, n)
            torch.testing.assert_close(ours[:3], theirs[:3])
            assert ours[3] == theirs[3]


def test_sizes_without_hints() -> None:
    compiled = _compiled(lambda x: (x.sum(0), x + 1))
    for rows in (3, 1, 0):
        x = torch.randn(rows, 2)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        total, more = compiled(x)
        torch.testing.assert_close(total, x.sum(0))
        torch.testing.assert_close(more, x + 1)


def test_windows_along_a_negative_dim() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.unfold(-2, 2, 1) * 2, (x * 2).reshape(1, 24).unfold(-1, 8, 2).cumsum(2)

    x = torch.randn(4, 6)
    for ours, theirs in zip(_compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_largest_of_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        _compiled(lambda x: x.max())(torch.empty(0))


NORMS = {
    "layer": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
    "group": lambda: nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 4)),
    "batch": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(4)),
    "instance": lambda: nn.Sequential(nn.Linear(8, 8), nn.InstanceNorm1d(4, affine=True)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    model, x = NORMS[name](), torch.randn(3, 4, 8)
    gradients = []
    for run in (_compiled(model), model):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            result = run(x)
        result.float().sin().sum().backward()
        gradients.append([result.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_size_that_a_guard_says_is_one_broadcasts() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y / nn.functional.avg_pool2d(x, 2)

    compiled = _compiled(f, dynamic=True)
    for rows, columns in ((2, 2), (4, 3), (9, 3)):
        x, y = torch.randn(3, columns, rows, 2), torch.randn(1, columns)
        torch.testing.assert_close(compiled(x, y), f(x, y))


def test_attention_over_sizes_that_change() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)

    compiled = _compiled(f, dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in ((3, 3, 2), (4, 5, 2), (2, 7, 6)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_sums_of_negative_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """They start from a positive zero, be it one element alone."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last = x.sum(-1), x.mean(-1), x.unsqueeze(0).sum(0)
        return x.sum(), x.mean(), torch.nansum(x), *last, x.prod(), x.amax()

    x = torch.full(shape, -0.0, dtype=dtype)
    for ours, theirs in zip(_compiled(f)(x), f(x), strict=True):
        assert torch.equal(ours, theirs) and torch.equal(ours.signbit(), theirs.signbit())
