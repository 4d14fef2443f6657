"""How many rows a query may have, before egglog lists them.

Takes the e-graph and queries; gives upper bounds. egglog lists every match of a pattern
before any budget could act, and in a class of many sums associativity alone has the square of
their number. The bound counts how often a pattern can be laid over the e-graph when variables
that stand in two places may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from .egraph import Constructor, EGraph
from .pattern import Query


class Breadth:
    """Counts over one state of the e-graph; to be made anew after it changed."""

    def __init__(self, graph: EGraph) -> None:
        self.graph = graph
        self._members: dict[int, int] = {}
        self._readers: dict[tuple[int, int], int] = {}
        self._read: dict[tuple[int, int], frozenset[int]] = {}

    def is_empty(self, query: Query) -> bool:
        """Whether the query certainly has no rows: nowhere does a node of the one constructor
        read a class with a node of the other. False only means that it may have some."""
        node_of = {column: at for at, column in enumerate(query.nodes)}
        return any(
            query.constructors[node_of[column]].index not in self._kinds_read(constructor, place)
            for constructor, columns in zip(query.constructors, query.columns, strict=True)
            for place, (kind, column) in enumerate(columns)
            if kind == "t" and column in node_of
        )

    def exceeds(self, query: Query, limit: int) -> bool:
        """Whether the query may have more than `limit` rows."""
        if self._product(query) <= limit:
            return False
        return len(query.pattern.roots) > 1 or self._laid(query) > limit

    def _product(self, query: Query) -> int:
        """A quick bound: the nodes that the first root can be, times the most that each other
        node of the pattern can be once what it hangs on is known."""
        node_of = {column: at for at, column in enumerate(query.nodes)}
        seen: set[int] = set()
        bound: set[int] = set()
        total = 1
        for root in query.pattern.roots.values():
            if root not in seen:
                total *= self._roots(query, root, bound)
            waiting = [root]
            while waiting:
                at = waiting.pop()
                if at in seen:
                    continue
                seen.add(at)
                if at != root:
                    total *= self._most_members(query.constructors[at])
                columns = [column for kind, column in query.columns[at] if kind == "t"]
                bound.update(columns)
                waiting += [node_of[column] for column in columns if column in node_of]
        return total

    def _roots(self, query: Query, root: int, bound: set[int]) -> int:
        """How many nodes a root can be when the variables in `bound` are known."""
        constructor = query.constructors[root]
        counts = [
            self._most_readers(constructor, place)
            for place, (kind, column) in enumerate(query.columns[root])
            if kind == "t" and column in bound
        ]
        return min(counts, default=len(self._of(constructor)))

    def _of(self, constructor: Constructor) -> Sequence[int]:
        return self.graph.nodes_of.get(constructor.index, ())

    def _most_members(self, constructor: Constructor) -> int:
        """The most nodes of a constructor in one class."""
        found = self._members.get(constructor.index)
        if found is None:
            find = self.graph.find
            found = self._members[constructor.index] = _most(
                [find(node) for node in self._of(constructor)]
            )
        return found

    def _most_readers(self, constructor: Constructor, place: int) -> int:
        """The most nodes of a constructor that have one class in one column. The operands of
        a commuting op stand in both orders."""
        places = _alike(constructor, place)
        key = (constructor.index, places[0])
        found = self._readers.get(key)
        if found is None:
            find, args = self.graph.find, self.graph.args
            found = self._readers[key] = _most(
                [find(args[node][at]) for node in self._of(constructor) for at in places]
            )
        return found

    def _kinds_read(self, constructor: Constructor, place: int) -> frozenset[int]:
        """The kinds of the nodes that the nodes of a constructor may read in one column."""
        places = _alike(constructor, place)
        key = (constructor.index, places[0])
        found = self._read.get(key)
        if found is None:
            graph = self.graph
            classes = {
                graph.find(graph.args[node][at]) for node in self._of(constructor) for at in places
            }
            found = self._read[key] = frozenset(
                graph.kind[member] for owner in classes for member in graph.members[owner]
            )
        return found

    def _laid(self, query: Query) -> int:
        """How often a pattern with one root can be laid over the e-graph."""
        find, graph = self.graph.find, self.graph
        node_of = {column: at for at, column in enumerate(query.nodes)}
        counts: list[dict[int, int]] = []
        for at, constructor in enumerate(query.constructors):
            inner = [
                (place, counts[node_of[column]])
                for place, (kind, column) in enumerate(query.columns[at])
                if kind == "t" and column in node_of and node_of[column] < at
            ]
            ways: dict[int, int] = {}
            for node in self._of(constructor):
                rows = [graph.args[node]]
                swapped = graph.swapped(constructor, rows[0])
                for row in rows if swapped is None else [*rows, swapped]:
                    found = 1
                    for place, below in inner:
                        found *= below.get(find(row[place]), 0)
                    if found:
                        owner = find(node)
                        ways[owner] = ways.get(owner, 0) + found
            counts.append(ways)
        (root,) = query.pattern.roots.values()
        return sum(counts[root].values())


def _alike(constructor: Constructor, place: int) -> tuple[int, ...]:
    """The columns whose operands may stand in `place`."""
    swaps = constructor.op.commutes and place < 2 and constructor.kinds[:2] == ("t", "t")
    return (0, 1) if swaps else (place,)


def _most(classes: Sequence[int]) -> int:
    counts: dict[int, int] = {}
    for owner in classes:
        counts[owner] = counts.get(owner, 0) + 1
    return max(counts.values(), default=0)
