"""Dtype words of the rule language and their torch counterparts.

Takes words (`f32`, `bool`, ...) or `torch.dtype`; gives the other. Dtypes without a word
(float8, quantized) keep torch's own name, so that messages can still print them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

DTYPES: Mapping[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
_WORDS: Mapping[torch.dtype, str] = {dtype: word for word, dtype in DTYPES.items()}
HALF = frozenset({torch.float16, torch.bfloat16})


def word_of(dtype: torch.dtype) -> str:
    """The word for `dtype`; torch's name without `torch.` where the language has none."""
    return _WORDS.get(dtype) or str(dtype).removeprefix("torch.")


def dtype_of(word: str) -> torch.dtype:
    """The torch dtype behind a name that `word_of` gave. Raises AttributeError for another."""
    found = DTYPES.get(word) or getattr(torch, word)
    assert isinstance(found, torch.dtype)
    return found
