"""What compiled sides are run on is laid out as what they were traced with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import fx

from eqsat.engine.compiled import compiled_failures
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable

TABLE = OpTable(load_book([RULES / "ops"]).ops)
BOOK = load_book([RULES / "trace/loss.yaml"], TABLE)


@pytest.mark.parametrize("seed", range(2))
def test_repaired_targets_keep_the_strides_of_the_graph(seed: int) -> None:
    """Also of targets that repeat one element, which an assumption is about."""
    rules = [(rule, TABLE) for rule in BOOK.rules if rule.name == "nll-loss-backward-split-mean"]
    differing: list[Any] = []
    runs = 0

    def compile_graph(graph: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
        traced = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]

        def run(inputs: list[Any]) -> Sequence[Any]:
            nonlocal runs
            runs += 1
            pairs = zip(inputs, traced, strict=True)
            differing.extend(one for one, two in pairs if one.stride() != two.stride())
            return graph(*inputs)  # type: ignore[no-any-return]

        return run

    assert not compiled_failures(rules, compile_graph, seed=seed)
    assert runs and not differing
