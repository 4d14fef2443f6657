"""Layout and sharing of memory, as fake tensors show it.

Takes (fake) tensors; gives whether they are laid out alike, the order of their dims in
memory, and which memory of a new graph stands for which of the original.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .encode import value_of
from .metadata import meta_key
from .views import is_row_major

_aten = torch.ops.aten
# Composite, but what they compute is new.
_PRODUCTS = frozenset({_aten.matmul.default, _aten.linear.default})
_SHAPES = frozenset({_aten.view.default, _aten.reshape.default})
_ORDERS = frozenset({_aten.permute.default, _aten.transpose.int, _aten.t.default})


class Storages:
    """Which memory of the new graph stands for which of the original."""

    def __init__(self, env: Mapping[fx.Node, fx.Node], key: str) -> None:
        self.old_of: dict[int, int] = {}
        self.new_of: dict[int, int] = {}
        for node in env:
            self.agree(value_of(node), env[node].meta.get(key))

    def agree(self, old: Any, new: Any) -> bool:
        """Notes that two values stand for each other; False where the sharing would differ."""
        first, second = storage(old), storage(new)
        if first is None or second is None:
            return True
        if self.old_of.get(second, first) != first or self.new_of.get(first, second) != second:
            return False
        self.old_of[second], self.new_of[first] = first, second
        return True

    def shared(self, old: Any) -> bool:
        """Whether something returned or given before has the memory of `old`."""
        found = storage(old)
        return found is not None and found in self.new_of


def storage(value: Any) -> int | None:
    """The identity of a tensor's memory; None for anything else, and where nothing tells it."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return int(value.untyped_storage()._cdata)
    except NotImplementedError:  # wrappers of torch.func, in the bodies of higher-order ops
        return None


def shares_memory(left: Any, right: Any) -> bool:
    """Whether two values, tensors or several, have memory in common."""
    found = {storage(value) for value in tree_leaves(left)} - {None}
    return not found.isdisjoint(storage(value) for value in tree_leaves(right))


def may_alias(target: torch._ops.OpOverload) -> bool:
    """Whether a result may share memory with an argument: views, and ops that return their
    argument where there is nothing to do."""
    if target in _PRODUCTS:
        return False
    if any(result.alias_info is not None for result in target._schema.returns):
        return True
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return target.has_kernel_for_dispatch_key(composite) or target is operator.getitem


def is_whole_view(target: Any, value: Any) -> bool:
    """Whether `target` called on `value` first gives other sizes and strides to all of its
    memory, and never copies."""
    if target in _SHAPES:
        return isinstance(value, torch.Tensor) and is_row_major(value)
    return target in _ORDERS


def begins_alike(left: Any, right: Any) -> bool:
    """Whether two tensors begin at the same place of the same memory."""
    place = storage(left)
    return (
        place is not None
        and place == storage(right)
        and meta_key(left.storage_offset()) == meta_key(right.storage_offset())
    )


def same_layout(old: Any, new: Any) -> bool:
    return meta_key(old) == meta_key(new)


def has_rows(value: Any) -> bool:
    """Whether the last dim of a tensor lies densely in memory; True for anything else."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return True
    step = value.stride(-1)
    return isinstance(step, int) and step == 1


def dense_order(value: torch.Tensor) -> list[int] | None:
    """The dims from outermost to innermost in memory, None where memory has gaps or overlaps.
    Only for plain sizes."""
    numbers = (*value.shape, *value.stride())
    if not all(isinstance(number, int) for number in numbers):
        return list(range(value.dim())) if is_row_major(value) else None
    order = sorted(range(value.dim()), key=lambda dim: (-numbers[value.dim() + dim], dim))
    expected = 1
    for dim in reversed(order):
        if value.shape[dim] != 1 and value.stride(dim) != expected:
            return None
        expected *= max(1, value.shape[dim])
    return order
