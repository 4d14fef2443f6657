"""Where the temporary buffers of a program live.

Takes a `Program`; gives a `MemoryPlan`: when each buffer of role "temp" is first and last
used, and which buffers may take over the memory of another one in place. Offsets into
the arena are made by `MemoryPlan.assign` once sizes are known, so that one plan serves all
shapes.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..engine.dtypes import dtype_of
from .dependence import lent, make_node
from .domain import product
from .index import Axis, Index, axes_of, flatten
from .loops import Buffer, Nest, Program, Scalar, Step, Store, View, gathered, operands, scalars

ALIGNMENT = 64


@dataclass(frozen=True)
class Moment:
    """What one step allocates before it runs and frees after it ran."""

    allocates: tuple[str, ...]
    frees: tuple[str, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """`moments` has one entry per step. `reuse` maps a buffer to the one whose memory it
    takes over in place, where both turn out to have the same size."""

    moments: tuple[Moment, ...]
    reuse: Mapping[str, str]

    def assign(self, sizes_in_bytes: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """Byte offsets of all temporary buffers and the size of the arena.

        Each request goes to the smallest hole that holds it. Offsets are multiples of 64.
        """
        arena = _Arena()
        offsets: dict[str, int] = {}
        handed: set[str] = set()
        for moment in self.moments:
            for name in moment.allocates:
                old = self.reuse.get(name)
                if old is not None and sizes_in_bytes[old] == sizes_in_bytes[name]:
                    offsets[name] = offsets[old]
                    handed.add(old)
                else:
                    offsets[name] = arena.take(_rounded(sizes_in_bytes[name]))
            for name in moment.frees:
                if name not in handed:
                    arena.give(offsets[name], _rounded(sizes_in_bytes[name]))
        return offsets, arena.size


@dataclass
class _Arena:
    """Free stretches as (offset, size), by offset; everything past `size` is free too."""

    holes: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0

    def take(self, size: int) -> int:
        if size == 0:
            return 0
        fitting = [hole for hole in self.holes if hole[1] >= size]
        if fitting:
            offset, room = min(fitting, key=lambda hole: (hole[1], hole[0]))
            self.holes.remove((offset, room))
            if room > size:
                bisect.insort(self.holes, (offset + size, room - size))
            return offset
        offset = self.size
        if self.holes and sum(self.holes[-1]) == self.size:
            offset = self.holes.pop()[0]
        self.size = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        if size == 0:
            return
        place = bisect.bisect(self.holes, (offset, size))
        if place < len(self.holes) and self.holes[place][0] == offset + size:
            size += self.holes.pop(place)[1]
        if place and sum(self.holes[place - 1]) == offset:
            before, room = self.holes.pop(place - 1)
            offset, size = before, room + size
        bisect.insort(self.holes, (offset, size))


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def plan(program: Program) -> MemoryPlan:
    """Lifetimes and in-place takeovers of the temporary buffers of `program`."""
    temps = {name for name, buffer in program.buffers.items() if buffer.role == "temp"}
    first, last = _lifetimes(program, temps)
    moments = []
    reuse: dict[str, str] = {}
    born: list[list[str]] = [[] for _ in program.steps]
    dying: list[list[str]] = [[] for _ in program.steps]
    for name in sorted(first, key=lambda name: (first[name], name)):
        born[first[name]].append(name)
        if last[name] < len(program.steps):
            dying[last[name]].append(name)
    for step, news, olds in zip(program.steps, born, dying, strict=True):
        if isinstance(step, Nest):
            reuse |= _takeovers(step, news, olds, program.buffers)
        moments.append(Moment(tuple(news), tuple(olds)))
    return MemoryPlan(tuple(moments), reuse)


def taken_over(program: Program, allocated: Collection[str]) -> dict[str, str]:
    """Temporary buffers that a nest writes where another buffer dies: one of `allocated`, which
    calls give in memory of their own, or one that took over such memory before."""
    temps = {name for name, buffer in program.buffers.items() if buffer.role == "temp"}
    first, last = _lifetimes(program, temps.union(allocated))
    born: dict[int, list[str]] = {}
    for name in sorted(temps & first.keys()):
        born.setdefault(first[name], []).append(name)
    owned = set(allocated)
    found: dict[str, str] = {}
    for place, step in enumerate(program.steps):
        if not isinstance(step, Nest) or place not in born:
            continue
        dying = sorted(name for name in _touched(step) & owned if last[name] == place)
        for new, old in _takeovers(step, born[place], dying, program.buffers).items():
            if program.buffers[new].dtype == program.buffers[old].dtype:
                found[new] = old
                owned.add(new)
    return found


def _lifetimes(program: Program, temps: set[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The steps that touch each buffer first and last; past the end for results."""
    borrowed = lent(program.steps)
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def touch(names: Iterable[str], place: int) -> None:
        for name in names:
            for owner in {name, *borrowed.get(name, ())} & temps:
                first.setdefault(owner, place)
                last[owner] = place

    for place, step in enumerate(program.steps):
        touch(sorted(_touched(step)), place)
    touch((v.buffer for v in program.outputs if isinstance(v, View)), len(program.steps))
    return first, last


