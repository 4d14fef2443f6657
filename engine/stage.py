"""One rule stage: an FX graph in, a cheaper equal one out.

Takes a GraphModule, the stage's name, rules and ops; gives a `StageResult`. Whatever goes
wrong inside, the graph that was given comes back, the report says why, and there is one
warning; EQSAT_STRICT=1 raises instead.
"""

from __future__ import annotations

import operator
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from .apply import Applier, Firing, OnFailure
from .assumed import ParameterCheck
from .cost import CostModel
from .decode import decode
from .egraph import LEAF, EGraph
from .encode import Encoding, encode, has_tensor, value_of
from .extract import Choice, Problem, extract
from .metadata import SYMBOLIC
from .ops import OpTable
from .outputs import check_outputs
from .pattern import Pattern, PatternError, compile_rule
from .report import Disabled, Fired, StageReport
from .rule import Rule, RuleBook
from .saturate import Saturator
from .schedule import Schedule, load_schedule
from .target import Target, load_target

_SHOWN_FIRINGS = 64
_SECOND = 10**15


@dataclass(frozen=True)
class StageOptions:
    """`profile` is the numerics that the rules were selected for. `weights` maps placeholders
    that are parameters to their position; `frozen` names those that may be folded; `lowered`
    is what generated kernels cover (`lowering.lowered_ops`); `inference` says that nobody will
    differentiate the graph."""

    profile: str = "default"
    weights: Mapping[str, int] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    target: Target = field(default_factory=lambda: load_target("cpu"))
    inference: bool = False
    lowered: Mapping[str, str] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=load_schedule)


@dataclass(frozen=True)
class StageResult:
    """`checks` must hold for the parameters whenever they are folded."""

    gm: fx.GraphModule
    report: StageReport
    checks: tuple[ParameterCheck, ...] = ()


class StageWarning(UserWarning):
    """A rule stage, or a rule in it, was not used."""


def run_stage(
    gm: fx.GraphModule,
    stage: str,
    book: RuleBook,
    table: OpTable,
    options: StageOptions | None = None,
) -> StageResult:
    """Applies the rules of `stage` to `gm`, which is left as it is.

    Gives `gm` itself where nothing gets cheaper. Only KeyboardInterrupt and SystemExit pass
    through, and anything where EQSAT_STRICT=1.
    """
    started = time.perf_counter()
    run = StageRun(gm, stage, book, table, options or StageOptions())
    try:
        result = run.run()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # egglog's panics are no Exceptions
        if os.environ.get("EQSAT_STRICT") == "1":
            raise
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"stage {stage} is left out: {reason}", StageWarning, stacklevel=2)
        result = StageResult(gm, run.report("failed", reason))
    seconds = time.perf_counter() - started
    return replace(result, report=replace(result.report, seconds=seconds))


