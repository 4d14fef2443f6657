"""The models whose graphs the engine is measured on: full depth, small width.

The engine sees nodes, not numbers, so width costs it nothing; a small one keeps the memory and
the kernels of the rest of the compile small. Weights are random. `TRAINED` models are compiled
as a training step, whose joint graph holds forward and backward; the batch and the length of
`DYNAMIC` ones are symbols.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import transformers
from torch import nn

from .models import Built, LastState, encoder
from .resnet import resnet50

_WORDS = 1000


class Convolution(nn.Sequential):
    """Convolution without bias, batch norm, activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int | tuple[int, int] = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        sizes = (size, size) if isinstance(size, int) else size
        padding = (sizes[0] // 2, sizes[1] // 2)
        super().__init__(
            nn.Conv2d(inputs, outputs, sizes, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            activation(),
        )


class Branches(nn.Module):
    """Several towers over one input, joined along the channels (Szegedy et al.,
    arXiv:1512.00567)."""

    def __init__(self, *towers: nn.Module) -> None:
        super().__init__()
        self.towers = nn.ModuleList(towers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([tower(x) for tower in self.towers], 1)


def inception(width: int = 16) -> nn.Module:
    """A stem, three blocks with 5x5 towers, four with 1x7 and 7x1, two with split ends."""
    wide = 4 * width

    def pooled(inputs: int) -> nn.Module:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), Convolution(inputs, width, 1))

    def square(inputs: int) -> nn.Module:
        deep = [Convolution(inputs, width, 1), *(Convolution(width, width) for _ in range(2))]
        middle = [Convolution(inputs, width, 1), Convolution(width, width, 5)]
        return Branches(
            Convolution(inputs, width, 1),
            nn.Sequential(*middle),
            nn.Sequential(*deep),
            pooled(inputs),
        )

    def crossed(inputs: int) -> nn.Module:
        once = [Convolution(width, width, size) for size in ((1, 7), (7, 1))]
        twice = [Convolution(width, width, size) for size in ((7, 1), (1, 7)) * 2]
        return Branches(
            Convolution(inputs, width, 1),
            nn.Sequential(Convolution(inputs, width, 1), *once),
            nn.Sequential(Convolution(inputs, width, 1), *twice),
            pooled(inputs),
        )

    def split(inputs: int) -> nn.Module:
        half = width // 2
        ends = [Convolution(width, half, size) for size in ((1, 3), (3, 1))]
        far = [Convolution(width, half, size) for size in ((1, 3), (3, 1))]
        return Branches(
            Convolution(inputs, width, 1),
            nn.Sequential(Convolution(inputs, width, 1), Branches(*ends)),
            nn.Sequential(Convolution(inputs, width, 1), Convolution(width, width), Branches(*far)),
            pooled(inputs),
        )

    stem = [Convolution(3, width, stride=2), Convolution(width, wide), nn.MaxPool2d(3, 2, 1)]
    blocks = [square(wide) for _ in range(3)] + [crossed(wide) for _ in range(4)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, _WORDS)]
    return nn.Sequential(*stem, *blocks, split(wide), split(wide), *head)


