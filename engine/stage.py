"""One rule stage: an FX graph in, a cheaper equal one out.

Takes a GraphModule, the stage's name, rules and ops; gives a `StageResult`. Whatever goes
wrong inside, the graph that was given comes back, the report says why, and there is one
warning; EQSAT_STRICT=1 raises instead.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from .apply import Applier, Firing, OnFailure
from .assumed import ParameterCheck
from .candidates import runners_up
from .chaos import CHEAPEST, disturbed
from .cost import CostModel
from .deciding import deciding_nodes
from .decode import DecodeError, decode
from .draws import loses_draws
from .effects import Effects, effects_of
from .egraph import LEAF, EGraph
from .encode import Encoding, encode
from .extract import extract
from .ops import OpTable
from .outputs import check_outputs
from .pattern import Pattern, PatternError, compile_rule
from .report import Disabled, Fired, StageReport
from .rule import Rule, RuleBook
from .saturate import Saturator
from .schedule import Schedule, load_schedule
from .selection import Choice, Problem
from .target import Target, load_target
from .targeting import suits
from .world import EvaluateError

_SHOWN_FIRINGS = 64
SECOND = 10**15  # costs are in femtoseconds


@dataclass(frozen=True)
class StageOptions:
    """`profile` is the numerics that the rules were selected for. `weights` maps placeholders
    that are parameters to their position; `frozen` names those that may be folded; `lowered`
    is what generated kernels cover (`lowering.lowered_ops`); `inference` says that nobody will
    differentiate the graph; `extraction` is read by `chaos.extraction_of`; `alternatives` is how
    many other good graphs to give; `strict` raises where something goes wrong."""

    profile: str = "default"
    weights: Mapping[str, int] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    target: Target = field(default_factory=lambda: load_target("cpu"))
    inference: bool = False
    lowered: Mapping[str, str] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=load_schedule)
    extraction: str = CHEAPEST
    alternatives: int = 0
    strict: bool = field(default_factory=lambda: os.environ.get("EQSAT_STRICT") == "1")


@dataclass(frozen=True)
class Alternative:
    """Another graph of the same values; `how` says what it does otherwise, `cost` is in seconds
    by the cost model."""

    how: str
    gm: fx.GraphModule
    cost: float


@dataclass(frozen=True)
class StageResult:
    """`checks` must hold for the parameters whenever they are folded."""

    gm: fx.GraphModule
    report: StageReport
    checks: tuple[ParameterCheck, ...] = ()
    others: tuple[Alternative, ...] = ()


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
    through, and anything where `options.strict` (EQSAT_STRICT=1).
    """
    started = time.perf_counter()
    run = StageRun(gm, stage, book, table, options or StageOptions())
    try:
        result = run.run()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # egglog's panics are no Exceptions
        if run.options.strict:
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
        self.cpu_times: dict[str, float] = {}
        self.applier: Applier | None = None
        self.saturator: Saturator | None = None
        self.cost_before = 0
        self.cost_after = 0
        self.chosen: dict[int, int] = {}
        self.encoding: Encoding | None = None
        self.choice: Choice | None = None
        self.refused: list[Disabled] = []
        self._clock = time.perf_counter(), time.thread_time()

    def prepare(self, on_failure: OnFailure | None = None) -> Encoding | str:
        """Encodes and saturates; a text says why there is nothing to do. `on_failure` hears
        of every match that did not hold."""
        rules = [rule for rule in self.book.rules if self.wants(rule)]
        if not rules:
            return "no rules for this stage"
        effects = effects_of(self.gm) if self.stage == "pre_grad" else Effects()
        if effects.reason:
            return effects.reason
        patterns = self._patterns(rules)  # first, as torch functions are known by rules' names
        failures: list[tuple[Rule, Sequence[int], str]] = []

        def note(rule: Rule, matched: Sequence[int], reason: str) -> None:
            failures.append((rule, matched, reason))

        while True:
            encoding = self._explore(patterns, effects, None if on_failure is None else note)
            if encoding is None:
                return "no tensors"
            applier = self.applier
            assert applier is not None
            if not self._made_by_disabled(applier):
                break
            # The others' matches are found again, and what rules made has other ids then.
            failures = [
                failure
                for failure in failures
                if failure[0].name in applier.disabled
                and all(applier.graph.firing[node] < 0 for node in failure[1])
            ]
        if on_failure is not None:
            for failure in failures:
                on_failure(*failure)
        return encoding

    def _explore(
        self,
        patterns: Mapping[str, Sequence[Pattern]],
        effects: Effects,
        on_failure: OnFailure | None,
    ) -> Encoding | None:
        """Encodes the graph and saturates it, without the rules that are disabled by now."""
        options = self.options
        encoding = encode(
            self.gm,
            self.table,
            weights=options.weights,
            frozen=options.frozen,
            effects=effects,
        )
        if encoding is None:
            return None
        self.encoding = encoding
        graph = encoding.graph
        graph.deciding = deciding_nodes(encoding)
        self._tick("encode")
        self.costs.survey(graph, self._root_classes(encoding))
        self.cost_before = self.cost_after = sum(
            self.costs.cost(graph, node) for node in range(len(graph))
        )
        disabled = {} if self.applier is None else self.applier.disabled
        self.applier = Applier(graph, self.table, on_failure, disabled)
        self._saturate(graph, patterns, self.applier)
        return encoding

    @staticmethod
    def _made_by_disabled(applier: Applier) -> bool:
        """Whether a rule that turned out to be wrong had fired: what it made, and what other
        rules made of that, must go."""
        return any(firing.rule.name in applier.disabled for firing in applier.firings)

    def run(self) -> StageResult:
        encoding = self.prepare()
        if isinstance(encoding, str):
            return StageResult(self.gm, self.report("skipped", encoding))
        self._warn()
        repeats = self.stage == "post_grad" and _repeats(encoding)
        if self.applier is None or not (self.applier.firings or repeats):
            return StageResult(self.gm, self.report("unchanged", "no rule fired"))
        choice, classes, problem = self._extract(encoding)
        self.choice = choice
        self.chosen = self._taken(choice, classes)
        others = tuple(self._others(encoding, choice, classes, problem))
        firings = self.applier.firings
        checks = tuple(dict.fromkeys(c for firing in firings for c in firing.checks))
        if self._as_it_was(encoding) and not repeats:
            report = self.report("unchanged", "nothing is cheaper")
            return StageResult(self.gm, report, checks if others else (), others)
        self.cost_after = choice.cost
        new = self._decoded(encoding, choice, classes)
        self._tick("decode")
        if self.stage != "post_grad" and loses_draws(self.gm, new):
            return StageResult(self.gm, self.report("unchanged", "a random draw would be lost"))
        return StageResult(new, self.report("changed", "", new), checks, others)

    @staticmethod
    def _taken(
        choice: Choice, classes: Mapping[int, Sequence[int]], *, spare: bool = False
    ) -> dict[int, int]:
        """Class to node, of the classes that are used or, with `spare`, of all that have one."""
        members = [node for group in classes.values() for node in group]
        return {
            owner: members[choice.node[at]]
            for at, owner in enumerate(classes)
            if (choice.node[at] >= 0 if spare else at in choice.used)
        }

    def _decoded(
        self, encoding: Encoding, choice: Choice, classes: Mapping[int, Sequence[int]]
    ) -> fx.GraphModule:
        taken, every = self._taken(choice, classes), self._taken(choice, classes, spare=True)
        new = decode(encoding, taken, self._rules_of, every)
        check_outputs(self.gm, new)
        return new

    def _others(
        self,
        encoding: Encoding,
        best: Choice,
        classes: Mapping[int, Sequence[int]],
        problem: Problem,
    ) -> Iterator[Alternative]:
        """Other good graphs, as many as `options.alternatives`; those that cannot be written
        are left out."""
        if not self.options.alternatives:
            return
        assert self.applier is not None
        made: dict[str, list[int]] = {}
        members = [node for group in classes.values() for node in group]
        for at, node in enumerate(members):
            firing = encoding.graph.firing[node]
            if firing >= 0:
                made.setdefault(self.applier.firings[firing].rule.name, []).append(at)
        for one in runners_up(problem, best, made, self.options.alternatives):
            try:
                gm = self._decoded(encoding, one.choice, classes)
            except (DecodeError, EvaluateError):
                continue
            yield Alternative(one.how, gm, one.choice.cost / SECOND)
        self._tick("alternatives")

    def _as_it_was(self, encoding: Encoding) -> bool:
        """Whether every node of the original graph is in the choice."""
        graph = encoding.graph
        return all(
            self.chosen.get(graph.find(node)) == node
            for node in set(encoding.classes.values())
            if graph.kind[node] != LEAF
        )

    def wants(self, rule: Rule) -> bool:
        """Whether a rule is for this stage, device and kind of graph."""
        if rule.stage != self.stage:
            return False
        if not rule.grad and self.stage in ("pre_grad", "joint") and not self.options.inference:
            return False
        return suits(rule, self.options.target)

    def _patterns(self, rules: Sequence[Rule]) -> dict[str, list[Pattern]]:
        """The left sides of rules by folder."""
        patterns: dict[str, list[Pattern]] = {}
        for rule in rules:
            try:
                pattern = compiled_pattern(rule, self.table)
            except PatternError as error:
                self.refused.append(Disabled(rule.name, rule.where, str(error)))
            else:
                patterns.setdefault(rule.folder, []).append(pattern)
        self._tick("patterns")
        return patterns

    def _saturate(
        self, graph: EGraph, patterns: Mapping[str, Sequence[Pattern]], applier: Applier
    ) -> None:
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

    def _extract(self, encoding: Encoding) -> tuple[Choice, dict[int, list[int]], Problem]:
        """The choice, the nodes of every class in the order of the problem, and the problem."""
        problem, classes = self.problem(encoding)
        how = self.options.extraction
        choice = extract(problem) if how == CHEAPEST else disturbed(problem, how)
        self._tick("extract")
        return choice, classes, problem

    def problem(self, encoding: Encoding) -> tuple[Problem, dict[int, list[int]]]:
        """What there is to choose from, and the nodes of every class in the same order."""
        graph, cost = encoding.graph, self.costs.cost
        self.costs.survey(graph, self._root_classes(encoding))
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
        return problem, classes

    @staticmethod
    def _root_classes(encoding: Encoding) -> list[int]:
        return [encoding.classes[node] for node in encoding.roots]

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
            if self.options.strict:
                raise RuntimeError(text)
            warnings.warn(text, StageWarning, stacklevel=4)

    def _tick(self, name: str) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        self.times[name] = wall - self._clock[0]
        self.cpu_times[name] = cpu - self._clock[1]
        self._clock = wall, cpu

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
            cost_before=self.cost_before / SECOND,
            cost_after=self.cost_after / SECOND,
            times=dict(self.times),
            cpu_times=dict(self.cpu_times),
            rounds=0 if saturator is None else saturator.rounds,
            egraph_nodes=0 if graph is None else len(graph),
            egraph_classes=0 if graph is None else len(set(map(graph.find, range(len(graph))))),
            firings=() if applier is None else tuple(self._fired(applier)),
            missed={} if applier is None else applier.missed(),
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
            kept = sum(self.kept(firing, used) for firing in group)
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

    def kept(self, firing: Firing, used: set[int]) -> bool:
        """Whether something that a firing made is among the nodes that are used."""
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


def _repeats(encoding: Encoding) -> bool:
    """Whether two calls of the graph are one node of the e-graph, which is computed once."""
    calls = [made for node, made in encoding.classes.items() if node.op == "call_function"]
    return len(set(calls)) < len(calls)


def _calls(gm: fx.GraphModule) -> int:
    return sum(node.op.startswith("call_") for node in gm.graph.nodes)
