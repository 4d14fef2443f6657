"""Random draws that a graph's results depend on.

Takes two forms of a graph; gives whether the second reads fewer draws. What follows a stage
before or at the joint graph (AOTAutograd, the partitioner) drops calls that nothing reads. A
draw that only tells sizes (`full_like(rand(3), 2)`) moves the generator in eager all the same.
"""

from __future__ import annotations

import torch
from torch import fx


def loses_draws(old: fx.GraphModule, new: fx.GraphModule) -> bool:
    """Whether fewer random calls are read, at the end by the output, in `new` than in `old`."""
    return _live_draws(new) < _live_draws(old)


def _live_draws(gm: fx.GraphModule) -> int:
    live: set[fx.Node] = set()
    for node in reversed(gm.graph.nodes):
        if node.op == "output" or node in live:
            live.update(node.all_input_nodes)
    return sum(map(_draws, live))


_WORDS = (
    *("rand", "bernoulli", "multinomial", "normal", "poisson", "gumbel", "fractional", "dropout"),
    *("uniform_", "exponential_", "cauchy_", "geometric_"),
)


def _draws(node: fx.Node) -> bool:
    """Whether a call may draw random numbers: torch says so of ATen ops, else the name."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not node.op.startswith("call_") or not any(word in name for word in _WORDS):
        return False
    return not ("dropout" in name and _keeps_all(node))


def _keeps_all(node: fx.Node) -> bool:
    """Whether a call of dropout is one that eager draws nothing for (ATen's `dropout_impl`)."""
    given = dict(zip(("input", "p", "training"), node.args, strict=False))
    said = {"p": 0.5, "training": True, **given, **node.kwargs}
    return bool(said["p"] == 0 or said["training"] is False)
