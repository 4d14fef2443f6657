"""A guard that torch's AOTAutograd lacks: inputs that overlap in memory while one is written.

A graph is traced for the aliasing that its example inputs had. When a later call passes
tensors that overlap and the graph writes one of them in place, the traced copy-back order is
wrong (pytorch/pytorch#139789, #198095). Such calls run the captured graph eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


def guard_overlap(
    compiled: Callable[..., Any],
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    mutated: frozenset[int],
) -> Callable[..., Any]:
    """`compiled`, or `gm` itself on calls whose inputs overlap a mutated input.

    Graphs that write no input are returned unwrapped and pay nothing.
    """
    if not mutated:
        return compiled
    tensors = [
        index
        for index, value in enumerate(example_inputs)
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    ]
    watched = sorted(index for index in mutated if index < len(example_inputs))
    if len(_owners(example_inputs)) < len(tensors):  # AOTAutograd may join them, and count anew
        watched = tensors

    def run(*inputs: Any) -> Any:
        if _overlap(inputs, watched):
            return gm.forward(*inputs)
        return compiled(*inputs)

    return torch._dynamo.disable(run)  # type: ignore[no-untyped-call,no-any-return]


def _owners(inputs: Sequence[Any]) -> dict[int, list[int]]:
    """The places of tensors by the memory that they are of."""
    owners: dict[int, list[int]] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            owners.setdefault(value.untyped_storage()._cdata, []).append(index)
    return owners


def _overlap(inputs: Sequence[Any], watched: Sequence[int]) -> bool:
    owners = _owners(inputs)
    for index in watched:
        value = inputs[index]
        shared = owners.get(value.untyped_storage()._cdata, [index])
        for other in shared:
            if other != index and _ranges_meet(value, inputs[other]):
                return True
    return False


def _ranges_meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    (start_a, end_a), (start_b, end_b) = _byte_range(a), _byte_range(b)
    return start_a < end_b and start_b < end_a


def _byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    span = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (int(span) + 1) * tensor.element_size()
