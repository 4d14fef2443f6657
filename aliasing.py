"""Guards that torch's AOTAutograd lacks.

Inputs that overlap in memory while one is written: a graph is traced for the aliasing that its
example inputs had. When a later call passes tensors that overlap and the graph writes one of
them in place, the traced copy-back order is wrong (pytorch/pytorch#139789, #198095). Such calls
run the captured graph eagerly.

What a forward graph saves: some metadata functions give the memory of an op elements that
overlap, which no real result does. A backward graph that is given others than it was traced
for runs eagerly, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func

from .engine.memory import dense_order


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


def guard_strides(compiled: Callable[..., Any], gm: fx.GraphModule) -> Callable[..., Any]:
    """`compiled`, a boxed callable for the backward graph `gm`, or `gm` itself on calls where a
    saved tensor has other strides than overlapping or scattered ones that it was traced with.

    Graphs without such inputs are returned unwrapped.
    """
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    watched = [(place, value.stride()) for place, value in enumerate(values) if _is_odd(value)]
    if not watched:
        return compiled
    plain = make_boxed_func(gm.forward)

    def run(inputs: list[Any]) -> Any:
        if all(inputs[place].stride() == stride for place, stride in watched):
            return compiled(inputs)
        return plain(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_odd(value: Any) -> bool:
    """Whether a tensor is of fixed strides that are not those of dense memory."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    known = all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    return known and value.numel() > 0 and dense_order(value) is None


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
