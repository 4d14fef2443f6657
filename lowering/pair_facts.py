"""What fusion rules can ask about a loop nest, or about a producer and a consumer.

Takes the graph of steps; gives `PairFacts`, whose `table` maps the names used in rules to
functions of one or two nodes. Facts about domains are exact sizes, facts about work (bytes,
flops, rows, columns) are plain estimates. Facts that depend on nothing but the two nests
are kept; others are asked anew, as joining changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from ..engine.dtypes import dtype_of
from .collisions import scatters, shared_axes
from .dependence import Graph, Node
from .domain import estimate, invert, points, product
from .index import Axis, Index, Size, substitute
from .join import Joiner, merged
from .loops import Nest, Scalar, Store
from .nest_facts import axes_behind, cost, reads_before_writes
from .pieces import seam, write_apart
from .relate import Relation, Seed, relate, seeds_between, whole_box
from .sources import Source

Value = TypeVar("Value")

# Shared buffers that are tried, the largest first, when two independent nests are laid on
# one another.
SEEDS_TRIED = 4


class PairFacts:
    """`order` gives FX node names their place in the graph, `sources` where they came from."""

    def __init__(
        self,
        graph: Graph,
        joiner: Joiner,
        order: Mapping[str, int],
        sources: Mapping[str, Source],
    ) -> None:
        self._graph = graph
        self._joiner = joiner
        self._order = order
        self._sources = sources
        self._memo: dict[tuple[Any, ...], Any] = {}
        self._sizes: dict[str, int] = {}
        self.table: Mapping[str, Callable[..., Any]] = {name: getattr(self, name) for name in FACTS}

    # One nest

    def kind(self, node: Node) -> str:
        """pointwise, reduction or extern."""
        if not node.is_nest:
            return "extern"
        return self._once("kind", node, lambda: _kind(node))

    def domain(self, node: Node) -> Size:
        """How many points the nest visits, reduced axes included (exact)."""
        nest = node.nest
        return self._once("domain", node, lambda: points((*nest.axes, *nest.raxes)))

    def rows(self, node: Node) -> int:
        """How many points the parallel axes have (estimate)."""
        return self._once("rows", node, lambda: estimate(points(node.nest.axes)))

    def columns(self, node: Node) -> int:
        """How many points the reduced axes have (estimate)."""
        return self._once("columns", node, lambda: estimate(points(node.nest.raxes)))

    def flops(self, node: Node) -> int:
        """Scalar operations per point; a transcendental counts as ten (estimate)."""
        return self._once("flops", node, lambda: sum(map(cost, node.body)))

    def scalars(self, node: Node) -> int:
        """How many different scalars the body has, loads and constants included."""
        return len(node.body)

    def stores(self, node: Node) -> int:
        """How many stores the nest has."""
        return len(node.nest.stores)

    def buffers(self, node: Node) -> int:
        """How many different buffers the nest reads or writes."""
        return len(node.reads | node.writes)

    def scattered(self, node: Node) -> int:
        """How many stores may write to one element from several points."""
        return sum(map(scatters, node.nest.stores))

    def crowded(self, node: Node) -> int:
        """How many axes have points that may write to one element; they run in order."""
        return len(shared_axes(node.nest, self._graph.buffers))

    def bytes(self, node: Node) -> int:
        """Bytes of everything the nest writes (estimate)."""
        return sum(self._size(name) for name in node.stores)

    def readers(self, node: Node) -> int:
        """How many steps read something the nest writes; results of the graph count as read
        by one step more."""
        found = {r for name in node.stores for r in self._graph.readers.get(name, ())} - {node}
        return len(found) + any(name in self._graph.kept for name in node.stores)

    def outside(self, node: Node) -> int:
        """How many readers of what the nest writes are no loop nests; the caller of the graph
        counts as one."""
        found = {r for name in node.stores for r in self._graph.readers.get(name, ())}
        kept = any(name in self._graph.kept for name in node.stores)
        return sum(not reader.is_nest for reader in found) + kept

    def does(self, node: Node, name: str) -> bool:
        """Whether the step computes (a part of) a call of this name: an ATen op, or a function
        or module class of the user's program; globs allowed."""
        return any(source.does(name) for source in self._came_from(node))

    def within(self, node: Node, path: str) -> bool:
        """Whether the step computes something inside the module of this path, as
        `named_modules` spells it; globs allowed."""
        return any(source.within(path) for source in self._came_from(node))

    # Two nests: order and memory

    def feeds(self, producer: Node, consumer: Node) -> bool:
        """Whether the consumer loads something that the producer stored."""
        return consumer in producer.succs and not producer.stores.keys().isdisjoint(consumer.loads)

    def beside(self, producer: Node, consumer: Node) -> bool:
        """Whether both fill regions of one buffer that touch, and do nothing else."""
        return self._once(
            "beside", (producer, consumer), lambda: _ends_meet(producer, consumer) is not None
        )

    def apart(self, producer: Node, consumer: Node) -> bool:
        """Whether both write to one buffer, but to different elements, and nothing else says
        which one must run first."""
        around = self._graph.reaches_around
        return (
            not producer.writes.isdisjoint(consumer.writes)
            and producer.reads.isdisjoint(consumer.writes)
            and consumer.reads.isdisjoint(producer.writes)
            and self._split(producer, consumer)
            and not (around(producer, consumer) or around(consumer, producer))
        )

    def alike(self, producer: Node, consumer: Node) -> bool:
        """Whether both nests loop over equal sizes in equal order."""
        return self._once("sizes", producer, lambda: _sizes(producer)) == self._once(
            "sizes", consumer, lambda: _sizes(consumer)
        )

    def independent(self, producer: Node, consumer: Node) -> bool:
        """Whether neither must run before the other."""
        graph = self._graph
        return not (graph.reaches(producer, consumer) or graph.reaches(consumer, producer))

    def reaches_around(self, producer: Node, consumer: Node) -> bool:
        """Whether a third step must run after the producer and before the consumer."""
        return self._graph.reaches_around(producer, consumer)

    def same_device(self, producer: Node, consumer: Node) -> bool:
        """Whether all that both nests write lives on one device (a nest may read single
        numbers from elsewhere)."""
        names = (*producer.writes, *consumer.writes)
        return len({self._graph.buffers[name].device for name in names}) <= 1

    def distance(self, producer: Node, consumer: Node) -> int:
        """How many steps apart the two stood in the graph, at their nearest."""
        gap = max(producer.first, consumer.first) - min(producer.last, consumer.last)
        return max(gap, 0)

    def overwritten(self, producer: Node, consumer: Node) -> bool:
        """Whether something the producer reads, or feeds to the consumer, has changed by the time
        the consumer runs."""
        graph = self._graph
        return any(
            not graph.reaches(writer, producer)
            and (writer is producer or writer is consumer or graph.reaches(writer, consumer))
            for name in producer.reads
            for writer in graph.writers.get(name, ())
        ) or any(
            graph.reaches(producer, writer) and graph.reaches(writer, consumer)
            for name in self._fed(producer, consumer)
            for writer in graph.writers.get(name, ())
        )

    def hazard(self, producer: Node, consumer: Node) -> bool:
        """Whether the joined nest would read memory that another of its points, or an earlier
        store, overwrites."""
        fed = self._fed(producer, consumer)
        common = producer.writes & consumer.writes
        if common:
            loaded = producer.loads.keys() | consumer.loads.keys()
            if not loaded.isdisjoint(common) or not self._split(producer, consumer):
                return True
        reads = producer.reads | (consumer.reads - fed)
        if reads.isdisjoint(consumer.writes | producer.writes):
            return False
        return not reads_before_writes(self.joined(producer, consumer))

    # Two nests: where the points of one are in the other

    def read_domain(self, consumer: Node, producer: Node) -> Size:
        """How many points of the consumer read the producer's values (exact; the most
        detailed read counts)."""
        reads = self._reads(producer, consumer)
        return max((points(axes_behind(load.index)) for load in reads), key=estimate, default=1)

    def invertible(self, producer: Node, consumer: Node) -> bool:
        """Whether every element the consumer may read is written by exactly one point of the
        producer, which can be computed from the element."""
        axes = producer.nest.axes
        buffers = self._graph.buffers
        return self._once(
            "invertible",
            (producer, consumer),
            lambda: all(
                len(producer.stores[name]) == 1
                and invert(producer.stores[name][0].index, buffers[name].shape, axes).whole
                for name in self._fed(producer, consumer)
            ),
        )

    def same_rows(self, producer: Node, consumer: Node) -> bool:
        """Whether the rows of the producer are the rows of the joined nest, each once."""
        return self.relation(producer, consumer).rows

    def same_columns(self, producer: Node, consumer: Node) -> bool:
        """Whether the producer's reduced points are those of the joined nest, each once."""
        return self.relation(producer, consumer).columns

    def same_positions(self, producer: Node, consumer: Node) -> bool:
        """Whether arg-reductions of the producer keep counting in the same order."""
        return self.relation(producer, consumer).positions

    def exact_reads(self, producer: Node, consumer: Node) -> bool:
        """Whether every point of the joined nest reads just what it has written itself."""
        return self._once(
            "exact_reads", (producer, consumer), lambda: self._exact_reads(producer, consumer)
        )

    def stays(self, producer: Node, consumer: Node) -> bool:
        """Whether somebody else needs what a pointwise producer feeds to the consumer, and its
        stores cannot move there; joining then computes its values a second time."""
        if self.kind(producer) != "pointwise" or not self.feeds(producer, consumer):
            return False
        return bool(self._wanted(producer, consumer)) and not self.relation(producer, consumer).fits

    # Two nests: work

    def copies(self, producer: Node, consumer: Node) -> int:
        """How many different loads in the consumer read the producer's values."""
        return len(self._reads(producer, consumer))

    def recompute(self, producer: Node, consumer: Node) -> float:
        """How often each value of the producer is computed once it is inlined (estimate)."""
        reads = self._reads(producer, consumer)
        total = sum(estimate(points(axes_behind(load.index))) for load in reads)
        return total / max(estimate(self.domain(producer)), 1)

    def saved(self, producer: Node, consumer: Node) -> int:
        """Bytes no longer moved when the consumer takes the producer in (estimate)."""
        fed = self._fed(producer, consumer)
        total = sum(self._traffic(consumer, name) for name in fed)
        wanted = self._wanted(producer, consumer)
        total += sum(self._size(name) for name in fed if name not in wanted)
        both = (producer.loads.keys() & consumer.loads.keys()) - fed
        if self.stays(producer, consumer):
            return total - sum(self._traffic(producer, n) for n in producer.loads.keys() - both)
        return total + self._shared(producer, consumer, both)

    def common(self, producer: Node, consumer: Node) -> int:
        """Bytes of what both nests read, whether at the same points or not (estimate)."""
        return self._shared(producer, consumer, producer.loads.keys() & consumer.loads.keys())

    def shared(self, producer: Node, consumer: Node) -> int:
        """Bytes that both nests read at the same points (estimate)."""
        both = producer.loads.keys() & consumer.loads.keys()
        relation = self.relation(producer, consumer)
        total = 0
        for name in both:
            mine = {_moved(load, relation.guest) for load in producer.loads[name]}
            yours = {_moved(load, relation.host) for load in consumer.loads[name]}
            if mine & yours:
                total += self._shared(producer, consumer, {name})
        return total

    # For the fusion pass, not for rules

    def relation(self, producer: Node, consumer: Node) -> Relation:
        """Where the points of both go in the joined nest, right or wrong."""
        pair = (producer, consumer)
        return self._once("relation", pair, lambda: self._relate(producer, consumer))

    def joined(self, producer: Node, consumer: Node) -> Nest:
        """The nest that takes the place of both (of the consumer only, where the producer
        `stays`)."""
        first, second = producer.nest, consumer.nest
        wanted = self._wanted(producer, consumer)
        axes, raxes = second.axes, second.raxes
        stores: tuple[Store, ...]
        meeting = _ends_meet(producer, consumer)
        if self.outside(producer) and self.alike(producer, consumer):
            meeting = None  # the memory is needed anyway: two stores need no choice per point
        if meeting is not None:
            axes, store = self._joiner.side_by_side(*meeting)
            stores = (store,)
        elif self.feeds(producer, consumer) and self.kind(producer) == "pointwise":
            moved = None
            if wanted and not self.stays(producer, consumer):
                moved = self.relation(producer, consumer)
                axes, raxes = moved.axes, moved.raxes
            stores = self._joiner.inline(first, second, moved, wanted)
        else:
            relation = self.relation(producer, consumer)
            axes, raxes = relation.axes, relation.raxes
            stores = self._joiner.together(first, second, relation, wanted)
        origins, rules = merged(first, second, self._order)
        return Nest(second.name, axes, raxes, stores, origins, rules)

    def _relate(self, producer: Node, consumer: Node) -> Relation:
        first, second = producer.nest, consumer.nest
        if self.feeds(producer, consumer):
            written = {n: [s.index for s in stores] for n, stores in producer.stores.items()}
            seeds = seeds_between(written, consumer.loads, self._graph.buffers)
            if self.kind(producer) == "reduction":
                return relate(first, second, seeds)
            return _first_fit(first, second, seeds)
        common = {
            n: [load.index for load in loads]
            for n, loads in producer.loads.items()
            if n in consumer.loads
        }
        seeds = seeds_between(common, consumer.loads, self._graph.buffers)
        found = _first_fit(first, second, seeds[:SEEDS_TRIED])
        return found if found.fits else whole_box(first, second)

    def _exact_reads(self, producer: Node, consumer: Node) -> bool:
        relation = self.relation(producer, consumer)
        for name in self._fed(producer, consumer):
            written = [
                tuple(substitute(part, relation.guest) for part in store.index)
                for store in producer.stores[name]
            ]
            for load in consumer.loads[name]:
                if written != [tuple(substitute(part, relation.host) for part in load.index)]:
                    return False
        return True

    def _split(self, producer: Node, consumer: Node) -> bool:
        pair = (producer, consumer)
        return self._once("split", pair, lambda: write_apart(producer.nest, consumer.nest))

    def _fed(self, producer: Node, consumer: Node) -> set[str]:
        if not self.feeds(producer, consumer):
            return set()
        return producer.stores.keys() & consumer.loads.keys()

    def _wanted(self, producer: Node, consumer: Node) -> set[str]:
        """What the producer writes and others than the consumer look at."""
        pair = (producer, consumer)
        return {name for name in producer.stores if self._graph.needed(name, pair)}

    def _reads(self, producer: Node, consumer: Node) -> list[Scalar]:
        return [load for n in self._fed(producer, consumer) for load in consumer.loads[n]]

    def _shared(self, producer: Node, consumer: Node, names: AbstractSet[str]) -> int:
        return sum(
            min(self._traffic(producer, name), self._traffic(consumer, name)) for name in names
        )

    def _traffic(self, node: Node, name: str) -> int:
        """Bytes of one buffer that a nest reads."""
        return self._once("traffic " + name, node, lambda: self._read_bytes(node, name))

    def _came_from(self, node: Node) -> list[Source]:
        return [self._sources[name] for name in node.step.origins if name in self._sources]

    def _read_bytes(self, node: Node, name: str) -> int:
        item = dtype_of(self._graph.buffers[name].dtype).itemsize
        touched = max(estimate(points(axes_behind(load.index))) for load in node.loads[name])
        return min(touched * item, self._size(name))

    def _size(self, name: str) -> int:
        """Bytes of a whole buffer."""
        if name not in self._sizes:
            buffer = self._graph.buffers[name]
            item = dtype_of(buffer.dtype).itemsize
            self._sizes[name] = estimate(product(buffer.shape)) * item
        return self._sizes[name]

    def _once(self, fact: str, nodes: Node | tuple[Node, Node], ask: Callable[[], Value]) -> Value:
        key = (fact, nodes.key) if isinstance(nodes, Node) else (fact, nodes[0].key, nodes[1].key)
        if key not in self._memo:
            self._memo[key] = ask()
        found: Value = self._memo[key]
        return found


