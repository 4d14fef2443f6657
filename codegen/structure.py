"""When two nests are the same but for the names of their buffers.

Takes a nest and its buffers; gives a hashable key and the buffer names in the key's order.
Nests with equal keys get equal kernels, so a layer that occurs twelve times is emitted once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ..lowering.index import ASSERTED, Axis, Gathered, Index, Quotient, Remainder
from ..lowering.loops import Buffer, Nest, Scalar, scalars


def structure(nest: Nest, buffers: Mapping[str, Buffer]) -> tuple[Hashable, tuple[str, ...]]:
    """(key, buffer names): nests with one key differ only in these names."""
    reader = _Reader()
    values = tuple(map(reader.scalar, scalars(nest)))
    stores = tuple(
        (
            reader.buffer(store.buffer),
            tuple(map(reader.index, store.index)),
            reader.numbers[id(store.value)],
            store.mode,
        )
        for store in nest.stores
    )
    names = tuple(reader.buffers)
    layouts = tuple(
        (found.dtype, found.shape, found.stride) for found in map(buffers.__getitem__, names)
    )
    return (nest.axes, nest.raxes, values, stores, layouts), names


class _Reader:
    """Numbers scalars and buffers in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.buffers: dict[str, int] = {}

    def buffer(self, name: str) -> int:
        return self.buffers.setdefault(name, len(self.buffers))

    def scalar(self, scalar: Scalar) -> Hashable:
        """`scalar` with its operands as numbers; they have been read already."""
        key = (
            scalar.op,
            tuple(self.numbers[id(part)] for part in scalar.args),
            scalar.dtype,
            None if scalar.buffer is None else self.buffer(scalar.buffer),
            tuple(map(self.index, scalar.index)),
            type(scalar.value).__name__,
            repr(scalar.value),  # tells -0.0 from 0.0 and finds nan equal to itself
        )
        self.numbers[id(scalar)] = len(self.numbers)
        return key

    def index(self, index: Index) -> Hashable:
        return tuple((self._atom(atom), size) for atom, size in index.terms), index.const

    def _atom(self, atom: Any) -> Hashable:
        match atom:
            case Axis():
                return atom
            case Quotient(value=value, divisor=divisor):
                return "//", self.index(value), divisor
            case Remainder(value=value, divisor=divisor):
                return "%", self.index(value), divisor
            case Gathered(scalar=scalar, size=size, guard=guard):  # a flag is no part of the kernel
                return "[]", self.numbers[id(scalar)], size, guard == ASSERTED
        raise TypeError(f"unknown atom {atom!r}")
