"""Many architectures, two layers deep and 64 wide, for what rules do over all of them.

Which rules fire and what the cost model says of that needs no weights and no full depth. Most
are configurations of transformers with random weights; the convolutional ones, and the
recommender, are those of `graphs.py`. `TRAINED` ones are compiled as a training step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from . import graphs
from .models import Built, LastState
from .resnet import resnet50

_WORDS, _LENGTH = 200, 12
_WIDTH: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_TEXT = {**_WIDTH, "vocab_size": _WORDS, "max_position_embeddings": 64}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": _WORDS, "use_cache": False}
_IMAGE = {"image_size": 32, "num_channels": 3, "patch_size": 8}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 4,
}
_PAIR = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": _WORDS,
    "max_position_embeddings": 64,
    "use_cache": False,
}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}


def _words() -> torch.Tensor:
    return torch.randint(3, _WORDS, (2, _LENGTH))


def _text() -> dict[str, Any]:
    return {"input_ids": _words()}


def _pairs() -> dict[str, Any]:
    return {"input_ids": _words(), "decoder_input_ids": _words()[:, :6]}


def _images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


Inputs = Callable[[], dict[str, Any]]
_CONFIGS: dict[str, tuple[str, str, Mapping[str, Any], Inputs]] = {
    "bert": ("BertModel", "BertConfig", _TEXT, _text),
    "roberta": ("RobertaModel", "RobertaConfig", _TEXT, _text),
    "electra": ("ElectraModel", "ElectraConfig", {**_TEXT, "embedding_size": 32}, _text),
    "albert": ("AlbertModel", "AlbertConfig", {**_TEXT, "embedding_size": 32}, _text),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": _WORDS},
        _text,
    ),
    "mpnet": ("MPNetModel", "MPNetConfig", _TEXT, _text),
    "deberta_v2": ("DebertaV2Model", "DebertaV2Config", _TEXT, _text),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2, _text),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 8}, _text),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_TEXT, "use_cache": False}, _text),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": _WORDS, "use_cache": False},
        _text,
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_DECODER, "ffn_dim": 128, "word_embed_proj_dim": 64},
        _text,
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", _DECODER, _text),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER, _text),
    "mistral": ("MistralForCausalLM", "MistralConfig", _DECODER, _text),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_DECODER, "num_local_experts": 4}, _text),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _DECODER, _text),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 16}, _text),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**_DECODER, "head_dim": 16}, _text),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_DECODER, "head_dim": 16}, _text),
    "phi": ("PhiForCausalLM", "PhiConfig", _DECODER, _text),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _DECODER, _text),
    "t5": ("T5Model", "T5Config", {**_T5, "vocab_size": _WORDS, "use_cache": False}, _pairs),
    "bart": ("BartModel", "BartConfig", _PAIR, _pairs),
    "vit": ("ViTModel", "ViTConfig", {**_WIDTH, **_IMAGE}, _images),
    "deit": ("DeiTModel", "DeiTConfig", {**_WIDTH, **_IMAGE}, _images),
    "swin": ("SwinModel", "SwinConfig", _SWIN, _images),
    "convnext": (
        "ConvNextModel",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32},
        _images,
    ),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {
            "hidden_size": 64,
            "state_size": 4,
            "num_hidden_layers": 2,
            "vocab_size": _WORDS,
            "use_cache": False,
        },
        _text,
    ),
}


def _transformer(name: str) -> Built:
    model, config, fields, inputs = _CONFIGS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**fields))
    return LastState(made), inputs()


def _image_net(model: torch.nn.Module) -> Built:
    return graphs.named_images(model, size=32)


ARCHITECTURES: dict[str, Callable[[], Built]] = {
    **{name: functools.partial(_transformer, name) for name in _CONFIGS},
    "resnet50": lambda: _image_net(resnet50()),
    "inception": lambda: _image_net(graphs.inception()),
    "mobilenet": lambda: _image_net(graphs.mobilenet()),
    "unet": lambda: _image_net(graphs.UNet()),
    "dlrm": lambda: graphs.GRAPHS["dlrm"](),
    "bert, training": functools.partial(_transformer, "bert"),
    "llama, training": functools.partial(_transformer, "llama"),
}
TRAINED = frozenset(name for name in ARCHITECTURES if name.endswith(", training"))


def build(name: str) -> Built:
    """The model and its inputs, seeded; in eval mode unless it is trained."""
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name]()
    return model.train(name in TRAINED), inputs
