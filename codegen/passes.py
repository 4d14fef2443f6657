"""What a nest needs computed where: passes by reduction level, and what each value varies along.

Takes a `Nest`; gives an `Analysis`. The level of a value is the number of reductions on its
deepest path; a nest is emitted as one pass over the reduced axes per level, since a value of
level n may only be read once all reductions of level n - 1 are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ..lowering.index import Axis, Index, axes_of
from ..lowering.loops import Nest, Scalar, Store, gathered, operands, scalars


@dataclass(frozen=True)
class Analysis:
    """Keys are `id(scalar)`; `order` keeps every scalar alive, operands first."""

    order: tuple[Scalar, ...]
    level: dict[int, int]
    varies: dict[int, frozenset[Axis]]
    store_level: tuple[int, ...]  # per store of the nest
    passes: int

    def in_order(self, wanted: Collection[int]) -> list[Scalar]:
        return [scalar for scalar in self.order if id(scalar) in wanted]

    def store_axes(self, store: Store) -> frozenset[Axis]:
        """Axes along which the place or the value of a store changes."""
        return self.varies[id(store.value)] | self.index_axes(store.index)

    def index_axes(self, index: tuple[Index, ...]) -> frozenset[Axis]:
        axes: frozenset[Axis] = frozenset()
        for part in index:
            axes |= axes_of(part)
        for scalar in gathered(index):
            axes |= self.varies[id(scalar)]
        return axes


def ready_level(scalar: Scalar, level: dict[int, int]) -> int:
    """The first pass that may read `scalar`."""
    return level[id(scalar)] + (scalar.op == "reduce")


def analyse(nest: Nest) -> Analysis:
    """Levels and dependences of every scalar and store of `nest`."""
    order = tuple(scalars(nest))
    level: dict[int, int] = {}
    varies: dict[int, frozenset[Axis]] = {}
    reduced = frozenset(nest.raxes)
    for scalar in order:
        level[id(scalar)] = max((ready_level(o, level) for o in operands(scalar)), default=0)
        axes: frozenset[Axis] = frozenset()
        for operand in operands(scalar):
            axes |= varies[id(operand)]
        for part in scalar.index:
            axes |= axes_of(part)
        if scalar.op == "scan":
            axes |= reduced
        varies[id(scalar)] = axes - reduced if scalar.op == "reduce" else axes
    stores = _store_levels(nest, order, level)
    reductions = [level[id(s)] + 1 for s in order if s.op == "reduce"]
    passes = 1 + max([*stores, *(last - 1 for last in reductions)], default=0)
    return Analysis(order, level, varies, stores, passes)


def _store_levels(nest: Nest, order: tuple[Scalar, ...], level: dict[int, int]) -> tuple[int, ...]:
    """A store waits for its value, and for every pass that still reads what it overwrites."""
    last_read: dict[str, int] = {}
    written = {store.buffer for store in nest.stores}
    beneath: dict[int, frozenset[str]] = {}
    for scalar in order:
        reads = frozenset({scalar.buffer} & written) if scalar.op == "load" else frozenset()
        for operand in operands(scalar):
            if operand.op != "reduce":
                reads |= beneath[id(operand)]
        beneath[id(scalar)] = frozenset(name for name in reads if name is not None)
        if scalar.op == "reduce":
            for name in beneath[id(scalar)]:
                last_read[name] = max(last_read.get(name, 0), level[id(scalar)])
    own = [
        max(ready_level(part, level) for part in (store.value, *gathered(store.index)))
        for store in nest.stores
    ]
    for store, at in zip(nest.stores, own, strict=True):
        for name in beneath[id(store.value)] if store.value.op != "reduce" else ():
            last_read[name] = max(last_read.get(name, 0), at)
    return tuple(
        max(at, last_read.get(store.buffer, 0)) for store, at in zip(nest.stores, own, strict=True)
    )


def needed(roots: Iterable[Scalar], stop: Callable[[Scalar], bool]) -> set[int]:
    """Ids of `roots` and all beneath them; neither reductions nor `stop` values are entered
    or included."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        scalar = stack.pop()
        if scalar.op == "reduce" or id(scalar) in found or stop(scalar):
            continue
        found.add(id(scalar))
        stack += operands(scalar)
    return found


def store_roots(stores: Iterable[Store]) -> list[Scalar]:
    return [part for store in stores for part in (store.value, *gathered(store.index))]
