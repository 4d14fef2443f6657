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
TOLERANCE = {
    torch.float32: 2e-5,
    torch.float64: 1e-11,
    torch.bfloat16: 4e-2,
    torch.float16: 5e-3,
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


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


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


def assert_as_near(ours: torch.Tensor, theirs: torch.Tensor, true: torch.Tensor) -> None:
    """Ours is near the true values, or no farther from them than eager's own results may be:
    where a deviation is about zero, its inverse enlarges what eager's kernels round."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    close = TOLERANCE[ours.dtype]
    allowed = close * (1 + true.abs()) + (theirs.double() - true).abs().max()
    assert bool(((ours.double() - true).abs() <= allowed).all())


def agree(function: Any, inputs: Sequence[torch.Tensor], dynamic: bool = False) -> list[str]:
    """Compares with eager; gives the ATen ops that are called."""
    with recording() as reports:
        compiled = torch.compile(function, backend="eqsat", dynamic=dynamic, fullgraph=True)
        ours = gradients(compiled, inputs)
    theirs = gradients(function, inputs)
    wide = gradients(function, [widened(x) for x in inputs])
    for one, other, true in zip(ours, theirs, wide, strict=True):
        assert_as_near(one, other, true)
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


def batch_norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Sequence[torch.Tensor]:
    stats = torch.linspace(0.5, 2, 4, dtype=x.dtype)
    return F.batch_norm(x, None, None, w, b, True), F.batch_norm(x, stats, stats, w, b)


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_batch_norms_of_permuted_images_are_laid_out_as_in_eager(
    order: tuple[int, ...], dynamic: bool
) -> None:
    """In rows, unless the channels lie last."""
    sizes = [0, 0, 0, 0]
    for place, size in zip(order, (2, 4, 3, 5), strict=True):
        sizes[place] = size
    x = torch.randn(sizes).permute(order).requires_grad_()
    w, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    assert agree(batch_norms, (x, w, b), dynamic) == []


@pytest.mark.parametrize("last", [False, True])
def test_a_batch_norms_slope_of_another_layout(last: bool) -> None:
    def f(x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.batch_norm(x, None, None, None, None, True) * other,)

    x, other = torch.randn(2, 4, 3, 5), torch.randn(2, 4, 3, 5)
    channels_last = {"memory_format": torch.channels_last}
    x, other = (x.to(**channels_last), other) if last else (x, other.to(**channels_last))
    assert agree(f, (x.requires_grad_(), other)) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sums_over_rows_of_halves_for_parameters_that_are_none(dtype: torch.dtype) -> None:
    """Eager rounds them after every row, so that they are left to its kernel."""
    x = torch.randn(50, 8, dtype=dtype, requires_grad=True)
    w, b = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.layer_norm(x, (8,), w, b),)

    with recording() as reports:
        ours = gradients(torch.compile(f, backend="eqsat"), (x, w, b))
    for one, other in zip(ours[1:], gradients(f, (x, w, b))[1:], strict=True):
        torch.testing.assert_close(one, other)
    called = [extern.target for report in reports for extern in report.externs]
    assert [target for target in called if "layer_norm_backward" in target]
    assert agree(f, (x, w.detach(), b.detach())) == []


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
