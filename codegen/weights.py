"""How constant weights of matrix products lie in memory.

Takes an inference graph and the names of its parameters; gives the graph with weights that
products read by columns copied to rows, where this machine multiplies those clearly faster.
`lowering.fold` then runs the copies once, outside the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..engine.dtypes import word_of
from ..lowering.fold import steady_nodes
from ..lowering.index import row_major
from ..lowering.loops import Buffer, View
from .externs import Route, whole_view
from .gemm import CLEARLY_FASTER, pick_route
from .shims import shim_for

aten = torch.ops.aten
_WEIGHT = {aten.mm.default: 1, aten.addmm.default: 2}
MOST_ROWS = 128  # with more, reordering a weight on the fly is a small part of the product
LARGEST_BYTES = 32 << 20  # a copy of a larger weight costs more memory than it is worth


def lay_out_weights(gm: fx.GraphModule, frozen: frozenset[str]) -> fx.GraphModule:
    """`gm` itself where no weight gains, else a changed copy."""
    steady = steady_nodes(gm, frozen)
    products = [
        node
        for node in gm.graph.nodes
        if node.target in _WEIGHT and node.args[_WEIGHT[node.target]] in steady and _gains(node)
    ]
    if not products:
        return gm
    graph, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(gm.graph, copied))
    turned: dict[fx.Node, fx.Node] = {}
    for node in products:
        place = _WEIGHT[node.target]
        weight = copied[node.args[place]]
        if weight not in turned:
            turned[weight] = _in_rows(graph, weight)
        copied[node].update_arg(place, turned[weight])
    changed = fx.GraphModule(gm, graph)
    changed.meta = dict(gm.meta)
    return changed


def _in_rows(graph: fx.Graph, weight: fx.Node) -> fx.Node:
    with graph.inserting_after(weight):
        copy = graph.call_function(
            aten.clone.default, (weight,), {"memory_format": torch.contiguous_format}
        )
    copy.meta = dict(weight.meta)
    value = weight.meta["val"]
    copy.meta["val"] = value.clone(memory_format=torch.contiguous_format)
    return copy


def _gains(node: fx.Node) -> bool:
    """Whether the product is measured to be clearly faster with its weight in rows."""
    if node.kwargs:
        return False
    values: list[torch.Tensor] = [
        arg.meta["val"] for arg in node.args if isinstance(arg, fx.Node) and _is_plain(arg)
    ]
    if len(values) < len(node.args):
        return False
    x, weight = values[-2:]
    rows, columns = weight.shape
    if weight.stride() != (1, rows) or 1 in (rows, columns) or x.shape[0] > MOST_ROWS:
        return False
    if weight.numel() * weight.element_size() > LARGEST_BYTES:
        return False
    now, turned = (_seconds(node.target, values, stride) for stride in ((1, rows), (columns, 1)))
    return None not in (now, turned) and turned < CLEARLY_FASTER * now  # type: ignore[operator]


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.device.type == "cpu" and all(
        isinstance(size, int) for size in (*value.shape, *value.stride())
    )


def _seconds(target: Any, values: list[torch.Tensor], stride: tuple[int, int]) -> float | None:
    """The better of the measured times with this stride of the weight; None: not measured."""
    shim = shim_for(target)
    if shim is None:
        return None
    strides = [*(row_major(tuple(value.shape)) for value in values[:-1]), stride]
    buffers = {
        str(place): Buffer(str(place), word_of(value.dtype), tuple(value.shape), step, "input")
        for place, (value, step) in enumerate(zip(values, strides, strict=True))
    }
    views: list[View | int] = [whole_view(buffer) for buffer in buffers.values()]
    scales = [1, 1] if len(values) > 2 else []
    with unset_fake_temporarily():  # AOTAutograd compiles under its fake mode
        _, pick = pick_route(Route(target, shim, (*views, *scales)), buffers)
    return min(pick.aten, pick.onednn) if pick is not None and pick.measured else None
