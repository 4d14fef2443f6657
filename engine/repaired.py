"""Ops whose metadata functions are wrong in some versions of torch, called so that they are right.

Gives a table from overload to function, as AOTAutograd's `decompositions` want it; it is empty
where this version of torch has none of the mistakes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

_vector_norm = torch.ops.aten.linalg_vector_norm.default


def repaired_calls() -> Mapping[torch._ops.OpOverload, Callable[..., Any]]:
    """Functions that call an op with other arguments of the same meaning, or give
    NotImplemented where the arguments are good as they are."""
    return {} if knows_negative_dims() else {_vector_norm: vector_norm}


@functools.cache
def knows_negative_dims() -> bool:
    """Whether the metadata of a norm over a dim of size 1, counted from the end, leaves the dim
    out (torch 2.11 keeps it)."""
    found: torch.Tensor = _vector_norm(torch.empty(2, 1, device="meta"), 3.0, [-1])
    return found.dim() == 1


def vector_norm(
    x: torch.Tensor,
    order: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """The norm with dims counted from the front."""
    if dim is None or x.dim() == 0 or all(one >= 0 for one in dim):
        return NotImplemented
    return _vector_norm(x, order, [one % x.dim() for one in dim], keepdim, dtype=dtype)
