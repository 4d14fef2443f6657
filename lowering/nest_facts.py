"""What the facts of fusion rules ask about one loop nest.

Takes a nest or a piece of one; gives which axes it depends on, what it costs, and whether its
points may run in any order although it overwrites what it reads.
"""

from __future__ import annotations

from .index import Axis, Index, axes_of
from .loops import Nest, Scalar, Store, gathered, operands, scalars

# Scalar ops that cost about as much as ten others.
COSTLY = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin"),
    *("acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "atan2", "erf"),
    *("erfc", "sigmoid", "pow", "lgamma", "digamma", "erfinv", "hypot", "fmod", "remainder"),
}
FREE = {"load", "const", "index", "cast"}


def axes_behind(index: tuple[Index, ...]) -> set[Axis]:
    """Axes of an index, those that gathered values depend on included."""
    found = {axis for part in index for axis in axes_of(part)}
    for scalar in gathered(index):
        for inner in _below(scalar):
            found |= {axis for part in inner.index for axis in axes_of(part)}
    return found


def _below(scalar: Scalar) -> list[Scalar]:
    return scalars(Nest("", (), (), (Store("", (), scalar),)))


def cost(scalar: Scalar) -> int:
    """Scalar operations; a transcendental counts as ten."""
    if scalar.op in FREE:
        return 0
    return 10 if scalar.op in COSTLY else 1


def reads_before_writes(nest: Nest) -> bool:
    """Whether each point loads from memory the nest overwrites only at its own element."""
    loads: dict[str, list[Scalar]] = {}
    for scalar in scalars(nest):
        if scalar.op == "load" and scalar.buffer is not None:
            loads.setdefault(scalar.buffer, []).append(scalar)
    for store in nest.stores:
        reads = loads.get(store.buffer, [])
        if not reads:
            continue
        if store.mode != "set" or not _has_own_place(store, nest):
            return False
        if any(load.index != store.index for load in reads):
            return False
    return True


def _has_own_place(store: Store, nest: Nest) -> bool:
    """Whether no other point writes what a point writes; where the place says nothing of the
    reduced axes, every row writes once."""
    rows, columns = (
        {axis for axis in group if axis.size != 1} for group in (nest.axes, nest.raxes)
    )
    places = _plain_axes(store.index)
    once = columns.isdisjoint(axes_behind(store.index) | _varying(store.value))
    return rows <= places and (columns <= places or once)


def _varying(value: Scalar) -> set[Axis]:
    """The axes along which a value changes, without those that are reduced on the way."""
    found: set[Axis] = set()
    stack, seen = [value], set[int]()
    while stack:
        scalar = stack.pop()
        if scalar.op == "reduce" or id(scalar) in seen:
            continue
        seen.add(id(scalar))
        found |= {axis for part in scalar.index for axis in axes_of(part)}
        stack += operands(scalar)
    return found


def _plain_axes(index: tuple[Index, ...]) -> set[Axis]:
    """Axes that are dims of an index by themselves."""
    parts = [part.terms[0][0] for part in index if len(part.terms) == 1]
    return {atom for atom in parts if isinstance(atom, Axis)}
