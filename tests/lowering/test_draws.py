"""Dropout, gradients of slices, and offsets counted from the start of a storage."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.nn import functional as F
from torch.utils._sympy.functions import FloorDiv, Max

from eqsat.lowering.values import dense_stride
from eqsat.reports import recording


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_draws_what_eager_draws(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.dropout(x.sin(), 0.3) + 1, torch.rand(2), F.dropout(x.t(), 0.5)

    x = torch.randn(8, 6, requires_grad=True)
    results = []
    with recording() as reports:
        for run in (f, torch.compile(f, backend="eqsat", dynamic=dynamic)):
            torch.manual_seed(0)
            outputs = run(x)
            (grad,) = torch.autograd.grad(outputs[0].sum() + outputs[2].square().sum(), x)
            results.append([*outputs, grad])
    torch.testing.assert_close(results[1], results[0])
    assert all("dropout" not in e.target for report in reports for e in report.externs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_slices_are_generated(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[1:, ::2].square().sum() + x[..., -1].sum() * 2 + x[:, 2:5, 1::3].exp().sum()

    x = torch.randn(3, 8, 7, requires_grad=True)
    with recording() as reports:
        compiled = torch.compile(f, backend="eqsat", dynamic=dynamic)
        (ours,) = torch.autograd.grad(compiled(x), x)
    (theirs,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(ours, theirs)
    assert [e.target for report in reports for e in report.externs] == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_storage_offsets_hold_in_shared_memory(dynamic: bool) -> None:
    aten = torch.ops.aten

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base, sines = torch.zeros(64) + x.sum() * 0, x.sin()
        scattered = aten.as_strided_scatter(base, x.sort(-1).values, [2, 32], [32, 1], 0)
        moved = torch.as_strided(sines[1:], (1, 31), (1, 1), 33)
        return aten.as_strided(scattered, [2, 32, 1], [32, 1, 1], 0) * 2, moved * 2

    x = torch.randn(2, 32)
    compiled = torch.compile(f, backend="eqsat", dynamic=dynamic)
    torch.testing.assert_close(compiled(x), f(x))


def test_a_stride_of_max_one_and_a_size_is_dense() -> None:
    batch, length = (sympy.Symbol(name, integer=True, positive=True) for name in "bs")
    size = FloorDiv(length - 1, 2) + 2 * FloorDiv(FloorDiv(length, 2) - 1, 2) + 3
    stride = (64 * Max(1, size), 1, 64)
    assert dense_stride((batch, 64, size), stride) == stride
