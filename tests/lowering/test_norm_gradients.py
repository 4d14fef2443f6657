"""Backward of norms, batch norm in training, and the negative log likelihood, as loop nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eqsat.reports import recording

Function = Callable[..., torch.Tensor]
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 4e-2}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Sequence[torch.Tensor]:
    """Every norm over an operand with four channels, with and without parameters."""
    whole = x.shape[1:]
    return (
        F.layer_norm(x, whole, w.view(-1, *[1] * (x.dim() - 2)).expand(whole)),
        F.layer_norm(x, whole[-1:]),
        F.group_norm(x, 2, w, b),
        F.group_norm(x, 4),
        F.batch_norm(x, None, None, w, b, True),
        F.batch_norm(x, None, None, None, None, True),
    )


def gradients(function: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results, then the gradients of all inputs by uneven slopes."""
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    results = list(function(*inputs))
    slopes = [torch.linspace(0.5, 1.5, y.numel()).view(y.shape).to(y.dtype) for y in results]
    asked = [x for x in inputs if x.requires_grad]
    return [*results, *torch.autograd.grad(results, asked, slopes)]


def agree(function: Any, inputs: Sequence[torch.Tensor], dynamic: bool = False) -> list[str]:
    """Compares with eager; gives the ATen ops that are called."""
    close = TOLERANCE[inputs[0].dtype]
    with recording() as reports:
        compiled = torch.compile(function, backend="eqsat", dynamic=dynamic, fullgraph=True)
        ours = gradients(compiled, inputs)
    for one, other in zip(ours, gradients(function, inputs), strict=True):
        torch.testing.assert_close(one, other, atol=close, rtol=close)
        assert one.stride() == other.stride()
    targets = [extern.target for report in reports for extern in report.externs]
    return [target for target in targets if not target.startswith("refusal")]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 4, 3, 5)], ids=str)
def test_norms_of_every_rank_are_generated(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    w, b = (torch.randn(4, dtype=dtype, requires_grad=True) for _ in range(2))
    assert agree(norms, (x, w, b)) == []


def test_norms_of_dynamic_sizes() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Sequence[torch.Tensor]:
        return F.layer_norm(x, x.shape[-1:]), F.batch_norm(x, None, None, w, b, True)

    x = torch.randn(3, 4, 5, requires_grad=True)
    w, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    assert agree(f, (x, w, b), dynamic=True) == []


def test_norms_of_images_whose_channels_lie_last() -> None:
    x = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last).requires_grad_()
    w, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    assert agree(norms, (x, w, b)) == []


def test_parameters_that_ask_for_no_gradient() -> None:
    x, w, b = torch.randn(2, 4, 3, requires_grad=True), torch.randn(4), torch.randn(4)
    assert agree(norms, (x, w, b)) == []


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_move_as_in_eager(training: bool) -> None:
    def f(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, var, None, None, training, 0.3)

    x = torch.randn(3, 4, 5, requires_grad=True)
    results = []
    for run in (f, torch.compile(f, backend="eqsat")):
        mean, var = torch.linspace(-1, 1, 4), torch.linspace(0.5, 2, 4)
        y = run(x, mean, var)
        (grad,) = torch.autograd.grad(y.square().sum(), x)
        results.append((y, grad, mean, var))
    torch.testing.assert_close(results[1], results[0])


def losses(reduction: str, ignored: int) -> Function:
    def f(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> Sequence[torch.Tensor]:
        how = {"reduction": reduction, "ignore_index": ignored}
        return F.nll_loss(x, target, **how), F.nll_loss(x, target, weight, **how)

    return f  # type: ignore[return-value]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 7, 3), (2, 7, 3, 4)], ids=str)
def test_likelihoods(shape: tuple[int, ...], reduction: str) -> None:
    dims = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, 7, dims)
    if dims:
        target.view(-1)[0] = -100
    x, weight = torch.randn(shape, requires_grad=True), torch.rand(7)
    assert agree(losses(reduction, -100), (x, target, weight)) == []


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_likelihoods_of_dynamic_sizes_where_a_class_is_ignored(dtype: torch.dtype) -> None:
    x = torch.randn(5, 7, dtype=dtype, requires_grad=True)
    target, weight = torch.tensor([0, 2, 6, 2, 1]), torch.rand(7, dtype=dtype)
    assert agree(losses("mean", 2), (x, target, weight), dynamic=True) == []


@pytest.mark.parametrize("count", [0, 3])
def test_likelihoods_of_nothing(count: int) -> None:
    x, target = torch.randn(count, 7), torch.full((count,), -100)
    f = torch.compile(losses("mean", -100), backend="eqsat")
    torch.testing.assert_close(
        f(x, target, torch.rand(7)), losses("mean", -100)(x, target, torch.rand(7)), equal_nan=True
    )


def test_a_target_out_of_range_is_refused_as_in_eager() -> None:
    f = torch.compile(lambda x, t: F.nll_loss(x, t), backend="eqsat")
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        f(torch.randn(2, 7), torch.tensor([1, 9]))
