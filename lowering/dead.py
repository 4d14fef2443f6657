"""Steps and stores whose results nobody reads, taken out.

Takes a `Program`; gives it without them. Calls with effects, and calls that tell sizes, stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .dependence import make_node, viewed
from .index import axes_of
from .loops import Buffer, Nest, Program, Step, Store, scalars


def without_dead(program: Program) -> Program:
    """`program` with the steps and stores that its outputs, its inputs and effects need."""
    live = set(viewed(tuple(program.outputs))) | {
        name for name, buffer in program.buffers.items() if buffer.role in ("input", "constant")
    }
    kept: list[Step] = []
    for step in reversed(program.steps):
        needed = _needed(step, live, program.buffers)
        if needed is not None:
            kept.append(needed)
            live |= _reads(needed)
    if len(kept) == len(program.steps) and kept[::-1] == list(program.steps):
        return program
    used = live | {name for step in kept for name in make_node(0, step, 0, 0, 0).writes}
    buffers = {name: buffer for name, buffer in program.buffers.items() if name in used}
    return replace(program, steps=tuple(reversed(kept)), buffers=buffers)


def _needed(step: Step, live: set[str], buffers: Mapping[str, Buffer]) -> Step | None:
    """What of a step somebody needs; None for nothing."""
    if isinstance(step, Nest):
        stores = tuple(store for store in step.stores if store.buffer in live)
        if len(stores) == len(step.stores):
            return step
        return _with_stores(step, stores) if stores else None
    made = [name for name in step.outs if name is not None]
    tells = any(size is not None for size in step.numbers) or not all(
        isinstance(size, int) for name in made for size in buffers[name].shape
    )
    return step if step.ordered or step.mutates or tells or not live.isdisjoint(made) else None


def _with_stores(nest: Nest, stores: tuple[Store, ...]) -> Nest:
    """`nest` with some of its stores; without a reduction it has no reduced axes either."""
    left = replace(nest, stores=stores)
    if not nest.raxes or any(scalar.op in ("reduce", "scan") for scalar in scalars(left)):
        return left
    used = {axis for store in stores for part in store.index for axis in axes_of(part)}
    rows = tuple(axis for axis in nest.raxes if axis in used)
    return replace(left, axes=(*nest.axes, *rows), raxes=())


def _reads(step: Step) -> frozenset[str]:
    return make_node(0, step, 0, 0, 0).reads
