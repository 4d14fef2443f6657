"""Copies of scalars with other axes, and with loads replaced.

Takes a scalar or an index, and where each axis goes; gives the scalar made anew in a builder,
gathered indices included. Nothing here recurses over the scalars: a fused chain may be
thousands deep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .index import Axis, Gathered, Index, as_index, atoms, substitute
from .loops import Builder, Nest, Scalar, Store, gathered, operands

Replace = Callable[[Scalar], Scalar | None]


class Rewriter:
    """Rewrites many scalars with one memo.

    `places` says where axes go (others stay). `replace` is asked about every load after its
    index, mask and gathered indices are rewritten, and gives the scalar to put there, or None
    to keep the load.
    """

    def __init__(
        self, builder: Builder, places: Mapping[Axis, Index], replace: Replace | None = None
    ) -> None:
        self._builder = builder
        self._places = places
        self._replace = replace
        self._done: dict[int, Scalar] = {}
        self._kept: list[Scalar] = []  # keeps ids in `_done` from being reused

    def scalar(self, scalar: Scalar) -> Scalar:
        stack = [(scalar, False)]
        while stack:
            current, ready = stack.pop()
            if id(current) in self._done:
                continue
            if ready:
                self._done[id(current)] = self._make(current)
                self._kept.append(current)
            else:
                stack.append((current, True))
                stack += [(part, False) for part in operands(current)]
        return self._done[id(scalar)]

    def index(self, index: tuple[Index, ...]) -> tuple[Index, ...]:
        if not self._places and not gathered(index):
            return index
        return tuple(self._place(part) for part in index)

    def store(self, store: Store) -> Store:
        return Store(store.buffer, self.index(store.index), self.scalar(store.value), store.mode)

    def _place(self, value: Index) -> Index:
        gathers = {atom: self.replaced(atom) for atom in atoms(value) if isinstance(atom, Gathered)}
        return substitute(value, self._places, gathers)

    def replaced(self, atom: Gathered) -> Index:
        """The index to put in place of one that is read from data."""
        return gather(self.scalar(atom.scalar), atom)

    def _make(self, scalar: Scalar) -> Scalar:
        made = self._builder.make(
            scalar.op,
            tuple(self._done[id(arg)] for arg in scalar.args),
            scalar.dtype,
            buffer=scalar.buffer,
            index=self.index(scalar.index),
            value=scalar.value,
        )
        if scalar.op == "load" and self._replace is not None:
            return self._replace(made) or made
        return made


def gather(scalar: Scalar, like: Gathered) -> Index:
    """The index that reads `scalar`: plain arithmetic where it is an index value within
    bounds, else a gathered atom of the size and with the guard of `like`."""
    if scalar.op == "index":
        return scalar.index[0]
    if scalar.op == "const":
        return as_index(int(scalar.value))
    return Index(((Gathered(scalar, like.size, like.guard), 1),))


def rewrite(
    scalar: Scalar,
    builder: Builder,
    places: Mapping[Axis, Index],
    replace: Replace | None = None,
) -> Scalar:
    """`scalar` with axes moved to `places` and loads replaced; see `Rewriter`."""
    return Rewriter(builder, places, replace).scalar(scalar)


def rewrite_nest(
    nest: Nest,
    builder: Builder,
    places: Mapping[Axis, Index],
    axes: tuple[Axis, ...],
    raxes: tuple[Axis, ...],
    replace: Replace | None = None,
) -> Nest:
    """`nest` over new axes, every store rewritten with one memo."""
    writer = Rewriter(builder, places, replace)
    stores = tuple(writer.store(store) for store in nest.stores)
    return Nest(nest.name, axes, raxes, stores, nest.origins, nest.rules)
