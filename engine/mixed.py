"""Norms of half tensors with float32 parameters, as autocast gives them.

torch's metadata functions say that the saved statistics of such a norm are of the half type;
the kernels give float32. While a graph is traced, the norm is therefore done on the input as
float32, which is what the kernels compute in anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_NORMS = (
    _aten.native_layer_norm.default,
    _aten.native_group_norm.default,
    _aten.native_batch_norm.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit_no_training.default,
)


def mixed_norms() -> Mapping[Any, Callable[..., Any]]:
    """Decompositions for AOTAutograd; they give NotImplemented where nothing is mixed."""
    backward = _aten.native_group_norm_backward.default
    return {norm: _widened(norm) for norm in _NORMS} | {backward: _widened_backward(backward)}


def _widened(norm: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(x: torch.Tensor, *rest: Any, **named: Any) -> Any:
        others = [arg for arg in (*rest, *named.values()) if isinstance(arg, torch.Tensor)]
        mixed = any(other.dtype is torch.float32 for other in others)
        if x.dtype not in _HALVES or not mixed:
            return NotImplemented
        result, *statistics = norm(x.float(), *rest, **named)
        return result.to(x.dtype), *statistics

    return decompose


def _widened_backward(norm: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a backward op, of the gradient, the input and its saved mean first; its
    metadata function gives the gradient of the input the dtype of the mean."""

    def decompose(grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, *rest: Any) -> Any:
        if x.dtype not in _HALVES or mean.dtype is not torch.float32:
            return NotImplemented
        result, *others = norm(grad.float(), x.float(), mean, *rest)
        return None if result is None else result.to(x.dtype), *others

    return decompose
