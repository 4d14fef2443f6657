"""Whole models through the whole pipeline: results and gradients equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from eqsat.reports import CompileReport, recording


class Recommender(nn.Module):
    """Embedding bags of three features, crossed, then an MLP (after DLRM, arXiv:1906.00091)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(14, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        parts = torch.stack([self.dense(dense), *rows], dim=1)
        products = parts @ parts.transpose(1, 2)
        upper = torch.triu_indices(4, 4, offset=1)
        crossed = products[:, upper[0], upper[1]]
        return torch.sigmoid(self.head(torch.cat([parts[:, 0], crossed], dim=1)))


class Convolutional(nn.Module):
    """Two residual blocks with batch norm, as in ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
            )
            for _ in range(2)
        )
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM cell unrolled over time, with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = (x.new_zeros(x.shape[0], 10), x.new_zeros(x.shape[0], 10))
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return torch.log_softmax(self.head(state[0]), dim=-1)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "encoder": (_encoder, lambda: (torch.randn(2, 7, 32),)),
    "convolutional": (Convolutional, lambda: (torch.randn(2, 3, 8, 8),)),
    "recurrent": (Recurrent, lambda: (torch.randn(3, 4, 6),)),
    "recommender": (Recommender, lambda: (torch.randn(5, 5), torch.randint(0, 20, (5, 3)))),
}


@pytest.fixture(params=sorted(MODELS))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    make, inputs = MODELS[request.param]
    return make(), inputs()


def _nothing_lost(reports: list[CompileReport]) -> None:
    assert [report.fallback for report in reports if report.fallback] == []
    assert any(report.kernels for report in reports)


@pytest.fixture(autouse=True)
def _open_encoder_layers() -> Iterator[None]:
    """torch would run a whole encoder layer as one op in inference."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def test_inference_equals_eager(case: tuple[nn.Module, tuple[torch.Tensor, ...]]) -> None:
    model, inputs = case
    model.eval()
    with torch.no_grad(), recording() as reports:
        compiled = torch.compile(model, backend="eqsat", fullgraph=True)
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
        fresh = tuple(t.clone().mul_(2) if t.is_floating_point() else t for t in inputs)
        torch.testing.assert_close(compiled(*fresh), model(*fresh), rtol=1e-4, atol=1e-5)
    _nothing_lost(reports)


def test_a_training_step_equals_eager(case: tuple[nn.Module, tuple[torch.Tensor, ...]]) -> None:
    model, inputs = case
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    with recording() as reports:
        compiled = torch.compile(twin, backend="eqsat", fullgraph=True)
        for _ in range(2):
            outputs = []
            for run, optimizer in zip((model, compiled), optimizers, strict=True):
                optimizer.zero_grad()
                out = run(*inputs)
                (out.square().mean() + out.sum() * 0.01).backward()
                outputs.append(out.detach())
            torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
            for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
            for optimizer in optimizers:
                optimizer.step()
    for ours, theirs in zip(twin.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    _nothing_lost(reports)