class StageRun:
    """The steps of one stage, with what each leaves behind."""

    def __init__(
        self, gm: fx.GraphModule, stage: str, book: RuleBook, table: OpTable, options: StageOptions
    ) -> None:
        self.gm = gm
        self.stage = stage
        self.book = book
        self.table = table
        self.options = options
        self.costs = CostModel(options.target, options.lowered)
        self.times: dict[str, float] = {}
        self.applier: Applier | None = None
        self.saturator: Saturator | None = None
        self.cost_before = 0
        self.cost_after = 0
        self.chosen: dict[int, int] = {}
        self.refused: list[Disabled] = []
        self._clock = time.perf_counter()

    def prepare(self, on_failure: OnFailure | None = None) -> Encoding | str:
        """Encodes and saturates; a text says why there is nothing to do. `on_failure` hears
        of every match that did not hold."""
        rules = [rule for rule in self.book.rules if self._wanted(rule)]
        if not rules:
            return "no rules for this stage"
        if self.stage == "pre_grad":
            reason = why_not_functional(self.gm)
            if reason:
                return reason
        options = self.options
        encoding = encode(self.gm, self.table, weights=options.weights, frozen=options.frozen)
        if encoding is None:
            return "no tensors"
        self._tick("encode")
        graph = encoding.graph
        self.cost_before = self.cost_after = sum(
            self.costs.cost(graph, node) for node in range(len(graph))
        )
        self.applier = Applier(graph, self.table, on_failure)
        self._saturate(graph, rules, self.applier)
        return encoding

    def run(self) -> StageResult:
        encoding = self.prepare()
        if isinstance(encoding, str):
            return StageResult(self.gm, self.report("skipped", encoding))
        self._warn()
        if self.applier is None or not self.applier.firings:
            return StageResult(self.gm, self.report("unchanged", "no rule fired"))
        choice, classes = self._extract(encoding)
        members = [node for group in classes.values() for node in group]
        self.chosen = {
            owner: members[choice.node[at]] for at, owner in enumerate(classes) if at in choice.used
        }
        if self._as_it_was(encoding):
            return StageResult(self.gm, self.report("unchanged", "nothing is cheaper"))
        self.cost_after = choice.cost
        every = {
            owner: members[choice.node[at]]
            for at, owner in enumerate(classes)
            if choice.node[at] >= 0
        }
        new = decode(encoding, self.chosen, self._rules_of, every)
        check_outputs(self.gm, new)
        self._tick("decode")
        firings = self.applier.firings
        checks = dict.fromkeys(c for firing in firings for c in firing.checks)
        return StageResult(new, self.report("changed", "", new), tuple(checks))

    def _as_it_was(self, encoding: Encoding) -> bool:
        """Whether every node of the original graph is in the choice."""
        graph = encoding.graph
        return all(
            self.chosen.get(graph.find(node)) == node
            for node in set(encoding.classes.values())
            if graph.kind[node] != LEAF
        )

    def _wanted(self, rule: Rule) -> bool:
        if rule.stage != self.stage:
            return False
        if not rule.grad and self.stage in ("pre_grad", "joint") and not self.options.inference:
            return False
        return not isinstance(rule.device, str) or rule.device == self.options.target.device

    def _saturate(self, graph: EGraph, rules: Sequence[Rule], applier: Applier) -> None:
        patterns: dict[str, list[Pattern]] = {}
        for rule in rules:
            try:
                pattern = compiled_pattern(rule, self.table)
            except PatternError as error:
                self.refused.append(Disabled(rule.name, rule.where, str(error)))
            else:
                patterns.setdefault(rule.folder, []).append(pattern)
        self._tick("patterns")
        phases = self.options.schedule.phases(self.stage)
        named = {folder for phase in phases for folder in phase.folders}
        others = [folder for folder in patterns if folder not in named]
        with Saturator(graph, applier, patterns) as saturator:
            self.saturator = saturator
            for phase in phases:
                folders = [folder for folder in phase.folders if folder in patterns]
                folders += others if phase.others else []
                size = len(graph)
                limit = size + max(phase.least, int(phase.growth * size))
                if folders:
                    saturator.run(phase, folders, limit)
        self._tick("saturate")

    def _extract(self, encoding: Encoding) -> tuple[Choice, dict[int, list[int]]]:
        """The choice, and the nodes of every class in the order of the problem."""
        graph, cost = encoding.graph, self.costs.cost
        classes: dict[int, list[int]] = {}
        for node in range(len(graph)):
            classes.setdefault(graph.find(node), []).append(node)
        place = {owner: at for at, owner in enumerate(classes)}
        children: list[tuple[int, ...]] = []
        members, owners, costs, start = [], [], [], []
        for owner, nodes in classes.items():
            group = []
            for node in nodes:
                group.append(len(children))
                children.append(tuple(place[child] for child in encoding.children(node)))
                owners.append(place[owner])
                costs.append(cost(graph, node))
            original = graph.firing[nodes[0]] < 0
            start.append(group[0] if original else -1)
            members.append(sorted(group, key=lambda index: (costs[index], index)))
        roots = [place[graph.find(encoding.classes[node])] for node in encoding.roots]
        roots += [place[graph.find(encoding.classes[node])] for node in encoding.opaque]
        problem = Problem(members, children, owners, costs, list(dict.fromkeys(roots)), start)
        choice = extract(problem)
        self._tick("extract")
        return choice, classes

    def _rules_of(self, node: int) -> tuple[str, ...]:
        assert self.applier is not None
        index = self.applier.graph.firing[node]
        if index < 0:
            return ()
        rule = self.applier.firings[index].rule
        return (f"{rule.where} {rule.name}",)

    def _warn(self) -> None:
        if self.applier is None:
            return
        for rule, reason in self.applier.disabled.values():
            text = f"rule {rule.name} ({rule.where}) is wrong here and is not used: {reason}"
            if os.environ.get("EQSAT_STRICT") == "1":
                raise RuntimeError(text)
            warnings.warn(text, StageWarning, stacklevel=4)

    def _tick(self, name: str) -> None:
        now = time.perf_counter()
        self.times[name] = now - self._clock
        self._clock = now

    def report(self, status: str, reason: str, new: fx.GraphModule | None = None) -> StageReport:
        """What is known so far, as a report."""
        applier, saturator = self.applier, self.saturator
        disabled = list(self.refused)
        if applier is not None:
            disabled += [Disabled(r.name, r.where, why) for r, why in applier.disabled.values()]
        graph = None if applier is None else applier.graph
        return StageReport(
            stage=self.stage,
            status=status,
            reason=reason,
            nodes_before=_calls(self.gm),
            nodes_after=_calls(new or self.gm),
            cost_before=self.cost_before / _SECOND,
            cost_after=self.cost_after / _SECOND,
            times=dict(self.times),
            rounds=0 if saturator is None else saturator.rounds,
            egraph_nodes=0 if graph is None else len(graph),
            egraph_classes=0 if graph is None else len(set(map(graph.find, range(len(graph))))),
            firings=() if applier is None else tuple(self._fired(applier)),
            budgets=() if saturator is None else tuple(saturator.budgets),
            disabled=tuple(disabled),
        )

    def _fired(self, applier: Applier) -> list[Fired]:
        used = set(self.chosen.values())
        groups: dict[str, list[Firing]] = {}
        for firing in applier.firings:
            groups.setdefault(firing.rule.name, []).append(firing)
        found = []
        for name, group in groups.items():
            nodes = [self._origins(firing) for firing in group[:_SHOWN_FIRINGS]]
            kept = sum(self._kept(firing, used) for firing in group)
            found.append(Fired(name, group[0].rule.where, len(group), kept, tuple(nodes)))
        return found

    def _origins(self, firing: Firing) -> tuple[str, ...]:
        """The FX nodes that a firing matched; for what rules made, those behind it."""
        assert self.applier is not None
        graph = self.applier.graph
        names: dict[str, None] = {}
        seen: set[int] = set()
        waiting = list(reversed(firing.matched))
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            source = graph.source[node]
            if source is not None:
                names[source.name] = None
            elif graph.firing[node] >= 0:
                waiting += reversed(self.applier.firings[graph.firing[node]].matched)
        return tuple(names)

    def _kept(self, firing: Firing, used: set[int]) -> bool:
        if any(node in used for node in range(firing.start, firing.end)):
            return True
        return any(new in used and old not in used for old, new in firing.roots)


