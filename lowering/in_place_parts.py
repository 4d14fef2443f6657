"""Results of calls written straight into their part of a larger buffer, as `cat` wants them.

Takes a `Program` before fusion; gives it with calls in their out-form where a nest did nothing
but copy the whole result into a part of another buffer: the call writes that part, the copy
and the memory between are gone. Only where the larger buffer is memory in the end, too; where
it is not, fusion reads the parts in the nest that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import torch

from .dependence import Node, lent, make_node, viewed
from .domain import enumerates, invert, points, product
from .index import ZERO, Axis, Index, Size, as_index, flatten, row_major, substitute
from .loops import Buffer, Extern, Nest, Program, Scalar, View, gathered, views_in
from .pieces import write_apart

# Whether a call in its out-form is as fast as one that fills memory of its own.
Fits = Callable[[Extern, Mapping[str, Buffer]], bool]


@dataclass(frozen=True)
class _Move:
    """Step `call` becomes `written`, step `copy` goes. `old` is the memory between, `new` the
    buffer that is written instead."""

    call: int
    copy: int
    written: Extern
    old: str
    new: str


def with_parts_in_place(program: Program, fits: Fits) -> Program:
    """`program` with results in place where `fits` and where that saves a copy."""
    nodes = [make_node(k, step, 0, k, k) for k, step in enumerate(program.steps)]
    moves = [move for move in _moves(program, nodes) if fits(move.written, program.buffers)]
    moves = [move for move in moves if _stays(program, nodes, move.new, moves)]
    if not moves:
        return program
    written = {move.call: move.written for move in moves}
    gone = {move.copy for move in moves}
    steps = (written.get(k, step) for k, step in enumerate(program.steps) if k not in gone)
    dropped = {move.old for move in moves}
    buffers = {name: buffer for name, buffer in program.buffers.items() if name not in dropped}
    return replace(program, steps=tuple(steps), buffers=buffers)


def out_form(target: Any) -> Any:
    """The overload of `target` that writes into memory it is given; None where there is none."""
    if not isinstance(target, torch._ops.OpOverload) or target._overloadname != "default":
        return None
    found = getattr(target.overloadpacket, "out", None)
    returns = target._schema.returns
    return found if found is not None and len(returns) == 1 else None


def _moves(program: Program, nodes: list[Node]) -> Iterator[_Move]:
    touched: dict[str, list[int]] = {}
    for node in nodes:
        for name in node.reads | node.writes:
            touched.setdefault(name, []).append(node.key)
    shared = {name for group in lent(program.steps).items() for name in (group[0], *group[1])}
    shared |= set(viewed(tuple(program.outputs)))
    for node in nodes:
        load = _copied(node.step)
        if load is None or load.buffer in shared:
            continue
        old, new = program.buffers[str(load.buffer)], program.buffers[node.nest.stores[0].buffer]
        places = touched[old.name]
        if len(places) != 2 or old.role != "extern" or new.role not in ("temp", "output"):
            continue
        view = _part(node.nest, load, old, new)
        if view is not None and _untouched(node, nodes, new.name):
            call = program.steps[places[0]]
            written = _written(call, node.nest, view) if isinstance(call, Extern) else None
            if written is not None:
                yield _Move(places[0], node.key, written, old.name, new.name)


def _copied(step: Any) -> Scalar | None:
    """The load whose value is all that a nest stores, as it is and once per point."""
    if not isinstance(step, Nest) or step.raxes or len(step.stores) != 1:
        return None
    (store,) = step.stores
    load = store.value
    plain = load.op == "load" and not load.args and store.mode == "set"
    return load if plain and not gathered((*load.index, *store.index)) else None


def _part(nest: Nest, load: Scalar, old: Buffer, new: Buffer) -> View | None:
    """Where in `new` the elements of `old` go, as a view of the shape of `old`; None where
    strides cannot say that, or where elements are left out or copied twice."""
    if 0 in old.shape or old.device != new.device:
        return None
    whole = enumerates(load.index, old.shape) is not None
    if not whole or points(nest.axes) != product(old.shape):
        return None
    axes = tuple(Axis(f"e{dim}", size) for dim, size in enumerate(old.shape))
    inverse = invert(load.index, old.shape, nest.axes)
    if not inverse.whole:
        return None
    places = dict.fromkeys((axis for axis in nest.axes if axis.size == 1), ZERO)
    places |= inverse.at(tuple(map(as_index, axes)))
    position = substitute(flatten(nest.stores[0].index, new.stride), places)
    if not {atom for atom, _ in position.terms} <= set(axes):
        return None
    return View(new.name, old.shape, _strides(position, axes), position.const)


def _strides(position: Index, axes: Iterable[Axis]) -> tuple[Size, ...]:
    """Dims of size 1 get the stride that a contiguous tensor has."""
    axes = tuple(axes)
    usual = row_major(tuple(axis.size for axis in axes))
    return tuple(
        step if axis.size == 1 else position.coefficient(axis)
        for axis, step in zip(axes, usual, strict=True)
    )


def _untouched(copy: Node, nodes: list[Node], name: str) -> bool:
    """Whether nothing before the copy reads `name`, or writes elements that the copy writes: the
    call that will write them runs earlier."""
    for node in nodes[: copy.key]:
        if name in node.reads:
            return False
        if name in node.writes and not (node.is_nest and write_apart(node.nest, copy.nest)):
            return False
    return True


def _written(call: Extern, copy: Nest, view: View) -> Extern | None:
    """The call in its out-form; None where it has none or does more than give one tensor."""
    target = out_form(call.target)
    if target is None or call.mutates or call.ordered or len(call.outs) != 1 or not call.single:
        return None
    return replace(
        call,
        target=target,
        kwargs={**call.kwargs, "out": view},
        outs=(),
        mutates=(view.buffer,),
        origins=tuple(dict.fromkeys((*call.origins, *copy.origins))),
        rules=tuple(dict.fromkeys((*call.rules, *copy.rules))),
    )


def _stays(program: Program, nodes: list[Node], name: str, moves: list[_Move]) -> bool:
    """Whether the buffer is memory after fusion too: somebody outside of nests looks at it, or
    all that is in it are results of calls."""
    copies = {move.copy for move in moves if move.new == name}
    if all(node.key in copies for node in nodes if name in node.writes):
        return True
    return name in set(viewed(tuple(program.outputs))) or any(
        name in _viewed_by(node) for node in nodes if not node.is_nest
    )


def _viewed_by(node: Node) -> AbstractSet[str]:
    step = node.step
    assert isinstance(step, Extern)
    return {view.buffer for view in views_in((step.args, tuple(step.kwargs.values())))}