def _touched(step: Step) -> frozenset[str]:
    node = make_node(0, step, 0, 0, 0)
    return node.reads | node.writes


def _takeovers(
    nest: Nest, news: Iterable[str], olds: Iterable[str], buffers: Mapping[str, Buffer]
) -> dict[str, str]:
    """Which of the new buffers may lie where an old one dies in this nest."""
    loads: dict[str, list[Scalar]] = {}
    for scalar in scalars(nest):
        if scalar.op == "load" and scalar.buffer is not None:
            loads.setdefault(scalar.buffer, []).append(scalar)
    stores = {store.buffer: store for store in nest.stores}
    free = [name for name in olds if name in loads and name not in stores]
    found: dict[str, str] = {}
    for new in news:
        store = stores.get(new)
        if store is None or new in loads or not _writes_last(nest, store):
            continue
        for old in free:
            if _feeds_only(nest, store, loads[old]) and _same_element(store, loads[old], buffers):
                found[new] = old
                free.remove(old)
                break
    return found


def _feeds_only(nest: Nest, store: Store, loads: list[Scalar]) -> bool:
    """Whether what is loaded goes into that store alone, or into reductions that it waits
    for. The C++ compiler takes the two buffers to be apart, so it may run the loop of another
    store, or of a sum, after that of this one."""
    awaited = {id(s) for s in scalars(replace(nest, stores=(store,))) if s.op == "reduce"}
    wanted = {id(load) for load in loads}
    pending = [other.value for other in nest.stores if other is not store]
    pending += [part for other in nest.stores for part in gathered(other.index)]
    seen: set[int] = set()
    while pending:
        scalar = pending.pop()
        if id(scalar) in seen or id(scalar) in awaited:
            continue
        if id(scalar) in wanted:
            return False
        seen.add(id(scalar))
        pending += operands(scalar)
    return True


def _same_element(store: Store, loads: list[Scalar], buffers: Mapping[str, Buffer]) -> bool:
    """Whether every load reads exactly the bytes the store writes at the same point."""
    new, old = buffers[store.buffer], buffers[str(loads[0].buffer)]
    if dtype_of(new.dtype).itemsize != dtype_of(old.dtype).itemsize:
        return False
    if new.device != old.device or product(new.shape) != product(old.shape):
        return False
    place = flatten(store.index, new.stride)
    return all(flatten(load.index, old.stride) == place for load in loads)


def _writes_last(nest: Nest, store: Store) -> bool:
    """Whether each element is written by one point, in the last inner loop over its row.

    A nest with reductions runs one inner loop after the other; an earlier loop must not
    overwrite what a later one reads again.
    """
    box = {axis for axis in (*nest.axes, *nest.raxes) if axis.size != 1}
    if store.mode != "set" or not box <= _axes(store.index):
        return False
    if sum(other.buffer == store.buffer for other in nest.stores) > 1:
        return False
    passes = _passes(nest)
    own = passes[id(store.value)]
    inner = [passes[id(s.args[0])] for s in scalars(nest) if s.op == "reduce"]
    return all(number <= own for number in (*inner, *(passes[id(s.value)] for s in nest.stores)))


def _passes(nest: Nest) -> dict[int, int]:
    """Per scalar, how many inner loops must have ended before it can be computed."""
    found: dict[int, int] = {}
    for scalar in scalars(nest):
        below = [found[id(part)] + (part.op == "reduce") for part in operands(scalar)]
        found[id(scalar)] = max(below, default=0)
    return found


def _axes(index: tuple[Index, ...]) -> set[Axis]:
    return {axis for part in index for axis in axes_of(part)}
