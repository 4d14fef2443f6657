"""Whether an FX graph is sound: its structure, and metadata that its own calls would give.

Takes a GraphModule; gives problems in plain words, empty for a sound graph. Every ATen call is
asked of FakeTensor again, which adds no guard on a symbolic size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from .metadata import SYMBOLIC, Constants, Metadata, fake_mode, meta_key
from .ops import OpTable
from .views import size_expression

_STARTS = (7, 30, 101)  # sizes at which two ways to write one are compared


def graph_problems(gm: fx.GraphModule, table: OpTable) -> list[str]:
    """Everything that is wrong with `gm`; only its structure, where that is wrong."""
    try:
        gm.graph.lint()
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        return [f"the graph is malformed: {_first_line(error)}"]
    mode = fake_mode([node.meta.get("val") for node in gm.graph.nodes])
    if mode is None:
        return []
    metadata = Metadata(table, mode, Constants())
    return [text for node in gm.graph.nodes for text in _node_problems(node, metadata)]


def _node_problems(node: fx.Node, metadata: Metadata) -> Iterator[str]:
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.returns:
        return
    if "val" not in node.meta:
        yield f"{node.name} has no metadata"
        return
    said = node.meta["val"]
    inputs = [arg.meta.get("val") for arg in node.all_input_nodes]
    if node.target._schema.is_mutable or _is_new(said, inputs):
        return
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    try:
        found = metadata.apply(node.target, args, kwargs)
    except (DynamicOutputShapeException, DataDependentOutputException):
        return  # only running the call can tell
    except Exception as error:
        if not _symbols((said, inputs)):  # else it may only have wanted to know a size
            yield f"{node.name}: {node.target} raises {type(error).__name__}: {_first_line(error)}"
        return
    if not _agree(_facts(said), _facts(found)):
        yield f"{node.name} is said to be {_facts(said)}; {node.target} gives {_facts(found)}"


def _is_new(said: Any, inputs: Any) -> bool:
    """Whether a result has sizes that only running the call can tell."""
    return bool(_symbols(said) - _symbols(inputs))


def _symbols(value: Any) -> set[Any]:
    """The symbols of tensors and numbers, in lists and tuples too."""
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        return _symbols((*value.shape, *(value.stride() if strided else ())))
    if isinstance(value, list | tuple):
        return set().union(*map(_symbols, value)) if value else set()
    return set(value.node.expr.free_symbols) if isinstance(value, SYMBOLIC) else set()


def _facts(value: Any) -> Any:
    """Shape, dtype and device, or the key of a plain value."""
    if isinstance(value, torch.Tensor):
        return tuple(map(size_expression, value.shape)), str(value.dtype), str(value.device)
    if isinstance(value, list | tuple):
        return tuple(map(_facts, value))
    return meta_key(value)


def _agree(left: Any, right: Any) -> bool:
    """Whether facts are the same; sizes that are written differently are compared by value."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_agree, left, right))
    if left == right:
        return True
    if not (isinstance(left, sympy.Basic) or isinstance(right, sympy.Basic)):
        return False
    one, other = sympy.sympify(left), sympy.sympify(right)
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    return all(
        one.subs(values) == other.subs(values)
        for start in _STARTS
        for values in [{symbol: start + 2 * at for at, symbol in enumerate(symbols)}]
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
