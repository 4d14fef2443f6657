"""Why a rule did not fire.

Takes a graph, a stage and a rule's name; gives the nearest misses: places where the rule's
whole left side was there but a condition failed (with its values), and places where part of
it was there (with what stood in the way).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from .egraph import LEAF, Constructor, EGraph
from .encode import Encoding
from .ops import OpTable
from .pattern import Pattern, PatternNode, Slot, fits
from .rule import Rule, RuleBook
from .source import did_you_mean
from .stage import StageOptions, StageRun, compiled_pattern

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
    """`fired` counts how often the rule did fire; `misses` are the nearest first."""

    rule: str
    where: str
    fired: int
    misses: tuple[Miss, ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.rule} ({self.where}) fired {self.fired} times"]
        if self.note:
            lines.append(f"  {self.note}")
        for miss in self.misses:
            share = f"{miss.matched} of {miss.total} ops"
            lines.append(f"  at {miss.at}: {share} matched, then: {miss.reason}")
        return "\n".join(lines)


def why_not(
    gm: fx.GraphModule,
    stage: str,
    book: RuleBook,
    table: OpTable,
    name: str,
    options: StageOptions | None = None,
    at: str | None = None,
) -> WhyNot:
    """The nearest misses of rule `name`, only those at FX node `at` where given.

    Raises ValueError for a rule or node that is not there, with the nearest name.
    """
    rule = next((rule for rule in book.rules if rule.name == name), None)
    if rule is None:
        raise ValueError(_unknown("rule", name, [rule.name for rule in book.rules]))
    names = [node.name for node in gm.graph.nodes]
    if at is not None and at not in names:
        raise ValueError(_unknown("node", at, names))
    if rule.stage != stage:
        note = f"the rule belongs to stage {rule.stage}, not {stage}"
        return WhyNot(name, rule.where, 0, (), note)
    failed: list[tuple[tuple[int, ...], str]] = []

    def note_failure(other: Rule, matched: Sequence[int], reason: str) -> None:
        if other is rule:
            failed.append((tuple(matched), reason))

    run = StageRun(gm, stage, book, table, options or StageOptions())
    encoding = run.prepare(note_failure)
    if isinstance(encoding, str) or run.applier is None:
        return WhyNot(name, rule.where, 0, (), str(encoding))
    pattern = compiled_pattern(rule, table)
    prober = _Prober(encoding, pattern)
    misses = [
        Miss(prober.place(matched[-1]), len(pattern.nodes), len(pattern.nodes), reason)
        for matched, reason in failed
    ]
    fired = [firing for firing in run.applier.firings if firing.rule is rule]
    done = {encoding.graph.find(node) for firing in fired for node in firing.matched}
    misses += prober.partial({node for matched, _ in failed for node in matched} | done)
    disabled = run.applier.disabled.get(name)
    if at is not None:
        misses = [miss for miss in misses if miss.at == at]
    misses.sort(key=lambda miss: (-miss.matched, names.index(miss.at) if miss.at in names else 0))
    note = "" if disabled is None else f"disabled here: {disabled[1]}"
    unique = tuple(dict.fromkeys(misses))[:_SHOWN]
    return WhyNot(name, rule.where, len(fired), unique, note)


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
