"""Graphs on a CUDA device: until kernels for it exist, every op is an extern call, and right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eqsat.reports import recording

pytestmark = pytest.mark.gpu


def test_inference_and_training_on_cuda() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).cuda()
    x = torch.randn(8, 16, device="cuda")
    with recording() as reports:
        compiled = torch.compile(model, backend="eqsat", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        loss = compiled(x).square().mean()
        ours = torch.autograd.grad(loss, list(model.parameters()))
    theirs = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    torch.testing.assert_close(ours, theirs)
    assert [report.fallback for report in reports if report.fallback] == []


def test_a_graph_over_two_devices() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).cuda() * y + 2

    x, y = torch.randn(8), torch.randn(8, device="cuda")
    torch.testing.assert_close(torch.compile(f, backend="eqsat", fullgraph=True)(x, y), f(x, y))
