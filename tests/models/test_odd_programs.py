"""Programs that broke the compiler once: constants, empty tensors, numbers as inputs."""

from __future__ import annotations

import warnings
from typing import Any

import torch


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
