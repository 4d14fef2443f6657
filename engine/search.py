"""A choice of nodes that is changed step by step.

Takes a `Problem` and a choice without cycles; keeps its cost, what is used and an order of the
classes while single classes or groups of them get other nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from .selection import Problem, topological

PASSES = 6  # of each kind of change, at most
PIVOT_DEPTH = 3
PIVOT_TRIES = 4000
FORCE_TRIES = 4000
CHAIN = 8


class Search:
    """A choice with reference counts, so that a change is priced by what it touches. `node[c]`
    is the node of class c, `count[c]` how many used nodes and roots read it, `total` the cost.
    `node` must be a choice with `dag_cost`."""

    def __init__(self, problem: Problem, node: Sequence[int]) -> None:
        self.problem = problem
        self.node = list(node)
        self.count = [0] * len(problem.members)
        self.total = 0
        self.place = topological(problem, self.node) or []
        self.order = sorted(range(len(self.place)), key=self.place.__getitem__)
        self.readers: list[list[int]] = [[] for _ in problem.members]
        for index in itertools.chain.from_iterable(problem.members):
            for child in problem.children[index]:
                self.readers[child].append(index)
        self.valid = [all(node[child] >= 0 for child in children) for children in problem.children]
        self._take(problem.roots)

    def used(self) -> list[int]:
        return [owner for owner, count in enumerate(self.count) if count]

    def swap_all(self) -> bool:
        """Tries every other node of every used class; whether any made it cheaper."""
        better = False
        for owner, members in enumerate(self.problem.members):
            for index in members:
                if not self.count[owner]:
                    break
                if not self.valid[index] or index == self.node[owner]:
                    continue
                if not self._hopeless(owner, index) and self._try([(owner, index)]):
                    better = True
        return better

    def switch(self, owner: int, index: int) -> bool:
        """Gives a class another of its nodes, whatever that costs; False, and no change, where
        it cannot be complete or would need itself."""
        old = self.node[owner]
        if not self.valid[index]:
            return False
        self._set(owner, index)
        if self._acyclic([(owner, index)]):
            return True
        self._set(owner, old)
        return False

    def _hopeless(self, owner: int, index: int) -> bool:
        """Whether a swap cannot save anything: the node itself is no cheaper, and nothing that
        the old one reads would become unused."""
        cost, count, node = self.problem.cost, self.count, self.node
        old, children = node[owner], self.problem.children
        extra = cost[index] - cost[old]
        extra += sum([cost[node[child]] for child in children[index] if not count[child]])
        return extra >= 0 and not any(
            [count[child] == 1 and child not in children[index] for child in children[old]]
        )

    def force_all(self) -> bool:
        """Gives used classes another node though that alone is dearer, and lets those that
        share with it follow; whether any such chain made the whole cheaper."""
        better, tries = False, FORCE_TRIES
        for _ in range(PASSES):
            found = False
            for owner, members in enumerate(self.problem.members):
                for index in members:
                    if tries <= 0 or not self.count[owner]:
                        break
                    if index != self.node[owner] and self.valid[index]:
                        tries -= 1
                        found |= self._force(owner, index)
            better |= found
            if not found:
                break
        return better

    def _swap(self, owner: int) -> bool:
        """Gives a class the first of its nodes that makes the whole cheaper."""
        return any(
            index != self.node[owner]
            and self.valid[index]
            and not self._hopeless(owner, index)
            and self._try([(owner, index)])
            for index in self.problem.members[owner]
        )

    def _force(self, owner: int, index: int) -> bool:
        """Makes one switch and then every swap near by that helps, up to `CHAIN` of them; takes
        all back unless the total fell."""
        start, old = self.total, self.node[owner]
        if not self.switch(owner, index):
            return False
        done = {owner: old}
        touched = [*self.problem.children[index], *self.problem.children[old]]
        while touched and len(done) < CHAIN:
            for reader in self.readers[touched.pop(0)]:
                other = self.problem.owner[reader]
                if other not in done and self.count[other]:
                    before = self.node[other]
                    if self._swap(other):
                        done[other] = before
                        touched += self.problem.children[self.node[other]]
                        touched += self.problem.children[before]
        if self.total < start:
            return True
        for other, before in reversed(done.items()):
            self.switch(other, before)
        return False

    def pivot_all(self) -> bool:
        """Tries to route several used classes through one unused class at once."""
        better = False
        candidates = []
        for owner in range(len(self.problem.members)):
            if self.count[owner] or self.node[owner] < 0:
                continue
            moves = self._moves(owner)
            reach = sum(1 for other, _ in moves if self.count[other])
            if reach >= 2:
                candidates.append((-reach, owner, moves))
        candidates.sort(key=lambda item: item[:2])
        for _, owner, moves in candidates[:PIVOT_TRIES]:
            if not self.count[owner] and self._try(moves):
                better = True
        return better

    def _moves(self, pivot: int) -> list[tuple[int, int]]:
        """The classes that a few readers above `pivot` could rebuild, with those readers."""
        moves: dict[int, int] = {}
        front = [pivot]
        for _ in range(PIVOT_DEPTH):
            above = []
            for child in front:
                for index in self.readers[child]:
                    owner = self.problem.owner[index]
                    if owner == pivot or owner in moves or not self.valid[index]:
                        continue
                    if self.count[owner] and self.node[owner] == index:
                        continue
                    moves[owner] = index
                    if not self.count[owner]:
                        above.append(owner)
            front = above
        return list(moves.items())

    def _try(self, moves: Sequence[tuple[int, int]]) -> bool:
        """Makes the moves; takes them back unless the total falls and no cycle appears."""
        start = self.total
        done: list[tuple[int, int]] = []
        for owner, index in moves:
            done.append((owner, self.node[owner]))
            self._set(owner, index)
        if self.total < start and self._acyclic(moves):
            return True
        for owner, index in reversed(done):
            self._set(owner, index)
        return False

    def _set(self, owner: int, index: int) -> None:
        old = self.node[owner]
        self.node[owner] = index
        if not self.count[owner]:
            return
        cost, children = self.problem.cost, self.problem.children
        self.total += cost[index] - (cost[old] if old >= 0 else 0)
        self._take(children[index])
        if old >= 0:
            self._drop(children[old])

    def _take(self, owners: Sequence[int]) -> None:
        stack = list(owners)
        while stack:
            owner = stack.pop()
            self.count[owner] += 1
            if self.count[owner] == 1:
                index = self.node[owner]
                self.total += self.problem.cost[index]
                stack.extend(self.problem.children[index])

    def _drop(self, owners: Sequence[int]) -> None:
        stack = list(owners)
        while stack:
            owner = stack.pop()
            self.count[owner] -= 1
            if self.count[owner] == 0:
                index = self.node[owner]
                self.total -= self.problem.cost[index]
                stack.extend(self.problem.children[index])

    def _acyclic(self, moves: Sequence[tuple[int, int]]) -> bool:
        """Whether the changed choice still has an order; renews the order if it has. The edges
        of one move after the other find their places (Pearce and Kelly, 2007)."""
        place, children = self.place, self.problem.children
        if all(place[child] < place[owner] for owner, index in moves for child in children[index]):
            return True
        kept = (place[:], self.order[:]) if len(moves) > 1 else None
        later = {owner for owner, _ in moves}
        for owner, index in moves:
            later.remove(owner)
            if not all(self._before(child, owner, later) for child in children[index]):
                if kept is not None:  # else the order holds for the old choice
                    self.place, self.order = kept
                return False
        return True

    def _before(self, child: int, owner: int, later: Collection[int]) -> bool:
        """Moves `child`, and what it needs, before `owner`; what those of `later` need comes
        later. False where it needs `owner`; the order then still holds without this edge."""
        place, order, children = self.place, self.order, self.problem.children
        start, end = place[owner], place[child]
        if end < start:
            return True
        moved = {child}
        stack = [child]
        while stack:
            at = stack.pop()
            for other in () if at in later else children[self.node[at]]:
                if other == owner:
                    return False
                if place[other] > start and other not in moved:
                    moved.add(other)
                    stack.append(other)
        part = order[start : end + 1]
        order[start : end + 1] = [c for c in part if c in moved] + [
            c for c in part if c not in moved
        ]
        for at in range(start, end + 1):
            place[order[at]] = at
        return True
