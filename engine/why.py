"""Why a rule did not fire, or fired for nothing.

Takes a graph, a stage and a rule's name; gives the nearest misses: places where the rule's
whole left side was there but a condition failed (with its values), and places where part of
it was there (with what stood in the way). Where it fired and its result was not chosen, the
cost of the graph with it and without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import fx

from .apply import Firing
from .egraph import LEAF, Constructor, EGraph
from .encode import Encoding
from .extract import extract
from .naming import rule_called
from .ops import OpTable
from .pattern import Pattern, PatternError, PatternNode, Slot, fits
from .rule import Rule, RuleBook
from .selection import Choice, Problem
from .source import did_you_mean
from .stage import SECOND, StageOptions, StageRun, compiled_pattern
from .targeting import suits

_SHOWN = 10


@dataclass(frozen=True)
class Miss:
    """At FX node `at`, `matched` of the `total` ops of the left side were there."""

    at: str
    matched: int
    total: int
    reason: str


@dataclass(frozen=True)
class WhyNot:
    """`fired` counts how often the rule did fire and `kept` how many of these are in the
    result; `misses` are the nearest first. `costs` are the estimated seconds of the graph with
    the rule's best form and of the graph that was chosen, where none was kept."""

    rule: str
    where: str
    fired: int
    misses: tuple[Miss, ...]
    note: str = ""
    kept: int = 0
    costs: tuple[float, float] | None = None

    def __str__(self) -> str:
        times = "once" if self.fired == 1 else f"{self.fired} times"
        kept = f", kept {self.kept}" if self.fired else ""
        lines = [f"{self.rule} ({self.where}) fired {times}{kept}"]
        if self.note:
            lines.append(f"  {self.note}")
        if self.costs is not None:
            with_it, chosen = (_microseconds(seconds) for seconds in self.costs)
            lines.append(f"  not chosen: {with_it} with it, {chosen} without")
        for miss in self.misses:
            share = f"{miss.matched} of {miss.total} ops"
            lines.append(f"  at {miss.at}: {share} matched, then: {miss.reason}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"


def why_not(
    gm: fx.GraphModule,
    stage: str,
    book: RuleBook,
    table: OpTable,
    name: str,
    options: StageOptions | None = None,
    at: str | None = None,
) -> WhyNot:
    """The nearest misses of rule `name`, only those at FX node `at` where given. `mine:rule` may
    be called `rule` where no built-in rule is.

    Raises ValueError for a rule or node that is not there, with the nearest name.
    """
    rule = rule_called(book.rules, name)
    if rule is None:
        raise ValueError(_unknown("rule", name, [rule.name for rule in book.rules]))
    names = [node.name for node in gm.graph.nodes]
    if at is not None and at not in names:
        raise ValueError(_unknown("node", at, names))
    if rule.stage != stage:
        note = f"the rule belongs to stage {rule.stage}, not {stage}"
        return WhyNot(rule.name, rule.where, 0, (), note)
    failed: list[tuple[tuple[int, ...], str]] = []

    def note_failure(other: Rule, matched: Sequence[int], reason: str) -> None:
        if other is rule:
            failed.append((tuple(matched), reason))

    run = StageRun(gm, stage, book, table, options or StageOptions())
    pattern = _pattern(rule, run)
    if isinstance(pattern, str):
        return WhyNot(rule.name, rule.where, 0, (), pattern)
    encoding = run.prepare(note_failure)
    if isinstance(encoding, str) or run.applier is None:
        return WhyNot(rule.name, rule.where, 0, (), str(encoding))
    prober = _Prober(encoding, pattern)
    misses = [
        Miss(prober.place(matched[-1]), len(pattern.nodes), len(pattern.nodes), reason)
        for matched, reason in failed
    ]
    fired = [firing for firing in run.applier.firings if firing.rule is rule]
    kept, costs = _chosen(run, encoding, fired) if fired else (0, None)
    done = {encoding.graph.find(node) for firing in fired for node in firing.matched}
    misses += prober.partial({node for matched, _ in failed for node in matched} | done)
    unique = _nearest([miss for miss in misses if at in (None, miss.at)], names)
    disabled = run.applier.disabled.get(rule.name)
    note = "" if unique or fired else _absent(pattern, encoding.graph)
    note = note if disabled is None else f"disabled here: {disabled[1]}"
    return WhyNot(rule.name, rule.where, len(fired), unique, note, kept, costs)


def _nearest(misses: list[Miss], names: Sequence[str]) -> tuple[Miss, ...]:
    """Those that matched most, each once, in the order of the graph."""
    order = {name: place for place, name in enumerate(names)}
    misses.sort(key=lambda miss: (-miss.matched, order.get(miss.at, 0)))
    return tuple(dict.fromkeys(misses))[:_SHOWN]


def _pattern(rule: Rule, run: StageRun) -> Pattern | str:
    """The left side of a rule; a text says why it is not looked for at all."""
    if not run.wants(rule):
        return _unwanted(rule, run.options)
    try:
        return compiled_pattern(rule, run.table)
    except PatternError as error:
        return f"it cannot be matched: {error}"


def _unwanted(rule: Rule, options: StageOptions) -> str:
    if not suits(rule, options.target):
        wanted = rule.device if isinstance(rule.device, str) else "other targets"
        return f"it is for {wanted}, and this graph runs on {options.target.name}"
    return "its gradients differ (grad: false), and this graph is differentiated"


def _absent(pattern: Pattern, graph: EGraph) -> str:
    """Which ops of the left side the graph does not have."""
    absent = [name for name in sorted(pattern.ops) if name not in graph.by_op]
    if absent:
        return f"no {' and no '.join(absent)} in the graph"
    return "its ops are there, but nowhere together"


def _chosen(
    run: StageRun, encoding: Encoding, fired: Sequence[Firing]
) -> tuple[int, tuple[float, float] | None]:
    """How many firings are in the result; where none is, what the graph costs with the best
    of them and as it was chosen, in seconds."""
    problem, classes = run.problem(encoding)
    choice = extract(problem)
    place = {owner: at for at, owner in enumerate(classes)}
    members = [node for nodes in classes.values() for node in nodes]
    number = {node: at for at, node in enumerate(members)}
    used = {members[choice.node[at]] for at in choice.used}
    kept = sum(run.kept(firing, used) for firing in fired)
    if kept:
        return kept, None
    find = encoding.graph.find
    with_it = [
        _total(problem, choice, {place[find(new)]: number[new] for _, new in firing.roots})
        for firing in fired
    ]
    return 0, (min(with_it) / SECOND, _total(problem, choice, {}) / SECOND)


def _total(problem: Problem, choice: Choice, instead: Mapping[int, int]) -> int:
    """The cost of all that the roots need, with other nodes for some classes; a class that
    the choice has no node for counts as free."""
    seen: set[int] = set()
    waiting = [*problem.roots, *instead]
    total = 0
    while waiting:
        owner = waiting.pop()
        node = instead.get(owner, choice.node[owner])
        if owner in seen or node < 0:
            continue
        seen.add(owner)
        total += problem.cost[node]
        waiting += problem.children[node]
    return total


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    near = did_you_mean(name, known)
    return f"no {kind} '{name}'" + (f" (did you mean '{near}'?)" if near else "")


class _Prober:
    """Walks a pattern down the classes of an e-graph as far as it goes."""

    def __init__(self, encoding: Encoding, pattern: Pattern) -> None:
        self.graph: EGraph = encoding.graph
        self.pattern = pattern
        self.members: dict[int, list[int]] = {}
        for node in range(len(self.graph)):
            self.members.setdefault(self.graph.find(node), []).append(node)
        self.names: dict[int, str] = {}
        for source, node in encoding.classes.items():
            self.names.setdefault(self.graph.find(node), source.name)

    def place(self, owner: int) -> str:
        """The FX node of a class; classes that only rules made have a number."""
        return self.names.get(self.graph.find(owner), f"e{owner}")

    def partial(self, known: set[int]) -> list[Miss]:
        """The misses at every class that has the op of a root, but for those `known`."""
        found = []
        for root in self.pattern.roots.values():
            name = self.pattern.nodes[root].op.name
            for owner, nodes in self.members.items():
                if owner in known or owner not in self.names or not self._made_by(nodes, name):
                    continue
                matched, reason = self._walk(root, owner, {})
                if reason:
                    total = len(self.pattern.nodes)
                    found.append(Miss(self.place(owner), matched, total, reason))
        return found

    def _made_by(self, nodes: Sequence[int], name: str) -> list[int]:
        graph = self.graph
        return [
            node
            for node in nodes
            if graph.kind[node] != LEAF and graph.constructors[graph.kind[node]].op.name == name
        ]

    def _walk(self, index: int, owner: int, bound: dict[str | int, int]) -> tuple[int, str]:
        """How many ops match from a pattern node down, and what stopped the walk."""
        node = self.pattern.nodes[index]
        candidates = self._made_by(self.members[owner], node.op.name)
        if not candidates:
            return 0, f"{self.place(owner)} is {self._forms(owner)}, not {node.op.name}"
        best: tuple[int, str] = (-1, "")
        for candidate in candidates:
            trial = dict(bound)
            result = self._arguments(node, candidate, trial)
            if not result[1]:
                bound.update(trial)
                return result
            best = max(best, result, key=lambda item: item[0])
        return best

    def _arguments(
        self, node: PatternNode, candidate: int, bound: dict[str | int, int]
    ) -> tuple[int, str]:
        graph = self.graph
        constructor = graph.constructors[graph.kind[candidate]]
        if not fits(node, constructor):
            return 0, f"{node.op.name} has {_kinds(constructor)} here"
        total = 1
        for slot, item in zip(node.slots, constructor.split(graph.args[candidate]), strict=True):
            for wanted, child in _tensors(slot, item):
                owner = graph.find(child)
                if isinstance(wanted, str):
                    if bound.setdefault(wanted, owner) != owner:
                        other = self.place(bound[wanted])
                        return total, f"{wanted} is {other} and {self.place(owner)}"
                elif wanted not in bound:
                    matched, reason = self._walk(wanted, owner, bound)
                    total += matched
                    if reason:
                        return total, reason
                    bound[wanted] = owner
                elif bound[wanted] != owner:
                    return total, f"{self.place(owner)} is not {self.place(bound[wanted])}"
        return total, ""

    def _forms(self, owner: int) -> str:
        graph = self.graph
        ops = [
            graph.constructors[graph.kind[node]].op.name
            for node in self.members[owner]
            if graph.kind[node] != LEAF
        ]
        return " or ".join(dict.fromkeys(ops)) or "an input"


def _tensors(slot: Slot, item: int | list[int]) -> list[tuple[str | int, int]]:
    if slot.kind == "tensor" and isinstance(item, int):
        return [(slot.item, item)]
    if slot.kind == "list" and isinstance(item, list):
        return [(want, child) for want, child in zip(slot.items, item, strict=True) if want != ""]
    return []


def _kinds(constructor: Constructor) -> str:
    words = {"t": "a tensor", "h": "a constant"}
    return ", ".join(
        f"{words.get(kind, 'a list')} as {param.name}"
        for kind, param in zip(constructor.kinds, constructor.op.params, strict=True)
    )
