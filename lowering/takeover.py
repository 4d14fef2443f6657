"""Whether an op that changes part of a tensor may do so in the memory of that tensor.

Takes the FX node and the value of its first operand; gives the memory to write into, where
nobody reads the old elements afterwards. An input is written only if the graph overwrites it
in the end.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from .externs import VALUES
from .values import Stored, Value, root
from .views import VIEWS, is_view
from .work import Work


def taken_over(work: Work, node: fx.Node, x: Value) -> Stored | None:
    """The memory of `x` as the result of `node`, or None where that has to be a copy."""
    first = node.args[0]
    if not isinstance(x, Stored) or not isinstance(first, fx.Node) or work.env[first] is not x:
        return None
    if _named((node.args[1:], tuple(node.kwargs.values())), first):
        return None
    if x.buffer.role not in ("temp", "input") or _overlaps(x):
        return None
    overwritten = x.buffer.role == "input"
    if overwritten and (not _is_overwritten(work, node, x) or _is_shown(node)):
        return None
    for other in _sharing(work, x):
        for user in other.users:
            if user is node and other is first:
                continue
            if overwritten and _is_write(user) and user.args[0] is other:
                continue
            if not user < node:
                return None
    return Stored(x.buffer)


def _named(args: Any, wanted: fx.Node) -> bool:
    if isinstance(args, list | tuple):
        return any(_named(item, wanted) for item in args)
    return args is wanted


def _overlaps(x: Stored) -> bool:
    pairs = zip(x.buffer.shape, x.buffer.stride, strict=True)
    return any(size != 1 and step == 0 for size, step in pairs)


def _is_write(node: fx.Node) -> bool:
    return node.target is torch.ops.aten.copy_.default


def _is_overwritten(work: Work, node: fx.Node, x: Stored) -> bool:
    """Whether all of an input is written at the end of the graph."""
    targets = [n.args[0] for n in node.graph.nodes if _is_write(n) and node < n]
    places = [work.env.get(target) for target in targets if isinstance(target, fx.Node)]
    return any(isinstance(place, Stored) and place.buffer == x.buffer for place in places)


def _is_shown(node: fx.Node) -> bool:
    """Whether the caller of the graph gets the result of `node` or a view of it."""
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user.op == "output":
                return True
            if _keeps_memory(user):
                pending.append(user)
    return False


def _keeps_memory(node: fx.Node) -> bool:
    """Whether the value of `node` may lie in the memory of an operand."""
    name = node.target.overloadpacket.__name__ if isinstance(node.target, OpOverload) else ""
    several = isinstance(node.meta.get("val"), list | tuple)
    return name in VIEWS or is_view(node.target) or several or node.target is operator.getitem


def _sharing(work: Work, x: Stored) -> Iterator[fx.Node]:
    """Nodes whose values lie in the memory of `x`."""
    for node, value in work.env.items():
        for item in value if isinstance(value, list | tuple) else (value,):
            base = root(item) if isinstance(item, VALUES) else None
            if isinstance(base, Stored) and base.buffer == x.buffer:
                yield node
                break
