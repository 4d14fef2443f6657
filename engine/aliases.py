"""Which inputs a result shares memory with: what `pre_grad` rules must leave as it is.

Before AOTAutograd a program can still write into tensors in place, so a view must stay a view
of the same elements, and a copy a copy. Later stages see functional graphs, and the compiler
restores the strides and copies that outputs need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def aliasing_differs(left: Any, right: Any, inputs: Mapping[str, torch.Tensor]) -> str | None:
    """Why writing into one result would not be writing into the other; None where it would."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return None
    if not left.numel() or left.shape != right.shape:
        return None
    behind_left, behind_right = _behind(left, inputs), _behind(right, inputs)
    for name in sorted(behind_left ^ behind_right):
        if name in behind_left:
            return f"the left side is a view of {name}, the right side is a copy"
        return f"the left side is a copy, the right side is a view of {name}"
    if not behind_left:
        return None
    if _elements(left) == _elements(right):
        return None
    return (
        f"a view with strides {left.stride()} at offset {left.storage_offset()} becomes one"
        f" with strides {right.stride()} at offset {right.storage_offset()}"
    )


def _behind(value: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> set[str]:
    return {
        name
        for name, tensor in inputs.items()
        if tensor.numel() and _memory(tensor) == _memory(value)
    }


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _elements(value: torch.Tensor) -> tuple[Any, ...]:
    """Where the elements lie; the stride of a dim of one element says nothing."""
    pairs = zip(value.shape, value.stride(), strict=True)
    return (value.storage_offset(), *(stride for length, stride in pairs if length != 1))
