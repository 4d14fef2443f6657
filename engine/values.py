"""The fake values of calls in a graph that is being written.

Takes calls on nodes that have values; gives theirs. FakeTensor takes long where sizes are
symbolic, so it is asked only where nothing else tells: a value that the original graph holds
is used again where it is the same one, and one with memory of its own is made from the
metadata that the e-graph knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from .egraph import EGraph
from .encode import value_of
from .memory import begins_alike, is_whole_view, may_alias, shares_memory
from .metadata import is_plain, meta_key
from .world import EvaluateError

# Calls that need strides which another form of their operand may not have.
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def _shares_memory(target: Any) -> bool:
    """Whether a result may share memory with an argument; True where nothing tells."""
    return target in _VIEWS or not isinstance(target, torch._ops.OpOverload) or may_alias(target)


class Values:
    """Values under `key` ("val" or "example_value") in the meta of nodes; `made` are the nodes
    of classes."""

    def __init__(self, graph: EGraph, made: Mapping[int, fx.Node], key: str) -> None:
        self.graph = graph
        self.metadata = graph.metadata
        self.made = made
        self.key = key

    def of_call(self, origin: int, node: int, made: fx.Node) -> Any:
        """The value of a call. That of `origin` in the original graph where it is the same one:
        what reads the call then has the very values that it had."""
        try:
            known = self._known_value(node, made)
        except EvaluateError:  # only with a guard
            known = None
        source = self.graph.source[origin]
        alone = not _shares_memory(made.target)
        if known is not None and source is not None and source.op == "call_function":
            original = value_of(source)
            if meta_key(known) == meta_key(original) and (
                not _shares_memory(source.target)
                if alone
                else begins_alike(original, made.all_input_nodes[0].meta[self.key])
            ):
                return original
        fresh = self._fresh(known) if alone else None
        return self.run(made) if fresh is None else fresh

    def _known_value(self, node: int, made: fx.Node) -> Any:
        """A value like the result of `made`; None where it may share memory with an argument in
        a way that only a fake value of its own tells."""
        inputs = made.all_input_nodes
        if _shares_memory(made.target) and not (
            inputs and is_whole_view(made.target, inputs[0].meta[self.key])
        ):
            return None
        graph, metadata = self.graph, self.metadata
        constructor = graph.constructors[graph.kind[node]]
        row = [
            metadata.intern(self.made[graph.find(item)].meta[self.key]) if column == "t" else item
            for column, item in zip(constructor.columns, graph.args[node], strict=True)
        ]

        def args() -> list[Any]:
            return constructor.split(
                [
                    metadata.values[item] if column == "t" else graph.constants.value(item)
                    for column, item in zip(constructor.columns, row, strict=True)
                ]
            )

        known = metadata.call(constructor.op, (constructor.index, *row), args)
        return metadata.values[known]

    def _fresh(self, value: Any) -> Any:
        """A fake tensor like `value` with memory of its own; None where that takes a guard."""
        if not isinstance(value, torch.Tensor) or not is_plain(value):
            return None
        try:
            return self.metadata.fresh(
                tuple(value.shape), tuple(value.stride()), value.dtype, value.device
            )
        except (RuntimeError, ValueError):
            return None

    def same_arguments(self, source: fx.Node, made: fx.Node) -> bool:
        """Whether a node reads the very values that its original reads."""
        old, new = source.all_input_nodes, made.all_input_nodes
        return len(old) == len(new) and all(
            value_of(a) is b.meta.get(self.key) for a, b in zip(old, new, strict=True)
        )

    def renew(self, source: fx.Node, copied: fx.Node) -> None:
        """Gives a copy of `source` a value of its own where a result is a view of an operand in
        whose place it reads other fake memory."""
        value = value_of(source)
        pairs = zip(source.all_input_nodes, copied.all_input_nodes, strict=False)
        for old, new in pairs:
            before, now = value_of(old), new.meta.get(self.key)
            if shares_memory(before, value) and not shares_memory(before, now):
                copied.meta[self.key] = self.run(copied)
                return

    def run(self, made: fx.Node) -> Any:
        """The value of `made`. New strides may need a guard that the old ones did not."""
        try:
            return self._run_once(made)
        except RuntimeError as error:
            if "Guard attempted" not in str(error):
                raise
        with self.metadata.guarding():
            return self._run_once(made)

    def _run_once(self, made: fx.Node) -> Any:
        def value(arg: fx.Node) -> Any:
            return arg.meta[self.key]

        target: Any = made.target
        args, kwargs = map_arg(made.args, value), map_arg(made.kwargs, value)
        if isinstance(target, str):
            target = getattr(torch.Tensor, target)
        if target not in _VIEWS:
            return self.metadata.apply(target, args, kwargs)
        try:
            viewed = self.metadata.try_apply(torch.ops.aten.view.default, args, kwargs)
            return viewed if target is _VIEWS[0] else self._fresh(viewed) or viewed
        except (RuntimeError, ValueError):
            made.target = torch.ops.aten.reshape.default
            return self.metadata.try_apply(made.target, args, kwargs)
