"""Reductions of few long rows or columns, shared out among more programs.

Takes a program; gives one in which such a nest is two: the first reduces stretches, with as many
programs as the GPU wants, the second reduces what those found and goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from ...engine.block_choices import BlockChoices
from ...engine.target import load_target
from ...lowering.domain import points
from ...lowering.index import Axis, Gathered, Index, Size, as_index, row_major, unflatten
from ...lowering.loops import Buffer, Builder, Nest, Program, Scalar, Step, Store, scalars
from ...lowering.rewrite import Rewriter
from ..passes import analyse
from .tiles import tile


def split_reductions(program: Program, blocks: BlockChoices | None = None) -> Program:
    """`program` with the reductions of GPUs split where that fills more of the GPU."""
    choices = blocks or load_target("h200").blocks
    buffers = dict(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        split = None
        if isinstance(step, Nest) and buffers[step.stores[0].buffer].device != "cpu":
            split = split_nest(step, buffers, choices)
        if split is None:
            steps.append(step)
        else:
            buffers |= {buffer.name: buffer for buffer in split.parts}
            steps += [split.first, split.second]
    return replace(program, buffers=buffers, steps=tuple(steps))


@dataclass(frozen=True)
class Split:
    """`parts` are new buffers that hold what `first` finds and `second` reads."""

    first: Nest
    second: Nest
    parts: tuple[Buffer, ...]


def split_nest(nest: Nest, buffers: Mapping[str, Buffer], choices: BlockChoices) -> Split | None:
    """The two nests that do what `nest` does; None where it is no plain reduction, or has
    programs enough."""
    pieces = _pieces(nest, buffers, choices) if _is_plain(nest) else 1
    if pieces <= 1:
        return None
    length = points(nest.raxes)
    assert isinstance(length, int)
    return _Splitter(nest, buffers, pieces, length // pieces).split()


def _is_plain(nest: Nest) -> bool:
    """Whether all that varies along the reduced axes goes into reductions of one level."""
    if not nest.raxes or any(scalar.op == "scan" for scalar in scalars(nest)):
        return False
    analysis = analyse(nest)
    row = frozenset(nest.raxes)
    if any(analysis.store_axes(store) & row or store.mode != "set" for store in nest.stores):
        return False
    reductions = [scalar for scalar in analysis.order if scalar.op == "reduce"]
    return bool(reductions) and all(analysis.level[id(scalar)] == 0 for scalar in reductions)


def _pieces(nest: Nest, buffers: Mapping[str, Buffer], choices: BlockChoices) -> int:
    """Into how many equal stretches to cut the reduced points."""
    sizes = [axis.size for axis in (*nest.axes, *nest.raxes)]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return 1
    outer = tile(nest, buffers, choices).tiling.outer
    running = prod(-(-int(block.axis.size) // block.size) for block in outer)
    length = points(nest.raxes)
    assert isinstance(length, int)
    most = min(choices.programs // running, length // choices.least_piece)
    return next((count for count in range(most, 1, -1) if length % count == 0), 1)


class _Splitter:
    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer], pieces: int, length: int) -> None:
        self._nest = nest
        self._device = buffers[nest.stores[0].buffer].device
        self._taken = set(buffers)
        self._piece, self._step = Axis("piece", pieces), Axis("step", length)
        self._builder = Builder()
        flat = as_index(self._piece) * length + as_index(self._step)
        sizes = tuple(axis.size for axis in nest.raxes)
        places = dict(zip(nest.raxes, unflatten(flat, sizes), strict=True))
        self._first = Rewriter(self._builder, places)
        self._stores: list[Store] = []
        self._parts: list[Buffer] = []

    def split(self) -> Split:
        nest = self._nest
        writer = _Joined(self._builder, self._join)
        stores = tuple(writer.store(store) for store in nest.stores)
        axes = (self._piece, *nest.axes)
        first = Nest(f"{nest.name}_parts", axes, (self._step,), tuple(self._stores))
        first = replace(first, origins=nest.origins, rules=nest.rules)
        second = replace(nest, raxes=(self._piece,), stores=stores)
        return Split(first, second, tuple(self._parts))

    def _join(self, reduction: Scalar) -> Scalar:
        """What the second nest computes in place of a reduction of the first one."""
        kind = str(reduction.value)
        value = self._first.scalar(reduction.args[0])
        if not kind.startswith("arg"):
            part = self._reduce(kind, value, reduction.dtype)
            return self._reduce(kind, self._kept(part), reduction.dtype)
        best = self._reduce(kind.removeprefix("arg"), value, value.dtype)
        place = self._reduce(kind, value, "i64")
        first = as_index(self._piece) * self._step.size
        start = self._builder.make("index", (), "i64", index=(first,))
        place = self._kept(self._builder.make("add", (place, start), "i64"))
        piece = self._reduce(kind, self._kept(best), "i64")
        where = Index(((Gathered(piece, self._piece.size), 1),))
        found = self._builder.make(
            "load", (), "i64", buffer=place.buffer, index=(where, *place.index[1:])
        )
        return self._builder.cast(found, reduction.dtype)

    def _reduce(self, kind: str, value: Scalar, dtype: str) -> Scalar:
        return self._builder.make("reduce", (value,), dtype, value=kind)

    def _kept(self, part: Scalar) -> Scalar:
        """Has the first nest store `part`; gives the load of it."""
        axes = (self._piece, *self._nest.axes)
        shape: tuple[Size, ...] = tuple(axis.size for axis in axes)
        name = f"{self._nest.name}_part{len(self._parts)}"
        while name in self._taken:
            name += "_"
        buffer = Buffer(name, part.dtype, shape, row_major(shape), "temp", self._device)
        self._parts.append(buffer)
        index = tuple(as_index(axis) for axis in axes)
        self._stores.append(Store(name, index, part))
        return self._builder.load(buffer, index)


class _Joined(Rewriter):
    """Copies scalars with something else in place of reductions."""

    def __init__(self, builder: Builder, join: Callable[[Scalar], Scalar]) -> None:
        super().__init__(builder, {})
        self._join = join

    def _make(self, scalar: Scalar) -> Scalar:
        return self._join(scalar) if scalar.op == "reduce" else super()._make(scalar)
