"""Joins the loop nests of a program, the pair with the largest gain first.

Takes a `Program` of single nests and the fusion rules; gives the program with joined nests in
an order that respects every dependence, and a `FusionReport`. The rules alone decide what may
join (`rules/fusion/`, `verdict.Judge`); this file proposes pairs and keeps the books. Pairs
that pass values come before neighbours that only read the same memory.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..engine.loop_choices import LoopChoices
from ..engine.rule import FuseRule
from ..engine.target import load_target
from .dependence import Graph, Node
from .index import Axis, as_index
from .join import Joiner
from .loops import Builder, Nest, Program, Step
from .pair_facts import PairFacts
from .rewrite import rewrite_nest
from .unroll import unroll
from .verdict import Judge, Verdict

# How many readers of one buffer before and after a nest are tried as its neighbours.
NEIGHBOURS = 3


@dataclass(frozen=True)
class Joined:
    """`consumer` took `producer` in. `copied` says that the producer also stayed."""

    producer: str
    consumer: str
    rule: str
    where: str
    gain: float
    copied: bool


@dataclass(frozen=True)
class Rejected:
    """A pair that shares a buffer and was left apart: the rule that came nearest, its
    condition that failed (for a `forbid`: that held), and the facts in it. `nodes` are the FX
    nodes of the producer, then those of the consumer; each maps to the op it calls."""

    producer: str
    consumer: str
    rule: str
    where: str
    condition: str
    values: dict[str, Any]
    nodes: tuple[dict[str, str], dict[str, str]]


@dataclass(frozen=True)
class FusionReport:
    """Nests before and after, every join in order, every pair left apart."""

    before: int
    after: int
    joined: tuple[Joined, ...]
    rejected: tuple[Rejected, ...]

    def __add__(self, other: FusionReport) -> FusionReport:
        """What was done in two parts of one program."""
        return FusionReport(
            self.before + other.before,
            self.after + other.after,
            self.joined + other.joined,
            self.rejected + other.rejected,
        )

    def members(self) -> dict[str, frozenset[str]]:
        """The nests that each joined nest was made of, by name."""
        found: dict[str, frozenset[str]] = {}
        for pair in self.joined:
            names = (pair.producer, pair.consumer)
            parts = (found.get(name, frozenset((name,))) for name in names)
            found[pair.consumer] = frozenset().union(*parts)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists."""
        return asdict(self)


def fuse(
    program: Program, rules: Sequence[FuseRule], loops: LoopChoices | None = None
) -> tuple[Program, FusionReport]:
    """`program` with nests joined as `rules` allow, and what was done. `loops` are those of the
    target "cpu" unless given.

    Raises ConditionError for a rule that asks for an unknown fact, and CycleError where the
    rules let steps join that then wait for each other.
    """
    return _Fusion(program, rules, loops or load_target("cpu").loops).run()