# The words that rules may use.
FACTS = (
    *("kind", "domain", "rows", "columns", "flops", "scalars", "stores", "buffers", "scattered"),
    "crowded",
    *("bytes", "readers", "outside", "feeds", "beside", "independent", "reaches_around"),
    *("same_device", "distance", "overwritten", "hazard", "read_domain", "invertible"),
    *("apart", "alike", "same_rows", "same_columns", "same_positions", "exact_reads", "stays"),
    *("copies", "recompute", "saved"),
    *("common", "shared", "does", "within"),
)


def _kind(node: Node) -> str:
    reduces = node.nest.raxes or any(scalar.op == "reduce" for scalar in node.body)
    return "reduction" if reduces else "pointwise"


def _sizes(node: Node) -> tuple[list[Size], list[Size]]:
    """Sizes of the parallel and of the reduced axes, those of one point left out."""
    groups = (node.nest.axes, node.nest.raxes)
    rows, columns = ([axis.size for axis in group if axis.size != 1] for group in groups)
    return rows, columns


def _ends_meet(producer: Node, consumer: Node) -> tuple[Nest, Nest] | None:
    """Two nests whose regions of one buffer touch, that of the lower elements first."""
    if producer.writes != consumer.writes or len(producer.writes) != 1:
        return None
    if not (producer.is_nest and consumer.is_nest):
        return None
    pairs = ((producer.nest, consumer.nest), (consumer.nest, producer.nest))
    return next((pair for pair in pairs if seam(*pair) is not None), None)


def _first_fit(guest: Nest, host: Nest, seeds: list[Seed]) -> Relation:
    """The first relation that fits, of those that each seed suggests alone."""
    found = [relate(guest, host, seeds[:1])]
    while not found[-1].fits and len(found) < len(seeds):
        found.append(relate(guest, host, [seeds[len(found)]]))
    return found[-1] if found[-1].fits else found[0]


def _moved(load: Scalar, places: Mapping[Axis, Index]) -> tuple[Index, ...]:
    return tuple(substitute(part, places) for part in load.index)
