"""Guarded constant folding, step 6: expressions of parameters leave the graph.

Takes an inference graph and the names of placeholders that hold parameters; gives the part
of the graph that depends on parameters alone (to be run once) and the rest, which takes the
results as further inputs. `codegen.folded` runs both and watches the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module

# Free by themselves: folding one of these alone would only keep memory alive.
_VIEWS = frozenset(
    {
        torch.ops.aten.view.default,
        torch.ops.aten.permute.default,
        torch.ops.aten.transpose.int,
        torch.ops.aten.t.default,
        torch.ops.aten.expand.default,
        torch.ops.aten.slice.Tensor,
        torch.ops.aten.select.int,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.squeeze.dim,
        torch.ops.aten.squeeze.dims,
        torch.ops.aten.alias.default,
        torch.ops.aten.detach.default,
        torch.ops.aten._unsafe_view.default,
        torch.ops.aten.reshape.default,
    }
)


@dataclass(frozen=True)
class Split:
    """`constants(*[inputs[i] for i in watched])` gives the tensors that `main` takes after
    its own inputs."""

    main: fx.GraphModule
    constants: fx.GraphModule
    watched: tuple[int, ...]
    names: tuple[str, ...]  # node names of the folded values
    bytes: int


def split_constants(gm: fx.GraphModule, frozen: frozenset[str]) -> Split | None:
    """The graph in two parts, or None where nothing is worth folding."""
    steady = steady_nodes(gm, frozen)
    returned = _returned_nodes(gm)
    chosen = [
        node
        for node in gm.graph.nodes
        if node in steady
        and node not in returned
        and _worth_folding(node)
        and _leaves_steady_part(node, steady)
    ]
    if not chosen:
        return None
    constants, sources = _constant_graph(gm, chosen)
    order = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    main = _main_graph(gm, chosen)
    size = sum(_bytes(node.meta["val"]) for node in chosen)
    watched = tuple(order.index(name) for name in sources)
    return Split(main, constants, watched, tuple(node.name for node in chosen), size)


def steady_nodes(gm: fx.GraphModule, frozen: frozenset[str]) -> set[fx.Node]:
    """Nodes whose value is a pure function of frozen placeholders, at least one of them."""
    steady: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if (node.op == "placeholder" and node.name in frozen) or (
            node.op == "call_function"
            and isinstance(node.target, torch._ops.OpOverload)
            and not node.target._schema.is_mutable
            and torch.Tag.nondeterministic_seeded not in node.target.tags
            and node.all_input_nodes
            and all(source in steady for source in node.all_input_nodes)
        ):
            steady.add(node)
    return steady


def _returned_nodes(gm: fx.GraphModule) -> set[fx.Node]:
    """Nodes that a graph output may alias: the caller could write into a folded tensor."""
    (output,) = gm.graph.find_nodes(op="output")
    returned: set[fx.Node] = set()
    pending = list(output.all_input_nodes)
    while pending:
        node = pending.pop()
        returned.add(node)
        if node.target in _VIEWS:
            pending += node.all_input_nodes
    return returned


def _worth_folding(node: fx.Node) -> bool:
    """A tensor with real work behind it, not only views of parameters."""
    if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    pending, seen = [node], set()
    while pending:
        current = pending.pop()
        if current in seen or current.op != "call_function":
            continue
        if current.target not in _VIEWS:
            return True
        seen.add(current)
        pending += current.all_input_nodes
    return False


def _leaves_steady_part(node: fx.Node, steady: set[fx.Node]) -> bool:
    return any(user not in steady for user in node.users)


def _constant_graph(gm: fx.GraphModule, chosen: list[fx.Node]) -> tuple[fx.GraphModule, list[str]]:
    needed: set[fx.Node] = set()
    pending = list(chosen)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in chosen])
    sources = [node.name for node in copies if node.op == "placeholder"]
    return _make_graph_module(gm, graph), sources


def _main_graph(gm: fx.GraphModule, chosen: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        copies[node] = graph.node_copy(node)
    for node in chosen:
        copies[node] = graph.placeholder(f"folded_{node.name}")
        copies[node].meta = dict(node.meta)
    for node in gm.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.eliminate_dead_code()
    return _make_graph_module(gm, graph)


def _bytes(value: torch.Tensor) -> int:
    return int(value.numel()) * value.element_size()
