"""Extraction problems of pieces of a graph, small enough for the integer program.

Takes what a rule stage is given; gives the problems that the pieces have after saturation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx

from eqsat.engine.selection import Problem
from eqsat.engine.stage import StageRun


def window(gm: fx.GraphModule, start: int, length: int) -> fx.GraphModule:
    """The calls of a graph from number `start` on, as a graph of their own: what they read from
    outside are its inputs, what is read outside or nowhere its outputs."""
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"][start : start + length]
    inside, graph, env = set(nodes), fx.Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        for arg in node.all_input_nodes:
            if arg not in inside and arg not in env:
                env[arg] = graph.placeholder(arg.name)
                env[arg].meta = dict(arg.meta)
    for node in nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    last = [node for node in nodes if not node.users or any(u not in inside for u in node.users)]
    graph.output(tuple(env[node] for node in last))
    return fx.GraphModule(gm, graph)


def problems_of(
    gm: fx.GraphModule, stage: str, how: Sequence[Any], length: int, step: int | None = None
) -> Iterator[Problem]:
    """The problems of windows of `length` calls, one every `step` calls, in which a rule fired;
    `how` holds the other arguments of `run_stage`."""
    calls = sum(node.op == "call_function" for node in gm.graph.nodes)
    for start in range(0, calls, step or length):
        run = StageRun(window(gm, start, length), stage, *how)
        encoding = run.prepare()
        if not isinstance(encoding, str) and run.applier is not None and run.applier.firings:
            yield run.problem(encoding)[0]
