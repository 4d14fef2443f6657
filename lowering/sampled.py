"""Places computed in floats that are plain arithmetic after all: those of enlarged images.

Takes a loop nest; gives one whose loads walk through memory where a table of the places shows
that they do. `(int)(i * 0.5)` for i below 112 is i // 2, which a reader can cut into pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..engine.dtypes import dtype_of
from ..engine.loop_choices import LoopChoices
from .index import Axis, Gathered, Index, as_index, atoms, axes_of, floor_div
from .loops import Builder, Nest, Scalar, Store, scalars
from .meanings import MEANINGS
from .rewrite import Rewriter

REPEATS = (2, 3, 4)  # how often neighbours may read one place


def with_plain_places(nest: Nest, builder: Builder, loops: LoopChoices) -> Nest:
    """`nest` with gathered indices of loads replaced by arithmetic where that is the same; `loops`
    says how large a table of them may be."""
    found: dict[Gathered, Index] = {}
    for scalar in scalars(nest):
        if scalar.op != "load":
            continue
        for part in scalar.index:
            for atom in atoms(part):
                if isinstance(atom, Gathered) and not atom.guard and atom not in found:
                    place = plain_place(atom.scalar, loops)
                    if place is not None:
                        found[atom] = place
    if not found:
        return nest
    writer = _Settled(builder, found)
    stores = tuple(writer.store(store) for store in nest.stores)
    return Nest(nest.name, nest.axes, nest.raxes, stores, nest.origins, nest.rules)


class _Settled(Rewriter):
    """Puts known indices in place of gathered ones."""

    def __init__(self, builder: Builder, known: Mapping[Gathered, Index]) -> None:
        super().__init__(builder, {})
        self._known = known

    def replaced(self, atom: Gathered) -> Index:
        return self._known.get(atom) or super().replaced(atom)


def plain_place(scalar: Scalar, loops: LoopChoices) -> Index | None:
    """`scalar`, an integer that depends on one axis alone, as `axis // n` or `axis * n + m`."""
    below = scalars(Nest("", (), (), (Store("", (), scalar),)))
    axes = {axis for one in below for part in one.index for axis in axes_of(part)}
    if len(axes) != 1 or len(below) > loops.table_scalars:
        return None
    (axis,) = axes
    size = axis.size
    if not isinstance(size, int) or not 2 <= size <= loops.table_places:
        return None
    with unset_fake_temporarily():  # AOTAutograd compiles under its fake mode
        table = _table(below, axis, size)
        return None if table is None else _walk(table, axis, size)


def _walk(table: torch.Tensor, axis: Axis, size: int) -> Index | None:
    """The arithmetic that gives the places in a table."""
    points = torch.arange(size)
    for count in REPEATS:
        if torch.equal(table, points // count):
            return floor_div(as_index(axis), count)
    first, step = int(table[0]), int(table[1] - table[0])
    if step and torch.equal(table, points * step + first):
        return as_index(axis) * step + first
    return None


def _table(below: list[Scalar], axis: Axis, size: int) -> torch.Tensor | None:
    """The value at every point of the axis; None where more than arithmetic decides it."""
    values: dict[int, torch.Tensor] = {}
    for one in below:
        dtype = dtype_of(one.dtype)
        match one.op:
            case "index":
                (index,) = one.index
                if [atom for atom, _ in index.terms if atom != axis]:
                    return None
                factor = index.coefficient(axis)
                if not isinstance(factor, int) or not isinstance(index.const, int):
                    return None
                values[id(one)] = torch.arange(size) * factor + index.const
            case "const":
                values[id(one)] = torch.tensor(one.value, dtype=dtype)
            case "cast":
                values[id(one)] = values[id(one.args[0])].to(dtype)
            case "load" | "reduce" | "scan":
                return None
            case _:
                values[id(one)] = MEANINGS[one.op](*(values[id(arg)] for arg in one.args))
    return values[id(below[-1])].expand(size)
