"""Which values decide something, so that a small error in them may change the result a lot.

Takes an `Encoding`; gives the e-graph nodes that a comparison, a rounding, a search for the
largest or a cast to whole numbers reads, at once or through ops that only move values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .egraph import LEAF
from .encode import Encoding, value_of

# Ops from floats to floats that jump; those from floats to whole numbers or bools always do.
_JUMPS = frozenset(
    {
        *("floor", "ceil", "round", "trunc", "frac", "sign", "sgn", "heaviside", "bernoulli"),
        *("floor_divide", "floordiv", "remainder", "fmod", "mod", "threshold", "hardshrink"),
    }
)
_MASKS = frozenset({"native_dropout"})  # bools that do not depend on what is read
_MOVES = frozenset(
    {
        *("view", "reshape", "permute", "transpose", "expand", "slice", "select", "split"),
        *("unbind", "chunk", "getitem", "cat", "stack", "repeat", "flip", "roll", "gather"),
        *("index", "index_select", "clone", "contiguous", "alias", "detach", "cast", "to"),
        *("unsqueeze", "squeeze", "flatten", "unflatten", "t", "float", "type_as"),
    }
)


def deciding_nodes(encoding: Encoding) -> set[int]:
    """The nodes of the e-graph whose value decides something in the graph as it came."""
    found: set[int] = set()
    for node in reversed(encoding.gm.graph.nodes):
        if not node.op.startswith("call_"):
            continue
        words = set(_words(encoding, node))
        own = encoding.classes.get(node)
        if _jumps(node, words) or (own in found and words & _MOVES):
            found |= {encoding.classes[arg] for arg in _floats(node) if arg in encoding.classes}
    return found


def _jumps(node: fx.Node, words: set[str]) -> bool:
    results = [value for value in tree_leaves(value_of(node)) if isinstance(value, torch.Tensor)]
    whole = any(not (r.is_floating_point() or r.is_complex()) for r in results)
    return bool(words & _JUMPS) or (whole and not words & _MASKS)


def _floats(node: fx.Node) -> Iterator[fx.Node]:
    for arg in node.all_input_nodes:
        values = tree_leaves(value_of(arg))
        if any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values):
            yield arg


def _words(encoding: Encoding, node: fx.Node) -> list[str]:
    """The parts of an op's name: `torch.argmax`, `bucketize.Tensor`."""
    graph = encoding.graph
    index = encoding.classes.get(node)
    if index is not None and graph.kind[index] != LEAF:
        return graph.constructors[graph.kind[index]].op.name.split(".")
    target = node.target
    return (target if isinstance(target, str) else str(target)).split(".")
