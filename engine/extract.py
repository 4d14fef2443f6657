"""Chooses one node per class so that the whole graph is cheapest.

Takes a `Problem` (classes, nodes, integer costs, roots); gives a `Choice`. A class that many
nodes read is paid once. The searches, each starting from the last: greedy over sets of
classes; single swaps; pivots (every class that can be rebuilt through one unused class
switches to it at once, which is how three products become one); chains (a class takes a dearer
node, and those that share with it follow); and, on small problems, all of it again from small
random changes. Deterministic: costs are
integers, ties go to the earlier node of a class. The result never has a cycle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PIVOT_DEPTH = 3
PASSES = 6
PIVOT_TRIES = 4000
FORCE_TRIES = 4000
CHAIN = 8
MOST_KICKS, KICK = 100, 4  # searches from elsewhere; how many classes begin with another node
KICKED_PAIRS = 1_500_000  # kicks times the square of the nodes


@dataclass(frozen=True)
class Problem:
    """`members[c]` are the nodes of class c, preferred ones first; `children[n]` the distinct
    classes that node n reads; `cost[n]` is a positive integer; `start[c]` is a node of c that
    is known to be part of an acyclic graph, or -1."""

    members: Sequence[Sequence[int]]
    children: Sequence[Sequence[int]]
    owner: Sequence[int]
    cost: Sequence[int]
    roots: Sequence[int]
    start: Sequence[int]


@dataclass(frozen=True)
class Choice:
    """`node[c]` is the node of class c (-1 where it has none that ends). `used` are the
    classes needed for the roots; `cost` is the sum over them, `before` that of `start`."""

    node: Sequence[int]
    used: frozenset[int]
    cost: int
    before: int


def extract(problem: Problem) -> Choice:
    """The cheapest choice found. Raises ValueError where a root has no node at all."""
    fallback, before = first_choice(problem)
    node = fallback
    greedy = _greedy(problem)
    complete = all(new >= 0 or old < 0 for new, old in zip(greedy, fallback, strict=True))
    if complete and topological(problem, greedy) is not None:
        total = dag_cost(problem, greedy)
        node = greedy if total is not None and total <= before else node
    search = Search(problem, node)
    _descend(search)
    if search.force_all():
        _descend(search)
    search = _kicked(search)
    return Choice(search.node, frozenset(search.used()), search.total, before)


def _descend(search: Search) -> None:
    """Swaps and pivots until neither helps."""
    for _ in range(PASSES):
        swapped = search.swap_all()
        pivoted = search.pivot_all()
        if not (swapped or pivoted):
            return


def _kicked(best: Search) -> Search:
    """The best of searches that begin at small random changes of `best`. The smaller a problem
    is, the more there are: large ones have no time for any."""
    problem, rng = best.problem, random.Random(0)
    size = max(1, len(problem.children))
    for _ in range(min(MOST_KICKS, KICKED_PAIRS // size**2)):
        owners = [owner for owner in best.used() if len(problem.members[owner]) > 1]
        search = Search(problem, best.node)
        for owner in rng.sample(owners, min(KICK, len(owners))):
            search.switch(owner, rng.choice(problem.members[owner]))
        _descend(search)
        if search.total < best.total:
            best = search
    return best


def first_choice(problem: Problem) -> tuple[list[int], int]:
    """A choice without cycles, the original graph where there is one, and its cost. Raises
    ValueError where a root has no node at all."""
    node = _sound_start(problem)
    cost = dag_cost(problem, node)
    if cost is None:
        raise ValueError("a root has no acyclic choice")
    return node, cost


def dag_cost(problem: Problem, node: Sequence[int]) -> int | None:
    """The sum over all classes that the roots need; None where one has no node or needs
    itself."""
    state: dict[int, bool] = {}
    total = 0
    stack = [(root, False) for root in problem.roots]
    while stack:
        owner, done = stack.pop()
        if done:
            state[owner] = True
            continue
        if owner in state:
            if not state[owner]:
                return None
            continue
        if node[owner] < 0:
            return None
        state[owner] = False
        total += problem.cost[node[owner]]
        stack.append((owner, True))
        for child in problem.children[node[owner]]:
            if state.get(child) is False:
                return None
            if child not in state:
                stack.append((child, False))
    return total


def topological(problem: Problem, node: Sequence[int]) -> list[int] | None:
    """A place for every class such that chosen children come first; None on a cycle.
    Classes without a node come last."""
    place = [-1] * len(problem.members)
    count = 0
    for first in range(len(problem.members)):
        stack = [first]
        while stack:
            owner = stack[-1]
            if place[owner] >= 0 or node[owner] < 0:
                stack.pop()
                continue
            if place[owner] == -2:
                place[owner] = count
                count += 1
                stack.pop()
                continue
            place[owner] = -2
            for child in problem.children[node[owner]]:
                if place[child] == -2:
                    return None
                if place[child] == -1:
                    stack.append(child)
    return [count if at < 0 else at for at in place]


def _sound_start(problem: Problem) -> list[int]:
    """`start` where there is one; elsewhere the node that is complete earliest, so that no
    class can need itself."""
    node = list(problem.start)
    ready = [first >= 0 for first in node]
    readers: list[list[int]] = [[] for _ in problem.members]
    missing = []
    for index, children in enumerate(problem.children):
        missing.append(len(children))
        for child in children:
            readers[child].append(index)
    wave = [owner for owner, done in enumerate(ready) if done]
    for index, count in enumerate(missing):
        owner = problem.owner[index]
        if count == 0 and not ready[owner]:
            ready[owner], node[owner] = True, index
            wave.append(owner)
    at = 0
    while at < len(wave):
        for index in readers[wave[at]]:
            missing[index] -= 1
            owner = problem.owner[index]
            if missing[index] == 0 and not ready[owner]:
                ready[owner], node[owner] = True, index
                wave.append(owner)
        at += 1
    return node


def _greedy(problem: Problem) -> list[int]:
    """Per class the node whose set of needed classes is cheapest, in passes to a fixpoint.

    Sets are bit masks; a set's price is its largest part's plus what the other parts add.
    The first pass goes by number, as every class has an original node or one that a rule
    made of earlier ones. Then children come before what reads them, whatever rule made them,
    so that a few passes do for chains of any length.
    """
    count = len(problem.members)
    node, needs, price = [-1] * count, [0] * count, [0] * count
    paid = [0] * count
    order: Sequence[int] = range(count)
    upwards = _postorder(problem)
    for _ in range(PASSES):
        changed = False
        for owner in order:
            bit = 1 << owner
            for index in problem.members[owner]:
                children = problem.children[index]
                if any(node[child] < 0 or needs[child] & bit for child in children):
                    continue
                mask, total = _union(children, needs, price, paid)
                total += problem.cost[index]
                if node[owner] < 0 or total < price[owner]:
                    node[owner], price[owner] = index, total
                    needs[owner], paid[owner] = mask | bit, problem.cost[index]
                    changed = True
        if not changed:
            break
        order = upwards
    return node


def _postorder(problem: Problem) -> list[int]:
    """All classes, each after those that any of its nodes reads, but where that is a cycle."""
    order: list[int] = []
    seen = [False] * len(problem.members)
    for first in range(len(problem.members)):
        stack = [(first, False)]
        while stack:
            owner, done = stack.pop()
            if done:
                order.append(owner)
            elif not seen[owner]:
                seen[owner] = True
                stack.append((owner, True))
                stack.extend(
                    (child, False)
                    for index in reversed(problem.members[owner])
                    for child in reversed(problem.children[index])
                    if not seen[child]
                )
    return order


def _union(
    children: Sequence[int], needs: list[int], price: list[int], paid: list[int]
) -> tuple[int, int]:
    if not children:
        return 0, 0
    if len(children) == 1:
        return needs[children[0]], price[children[0]]
    ordered = sorted(children, key=lambda child: -price[child])
    mask, total = needs[ordered[0]], price[ordered[0]]
    for child in ordered[1:]:
        extra = needs[child] & ~mask
        mask |= extra
        while extra:
            low = extra & -extra
            total += paid[low.bit_length() - 1]
            extra ^= low
    return mask, total


class Search:
    """A choice with reference counts, so that a change is priced by what it touches. `node[c]`
    is the node of class c, `count[c]` how many used nodes and roots read it, `total` the cost.
    `node` must be a choice with `dag_cost`."""

    def __init__(self, problem: Problem, node: Sequence[int]) -> None:
        self.problem = problem
        self.node = list(node)
        self.count = [0] * len(problem.members)
        self.total = 0
        self.place: list[int] = []
        self.order: list[int] = []  # the classes by place
        self._place_all()
        self.readers: list[list[int]] = [[] for _ in problem.members]
        for index, children in enumerate(problem.children):
            for child in children:
                self.readers[child].append(index)
        self.valid = [all(node[child] >= 0 for child in children) for children in problem.children]
        self._take(problem.roots)

    def used(self) -> list[int]:
        return [owner for owner, count in enumerate(self.count) if count]

    def swap_all(self) -> bool:
        """Tries every other node of every used class; whether any made it cheaper."""
        better = False
        for owner, members in enumerate(self.problem.members):
            if len(members) < 2:
                continue
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
                if len(members) < 2:
                    continue
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

    def _force(self, owner: int, index: int) -> bool:
        """Makes one switch and then every swap near by that helps, up to `CHAIN` of them; takes
        all back unless the total fell."""
        start, old = self.total, self.node[owner]
        done = [(owner, old)]
        if not self.switch(owner, index):
            return False
        touched = [*self.problem.children[index], *(self.problem.children[old] if old >= 0 else ())]
        held = {owner}
        while touched and len(done) < CHAIN:
            child = touched.pop(0)
            for reader in self.readers[child]:
                other = self.problem.owner[reader]
                if other in held or not self.count[other]:
                    continue
                now, total = self.node[other], self.total
                for choice in self.problem.members[other]:
                    if choice == now or not self.valid[choice]:
                        continue
                    if self._try([(other, choice)]):
                        held.add(other)
                        done.append((other, now))
                        touched += [*self.problem.children[choice], *self.problem.children[now]]
                        break
        if self.total < start:
            return True
        for other, before in reversed(done):
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
        """Whether the changed choice still has an order; renews the order if it has."""
        place, children = self.place, self.problem.children
        if all(place[child] < place[owner] for owner, index in moves for child in children[index]):
            return True
        if len(moves) == 1:
            (owner, index) = moves[0]
            return all(self._before(child, owner) for child in children[index])
        return self._place_all()

    def _place_all(self) -> bool:
        """A new order of all classes; False, and no change, where there is none."""
        renewed = topological(self.problem, self.node)
        if renewed is None:
            return False
        self.place = renewed
        self.order = sorted(range(len(renewed)), key=renewed.__getitem__)
        return True

    def _before(self, child: int, owner: int) -> bool:
        """Moves `child`, and what it needs, before `owner`. False where it needs `owner`; the
        order then still holds for the choice without this edge."""
        place, order, children = self.place, self.order, self.problem.children
        start, end = place[owner], place[child]
        if end < start:
            return True
        moved = {child}
        stack = [child]
        while stack:
            for other in children[self.node[stack.pop()]]:
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
