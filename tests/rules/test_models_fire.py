"""The rules that small models are written for do fire on them, and change no result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional

from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.profile import select
from eqsat.engine.stage import StageOptions, run_stage

BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)


class Attention(nn.Module):
    """Attention written out by hand, as encoders (an added mask) and decoders (causal) do."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 5, 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(4)
        if self.causal:
            hidden = ~torch.ones(5, 5, dtype=torch.bool).tril()
            scores = scores.masked_fill(hidden, float("-inf"))
        else:
            scores = scores + torch.zeros(2, 1, 5, 5).masked_fill(x[:, None, :, :5] > 0, -1e4)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 16)


class Gated(nn.Module):
    """The feed-forward part of a decoder: a hand-written rms norm, gate, up and down."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.gate, self.up = nn.Linear(16, 24, bias=False), nn.Linear(16, 24, bias=False)
        self.down = nn.Linear(24, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = self.weight * (wide * scale).to(x.dtype)
        down: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + down


class OldGelu(nn.Module):
    """The tanh form of gelu, spelled out."""

    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    )


def classifier() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(16, 32), nn.LayerNorm(32), nn.Dropout(0.1)),
        *(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 4), nn.LogSoftmax(-1)),
    )


def loss(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    result: Tensor = functional.nll_loss(model(x), torch.arange(8) % 4)
    return result


class Recorder:
    """A backend that applies the rules of `profile` and remembers which fired."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.fired: set[str] = set()
        self.failed: list[str] = []

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # Dynamo names inputs after where they come from; AOTAutograd keeps their order.
        held = [_is_parameter(node.name) for node in gm.graph.find_nodes(op="placeholder")]
        return aot_autograd(
            fw_compiler=lambda graph, _: self.compile(graph, held, inference=False),
            bw_compiler=lambda graph, _: self.compile(graph, [], inference=False),
            inference_compiler=lambda graph, _: self.compile(graph, held, inference=True),
        )(gm, inputs)

    def compile(self, gm: fx.GraphModule, held: Sequence[bool], *, inference: bool) -> Any:
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        places = {name: place for place, name in enumerate(names) if place < len(held)}
        weights = {name: place for name, place in places.items() if held[place]}
        frozen = frozenset(weights) if inference else frozenset()
        options = StageOptions(
            profile=self.profile, weights=weights, frozen=frozen, inference=inference
        )
        result = run_stage(gm, "post_grad", select(BOOK, self.profile), TABLE, options)
        if result.report.status == "failed":
            self.failed.append(result.report.reason)
        self.fired |= {firing.rule for firing in result.report.firings}
        return make_boxed_func(result.gm.forward)


def _is_parameter(name: str) -> bool:
    return "_parameters_" in name or "_buffers_" in name


INFERENCE = [
    (Attention(False), (2, 5, 16), "fast", {"matmul-from-bmm", "sdpa-from-masked-softmax/softmax"}),
    (Attention(False), (2, 5, 16), "default", {"qkv-merge-bias", "softmax-split", "copy-drop"}),
    (Attention(True), (2, 5, 16), "fast", {"filled-scores-as-sum/softmax", "sdpa-causal-mask"}),
    (Gated(), (2, 5, 16), "default", {"pow-two", "mean-split", "gate-up-merge", "cast-same-drop"}),
    (OldGelu(), (8, 16), "default", {"gelu-from-tanh", "gelu-tanh-split"}),
    (images(), (2, 3, 9, 9), "default", {"batch-norm-split"}),
    (images(), (2, 3, 9, 9), "fast", {"conv-bn-fold-no-bias"}),
    (classifier(), (8, 16), "default", {"layer-norm-split", "addmm-split", "log-softmax-split"}),
]


@pytest.mark.parametrize(
    ("model", "shape", "profile", "expected"), INFERENCE, ids=lambda value: type(value).__name__
)
def test_inference(
    model: nn.Module, shape: tuple[int, ...], profile: str, expected: set[str]
) -> None:
    torch.manual_seed(0)
    model.eval()
    x = torch.randn(shape)
    backend = Recorder(profile)
    torch._dynamo.reset()
    with torch.no_grad():
        wanted = model(x)
        got = torch.compile(model, backend=backend)(x)
    assert not backend.failed
    assert expected <= backend.fired
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_training() -> None:
    torch.manual_seed(0)
    model = classifier()
    model[2] = nn.Identity()  # dropout would draw other numbers
    x = torch.randn(8, 16)
    backend = Recorder("default")
    torch._dynamo.reset()
    loss(model, x).backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(lambda x: loss(model, x), backend=backend)(x).backward()
    assert not backend.failed
    expected = {
        *("nll-loss-split-mean", "layer-norm-backward-input", "layer-norm-backward-weight"),
        *("layer-norm-rstd-split", "layer-norm-split", "permute-back-drop"),
    }
    assert expected <= backend.fired
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-5)
