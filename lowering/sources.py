"""What part of the user's program a node came from.

Takes FX nodes; gives a `Source`: the names of the calls that a node is a part of, and the paths
of the modules around it. Fusion rules ask for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx

# Where Dynamo found the root module, a local or a global: "L['self'].layer.0" is layer.0.
_ROOT = re.compile(r"^[LG]\[[^\]]*\]\.?")
_COUNTED = re.compile(r"_\d+$")  # the second softmax of a graph is called softmax_1


@dataclass(frozen=True)
class Source:
    """`ops`: ATen ops, and the functions and module classes the user called ("softmax",
    "LayerNorm"). `modules`: paths as in `named_modules`, from the outermost inwards. `call` is
    what the node itself calls: "aten._softmax", empty where that is no op."""

    ops: frozenset[str] = frozenset()
    modules: tuple[str, ...] = ()
    call: str = ""

    def does(self, pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in self.ops)

    def within(self, pattern: str) -> bool:
        return any(fnmatchcase(path, pattern) for path in self.modules)


def sources_of(nodes: Iterable[fx.Node]) -> Mapping[str, Source]:
    """The source of every call, by the name of its node."""
    return {node.name: source_of(node) for node in nodes if node.op == "call_function"}


def source_of(node: fx.Node) -> Source:
    """Where `node` came from; a node of a backward graph came from its forward call."""
    meta = node.meta
    called = meta.get("source_fn_stack") or meta.get("fwd_source_fn_stack") or ()
    around = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}
    ops = {_aten_name(node.target), _aten_name(meta.get("original_aten"))}
    for name, target in called:
        ops |= {_COUNTED.sub("", str(name)), getattr(target, "__name__", "")}
    modules = tuple(_ROOT.sub("", str(path)) for path, *_ in around.values())
    return Source(frozenset(ops - {""}), modules, _call_of(node.target))


def _call_of(target: Any) -> str:
    return str(target.overloadpacket) if isinstance(target, torch._ops.OpOverload) else ""


def _aten_name(target: Any) -> str:
    """`add` of aten.add.Tensor, without the underscores of private and in-place ops."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__).strip("_")
    return ""
