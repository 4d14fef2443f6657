"""Programs whose sizes are known only while they run, cut where a call tells them.

Takes a `Program`; gives `Segment`s in order of running. A call whose results have sizes (or
are numbers) that no input determines stands alone, and what lies between two such calls is a
program of its own: it takes the numbers known by then as inputs, so that everything after
lowering treats them as it treats sizes of inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from .dependence import make_node, viewed
from .index import Size
from .loops import Buffer, Extern, Nest, Program, SizeValue, Step, View, scalars


@dataclass(frozen=True)
class Segment:
    """`reads` are buffers and symbols taken from what ran before, `gives` the buffers that what
    runs later needs. `program` takes the buffers of `reads`, then the symbols; its outputs are
    `gives`. A call that tells sizes is its only step."""

    program: Program
    call: Extern | None
    reads: tuple[str, ...]
    symbols: tuple[sympy.Symbol, ...]
    gives: tuple[str, ...]


@dataclass
class _Group:
    """Steps that run together. `known` are the symbols with a value before they run."""

    steps: list[Step]
    known: frozenset[sympy.Symbol]
    alone: bool
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)


def segments(program: Program) -> list[Segment]:
    """One segment for a program whose inputs determine every size."""
    groups = _groups(program)
    for group in groups:
        for step in group.steps:
            node = make_node(0, step, 0, 0, 0)
            group.reads |= node.reads
            group.writes |= node.writes
    earlier = [{name for name in program.inputs if isinstance(name, str)} | {*program.constants}]
    for group in groups:
        earlier.append(earlier[-1] | group.writes)
    later = set(viewed(tuple(program.outputs)))
    found: list[Segment] = []
    for group, before in zip(reversed(groups), reversed(earlier[:-1]), strict=True):
        found.append(_segment(program, group, before, sorted((group.writes & later) - before)))
        later |= group.reads | group.writes
    return found[::-1]


def _groups(program: Program) -> list[_Group]:
    """A call that tells sizes, or takes a number that no table of sizes can hold, is alone."""
    known = frozenset(given_symbols(program))
    groups: list[_Group] = []
    for step in program.steps:
        told = _told(step, program.buffers) - known
        alone = bool(told) or _has_floats(step)
        if alone or not groups or groups[-1].alone:
            groups.append(_Group([], known, alone))
        groups[-1].steps.append(step)
        known |= told
    return groups or [_Group([], known, False)]


def _segment(program: Program, group: _Group, before: set[str], gives: list[str]) -> Segment:
    names = group.reads | group.writes
    taken = sorted((names & before) - program.constants.keys())
    symbols = _mentioned(group.steps, program.buffers, names) & group.known
    ordered = tuple(sorted(symbols, key=str))
    buffers = {
        name: replace(buffer, role="input") if name in taken else buffer
        for name, buffer in program.buffers.items()
        if name in names
    }
    made = Program(
        (*taken, *(SizeValue(symbol) for symbol in ordered)),
        buffers,
        tuple(group.steps),
        tuple(View(name, buffers[name].shape, buffers[name].stride) for name in gives),
        {name: value for name, value in program.constants.items() if name in names},
        program.sources,
    )
    call = group.steps[0] if group.alone else None
    assert call is None or isinstance(call, Extern)
    return Segment(made, call, tuple(taken), ordered, tuple(gives))


def given_symbols(program: Program) -> Iterator[sympy.Symbol]:
    """Symbols whose values the inputs give."""
    for item in program.inputs:
        if isinstance(item, SizeValue):
            yield from _free(item.value)
        elif item is not None:
            yield from _in_buffer(program.buffers[item])


def _told(step: Step, buffers: Mapping[str, Buffer]) -> set[sympy.Symbol]:
    """Symbols in the results of a call."""
    if not isinstance(step, Extern):
        return set()
    shapes = [buffers[name] for name in step.outs if name is not None]
    found = {symbol for buffer in shapes for symbol in _in_buffer(buffer)}
    return found.union(*(_free(size) for size in step.numbers if size is not None))


def _mentioned(
    steps: Iterable[Step], buffers: Mapping[str, Buffer], names: set[str]
) -> set[sympy.Symbol]:
    """Symbols in the steps and in the buffers that they touch."""
    found = {symbol for name in names for symbol in _in_buffer(buffers[name])}
    for step in steps:
        if isinstance(step, Extern):
            found |= set(_in_arguments((step.args, dict(step.kwargs))))
        else:
            found |= set(_in_nest(step))
    return found


def _in_nest(nest: Nest) -> Iterator[sympy.Symbol]:
    for axis in (*nest.axes, *nest.raxes):
        yield from _free(axis.size)
    parts = [store.index for store in nest.stores] + [s.index for s in scalars(nest)]
    for index in parts:
        for part in index:
            yield from _in_index(part)


def _in_index(part: Any) -> Iterator[sympy.Symbol]:
    yield from _free(part.const)
    for atom, size in part.terms:
        yield from _free(size)
        if hasattr(atom, "divisor"):
            yield from _free(atom.divisor)
            yield from _in_index(atom.value)


def _in_arguments(value: Any) -> Iterator[sympy.Symbol]:
    if isinstance(value, SizeValue):
        yield from _free(value.value)
    elif isinstance(value, View):
        for size in (*value.shape, *value.stride, value.offset):
            yield from _free(size)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _in_arguments(item)
    elif isinstance(value, dict):
        yield from _in_arguments(tuple(value.values()))


def _has_floats(step: Step) -> bool:
    """Whether a call takes a number that is no integer: tables of sizes cannot hold it."""
    if not isinstance(step, Extern):
        return False
    return any(map(_is_float, _numbers_in((step.args, dict(step.kwargs)))))


def _numbers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, SizeValue):
        yield value.value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers_in(item)
    elif isinstance(value, dict):
        yield from _numbers_in(tuple(value.values()))


def _is_float(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and not value.is_integer


def _in_buffer(buffer: Buffer) -> Iterator[sympy.Symbol]:
    for size in (*buffer.shape, *buffer.stride):
        yield from _free(size)


def _free(size: Size | Any) -> Iterator[sympy.Symbol]:
    if not isinstance(size, int | float):
        yield from size.free_symbols
