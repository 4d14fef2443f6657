"""Short reductions written out: a sum over three elements is two additions.

Takes the steps of a program; gives them with nests that have no reduced axes where these had few
points, known when they are compiled. Such a nest is pointwise: it vectorises along its rows, and
fusion can compute it wherever its result is read. Where others walk the same rows (a softmax
goes on with what it has summed up) a loop over the row serves them all, and stays. Operands are
joined in the order in which the loop would.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ..engine.loop_choices import LoopChoices
from .domain import estimate, points
from .index import Axis, Index, axes_of
from .loops import Builder, Nest, Scalar, Step, Store, scalars
from .rewrite import Rewriter

# The scalar op that joins two elements, and what the loop begins with where that is an operand.
_STEPS: Mapping[str, tuple[str, int | bool | None]] = {
    "sum": ("add", 0),
    "prod": ("mul", 1),
    "max": ("maximum", None),
    "min": ("minimum", None),
    "any": ("logical_or", None),
    "all": ("logical_and", None),
}
_WIDE = ("f32", "f64", "i64", "bool")  # dtypes whose loops round after each step as well


def unroll(steps: Sequence[Step], builder: Builder, loops: LoopChoices) -> list[Step]:
    """`steps` with short reductions written out. `builder` made their scalars; `loops` says
    what is short."""
    widest: dict[str, int] = {}  # points of the largest nest that a buffer leads to
    walked: dict[str, list[int]] = {}  # points of each nest that reads a buffer
    loads = [_loaded(step) for step in steps]
    for step, names in zip(steps, loads, strict=True):
        for name in names:
            walked.setdefault(name, []).append(_points(step))
    found: list[Step] = []
    for step, names in zip(reversed(steps), reversed(loads), strict=True):
        if not isinstance(step, Nest):
            found.append(step)
            continue
        rows = estimate(points(step.axes))
        reach = max([widest.get(store.buffer, 0) for store in step.stores])
        alone = all(sum(count > rows for count in walked[name]) == 1 for name in names)
        short = step.raxes and reach <= rows and alone
        found.append(unrolled(step, builder, loops) if short else step)
        beyond = _points(step) if step.raxes else max(reach, _points(step))
        for name in names:
            widest[name] = max(widest.get(name, 0), beyond)
    return found[::-1]


def _loaded(step: Step) -> set[str]:
    if not isinstance(step, Nest):
        return set()
    return {s.buffer for s in scalars(step) if s.op == "load" and s.buffer is not None}


def _points(step: Step) -> int:
    return estimate(points((*step.axes, *step.raxes))) if isinstance(step, Nest) else 0


def unrolled(nest: Nest, builder: Builder, loops: LoopChoices) -> Nest:
    """`nest` with its reductions written out, or as it is. `builder` made its scalars."""
    count = points(nest.raxes)
    if not nest.raxes or not isinstance(count, int) or not 0 < count <= loops.unrolled_points:
        return nest
    body = scalars(nest)
    fits = all(_steps(scalar) for scalar in body if scalar.op in ("reduce", "scan"))
    if not fits or len(body) * count > loops.unrolled_scalars:
        return nest
    ranges = [range(int(axis.size)) for axis in nest.raxes]
    points_of = [
        {axis: Index((), at) for axis, at in zip(nest.raxes, point, strict=True)}
        for point in itertools.product(*ranges)
    ]
    made: dict[int, Scalar] = {}
    for scalar in body:
        made[id(scalar)] = _written_out(scalar, made, points_of, builder)
    stores = tuple(
        Store(store.buffer, store.index, made[id(store.value)], store.mode) for store in nest.stores
    )
    short = Nest(nest.name, nest.axes, (), stores, nest.origins, nest.rules)
    return short if _is_flat(short, frozenset(nest.raxes)) else nest


def _steps(scalar: Scalar) -> bool:
    word = str(scalar.value)
    logic = word in ("any", "all")
    known = scalar.op == "reduce" and word in _STEPS and scalar.dtype in _WIDE
    return known and logic == (scalar.dtype == "bool")


def _written_out(
    scalar: Scalar,
    made: Mapping[int, Scalar],
    points_of: Sequence[Mapping[Axis, Index]],
    builder: Builder,
) -> Scalar:
    """The scalar with the reductions beneath it written out."""
    if scalar.op != "reduce":
        args = tuple(made[id(arg)] for arg in scalar.args)
        if args == scalar.args:
            return scalar
        return builder.make(
            scalar.op,
            args,
            scalar.dtype,
            buffer=scalar.buffer,
            index=scalar.index,
            value=scalar.value,
        )
    word, start = _STEPS[str(scalar.value)]
    parts = [Rewriter(builder, places).scalar(scalar.args[0]) for places in points_of]
    total = parts.pop(0) if start is None else builder.const(start, scalar.dtype)
    for part in parts:  # the first of two zeros stays the extreme, as in eager
        pair = (part, total) if start is None else (total, part)
        total = builder.make(word, pair, scalar.dtype)
    return total


def _is_flat(nest: Nest, gone: frozenset[Axis]) -> bool:
    """Whether nothing reduces any more and nothing mentions the axes that are gone."""
    body = scalars(nest)
    indices = [*(scalar.index for scalar in body), *(store.index for store in nest.stores)]
    mentioned = {axis for index in indices for part in index for axis in axes_of(part)}
    return gone.isdisjoint(mentioned) and not any(s.op in ("reduce", "scan") for s in body)
