"""What a stage did, as plain data.

Takes nothing; gives frozen dataclasses that `as_json` turns into dicts, lists and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fired:
    """A rule that fired: how often, how many of these are in the result, and per firing (the
    first ones) the FX nodes it matched."""

    rule: str
    where: str
    count: int
    kept: int
    nodes: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Budget:
    """A bound that was reached: of which phase, on what, and how much it allowed."""

    phase: str
    what: str
    limit: int


@dataclass(frozen=True)
class Disabled:
    """A rule that was not used for this graph, and why."""

    rule: str
    where: str
    reason: str


@dataclass(frozen=True)
class StageReport:
    """status: "changed", "unchanged" (the graph given came back), "skipped", "failed".

    `nodes_*` count call nodes, `cost_*` are seconds by the cost model, `seconds` is the wall
    time and `times` its parts, `cpu_times` the same parts in CPU seconds of the thread;
    `egraph_nodes` counts all forms that were considered. `missed` counts per
    rule the matches of its left side for which a condition failed."""

    stage: str
    status: str
    reason: str = ""
    nodes_before: int = 0
    nodes_after: int = 0
    cost_before: float = 0.0
    cost_after: float = 0.0
    seconds: float = 0.0
    times: Mapping[str, float] = field(default_factory=dict)
    cpu_times: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    egraph_nodes: int = 0
    egraph_classes: int = 0
    firings: tuple[Fired, ...] = ()
    missed: Mapping[str, int] = field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    disabled: tuple[Disabled, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