class _Fusion:
    def __init__(self, program: Program, rules: Sequence[FuseRule], loops: LoopChoices) -> None:
        self._program = program
        builder = Builder()
        steps = unroll([_imported(step, builder) for step in program.steps], builder, loops)
        names = dict.fromkeys(name for step in steps for name in step.origins)
        self._graph = Graph(program, steps)
        joiner = Joiner(builder, program.buffers)
        order = {name: place for place, name in enumerate(names)}
        self._facts = PairFacts(self._graph, joiner, order, program.sources)
        self._judge = Judge(rules, self._facts.table)
        self._heap: list[tuple[bool, float, int, int, int, Node, Node]] = []
        self._turn = itertools.count()
        self._waiting: set[tuple[int, int]] = set()
        self._joined: list[Joined] = []
        self._values_done = False  # pairs that pass values come first, then neighbours

    def run(self) -> tuple[Program, FusionReport]:
        nests = [node for node in self._graph.nodes if node.is_nest]
        for node in nests:
            self._propose(self._consumers(node))
            self._propose(self._pieces(node))
        self._drain()
        self._values_done = True
        for node in self._live():
            self._propose(self._neighbours(node))
        self._drain()
        steps = tuple(node.step for node in self._graph.ordered())
        report = FusionReport(
            before=len(nests),
            after=len(self._live()),
            joined=tuple(self._joined),
            rejected=tuple(self._left_apart()),
        )
        return replace(self._program, steps=steps, buffers=self._buffers()), report

    def _drain(self) -> None:
        """Joins pairs by gain. A pair waits at the gain it may hope for, and is judged when its
        turn comes; if it then turns out to gain less it waits again."""
        while self._heap:
            apart, minus, *_, producer, consumer = heapq.heappop(self._heap)
            self._waiting.discard((producer.key, consumer.key))
            if not (producer.alive and consumer.alive):
                continue
            verdict = self._judge.verdict(producer, consumer)
            if verdict.rule is None:
                continue
            if verdict.gain < -minus:
                self._push(apart, verdict.gain, producer, consumer)
            else:
                self._join(producer, consumer, verdict, verdict.rule)

    def _push(self, apart: bool, gain: float, producer: Node, consumer: Node) -> None:
        place = (producer.last, consumer.last, next(self._turn))
        heapq.heappush(self._heap, (apart, -gain, *place, producer, consumer))
        self._waiting.add((producer.key, consumer.key))

    def _join(self, producer: Node, consumer: Node, verdict: Verdict, rule: FuseRule) -> None:
        nest = self._facts.joined(producer, consumer)
        copied = self._facts.stays(producer, consumer)
        combine = self._graph.recompute if copied else self._graph.absorb
        self._joined.append(
            Joined(
                producer.step.name,
                consumer.step.name,
                rule.name,
                rule.where,
                verdict.gain,
                copied,
            )
        )
        node = combine(producer, consumer, nest)
        self._propose(self._consumers(node))
        self._propose(self._producers(node))
        self._propose(self._pieces(node))
        # What both have read, or was copied, has lost a reader; that can make its other
        # pairs legal.
        for before in {producer} if copied else producer.preds & consumer.preds:
            if before.is_nest:
                self._propose(self._consumers(before))
        if self._values_done:
            self._propose(self._neighbours(node))

    def _propose(self, pairs: Iterator[tuple[Node, Node]]) -> None:
        facts = self._facts
        for producer, consumer in pairs:
            if (producer.key, consumer.key) in self._waiting:
                continue
            gain = self._judge.hope(producer, consumer)
            if gain is not None:
                apart = not (facts.feeds(producer, consumer) or facts.beside(producer, consumer))
                self._push(apart, gain, producer, consumer)

    def _consumers(self, node: Node) -> Iterator[tuple[Node, Node]]:
        found = {r for name in node.stores for r in self._graph.readers.get(name, ())}
        for reader in sorted(found, key=lambda other: other.key):
            if reader.is_nest and reader is not node and self._facts.feeds(node, reader):
                yield node, reader

    def _producers(self, node: Node) -> Iterator[tuple[Node, Node]]:
        found = {w for name in node.loads for w in self._graph.writers.get(name, ())}
        for writer in sorted(found, key=lambda other: other.key):
            if writer.is_nest and writer is not node and self._facts.feeds(writer, node):
                yield writer, node

    def _pieces(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Nests that write to the same buffer, in order of running."""
        found = {w for name in node.stores for w in self._graph.writers[name]} - {node}
        for other in sorted(found, key=lambda other: other.key):
            if other.is_nest:
                pair = sorted((node, other), key=lambda one: one.last)
                yield pair[0], pair[1]

    def _neighbours(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """Nests near by that read the same buffers, the one to be moved first."""
        seen = {node}
        for name in sorted(node.loads):
            readers = sorted(
                (r for r in self._graph.readers[name] if r.is_nest), key=lambda r: (r.last, r.key)
            )
            place = readers.index(node)
            for other in readers[max(place - NEIGHBOURS, 0) : place + NEIGHBOURS + 1]:
                if other not in seen:
                    seen.add(other)
                    yield self._roles(node, other)

    def _roles(self, one: Node, other: Node) -> tuple[Node, Node]:
        """A pointwise nest moves into a reduction, else the earlier into the later."""
        key = lambda node: (self._facts.kind(node) == "reduction", node.last, node.key)  # noqa: E731
        first, second = sorted((one, other), key=key)
        return first, second

    def _live(self) -> list[Node]:
        return [node for node in self._graph.nodes if node.alive and node.is_nest]

    def _buffers(self) -> dict[str, Any]:
        """The buffers that somebody still touches or that live outside."""
        graph = self._graph
        return {
            name: buffer
            for name, buffer in graph.buffers.items()
            if name in graph.kept or graph.readers.get(name) or graph.writers.get(name)
        }

    def _left_apart(self) -> Iterator[Rejected]:
        for node in self._live():
            pairs = dict.fromkeys((*self._consumers(node), *self._neighbours(node)))
            for producer, consumer in pairs:
                if producer is not node:
                    continue
                refusal = self._judge.verdict(producer, consumer).refusal
                if refusal is not None:
                    yield Rejected(
                        producer.step.name,
                        consumer.step.name,
                        refusal.rule.name,
                        refusal.rule.where,
                        refusal.text,
                        self._judge.values(refusal, producer, consumer),
                        (self._calls(producer), self._calls(consumer)),
                    )

    def _calls(self, node: Node) -> dict[str, str]:
        sources = self._program.sources
        return {name: sources[name].call for name in node.step.origins if name in sources}


def _imported(step: Step, builder: Builder) -> Step:
    """A nest made anew in the common builder, with axes named alike in all nests, so that
    equal boxes have equal axes and most joins need no rewriting."""
    if not isinstance(step, Nest):
        return step
    axes = tuple(Axis(f"i{place}", axis.size) for place, axis in enumerate(step.axes))
    raxes = tuple(Axis(f"r{place}", axis.size) for place, axis in enumerate(step.raxes))
    old, new = (*step.axes, *step.raxes), (*axes, *raxes)
    places = {before: as_index(after) for before, after in zip(old, new, strict=True)}
    return rewrite_nest(step, builder, places, axes, raxes)
