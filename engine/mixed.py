"""Norms for which torch's metadata functions and its kernels disagree.

Of half tensors with float32 parameters, as autocast gives them, the metadata functions say that
the saved statistics are of the half type; the kernels give float32. While a graph is traced,
the norm is therefore done on the input as float32, which is what the kernels compute in anyway.
Of a batch norm, they say that results are laid out as the input or its gradient are; the
kernels on the CPU give rows, or channels last where the input has them last. What is read is
therefore laid out so before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_BATCH_NORMS = (
    _aten.native_batch_norm.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit_no_training.default,
)
_NORMS = (_aten.native_layer_norm.default, _aten.native_group_norm.default, *_BATCH_NORMS)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def mixed_norms() -> Mapping[Any, Callable[..., Any]]:
    """Decompositions for AOTAutograd; they give NotImplemented where nothing is to be done."""
    group, batch = (
        _aten.native_group_norm_backward.default,
        _aten.native_batch_norm_backward.default,
    )
    found = {norm: _widened(norm) for norm in _NORMS} | {group: _widened_backward(group)}
    for norm in _BATCH_NORMS:
        found[norm] = _first(found[norm], _laid_out(norm))
    return found | {batch: _laid_out_backward(batch)}


def _first(*decompositions: Callable[..., Any]) -> Callable[..., Any]:
    """The first of them that does anything."""

    def decompose(*args: Any, **named: Any) -> Any:
        results = (one(*args, **named) for one in decompositions)
        return next((one for one in results if one is not NotImplemented), NotImplemented)

    return decompose


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


def _layout(x: torch.Tensor) -> torch.memory_format:
    """That of the results of a batch norm of `x`."""
    last = _CHANNELS_LAST.get(x.dim())
    if x.is_contiguous() or last is None or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def _laid_out(norm: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(x: torch.Tensor, *rest: Any, **named: Any) -> Any:
        layout = _layout(x)
        if x.device.type != "cpu" or x.is_contiguous(memory_format=layout):
            return NotImplemented
        return norm(x.contiguous(memory_format=layout), *rest, **named)

    return decompose


def _laid_out_backward(norm: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
        layout = _layout(x)
        if x.device.type != "cpu" or grad.is_contiguous(memory_format=layout):
            return NotImplemented
        return norm(grad.contiguous(memory_format=layout), x, *rest)

    return decompose