_PATTERNS: dict[tuple[int, int], tuple[Rule, OpTable, Pattern]] = {}
_KEPT_PATTERNS = 4096


def compiled_pattern(rule: Rule, table: OpTable) -> Pattern:
    """The pattern of a rule, remembered while rule and table live. Raises PatternError."""
    key = (id(rule), id(table))
    found = _PATTERNS.get(key)
    if found is None:
        if len(_PATTERNS) >= _KEPT_PATTERNS:
            _PATTERNS.clear()
        found = _PATTERNS[key] = (rule, table, compile_rule(rule, table))
    return found[2]


def why_not_functional(gm: fx.GraphModule) -> str:
    """Why a graph before AOTAutograd cannot be reordered: it writes in place, or has regions
    (autocast, grad mode) that nodes must not leave. Empty where it can."""
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        name = node.target if isinstance(node.target, str) else _function_name(node.target)
        if name in ("setitem", "delitem", "set_", "resize_") or "out" in node.kwargs:
            return f"{node.name} writes in place"
        if name.endswith("_") and not name.endswith("__"):
            return f"{node.name} writes in place"
        if node.target in _IN_PLACE_OPERATORS:
            return f"{node.name} writes in place"
        value = value_of(node)
        if not has_tensor(value) and not isinstance(value, (*SYMBOLIC, int, float, torch.Size)):
            return f"{node.name} marks a region or has an effect"
    return ""


def _function_name(target: Any) -> str:
    return str(getattr(target, "__name__", target))


_IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul")
)


def _calls(gm: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in gm.graph.nodes)
