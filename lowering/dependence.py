"""The steps of a program as a graph that changes while nests are joined.

Takes a `Program`; gives `Node` (a step with what it reads and writes), the order among nodes
(true dependence, and writes after reads), and reachability by bitsets. A bitset names the
original steps; a joined node owns the bits of both its parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .loops import Buffer, Extern, Nest, Program, Scalar, Step, Store, View, guards, scalars


class CycleError(ValueError):
    """Steps that wait for each other."""


@dataclass(eq=False, slots=True)
class Node:
    """One step. `below` holds the bits of everything that must run after it."""

    key: int
    step: Step
    bits: int
    first: int  # positions in the original program of its first and last part
    last: int
    body: list[Scalar]
    loads: dict[str, list[Scalar]]
    stores: dict[str, list[Store]]
    reads: frozenset[str]
    writes: frozenset[str]
    preds: set[Node] = field(default_factory=set)
    succs: set[Node] = field(default_factory=set)
    below: int = 0
    alive: bool = True

    @property
    def nest(self) -> Nest:
        assert isinstance(self.step, Nest)
        return self.step

    @property
    def is_nest(self) -> bool:
        return isinstance(self.step, Nest)


class Graph:
    """All live nodes. `kept` are buffers that somebody outside of the steps looks at."""

    def __init__(self, program: Program, steps: Sequence[Step]) -> None:
        self.buffers: dict[str, Buffer] = dict(program.buffers)
        self.kept = frozenset(
            {name for name, buffer in program.buffers.items() if buffer.role != "temp"}
            | {value.buffer for value in program.outputs if isinstance(value, View)}
        )
        self._lent = lent(steps)
        self.readers: dict[str, set[Node]] = {}
        self.writers: dict[str, set[Node]] = {}
        self.nodes: list[Node] = []
        self._count = 0
        for step in steps:
            place = self._count
            self._enter(step, 1 << place, place, place)
        self._order(self.nodes)
        for node in reversed(self.nodes):
            for after in node.succs:
                node.below |= after.below | after.bits

    def reaches(self, start: Node, end: Node) -> bool:
        """Whether `end` must run after `start`."""
        return bool(start.below & end.bits)

    def reaches_around(self, start: Node, end: Node) -> bool:
        """Whether something must run after `start` and before `end`."""
        return any(after is not end and (after.below & end.bits) for after in start.succs)

    def absorb(self, producer: Node, consumer: Node, nest: Nest) -> Node:
        """Put `nest` in place of both nodes, which die."""
        joined = self._enter(
            nest,
            producer.bits | consumer.bits,
            min(producer.first, consumer.first),
            max(producer.last, consumer.last),
        )
        for old in (producer, consumer):
            self._leave(old)
        for before in (producer.preds | consumer.preds) - {producer, consumer}:
            link(before, joined)
        for after in (producer.succs | consumer.succs) - {producer, consumer}:
            link(joined, after)
        joined.below = (producer.below | consumer.below) & ~joined.bits
        self._raise_below(joined)
        return joined

    def recompute(self, producer: Node, consumer: Node, nest: Nest) -> Node:
        """Put `nest` in place of `consumer`; it now also reads what `producer` reads."""
        joined = self._enter(nest, consumer.bits, consumer.first, consumer.last)
        self._leave(consumer)
        for before in consumer.preds:
            if before is not producer or self._must_follow(producer, joined):
                link(before, joined)
        for name in producer.reads & joined.reads:
            for writer in self.writers.get(name, ()):
                if self.reaches(writer, producer):
                    link(writer, joined)
                else:
                    link(joined, writer)
        for after in consumer.succs:
            link(joined, after)
        joined.below = consumer.below
        for after in joined.succs:
            joined.below |= after.below | after.bits
        self._raise_below(joined)
        return joined

    def needed(self, name: str, without: Iterable[Node] = ()) -> bool:
        """Whether a buffer is looked at by any step but `without`, or from outside."""
        skipped = set(without)
        return name in self.kept or any(r not in skipped for r in self.readers.get(name, ()))

    def ordered(self) -> list[Node]:
        """Live nodes so that each comes after all it depends on, else in original order.

        Raises CycleError where there is no such order.
        """
        live = [node for node in self.nodes if node.alive]
        waits = {node: len(node.preds) for node in live}
        ready = [(node.last, node.key, node) for node in live if not waits[node]]
        heapq.heapify(ready)
        order: list[Node] = []
        while ready:
            node = heapq.heappop(ready)[2]
            order.append(node)
            for after in node.succs:
                waits[after] -= 1
                if not waits[after]:
                    heapq.heappush(ready, (after.last, after.key, after))
        if len(order) != len(live):
            stuck = ", ".join(node.step.name for node in live if waits[node] > 0)
            raise CycleError(f"these steps wait for each other: {stuck}")
        return order

    def _must_follow(self, producer: Node, node: Node) -> bool:
        return bool(producer.writes & (node.reads | node.writes) or producer.reads & node.writes)

    def _enter(self, step: Step, bits: int, first: int, last: int) -> Node:
        node = make_node(self._count, step, bits, first, last)
        for name in node.reads & self._lent.keys():
            node.reads |= self._lent[name]
        self._count += 1
        for name in node.reads:
            self.readers.setdefault(name, set()).add(node)
        for name in node.writes:
            self.writers.setdefault(name, set()).add(node)
        self.nodes.append(node)
        return node

    def _leave(self, node: Node) -> None:
        node.alive = False
        for name in node.reads:
            self.readers[name].discard(node)
        for name in node.writes:
            self.writers[name].discard(node)
        for before in node.preds:
            before.succs.discard(node)
        for after in node.succs:
            after.preds.discard(node)

    def _raise_below(self, node: Node) -> None:
        """Tell everything before `node` what comes after it; stops where that is known."""
        news = [(before, node.below | node.bits) for before in node.preds]
        while news:
            before, bits = news.pop()
            if before.below | bits != before.below:
                before.below |= bits
                news += [(earlier, before.below) for earlier in before.preds]

    def _order(self, nodes: Iterable[Node]) -> None:
        """Links for reads after writes, writes after reads and writes, and kept order."""
        written: dict[str, Node] = {}
        read: dict[str, list[Node]] = {}
        effect: Node | None = None
        for node in nodes:
            for name in node.reads:
                if name in written:
                    link(written[name], node)
            for name in node.writes:
                for before in (*read.pop(name, ()), *filter(None, [written.get(name)])):
                    link(before, node)
                written[name] = node
            for name in node.reads:
                read.setdefault(name, []).append(node)
            if isinstance(node.step, Extern) and node.step.ordered:
                if effect is not None:
                    link(effect, node)
                effect = node


def link(before: Node, after: Node) -> None:
    if before is not after:
        before.succs.add(after)
        after.preds.add(before)


def make_node(key: int, step: Step, bits: int, first: int, last: int) -> Node:
    """A node with what its step loads and stores, not yet linked."""
    loads: dict[str, list[Scalar]] = {}
    stores: dict[str, list[Store]] = {}
    body: list[Scalar] = []
    if isinstance(step, Nest):
        body = scalars(step)
        for scalar in body:
            if scalar.op == "load" and scalar.buffer is not None:
                loads.setdefault(scalar.buffer, []).append(scalar)
        for store in step.stores:
            stores.setdefault(store.buffer, []).append(store)
        reads = frozenset(loads) | guards(step)
        reads |= {store.buffer for store in step.stores if store.mode != "set"}
        writes = frozenset(stores)
    else:
        reads = frozenset(viewed((step.args, tuple(step.kwargs.values())))) | {*step.mutates}
        writes = frozenset(out for out in step.outs if out is not None) | {*step.mutates}
    return Node(key, step, bits, first, last, body, loads, stores, reads, writes)


def viewed(value: Any) -> Iterator[str]:
    """The buffers behind every `View` inside arguments."""
    match value:
        case View():
            yield value.buffer
        case list() | tuple():
            for item in value:
                yield from viewed(item)
        case dict():
            yield from viewed(tuple(value.values()))


def lent(steps: Iterable[Step]) -> dict[str, frozenset[str]]:
    """For each extern result that may share memory with arguments: the buffers behind it."""
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        schema = getattr(step.target, "_schema", None) if isinstance(step, Extern) else None
        if schema is None or not any(value.alias_info for value in schema.returns):
            continue
        assert isinstance(step, Extern)
        behind = frozenset(viewed((step.args, tuple(step.kwargs.values()))))
        behind |= {deeper for name in behind for deeper in found.get(name, ())}
        for out in step.outs:
            if out is not None and out not in step.mutates:
                found[out] = behind - {out}
    return found
