"""Attention is recognised in any spelling, right, and nothing else is taken for it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eqsat.reports import recording
from eqsat.tests.rules.attention_spellings import (
    causal,
    heads,
    masked,
    near_misses,
    plain,
    rows,
    spellings,
)

FUSED = "scaled_dot_product"
FAST: dict[str, Any] = {"strict": True, "numerics": "fast"}


def compiled(
    fn: Callable[..., Any], args: Sequence[Tensor], *, grad: bool = False, **options: Any
) -> tuple[Any, list[str]]:
    """The result, and the extern calls of all graphs."""
    torch._dynamo.reset()
    options = FAST | options
    with recording() as reports, torch.set_grad_enabled(grad):
        made = torch.compile(fn, backend="eqsat", dynamic=False, options=options)(*args)
    assert not [rule for report in reports for stage in report.stages for rule in stage.disabled]
    return made, [call.target for report in reports for call in report.externs]


def fuses(targets: Sequence[str]) -> bool:
    return any(FUSED in target for target in targets)


def products(targets: Sequence[str]) -> int:
    return sum("bmm" in target or "matmul" in target for target in targets)


def doubled(fn: Callable[..., Any], args: Sequence[Tensor]) -> Any:
    """What `fn` gives in f64; a program that casts to f32 on its way is a little less exact."""
    wide = [arg.double() if arg.is_floating_point() else arg for arg in args]
    return fn(*wide)


def assert_near(found: Tensor, fn: Callable[..., Any], args: Sequence[Tensor]) -> None:
    """As near to f64 as eager is, up to a factor of three and the roundings of the result."""
    eager = fn(*args)
    assert (found.dtype, found.shape) == (eager.dtype, eager.shape)
    exact = doubled(fn, args)
    step = 4 * torch.finfo(eager.dtype).eps
    missed, allowed = ((x.double() - exact).abs().max().item() for x in (found, eager))
    assert missed <= 3 * allowed + step * exact.abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(spellings()))
def test_every_spelling_is_one_call(name: str) -> None:
    torch.manual_seed(0)
    fn, args = spellings()[name]
    found, targets = compiled(fn, args)
    assert fuses(targets) and not products(targets), targets
    assert_near(found, fn, args)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(near_misses()))
def test_what_only_looks_like_it_stays(name: str) -> None:
    torch.manual_seed(0)
    fn, args = near_misses()[name]
    found, targets = compiled(fn, args)
    assert not fuses(targets)
    torch.testing.assert_close(found, fn(*args), rtol=1e-4, atol=1e-5)


def test_integers_are_no_attention() -> None:
    args = [torch.randint(-3, 3, (2, 4, 5, 6)) for _ in range(3)]

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax((q @ k.mT).float(), dim=-1) @ v.float()

    found, targets = compiled(program, args)
    assert not fuses(targets)
    torch.testing.assert_close(found, program(*args))


@pytest.mark.parametrize("length", [24, 9, 31])
def test_causal_attention_counts_from_the_first_key(length: int) -> None:
    args = heads(length=length)
    found, targets = compiled(causal, args)
    assert fuses(targets)
    assert_near(found, causal, args)


@pytest.mark.parametrize("diagonal", [-1, 1, 3])
def test_another_diagonal_is_another_mask(diagonal: int) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lower = torch.ones(24, 24, dtype=torch.bool).tril(diagonal)
        return F.softmax((q @ k.mT).masked_fill(~lower, -1e9), dim=-1) @ v

    args = heads()
    found, _ = compiled(program, args)
    assert_near(found, program, args)


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e9])
def test_a_row_without_a_key_stays_even(low: float) -> None:
    """A finite fill makes such a row the mean of the values; the mask that is added must too."""
    args = heads()
    hidden = torch.zeros(24, 24, dtype=torch.bool)
    hidden[3] = True

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.softmax((q @ k.mT).masked_fill(hidden, low), dim=-1) @ v

    found, targets = compiled(program, args)
    assert fuses(targets)
    torch.testing.assert_close(found[:, :, 3], args[2].mean(2), rtol=1e-4, atol=1e-5)


def test_default_numerics_leave_it_alone() -> None:
    """The kernel gives zeros where a row of scores is nan, which is not what was written."""
    args = heads(length=7)
    args[0][0, 1, 2, 3] = math.nan
    q, k, v = args
    assert not F.scaled_dot_product_attention(q, k, v).isnan().any()
    found, targets = compiled(plain, args, numerics="default")
    assert not fuses(targets)
    torch.testing.assert_close(found, plain(*args), equal_nan=True)


def gradients(fn: Callable[..., Any], args: Sequence[Tensor]) -> list[Tensor]:
    """Those of queries, keys and values."""
    leaves = [arg.detach().clone().requires_grad_() for arg in args[:3]]
    result = fn(*leaves, *args[3:])
    mix = torch.arange(result.numel(), dtype=result.dtype).view_as(result).cos()
    return list(torch.autograd.grad((result * mix).sum(), leaves))


def hugging_face(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """How its models spell it while they train without dropout."""
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25 + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, p=0.0, training=True), v).transpose(1, 2).contiguous()


TRAINED: dict[str, tuple[Callable[..., Tensor], int]] = {
    "plain": (plain, 3),
    "masked": (masked, 4),
    "causal": (causal, 3),
    "hugging face": (hugging_face, 4),
    "scaled queries": (lambda q, k, v: F.softmax((q / 3.0) @ k.mT, dim=-1) @ v, 3),
}


@pytest.mark.parametrize("name", list(TRAINED))
def test_training_runs_the_backward_of_the_kernel(name: str) -> None:
    torch.manual_seed(0)
    fn, count = TRAINED[name]
    args = [*heads(), rows().clamp(min=-1e4)][:count]
    torch._dynamo.reset()
    with recording() as reports:
        found = gradients(torch.compile(fn, backend="eqsat", options=FAST), args)
    targets = [call.target for report in reports for call in report.externs]
    assert any(FUSED in target and "backward" in target for target in targets), targets
    exact = gradients(fn, [arg.double() for arg in args])
    for one, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-5)


def test_dropout_in_training_is_not_taken() -> None:
    """Inside of the kernel it would draw other numbers."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(F.softmax(q @ k.mT, dim=-1), 0.5) @ v

    args = heads()
    found, targets = compiled(program, args)
    assert not fuses(targets)
    assert found.shape == args[0].shape


TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
GPT = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 40, "n_positions": 32}
GPTJ = {**GPT, "rotary_dim": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 40}
DISTIL = {"dim": 32, "hidden_dim": 64, "n_layers": 1, "n_heads": 4, "vocab_size": 40}
OPT = {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}
BLOOM = {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 40}
IMAGE = {**{key: TEXT[key] for key in list(TEXT)[:4]}, "image_size": 16, "patch_size": 4}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "vocab_size": 40,
    "pad_token_id": 0,
}
GROUPS = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}

# Model class, fields of its config, and how many attentions run.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bert": ("BertModel", TEXT, 1),
    "roberta": ("RobertaModel", {**TEXT, "max_position_embeddings": 34}, 1),
    "distilbert": ("DistilBertModel", DISTIL, 1),
    "gpt2": ("GPT2Model", GPT, 1),
    "gptj": ("GPTJModel", GPTJ, 1),
    "gpt_neox": ("GPTNeoXModel", TEXT, 1),
    "opt": ("OPTModel", OPT, 1),
    "bloom": ("BloomModel", BLOOM, 1),
    "falcon": ("FalconModel", {**TEXT, "alibi": True}, 1),
    "llama": ("LlamaModel", GROUPS, 1),
    "mistral": ("MistralModel", {**GROUPS, "sliding_window": 4}, 1),
    "qwen3": ("Qwen3Model", GROUPS, 1),
    "t5": ("T5Model", T5, 3),
    "vit": ("ViTModel", IMAGE, 1),
    "whisper": ("WhisperModel", WHISPER, 3),
}


def model_inputs(name: str) -> dict[str, Tensor]:
    ids = torch.randint(3, 40, (2, 10))
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 24), "decoder_input_ids": ids}
    return {"input_ids": ids} | ({"decoder_input_ids": ids[:, :7]} if name == "t5" else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_models_of_hugging_face(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    kind, fields, count = MODELS[name]
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**fields)
    config._attn_implementation = "eager"
    config.use_cache = False
    model: Any = model_class(config).eval()
    inputs = model_inputs(name)
    torch._dynamo.reset()
    with recording() as reports, torch.no_grad():
        made: Any = torch.compile(model, backend="eqsat", options=FAST)
        found = made(**inputs)
        wanted = model(**inputs)
        exact = copy.deepcopy(model).double()(
            **{k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
        )
    targets = [call.target for report in reports for call in report.externs]
    assert sum(FUSED in target for target in targets) == count, targets
    assert products(targets) == 0 or name in ("gptj", "bloom"), targets
    states = (x.last_hidden_state.double() for x in (found, wanted, exact))
    one, eager, true = states
    torch.testing.assert_close(one, true, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one, eager, rtol=1e-4, atol=1e-4)
