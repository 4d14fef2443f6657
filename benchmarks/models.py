"""The models that are measured: each name gives a module in eval mode and keyword inputs.

All but `minilm` are built from configurations with random weights, so nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import nn

from .resnet import resnet50

Built = tuple[nn.Module, dict[str, Any]]


class LastState(nn.Module):
    """A transformers model that returns its first output tensor only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, return_dict=False)[0]  # type: ignore[no-any-return]


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def encoder(layers: int, batch: int = 1, length: int = 16, width: int = 256) -> Built:
    """A BERT encoder with a padding mask."""
    config = transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        vocab_size=2000,
    )
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[:, length - length // 4 :] = 0
    inputs = {"input_ids": _tokens(batch, length, 2000), "attention_mask": mask}
    return LastState(transformers.BertModel(config)), inputs


def bert_base() -> Built:
    return encoder(12, batch=4, length=64, width=768)


def gpt2() -> Built:
    config = transformers.GPT2Config(n_layer=4, n_embd=512, n_head=8, vocab_size=4000)
    model = LastState(transformers.GPT2LMHeadModel(config))
    return model, {"input_ids": _tokens(2, 48, 4000), "use_cache": False}


def vit_base() -> Built:
    config = transformers.ViTConfig(num_hidden_layers=4)
    return LastState(transformers.ViTModel(config)), {"pixel_values": torch.randn(1, 3, 224, 224)}


def llama() -> Built:
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=4000,
    )
    model = LastState(transformers.LlamaForCausalLM(config))
    return model, {"input_ids": _tokens(1, 48, 4000), "use_cache": False}


def resnet() -> Built:
    return resnet50(), {"x": torch.randn(2, 3, 160, 160)}


def minilm() -> Built:
    """all-MiniLM-L6-v2 with its real weights on two short sentences."""
    from .sentences import load_model, tokenize  # noqa: PLC0415 - needs the demo extra

    return LastState(load_model()), dict(tokenize(["The cat sat down.", "Rules are data here."]))


MODELS: dict[str, Callable[[], Built]] = {
    "encoder12_small": lambda: encoder(12),
    "bert_base": bert_base,
    "gpt2": gpt2,
    "vit_base": vit_base,
    "llama": llama,
    "resnet50": resnet,
    "minilm": minilm,
}


def build(name: str) -> Built:
    """The model in eval mode and its inputs, seeded."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs
