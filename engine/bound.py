"""A lower bound on the cost of an extraction problem, from landmarks.

Takes a `Problem` without what is ruled out; gives a bound that no acyclic choice is below. A
landmark is a set of nodes of which every choice has one. The cheapest of its nodes is paid for
by all of them at once: each becomes that much cheaper, the bound as much higher, and the next
landmark is sought at the reduced costs. This is LM-cut (Helmert and Domshlak, ICAPS 2009), as a
choice of nodes is a plan without deletions: nodes are actions, classes are facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from .selection import Problem

_NEVER = 1 << 200  # dearer than any choice


def readers_of(problem: Problem) -> list[list[int]]:
    """The nodes that read each class."""
    readers: list[list[int]] = [[] for _ in problem.members]
    for index, children in enumerate(problem.children):
        for child in children:
            readers[child].append(index)
    return readers


@dataclass
class Bound:
    """What is known of the choices that have only the nodes of `alive` and need the classes
    `roots`: each costs at least `total` plus the `reduced` costs of its nodes. `landmarks` are
    pairs of a price and nodes; the prices add up to `total`."""

    problem: Problem
    readers: Sequence[Sequence[int]]
    alive: list[bool]
    roots: list[int]
    reduced: list[int]
    total: int
    landmarks: list[tuple[int, list[int]]]

    @classmethod
    def of(cls, problem: Problem, readers: Sequence[Sequence[int]]) -> Bound:
        alive = [True] * len(problem.children)
        return cls(problem, readers, alive, list(problem.roots), list(problem.cost), 0, [])

    def without(self, dead: Sequence[int], root: int | None = None) -> Bound:
        """Nothing paid yet, the nodes of `dead` ruled out, and perhaps one more root. Landmarks
        of fewer nodes are found anew, as some that are known pay too little now."""
        alive = list(self.alive)
        for index in dead:
            alive[index] = False
        roots = list(self.roots)
        if root is not None and root not in roots:
            roots.append(root)
        return Bound(self.problem, self.readers, alive, roots, list(self.problem.cost), 0, [])

    def settled(self, owner: int) -> bool:
        """Whether all choices have the same node of a class."""
        return owner in self.roots and len(self._usable(owner)) == 1

    def paid(self) -> Problem:
        """The problem of the nodes that are paid for in full. After `raise_to`, it has a choice
        where there is one below the limit."""
        members = [
            [index for index in self._usable(owner) if self.reduced[index] == 0]
            for owner in range(len(self.problem.members))
        ]
        return replace(self.problem, members=members, roots=self.roots)

    def _usable(self, owner: int) -> list[int]:
        return [index for index in self.problem.members[owner] if self.alive[index]]

    def raise_to(self, limit: int) -> int:
        """Raises the bound, and rules out nodes that no choice below `limit` has. `total` is at
        least `limit` afterwards where there is no such choice. How many nodes it looked at."""
        steps = 0
        while self.total < limit:
            self._settle()
            depth = self._depths()
            steps += sum(self.alive)
            steps += self._cut(depth, limit)
            if self.total >= limit or not self._rule_out(depth, limit):
                break
        return steps

    def _settle(self) -> None:
        """Adds to the roots what all nodes of a root read, and pays where there is one node."""
        children = self.problem.children
        known = set(self.roots)
        for owner in self.roots:  # grows
            usable = self._usable(owner)
            if len(usable) == 1 and self.reduced[usable[0]]:
                self._pay(usable)
            for child in children[usable[0]] if usable else ():
                if child not in known and all(child in children[index] for index in usable):
                    known.add(child)
                    self.roots.append(child)

    def _pay(self, cut: list[int]) -> None:
        price = min([self.reduced[index] for index in cut])
        for index in cut:
            self.reduced[index] -= price
        self.total += price
        self.landmarks.append((price, cut))

    def _depths(self) -> list[int]:
        """Per class the reduced cost of the dearest path in its cheapest derivation (hmax);
        nodes without any are ruled out."""
        problem, reduced, alive = self.problem, self.reduced, self.alive
        depth = [_NEVER] * len(problem.members)
        missing = [len(children) for children in problem.children]
        heap = [
            (reduced[index], problem.owner[index])
            for index, count in enumerate(missing)
            if count == 0 and alive[index]
        ]
        heap.sort()
        while heap:
            reached, owner = heappop(heap)
            if depth[owner] < _NEVER:
                continue
            depth[owner] = reached
            for index in self.readers[owner]:
                missing[index] -= 1
                if missing[index] == 0 and alive[index]:
                    above = problem.owner[index]
                    if depth[above] == _NEVER:
                        heappush(heap, (reached + reduced[index], above))
        for index, count in enumerate(missing):
            if count:
                alive[index] = False
        return depth

    def _cut(self, depth: list[int], limit: int) -> int:
        """Takes landmarks until the roots cost nothing more or the bound reaches `limit`."""
        steps = 0
        while self.total < limit:
            root = max(self.roots, key=depth.__getitem__)
            if depth[root] == 0:
                break
            if depth[root] == _NEVER:
                self.total = _NEVER
                break
            cut = self._landmark(root, depth)
            steps += len(self.alive)
            self._pay(cut)
            self._lower(cut, depth)
        return steps

    def _landmark(self, root: int, depth: Sequence[int]) -> list[int]:
        """The nodes through which a derivation can enter the zone of `root`: the classes from
        which it costs nothing more, as each free node there has one of its children there."""
        problem, reduced, alive = self.problem, self.reduced, self.alive
        children, members = problem.children, problem.members
        zone, stack = {root}, [root]
        while stack:
            for index in members[stack.pop()]:
                if alive[index] and reduced[index] == 0:
                    reads = children[index]
                    dearest = max(reads, key=depth.__getitem__)
                    if dearest not in zone and zone.isdisjoint(reads):
                        zone.add(dearest)
                        stack.append(dearest)
        missing = [len(reads) for reads in children]
        reached = set(zone)
        ready = [index for index, count in enumerate(missing) if count == 0 and alive[index]]
        cut = []
        for index in ready:  # grows
            owner = problem.owner[index]
            if owner in zone:
                cut.append(index)
            elif owner not in reached:
                reached.add(owner)
                for reader in self.readers[owner]:
                    missing[reader] -= 1
                    if missing[reader] == 0 and alive[reader]:
                        ready.append(reader)
        return cut

    def _lower(self, cheaper: Sequence[int], depth: list[int]) -> None:
        """Renews `depth` where nodes became cheaper."""
        children, owners, reduced = self.problem.children, self.problem.owner, self.reduced
        stack = list(cheaper)
        while stack:
            index = stack.pop()
            if self.alive[index]:
                reads = children[index]
                reached = reduced[index] + (max([depth[child] for child in reads]) if reads else 0)
                owner = owners[index]
                if reached < depth[owner]:
                    depth[owner] = reached
                    stack += self.readers[owner]

    def _rule_out(self, depth: Sequence[int], limit: int) -> bool:
        """Rules out nodes whose own derivation would reach `limit`; whether there were any."""
        found, room = False, limit - self.total
        for index, children in enumerate(self.problem.children):
            if self.alive[index]:
                below = max([depth[child] for child in children], default=0)
                if self.reduced[index] + below >= room:
                    self.alive[index] = False
                    found = True
        return found
