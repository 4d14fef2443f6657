"""What the steps of a program do to memory, and what of it no legal program does.

Takes a program whose names and dtypes are in order; gives problems in plain words: accesses
beyond a buffer, elements read that no step wrote, points of one nest that write the same
element, views that leave their buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch

from .index import Index, Size, as_index, axes_of, flatten, row_major, unflatten
from .loops import (
    Buffer,
    Extern,
    Nest,
    Program,
    Scalar,
    Store,
    View,
    gathered,
    operands,
    scalars,
    views_in,
)
from .ranges import at_most
from .regions import (
    TRIED_POINTS,
    Box,
    beyond,
    collides,
    filled_box,
    leaves_out,
    outside,
    reached_box,
    tried,
    whole_box,
)
from .values import axes_for, decided

GIVEN = ("input", "constant", "extern")  # memory that is filled from outside


def traffic_problems(program: Program) -> Iterator[str]:
    """Problems step by step, in order of running."""
    memory = _Memory(program.buffers)
    for step in program.steps:
        if isinstance(step, Nest):
            yield from _nest(step, program.buffers, memory)
        else:
            yield from _extern(step, program.buffers, memory)
    for item in program.outputs:
        if isinstance(item, View):
            yield from _read_view("the output", item, program.buffers, memory)


class _Memory:
    """Which elements of each buffer have been written."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers = buffers
        self._full = {name for name, buffer in buffers.items() if buffer.role in GIVEN}
        self._boxes: dict[str, list[Box]] = {}
        self._odd: dict[str, list[tuple[Store, Nest]]] = {}

    def write(self, store: Store, nest: Nest) -> None:
        buffer = self._buffers[store.buffer]
        box = filled_box(store.index, buffer.shape)
        if box is None or store.mode != "set":
            self._odd.setdefault(store.buffer, []).append((store, nest))
        elif box == whole_box(buffer.shape):
            self._full.add(store.buffer)
        else:
            self._boxes.setdefault(store.buffer, []).append(box)

    def fill(self, name: str) -> None:
        self._full.add(name)

    def write_view(self, view: View) -> None:
        """All elements of a view; what it says of a buffer that is not dense is not known."""
        buffer = self._buffers[view.buffer]
        if 0 in view.shape:
            return
        if buffer.stride != row_major(buffer.shape):
            self.fill(view.buffer)
            return
        axes = axes_for(view.shape)
        place = flatten(tuple(map(as_index, axes)), view.stride, view.offset)
        store = Store(view.buffer, unflatten(place, buffer.shape), Scalar("const"))
        self.write(store, Nest("", axes, (), (store,)))

    def missing(self, name: str, wanted: Box) -> Box | None:
        """A part of `wanted` that nobody wrote, for certain."""
        if name in self._full:
            return None
        left = leaves_out(wanted, self._boxes.get(name, ()))
        odd = self._odd.get(name)
        if left is None or odd is None:
            return left
        return left if self._unmarked(name, wanted, odd) else None

    def _unmarked(self, name: str, wanted: Box, odd: list[tuple[Store, Nest]]) -> bool:
        """Whether elements of `wanted` stay unwritten when every store is tried out."""
        shape = self._buffers[name].shape
        if not wanted.static or not all(isinstance(size, int) for size in shape):
            return False
        marks = torch.zeros([int(size) for size in shape], dtype=torch.bool)
        if marks.numel() > TRIED_POINTS:
            return False
        for box in self._boxes.get(name, ()):
            marks[_slices(box)] = True
        for store, nest in odd:
            places = tried(store.index, (*nest.axes, *nest.raxes))
            if places is None:
                return False
            marks[tuple(places.T)] = True
        return not bool(marks[_slices(wanted)].all())


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(int(low), int(high)) for low, high in zip(box.low, box.high, strict=True))


def _nest(nest: Nest, buffers: Mapping[str, Buffer], memory: _Memory) -> Iterator[str]:
    own = {store.buffer for store in nest.stores}
    for scalar in scalars(nest):
        if scalar.op == "load":
            yield from _load(nest, scalar, buffers, memory, own)
    for store in nest.stores:
        yield from _store(nest, store, buffers[store.buffer])
    for first, second in combinations(nest.stores, 2):
        if first.buffer == second.buffer and _cross(first, second, buffers[first.buffer].shape):
            yield f"{nest.name}: two stores write the same elements of {first.buffer}"
    yield from _hazards(nest)
    for store in nest.stores:
        memory.write(store, nest)


