"""The last look at a rewritten graph: its outputs are those of the graph it came from.

Takes both graphs; gives nothing, or an error that says which output would change.
"""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.utils._pytree import tree_leaves

from .decode import DecodeError
from .encode import value_of
from .metadata import meta_key
from .world import EvaluateError


def check_outputs(old: fx.GraphModule, new: fx.GraphModule) -> None:
    """Raises DecodeError where an output differs in shape, dtype, device or strides."""
    for first, second in zip(_outputs(old), _outputs(new), strict=True):
        if isinstance(first, fx.Node) and isinstance(second, fx.Node):
            if meta_key(value_of(first)) != meta_key(value_of(second)):
                raise DecodeError(f"output {first.name} would change its metadata")
        elif isinstance(second, fx.Node):
            raise EvaluateError(f"output {second.name} was a constant")


def _outputs(gm: fx.GraphModule) -> list[Any]:
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    return tree_leaves(output.args)
