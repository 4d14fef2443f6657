"""Quantisation of torch.ao and fake quantisation as loop nests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the ops

from eqsat.reports import recording

ao = torch.ops.quantized_decomposed


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def agree(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Equal to eager bit by bit, and no call of ATen or torch.ao."""
    with recording() as reports:
        ours = torch.compile(function, backend="eqsat", fullgraph=True)(*inputs)
    torch.testing.assert_close(ours, function(*inputs), rtol=0, atol=0)
    assert [extern.target for report in reports for extern in report.externs] == []


def values() -> torch.Tensor:
    x = torch.randn(5, 7) * 20
    x.view(-1)[:7] = torch.tensor([0.05, -0.05, 0.15, -0.0, torch.inf, -torch.inf, 1e30])
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_grid_for_all(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = ao.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
        u = ao.quantize_per_tensor(x, 0.3, 128, 0, 255, torch.uint8)
        there = ao.dequantize_per_tensor(q, 0.1, 3, -128, 127, torch.int8)
        return q, u, there, ao.dequantize_per_tensor(u, 0.3, 128, 0, 255, torch.uint8)

    agree(f, values().to(dtype))


def test_a_grid_in_tensors() -> None:
    def f(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = ao.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return q, ao.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)

    agree(f, values(), torch.tensor([0.07]), torch.tensor([-2]))


def test_a_grid_for_each_channel() -> None:
    def f(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = ao.quantize_per_channel(x, scales, zeros, 1, -128, 127, torch.int8)
        return q, ao.dequantize_per_channel(q, scales, zeros, 1, -128, 127, torch.int8)

    agree(f, values(), torch.rand(7) + 0.05, torch.randint(-5, 5, (7,)))


def test_fake_quantisation_and_its_gradient() -> None:
    def f(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127),
            torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127),
        )

    scales, zeros = torch.rand(7) + 0.05, torch.randint(-5, 5, (7,), dtype=torch.int32)
    agree(f, values().index_fill(1, torch.tensor([0]), torch.nan), scales, zeros)
    agree(f, values(), scales, zeros)
    results = []
    for run in (f, torch.compile(f, backend="eqsat")):
        x = values().nan_to_num(0.0).requires_grad_() if not results else results[0][0]
        (grad,) = torch.autograd.grad([y.sum() for y in run(x, scales, zeros)], x)
        results.append((x, grad))
    torch.testing.assert_close(results[1][1], results[0][1])


def test_bounds_beyond_the_dtype_are_refused_as_in_eager() -> None:
    f = torch.compile(
        lambda x: ao.quantize_per_tensor(x, 0.1, 3, -129, 127, torch.int8), backend="eqsat"
    )
    with pytest.raises(Exception, match="quant_min"):
        f(values())
