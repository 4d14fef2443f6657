"""Which calls of a graph before AOTAutograd must stay as and where they are.

Takes a GraphModule whose nodes carry fake values; gives the nodes that rules must leave alone:
whatever touches memory that some call writes, and whatever runs under another mode (no_grad,
autocast) than the graph starts in. All else are functions of values that never change, so
they may be replaced, merged and moved. Views share their fake memory, so one look at storages
finds every alias.
"""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .encode import has_tensor, value_of
from .memory import storage
from .metadata import SYMBOLIC

_IN_PLACE = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)
_IN_PLACE_OPERATORS = frozenset(getattr(operator, name) for name in _IN_PLACE)
_IN_PLACE_METHODS = frozenset(("setitem", "__setitem__", *(f"__{name}__" for name in _IN_PLACE)))
# Calls that give a tensor other memory, so that storages say nothing any more.
_SWAPS = frozenset({"set_", "resize_", "resize_as_", "swap_", "set_data"})
_RUNNING_STATISTICS = ("batch_norm", "instance_norm")
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Effects:
    """`kept` are the nodes that stay; `reason` says why the whole graph must, where it must.
    `modes` tells whether there are regions under another mode."""

    kept: frozenset[fx.Node] = frozenset()
    reason: str = ""
    modes: bool = False


def effects_of(gm: fx.GraphModule) -> Effects:
    """What rules must leave alone in a graph of torch calls."""
    written: set[int] = set()
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method", "call_module"):
            continue
        if _name(node) in _SWAPS or node.op == "call_module":
            return Effects(reason=f"{node.name} changes what memory a tensor has")
        for value in tree_leaves([value_of(arg) for arg in _written(node)]):
            place = storage(value)
            if place is None and isinstance(value, torch.Tensor):
                return Effects(reason=f"{node.name} writes to a tensor without dense memory")
            if place is not None:
                written.add(place)
    try:
        inside, modes = _under_modes(gm)
    except _UnknownEffect as unknown:
        return Effects(reason=str(unknown))
    touching = {node for node in gm.graph.nodes if written and _touches(node, written)}
    return Effects(frozenset(inside | touching), modes=modes)


def _touches(node: fx.Node, written: set[int]) -> bool:
    values = [value_of(node), *(value_of(arg) for arg in node.all_input_nodes)]
    return any(storage(value) in written for value in tree_leaves(values))


# Modes


class _UnknownEffect(Exception):
    pass


def _under_modes(gm: fx.GraphModule) -> tuple[set[fx.Node], bool]:
    """The nodes under another mode than the first, and whether there are any modes. Raises
    _UnknownEffect for a call that is neither a mode, nor a write, nor a value."""
    found: set[fx.Node] = set()
    modes = False
    grad = start = torch.is_grad_enabled()
    depth = 0
    for node in gm.graph.nodes:
        name = _name(node)
        if not node.op.startswith("call_") or _is_value(node):
            if depth or grad != start:
                found.add(node)
        elif name == "_set_grad_enabled":
            grad, modes = bool(node.args[0]), True
        elif name in ("_enter_autocast", "_exit_autocast"):
            depth, modes = depth + (1 if name == "_enter_autocast" else -1), True
        elif not _only_writes(node):
            raise _UnknownEffect(f"{node.name} marks a region or has an effect")
    if depth or grad != start:
        raise _UnknownEffect("the graph ends under another mode than it starts")
    return found, modes


def _is_value(node: fx.Node) -> bool:
    value = value_of(node)
    return has_tensor(value) or isinstance(value, (*SYMBOLIC, int, float, torch.Size))


def _only_writes(node: fx.Node) -> bool:
    """Whether a call without a result is done once it has written, or checked something."""
    name = _name(node)
    return any(True for _ in _written(node)) or name.startswith(("_assert", "_check", "sym_"))


# Writes


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that a call may write."""
    yield from _nodes(node.kwargs.get("out"))
    target, name = node.target, _name(node)
    if isinstance(target, torch._ops.OpOverload):
        yield from _written_by_schema(node, target)
    elif isinstance(target, torch._ops.HigherOrderOperator):
        if not all(map(_is_pure, _bodies(node))):
            yield from node.all_input_nodes
    elif not _is_known(node):
        yield from node.all_input_nodes
    elif _is_in_place(name, target) or _argument(node, "inplace"):
        yield from _nodes(node.args[:1])
    elif any(part in name for part in _RUNNING_STATISTICS):
        yield from _written_statistics(node)
    elif "embedding" in name and _argument(node, "max_norm") is not None:
        yield from node.all_input_nodes


def _written_by_schema(node: fx.Node, target: torch._ops.OpOverload) -> Iterator[fx.Node]:
    arguments = target._schema.arguments
    for place, argument in enumerate(arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            yield from _nodes(given)
    if any(part in target._opname for part in _RUNNING_STATISTICS):
        yield from node.all_input_nodes


def _written_statistics(node: fx.Node) -> Iterator[fx.Node]:
    """A norm in training moves its running statistics, which no schema says."""
    for flag in ("training", "use_input_stats"):
        value = _argument(node, flag)
        if value is False:
            return
        if value is not None:
            for name in _STATISTICS:
                yield from _nodes(_argument(node, name))
            return
    if not (len(node.args) > 5 and node.args[5] is False):  # a builtin, which names no arguments
        yield from node.all_input_nodes


def _bodies(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a call such as `checkpoint` runs."""
    owner = node.graph.owning_module
    found = [
        getattr(owner, str(n.target), None) for n in node.all_input_nodes if n.op == "get_attr"
    ]
    return [body for body in found if isinstance(body, fx.GraphModule)]


def _is_pure(gm: fx.GraphModule) -> bool:
    calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
    return not any(True for node in calls for _ in _written(node))


def _is_in_place(name: str, target: Any) -> bool:
    if target in _IN_PLACE_OPERATORS or name in _IN_PLACE_METHODS:
        return True
    own = getattr(target, "__module__", None) == "_operator"  # `and_` only avoids a keyword
    return name.endswith("_") and not name.endswith("__") and not own


def _is_known(node: fx.Node) -> bool:
    """Whether a call is torch's or Python's own, whose names tell what they write."""
    target: Any = node.target
    if node.op == "call_method":
        return True
    module = getattr(target, "__module__", None) or ""
    if isinstance(target, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return not module or module.split(".")[0] in ("torch", "_operator", "math", "builtins")
    return module.split(".")[0] in ("torch", "_operator", "math", "builtins")


def _argument(node: fx.Node, name: str) -> Any:
    """The value of an argument by name, None where the call has none or does not tell."""
    if name in node.kwargs:
        return node.kwargs[name]
    target = node.target
    if not isinstance(target, types.FunctionType):
        return None
    try:
        bound = inspect.signature(target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    return bound.arguments.get(name)


def _nodes(value: Any) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes(item)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))
