"""The order of steps that needs the least memory.

Takes a `Program`; gives it with its steps in another order, where one of a few orders keeps
fewer bytes alive at once. Dependences (reads after writes, writes after reads and writes) and
the order of calls with effects are kept; equal programs give equal orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ..engine.dtypes import dtype_of
from .dependence import lent, make_node, viewed
from .domain import estimate, product
from .loops import Extern, Program


@dataclass
class Place:
    """A step by its number: what must run before and after it, and the buffers it touches."""

    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)
    touched: frozenset[str] = frozenset()


def with_least_memory(program: Program, passed: AbstractSet[str] = frozenset()) -> Program:
    """`program` in the order with the lowest peak; the order it has wins ties. `passed` are the
    inputs that nobody else holds: their memory is free after the step that reads them last."""
    if len(program.steps) < 3:
        return program
    places = _places(program)
    sizes = _sizes(program, passed)
    kept = frozenset(viewed(tuple(program.outputs)))
    given = range(len(places))
    orders = [list(given), _greedy(places, sizes, kept, passed), _late(places)]
    best = min(
        orders, key=lambda order: peak([places[k].touched for k in order], sizes, kept, passed)
    )
    return replace(program, steps=tuple(program.steps[k] for k in best))


def peak_bytes(program: Program, passed: AbstractSet[str] = frozenset()) -> int:
    """The most bytes of temporaries, results and `passed` inputs that are alive during one step."""
    touched = [place.touched for place in _places(program)]
    return peak(touched, _sizes(program, passed), frozenset(viewed(tuple(program.outputs))), passed)


def peak(
    touched: Sequence[frozenset[str]],
    sizes: Mapping[str, int],
    kept: frozenset[str],
    passed: AbstractSet[str] = frozenset(),
) -> int:
    """The most bytes alive during one step. A buffer lives from the first step that touches it,
    one of `passed` from the start, to the last step that does; those of `kept` to the end."""
    last = {name: number for number, names in enumerate(touched) for name in names}
    alive = {name for name in passed if name in last}
    now = most = sum(sizes.get(name, 0) for name in alive)
    for number, names in enumerate(touched):
        for name in names - alive:
            now += sizes.get(name, 0)
        alive |= names
        most = max(most, now)
        for name in [name for name in names if last[name] == number and name not in kept]:
            alive.discard(name)
            now -= sizes.get(name, 0)
    return most


def _sizes(program: Program, passed: AbstractSet[str]) -> dict[str, int]:
    """Bytes of every buffer that a run allocates or may let go."""
    return {
        name: estimate(product(buffer.shape)) * dtype_of(buffer.dtype).itemsize
        for name, buffer in program.buffers.items()
        if buffer.role not in ("input", "constant") or name in passed
    }


def _places(program: Program) -> list[Place]:
    """The steps with the order among them."""
    behind = lent(program.steps)
    writer: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    effect: int | None = None
    places: list[Place] = []
    for number, step in enumerate(program.steps):
        node = make_node(number, step, 0, number, number)
        before = {writer[name] for name in node.reads | node.writes if name in writer}
        for name in node.writes:
            before |= readers.pop(name, set())
            writer[name] = number
        for name in node.reads:
            readers.setdefault(name, set()).add(number)
        if isinstance(step, Extern) and step.ordered:
            before |= set() if effect is None else {effect}
            effect = number
        before.discard(number)
        touched = {owner for name in node.reads | node.writes for owner in behind.get(name, ())}
        places.append(Place(before, set(), node.reads | node.writes | touched))
        for earlier in before:
            places[earlier].after.add(number)
    return places


def _greedy(
    places: Sequence[Place],
    sizes: Mapping[str, int],
    kept: frozenset[str],
    passed: AbstractSet[str],
) -> list[int]:
    """Of the steps that can run, the one after which the fewest bytes are alive; the earliest
    of equal ones."""
    users: dict[str, int] = {}
    for place in places:
        for name in place.touched:
            users[name] = users.get(name, 0) + 1
    waiting = [len(place.before) for place in places]
    ready = {number for number, count in enumerate(waiting) if not count}
    alive = set(passed)
    order: list[int] = []

    def growth(number: int) -> tuple[int, int]:
        total = 0
        for name in places[number].touched:
            size = sizes.get(name, 0)
            total += size if name not in alive else 0
            total -= size if users[name] == 1 and name not in kept else 0
        return total, number

    while ready:
        chosen = min(ready, key=growth)
        ready.remove(chosen)
        order.append(chosen)
        for name in places[chosen].touched:
            alive.add(name)
            users[name] -= 1
        for after in places[chosen].after:
            waiting[after] -= 1
            if not waiting[after]:
                ready.add(after)
    return order


def _late(places: Sequence[Place]) -> list[int]:
    """Every step as close as possible before the first one that needs it."""
    waiting = [len(place.after) for place in places]
    ready = [number for number, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        chosen = ready.pop()
        order.append(chosen)
        for before in sorted(places[chosen].before):
            waiting[before] -= 1
            if not waiting[before]:
                ready.append(before)
    return order[::-1]
