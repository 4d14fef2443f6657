"""Small tensors made of plain numbers alone: eager makes them once, when the graph is compiled.

Takes a call without tensors and symbolic sizes; gives a held tensor. Ops whose formula rounds in
ways of its own (evenly spaced floats) and those that only enumerate (indices of a triangle) are
exact this way and cost one load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .creation import arange
from .values import Stored, Value
from .views import Lower, copying
from .work import Declined, Work, supported

_MOST = 65536  # elements: such a tensor lives as long as the compiled graph


def frozen(work: Work, node: fx.Node, *_: Any) -> Value:
    meta = node.meta["val"]
    sizes = [size for size in meta.shape if not isinstance(size, int)]
    if node.all_input_nodes or sizes or meta.numel() > _MOST or not supported(meta):
        raise Declined
    assert callable(node.target)
    with unset_fake_temporarily(), torch.no_grad():  # AOTAutograd compiles under its fake mode
        made = node.target(*node.args, **node.kwargs)
    buffer = work.buffer_of(node.name, meta, "constant")
    work.constants[buffer.name] = made
    return Stored(buffer)


def arange_or_frozen(work: Work, node: fx.Node, *args: Any) -> Value:
    """Whole numbers are a formula, also with symbolic sizes."""
    try:
        return arange(work, node, *args)
    except Declined:
        made: Value = copying(frozen)(work, node, *args)
        return made


FROZEN: Mapping[str, Lower] = {
    "linspace": copying(frozen),
    "logspace": copying(frozen),
    "tril_indices": copying(frozen),
    "triu_indices": copying(frozen),
    "arange": arange_or_frozen,
}