class Squeeze(nn.Module):
    """Channels weighted by what the whole image holds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True))))
        return x * nn.functional.hardsigmoid(weights)


class Inverted(nn.Module):
    """Expand, depthwise, squeeze, project; around it a shortcut (Howard et al.,
    arXiv:1905.02244)."""

    def __init__(self, channels: int, size: int, activation: type[nn.Module]) -> None:
        super().__init__()
        wide = 4 * channels
        self.body = nn.Sequential(
            Convolution(channels, wide, 1, activation=activation),
            Convolution(wide, wide, size, groups=wide, activation=activation),
            Squeeze(wide),
            Convolution(wide, channels, 1, activation=nn.Identity),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)  # type: ignore[no-any-return]


def mobilenet(channels: int = 16) -> nn.Module:
    """Fifteen inverted blocks, as in MobileNetV3-large, on one width."""
    kinds = (
        [(3, nn.ReLU)] * 3 + [(5, nn.ReLU)] * 3 + [(3, nn.Hardswish)] * 6 + [(5, nn.Hardswish)] * 3
    )
    blocks = [Inverted(channels, size, activation) for size, activation in kinds]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, _WORDS)]
    return nn.Sequential(
        Convolution(3, channels, stride=2, activation=nn.Hardswish), *blocks, *head
    )


class UNet(nn.Module):
    """Four levels down and up with skips (Ronneberger et al., arXiv:1505.04597)."""

    def __init__(self, width: int = 8, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.first = self.pair(3, widths[0])
        steps = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(self.pair(a, b) for a, b in steps)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(steps))
        self.up = nn.ModuleList(self.pair(2 * a, a) for a, _ in reversed(steps))
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(Convolution(inputs, outputs), Convolution(outputs, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.first(x)]
        for step in self.down:
            skips.append(step(nn.functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for grow, step in zip(self.grow, self.up, strict=True):
            x = step(torch.cat([skips.pop(), grow(x)], 1))
        return self.last(x)  # type: ignore[no-any-return]


class Dlrm(nn.Module):
    """26 tables, dense features, all pairs of dot products (Naumov et al., arXiv:1906.00091)."""

    def __init__(self, tables: int = 26, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, width, mode="sum") for _ in range(tables))
        self.bottom = self.tower(13, 64, 32, width)
        pairs = (tables + 1) * tables // 2
        self.top = self.tower(pairs + width, 64, 32, 1)
        self.register_buffer("rows", torch.tril_indices(tables + 1, tables + 1, -1))

    @staticmethod
    def tower(*widths: int) -> nn.Module:
        layers = [
            layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())
        ]
        return nn.Sequential(*layers)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        first = self.bottom(dense)
        found = [table(sparse[:, at]) for at, table in enumerate(self.tables)]
        stacked = torch.stack([first, *found], 1)
        products = stacked @ stacked.transpose(1, 2)
        pairs = products[:, self.rows[0], self.rows[1]]
        return torch.sigmoid(self.top(torch.cat([first, pairs], 1)))


def _text(batch: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(3, _WORDS, (batch, length))


def _gpt2(layers: int) -> Built:
    config = transformers.GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=_WORDS)
    model = LastState(transformers.GPT2LMHeadModel(config))
    return model, {"input_ids": _text(), "use_cache": False}


def _llama(layers: int) -> Built:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=_WORDS,
    )
    model = LastState(transformers.LlamaForCausalLM(config))
    return model, {"input_ids": _text(), "use_cache": False}


def _t5() -> Built:
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=12, num_heads=4, vocab_size=_WORDS
    )
    inputs = {"input_ids": _text(), "decoder_input_ids": _text(length=8), "use_cache": False}
    return LastState(transformers.T5ForConditionalGeneration(config)), inputs


def _vit() -> Built:
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=12, num_attention_heads=4, intermediate_size=256
    )
    return LastState(transformers.ViTModel(config)), {"pixel_values": torch.randn(1, 3, 224, 224)}


def named_images(model: nn.Module, size: int = 64) -> Built:
    """A model of square images that is called by keyword."""
    return _Named(model), {"x": torch.randn(2, 3, size, size)}


class _Named(nn.Module):
    """A sequential model that is called by keyword."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)  # type: ignore[no-any-return]


def _dlrm() -> Built:
    return Dlrm(), {"dense": torch.randn(8, 13), "sparse": torch.randint(100, (8, 26, 3))}


GRAPHS: dict[str, Callable[[], Built]] = {
    "bert 12": lambda: encoder(12, width=64),
    "gpt2 12": lambda: _gpt2(12),
    "llama 32": lambda: _llama(32),
    "t5 12+12": _t5,
    "vit 12": _vit,
    "resnet50": lambda: named_images(resnet50()),
    "inception": lambda: named_images(inception()),
    "mobilenet": lambda: named_images(mobilenet()),
    "unet": lambda: named_images(UNet()),
    "dlrm": _dlrm,
    "bert 12, training": lambda: encoder(12, width=64),
    "resnet50, training": lambda: named_images(resnet50()),
    "gpt2 48": lambda: _gpt2(48),
    "llama 32, training": lambda: _llama(32),
    "bert 12, dynamic": lambda: encoder(12, width=64),
    "gpt2 12, dynamic, training": lambda: _gpt2(12),
}
TRAINED = frozenset(name for name in GRAPHS if "training" in name)
DYNAMIC = frozenset(name for name in GRAPHS if "dynamic" in name)


def build(name: str) -> Built:
    """The model and its inputs, seeded; in eval mode unless it is trained."""
    torch.manual_seed(0)
    model, inputs = GRAPHS[name]()
    if name in DYNAMIC:
        for value in inputs.values():
            if isinstance(value, torch.Tensor):
                torch._dynamo.mark_dynamic(value, (0, 1))
    return model.train(name in TRAINED), inputs