def _load(
    nest: Nest, scalar: Scalar, buffers: Mapping[str, Buffer], memory: _Memory, own: set[str]
) -> Iterator[str]:
    name = str(scalar.buffer)
    shape = buffers[name].shape
    if scalar.args and decided(scalar.args[0]) is False:
        return  # it is never run
    wrong = beyond if scalar.args else outside  # a mask may keep the load inside
    for part, size in zip(scalar.index, shape, strict=True):
        if size != 0 and wrong(part, size):
            yield f"{nest.name}: {part} is outside a dim of {name}, {size}"
            return
    if scalar.args or name in own:
        return
    left = memory.missing(name, reached_box(scalar.index))
    if left is not None and 0 not in shape:
        yield f"{nest.name} reads {name} from {left.low} to {left.high}, which nobody wrote"


def _store(nest: Nest, store: Store, buffer: Buffer) -> Iterator[str]:
    for part, size in zip(store.index, buffer.shape, strict=True):
        if outside(part, size):
            yield f"{nest.name} stores at {part}, outside a dim of {buffer.name}, {size}"
            return
    if store.mode != "set":
        return
    moving = _moving(store)
    axes = [axis for axis in nest.axes if axis in moving]
    axes += [axis for axis in nest.raxes if axis in moving]
    if collides(store.index, buffer.shape, axes):
        yield f"{nest.name}: several points write the same element of {buffer.name}"


def _moving(store: Store) -> frozenset[Any]:
    """Axes along which the place or the value of a store changes; reduced ones do not pass a
    reduction, where every axis that is not reduced does."""
    found = {axis for part in store.index for axis in axes_of(part)}
    seen: set[int] = set()
    pending = [store.value, *gathered(store.index)]
    while pending:
        scalar = pending.pop()
        if id(scalar) in seen or scalar.op == "reduce":
            continue
        seen.add(id(scalar))
        found |= {axis for part in scalar.index for axis in axes_of(part)}
        pending += operands(scalar)
    return frozenset(found)


def _cross(first: Store, second: Store, shape: tuple[Size, ...]) -> bool:
    """Whether two stores surely write one element from different points, or in no order."""
    boxes = [filled_box(store.index, shape) for store in (first, second)]
    if "set" not in (first.mode, second.mode) or first.index == second.index:
        return False
    return boxes[0] is not None and boxes[1] is not None and boxes[0].meets(boxes[1])


def _hazards(nest: Nest) -> Iterator[str]:
    """Loads of what another point of the same nest overwrites."""
    stores = {store.buffer: store for store in nest.stores if store.mode == "set"}
    reduced = frozenset(nest.raxes)
    for scalar in scalars(nest):
        store = stores.get(scalar.buffer or "") if scalar.op == "load" else None
        if store is None or gathered((*scalar.index, *store.index)):
            continue
        pairs = list(zip(scalar.index, store.index, strict=True))
        apart = not reached_box(scalar.index).meets(reached_box(store.index))
        if not apart and not all(_alike(one, other, reduced) for one, other in pairs):
            yield f"{nest.name} reads elements of {store.buffer} that other points overwrite"


def _alike(one: Index, other: Index, reduced: frozenset[Any]) -> bool:
    """Whether two indices of a dim agree but for the place within a row."""
    return one == other or axes_of(one) | axes_of(other) <= reduced


def _extern(step: Extern, buffers: Mapping[str, Buffer], memory: _Memory) -> Iterator[str]:
    for view in views_in((step.args, tuple(step.kwargs.values()))):
        if view.buffer in step.mutates:
            yield from _view(step.name, view, buffers[view.buffer])
        else:
            yield from _read_view(step.name, view, buffers, memory)
    out = step.kwargs.get("out")
    parts = [out] if isinstance(out, View) and out.buffer in step.mutates else []
    for view in parts:
        memory.write_view(view)
    for name in {*step.outs, *step.mutates} - {view.buffer for view in parts}:
        if name is not None:
            memory.fill(name)


def _read_view(
    where: str, view: View, buffers: Mapping[str, Buffer], memory: _Memory
) -> Iterator[str]:
    buffer = buffers[view.buffer]
    yield from _view(where, view, buffer)
    if (view.shape, view.stride, view.offset) != (buffer.shape, buffer.stride, 0):
        return
    left = memory.missing(buffer.name, whole_box(buffer.shape))
    if left is not None:
        yield f"{where} reads {buffer.name} from {left.low} to {left.high}, which nobody wrote"


def _view(where: str, view: View, buffer: Buffer) -> Iterator[str]:
    """Whether the elements of a view are elements of the buffer's memory, for certain."""
    if 0 in view.shape:
        return
    last, end = _last(view.shape, view.stride, view.offset), _last(buffer.shape, buffer.stride, 0)
    if buffer.role == "input" and view.offset != 0:
        return  # an input may be a piece of something larger
    if at_most(view.offset, -1) or (0 not in buffer.shape and at_most(end + 1, last)):
        yield f"{where} looks at {buffer.name} from {view.offset} to {last}; it ends at {end}"


def _last(shape: tuple[Size, ...], stride: tuple[Size, ...], offset: Size) -> Size:
    total = offset
    for size, step in zip(shape, stride, strict=True):
        total = total + (size - 1) * step
    return total
