"""Models for the GPU benchmark, in plain torch, as they are commonly written.

`build(name)` gives a module on the GPU and its inputs; sizes are those of the real models, with
few layers where those are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .resnet import resnet50

HALF = torch.bfloat16


class Attention(nn.Module):
    """Self-attention of `heads`, grouped where there are fewer `groups` of keys and values."""

    def __init__(self, width: int, heads: int, groups: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups or heads
        self.size = width // heads
        self.q = nn.Linear(width, width, bias)
        self.k = nn.Linear(width, self.groups * self.size, bias)
        self.v = nn.Linear(width, self.groups * self.size, bias)
        self.out = nn.Linear(width, width, bias)

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, self.size).transpose(1, 2)

    def forward(self, x: torch.Tensor, causal: bool = False, rope: Any = None) -> torch.Tensor:
        q, k = self.split(self.q(x), self.heads), self.split(self.k(x), self.groups)
        v = self.split(self.v(x), self.groups)
        if rope is not None:
            q, k = rotated(q, *rope), rotated(k, *rope)
        if self.groups != self.heads:
            k = k.repeat_interleave(self.heads // self.groups, 1)
            v = v.repeat_interleave(self.heads // self.groups, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class EncoderLayer(nn.Module):
    """As in BERT: norms after the residuals."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self.narrow(F.gelu(self.wide(x))))


class Encoder(nn.Module):
    """Token and position embeddings, then layers as in BERT."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        return x


class RmsNorm(nn.Module):
    """As in Llama: in float32, rounded before the weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    """As in Llama."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, groups, bias=False)
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, rope: Any) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x), causal=x.shape[1] > 1, rope=rope)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Layers as in Llama, with a head over the vocabulary."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32000, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, groups, hidden) for _ in range(layers)
        )
        self.norm, self.head = RmsNorm(width), nn.Linear(width, 32000, bias=False)
        self.size = width // heads

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        steps = torch.arange(0, self.size, 2, device=x.device) / self.size
        angles = torch.arange(tokens.shape[1], device=x.device)[:, None] / 10000**steps
        angles = torch.cat((angles, angles), -1)
        rope = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, rope)
        return self.head(self.norm(x))


class Block(nn.Module):
    """As in the U-Net of a diffusion model: group norms, convolutions, a time embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(512, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.convolutions[0](F.silu(self.norms[0](x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return x + self.convolutions[1](F.silu(self.norms[1](y)))


class Recommender(nn.Module):
    """As DLRM: embeddings, pairwise products, two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10000, 64, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 512), nn.ReLU(), nn.Linear(512, 1))
        self.pairs: torch.Tensor
        self.register_buffer("pairs", torch.tril_indices(9, 9, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        rows = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)]
        all_rows = torch.stack([x, *rows], 1)
        products = all_rows @ all_rows.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)).sigmoid()


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 30000, shape, device="cuda")


def _noise(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "encoder, 8x128": lambda: (Encoder(768, 12, 6), (_tokens(8, 128),)),
    "encoder, 1x32": lambda: (Encoder(768, 12, 6), (_tokens(1, 32),)),
    "decoder, prefill 512": lambda: (Decoder(2048, 16, 4, 5632, 6), (_tokens(1, 512),)),
    "decoder, one token": lambda: (Decoder(2048, 16, 4, 5632, 6), (_tokens(1, 1),)),
    "resnet-50, 16": lambda: (resnet50().eval(), (_noise(16, 3, 224, 224),)),
    "u-net block": lambda: (Block(320), (_noise(4, 320, 64, 64), _noise(4, 512))),
    "recommender": lambda: (
        Recommender(),
        (_noise(2048, 13), torch.randint(0, 10000, (2048, 8), device="cuda")),
    ),
}


def build(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model in bfloat16 on the GPU, and its inputs."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return module.cuda().to(HALF).eval(), inputs
