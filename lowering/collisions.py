"""Stores of which several points may write to one element.

Takes stores and nests; finds the axes along which points may collide. Along those a nest runs
in order, the others may be shared out among threads and lanes.
"""

from __future__ import annotations

from collections.abc import Mapping

from .index import Axis, Gathered, Index, Size, atoms, axes_of, flatten, row_major
from .loops import Buffer, Nest, Store, gathered


def scatters(store: Store) -> bool:
    """Whether several points may write to one element, or what was there before counts."""
    return store.mode != "set" or bool(gathered(store.index))


def own_places(written: tuple[Index, ...], shape: tuple[Size, ...]) -> frozenset[Axis]:
    """Axes of which every value has elements of its own: dims that mention no other axis tell
    its place."""
    dims: dict[Axis, list[int]] = {}
    for dim, part in enumerate(written):
        axes = axes_of(part)
        if len(axes) == 1 and not any(isinstance(atom, Gathered) for atom in atoms(part)):
            dims.setdefault(next(iter(axes)), []).append(dim)
    found = set()
    for axis, places in dims.items():
        strides = row_major(tuple(shape[dim] for dim in places))
        terms = flatten(tuple(written[dim] for dim in places), strides).terms
        if len(terms) == 1 and terms[0][0] == axis:
            found.add(axis)
    return frozenset(found)


def private_axes(nest: Nest, buffers: Mapping[str, Buffer]) -> frozenset[Axis] | None:
    """None where no two points write to one element; else the axes of which every value has
    elements of its own."""
    colliding = [store for store in nest.stores if scatters(store)]
    if not colliding:
        return None
    every = frozenset((*nest.axes, *nest.raxes))
    own = (own_places(store.index, buffers[store.buffer].shape) for store in colliding)
    return every.intersection(*own)


def shared_axes(nest: Nest, buffers: Mapping[str, Buffer]) -> tuple[Axis, ...]:
    """The axes along which points may write to one element."""
    private = private_axes(nest, buffers)
    if private is None:
        return ()
    every = (*nest.axes, *nest.raxes)
    return tuple(axis for axis in every if axis not in private and axis.size != 1)
