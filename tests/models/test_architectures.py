"""Tiny models of transformers with random weights: results, gradients, nothing left out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from eqsat.reports import CompileReport, recording

transformers = pytest.importorskip("transformers")

_TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
_IMAGE = {"image_size": 16, "num_channels": 3}
_PATCHES = {key: _TEXT[key] for key in list(_TEXT)[:4]} | _IMAGE | {"patch_size": 4}
_SWIN = {"patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2}
_GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40, "n_positions": 32}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
_MAMBA = {"hidden_size": 16, "state_size": 2, "num_hidden_layers": 1, "vocab_size": 40}
_RESNET = {"embedding_size": 4, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}


def _text(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 40, (batch, length))}


def _pairs(batch: int, length: int) -> dict[str, Any]:
    return _text(batch, length) | {"decoder_input_ids": torch.randint(3, 40, (batch, length - 1))}


def _images(batch: int, _: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 16, 16)}


Inputs = Callable[[int, int], dict[str, Any]]
MODELS: dict[str, tuple[str, str, Mapping[str, Any], Inputs]] = {
    "bert": ("BertModel", "BertConfig", _TEXT, _text),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**_GPT2, "use_cache": False}, _text),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**_TEXT, "num_key_value_heads": 1, "use_cache": False},
        _text,
    ),
    "t5": ("T5Model", "T5Config", {**_T5, "use_cache": False}, _pairs),
    "vit": ("ViTForImageClassification", "ViTConfig", _PATCHES, _images),
    "swin": ("SwinForImageClassification", "SwinConfig", {**_IMAGE, **_SWIN}, _images),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", _RESNET, _images),
    "mamba": ("MambaForCausalLM", "MambaConfig", {**_MAMBA, "use_cache": False}, _text),
}


def _build(name: str) -> tuple[nn.Module, Inputs]:
    model, config, fields, inputs = MODELS[name]
    torch.manual_seed(0)
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**fields))
    return made, inputs


def _floats(output: Any) -> list[torch.Tensor]:
    return [v for v in output.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]


def _nothing_left_out(reports: list[CompileReport]) -> None:
    assert [report.fallback for report in reports if report.fallback] == []
    stages = [stage for report in reports for stage in report.stages]
    assert [stage.reason for stage in stages if stage.status == "failed"] == []
    assert [rule for stage in stages for rule in stage.disabled] == []
    opened = ("norm", "dropout", "slice_backward", "select_backward")
    kept = [e.target for r in reports for e in r.externs if any(w in e.target for w in opened)]
    assert kept == []


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "resnet"])
def test_inference(name: str) -> None:
    model, inputs = _build(name)
    model.eval()
    given = inputs(2, 5)
    with torch.no_grad(), recording() as reports:
        ours, theirs = torch.compile(model, backend="eqsat")(**given), model(**given)
    torch.testing.assert_close(_floats(ours), _floats(theirs), rtol=1e-4, atol=1e-5)
    _nothing_left_out(reports)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_training_step(name: str) -> None:
    """Dropout draws what eager draws; batch norm moves its buffers alike."""
    model, inputs = _build(name)
    twin = copy.deepcopy(model.train())
    given = inputs(2, 5)
    results = []
    with recording() as reports:
        for run in (model, torch.compile(twin, backend="eqsat")):
            torch.manual_seed(1)
            outputs = _floats(run(**given))
            sum(out.square().mean() for out in outputs).backward()  # type: ignore[union-attr]
            results.append([*(out.detach() for out in outputs), torch.rand(2)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    grads = [p.grad.abs().max() for p in model.parameters() if p.grad is not None]
    scale = float(max(grads))
    for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5 * scale)
    torch.testing.assert_close(list(twin.buffers()), list(model.buffers()), rtol=1e-4, atol=1e-5)
    _nothing_left_out(reports)


def test_sizes_that_change() -> None:
    model, inputs = _build("gpt2")
    twin = copy.deepcopy(model.eval())
    compiled = torch.compile(twin, backend="eqsat", dynamic=True)
    with recording() as reports:
        for sizes in ((2, 7), (3, 9)):
            given = inputs(*sizes)
            for run in (model, compiled):
                run.zero_grad()
                run(**given).logits.square().mean().backward()
            for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    _nothing_left_out(reports)
