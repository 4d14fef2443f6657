"""Whether saturation with a rule comes to an end: alone, and with the rules beside it.

Takes a rule, a structure that it fires on and its neighbours; makes a small graph of both its
sides, and lets the e-graph grow round by round. Gives the growth per round where it does not
end within more rounds than any schedule allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from .apply import Applier
from .draw import TORCH_ERRORS, Structure
from .encode import encode
from .evaluate import TensorWorld
from .op import GETITEM, Op
from .ops import OpTable
from .pattern import PatternError
from .rule import Rule
from .saturate import Saturator
from .schedule import Phase, Schedule
from .stage import compiled_pattern
from .trial import Rejected, Trials

_ROUNDS = 14
_MOST_NODES = 1500  # a graph of two expressions has a dozen
_MATCHES = 400
_CYCLE = 4  # last rounds whose rules are named: endless ones take turns


@dataclass(frozen=True)
class Growth:
    """Nodes of the e-graph before the first round, and after each. `ended` says that the last
    round added none; else `fired` names the rules that did."""

    nodes: tuple[int, ...]
    ended: bool
    fired: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = [after - before for before, after in zip(self.nodes, self.nodes[1:], strict=False)]
        return f"from {self.nodes[0]} nodes by {', '.join(map(str, steps))} in as many rounds"


def runs_away(
    trials: Trials, structures: Sequence[Structure], beside: Sequence[Rule]
) -> tuple[str | None, str | None]:
    """What is wrong with the rule alone, and what with it among `beside`, the rules of its
    phases: texts, or None where saturation ends (or would not end without the rule either)."""
    rule, table = trials.rule, trials.table
    if rule.stage == "trace":  # applied while tracing, each call once
        return None, None
    for structure in structures:
        try:
            graph = graph_of(trials, trials.smooth_values(structure))
        except (Rejected, *TORCH_ERRORS):
            continue
        alone = measure_growth([rule], graph, table)
        if not alone.ended:
            return f"runs away: a graph of its own sides grows {alone} and would go on", None
        among = measure_growth([rule, *beside], graph, table)
        if not among.ended and measure_growth(beside, graph, table).ended:
            names = ", ".join(name for name in among.fired if name != rule.name)
            return None, (
                f"runs away together with {names}: a graph of its own sides grows {among};"
                " the budgets of the schedule will stop it"
            )
    return None, None


def neighbours(rule: Rule, rules: Sequence[Rule], schedule: Schedule) -> list[Rule]:
    """The rules of the phases that `rule` runs in, itself left out."""
    phases = schedule.phases(rule.stage)
    named = {folder for phase in phases for folder in phase.folders}
    mine = [
        phase
        for phase in phases
        if rule.folder in phase.folders or (phase.others and rule.folder not in named)
    ]
    beside = {folder for phase in mine for folder in phase.folders} | {rule.folder}
    return [
        other
        for other in rules
        if other.stage == rule.stage and other.folder in beside and other.name != rule.name
    ]


def measure_growth(rules: Sequence[Rule], graph: fx.GraphModule, table: OpTable) -> Growth:
    """How an e-graph of `graph` grows when `rules` run on it together, without a budget but
    a general one."""
    places = {
        node.name: place for place, node in enumerate(graph.graph.find_nodes(op="placeholder"))
    }
    # All inputs count as parameters: rules for weights fire as well.
    encoding = encode(graph, table, weights=places, frozen=frozenset(places))
    if encoding is None:
        return Growth((0,), True)
    patterns = []
    for rule in rules:
        try:
            patterns.append(compiled_pattern(rule, table))
        except PatternError:
            continue
    phase = Phase("growth", ("all",), iterations=1, matches=_MATCHES)
    egraph, applier = encoding.graph, Applier(encoding.graph, table, None)
    sizes, ended, before = [len(egraph)], False, [0]
    with Saturator(egraph, applier, {"all": patterns}) as saturator:
        while len(sizes) <= _ROUNDS and len(egraph) < _MOST_NODES:
            before.append(len(applier.firings))
            saturator.run(phase, ["all"], _MOST_NODES)
            ended = len(egraph) == sizes[-1]
            if ended:
                break
            sizes.append(len(egraph))
    late = applier.firings[before[-_CYCLE:][0] :]
    fired = dict.fromkeys(firing.rule.name for firing in late)
    return Growth(tuple(sizes), ended, () if ended else tuple(fired))


def graph_of(
    trials: Trials, values: Mapping[str, Any], *, left_alone: bool = False
) -> fx.GraphModule:
    """Both sides of a rule as one graph with fake values. Raises what a side raises."""
    recorder = _Recorder(trials.table)
    for name, value in values.items():
        for at, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, torch.Tensor):
                recorder.add_input(f"{name}_{at}" if isinstance(value, list) else name, item)
    if left_alone:
        roots = list(trials.left_side(values, recorder).values())
    else:
        sides = trials.both_sides(values, recorder, recorder)
        roots = [root for side in sides for root in side.values()]
    recorder.graph.output([recorder.node(root) for root in roots])
    return fx.GraphModule({}, recorder.graph)


class _Recorder(TensorWorld):
    """Keeps a node for every call; tensors stay alive, so that no id is met twice."""

    def __init__(self, table: OpTable) -> None:
        super().__init__(table)
        self.graph = fx.Graph()
        self._mode = FakeTensorMode()
        self._nodes: dict[int, tuple[Any, fx.Node]] = {}

    def add_input(self, name: str, value: torch.Tensor) -> None:
        self._keep(value, self.graph.placeholder(name))

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        target, call_args, kwargs = self.table.call(op, args)
        result = super().emit(op, args)
        if id(result) in self._nodes:  # the op gave its operand: a call all the same
            result = result.view(result.shape)
        given = [self.node(arg) for arg in (args if op is GETITEM else call_args)]
        named = {key: self.node(value) for key, value in kwargs.items()}
        self._keep(result, self.graph.call_function(target, tuple(given), named))
        return result

    def node(self, value: Any) -> Any:
        """What stands for a value in the graph: its node, or itself."""
        if id(value) in self._nodes:
            return self._nodes[id(value)][1]
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.node, value))
        return value

    def _keep(self, value: Any, node: fx.Node) -> None:
        node.meta["val"] = node.meta["example_value"] = self._fake(value)
        self._nodes[id(value)] = value, node

    def _fake(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._mode.from_tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._fake, value))
        return value
