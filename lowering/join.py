"""Making one loop nest of two.

Takes the nests and how their points correspond; gives the joined nest. Nothing is asked
here about whether that is allowed: the fusion rules decide before.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from .domain import invert
from .index import Axis, Index, as_index
from .loops import Buffer, Builder, Nest, Scalar, Store
from .masking import Masked
from .pieces import side_by_side
from .relate import Relation
from .rewrite import Rewriter


class Joiner:
    """Joins nests whose scalars all come from one builder."""

    def __init__(self, builder: Builder, buffers: Mapping[str, Buffer]) -> None:
        self._builder = builder
        self._buffers = buffers

    def inline(
        self, producer: Nest, consumer: Nest, moved: Relation | None, kept: Container[str]
    ) -> tuple[Store, ...]:
        """The consumer's stores with each load of what a pointwise producer writes replaced
        by its computation there; before them the producer's own stores of `kept` buffers,
        placed by `moved`."""
        written = _by_buffer(producer.stores)

        def replace(load: Scalar) -> Scalar | None:
            store = written.get(load.buffer or "")
            return self._computed(producer, store, load) if store is not None else None

        stores: list[Store] = []
        if moved is not None:
            mover = self._rewriter(moved.guest)
            stores += [mover.store(s) for s in producer.stores if s.buffer in kept]
        parts = moved.host if moved is not None else {}
        writer = Rewriter(self._builder, parts, replace)
        return (*stores, *(writer.store(store) for store in consumer.stores))

    def together(
        self, producer: Nest, consumer: Nest, relation: Relation, kept: Container[str]
    ) -> tuple[Store, ...]:
        """The stores of both over the joined axes. Loads in the consumer of what the producer
        writes become the value, taken as computed at the same point."""
        mover = self._rewriter(relation.guest)
        moved = [mover.store(store) for store in producer.stores]
        values = _by_buffer(moved)

        def replace(load: Scalar) -> Scalar | None:
            store = values.get(load.buffer or "")
            return self._guarded(load, self._as_read(store, load)) if store else None

        writer = Rewriter(self._builder, relation.host, replace)
        stores = [writer.store(store) for store in consumer.stores]
        return (*(store for store in moved if store.buffer in kept), *stores)

    def side_by_side(self, first: Nest, second: Nest) -> tuple[tuple[Axis, ...], Store]:
        """Axes and store of the nest that fills both regions, which touch."""
        return side_by_side(first, second, self._buffers, self._builder)

    def _computed(self, producer: Nest, store: Store, load: Scalar) -> Scalar:
        """The value of `store` at the element that `load` reads."""
        assert load.buffer is not None
        shape = self._buffers[load.buffer].shape
        places = {axis: Index() for axis in producer.axes}
        places |= invert(store.index, shape, producer.axes).at(load.index)
        if not load.args and all(place == as_index(axis) for axis, place in places.items()):
            return self._as_read(store, load)
        mask = load.args[0] if load.args else None
        value = Rewriter(self._builder, places, self._masked(mask)).scalar(store.value)
        return self._guarded(load, self._as_read(Store(store.buffer, (), value), load))

    def _masked(self, mask: Scalar | None) -> Masked | None:
        return Masked(self._builder, mask) if mask is not None else None

    def _as_read(self, store: Store, load: Scalar) -> Scalar:
        """Storing rounds to the dtype of the buffer, and so must reading without storing."""
        stored = self._buffers[store.buffer].dtype
        return self._builder.cast(self._builder.cast(store.value, stored), load.dtype)

    def _guarded(self, load: Scalar, value: Scalar) -> Scalar:
        """`value` where the load was masked in, its replacement value elsewhere."""
        if not load.args:
            return value
        mask, other = load.args
        return self._builder.make("where", (mask, value, other), load.dtype)

    def _rewriter(self, places: Mapping[Axis, Index]) -> Rewriter:
        return Rewriter(self._builder, places)


def merged(producer: Nest, consumer: Nest, order: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Origins of both in graph order, and rules of both."""
    origins = dict.fromkeys((*producer.origins, *consumer.origins))
    rules = dict.fromkeys((*producer.rules, *consumer.rules))
    return tuple(sorted(origins, key=lambda name: order.get(name, 0))), tuple(rules)


def _by_buffer(stores: Sequence[Store]) -> dict[str, Store]:
    return {store.buffer: store for store in stores}
