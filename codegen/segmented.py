"""Runs a program in segments, where calls in between tell sizes that later ones need.

Takes the whole program and, per segment, its call or compiled graph; gives a boxed callable.
Numbers that a call tells are solved from the shapes of its results, or are results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch

from ..engine.dtypes import dtype_of
from ..lowering.dependence import viewed
from ..lowering.interpret import number, output, poisoned, results_of
from ..lowering.loops import Buffer, Extern, Program, View
from ..lowering.segments import Segment, given_symbols
from .symbols import Bind, bind_symbols, solve

Run = Callable[[list[Any]], list[Any]]


class SegmentedGraph:
    """Boxed; safe to call from several threads. `runs` has None for segments that are calls."""

    def __init__(
        self, program: Program, segments: Sequence[Segment], runs: Sequence[Run | None]
    ) -> None:
        self._boxed_call = True
        self._program = program
        self._steps = list(zip(segments, runs, strict=True))
        self._last = _last_uses(program, segments)
        wanted = {symbol for segment in segments for symbol in segment.symbols}
        wanted |= set().union(*(_in_output(value) for value in program.outputs))
        told = {symbol for segment in segments for symbol in _told(segment, program)}
        told -= set(given_symbols(program))
        names = sorted(str(symbol) for symbol in wanted - told)
        self._symbols = {str(symbol): symbol for symbol in wanted}
        self._names = names
        self._bind: Bind = bind_symbols(program, names)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the graph. Raises what an extern op raises."""
        values = zip(self._names, self._bind(inputs), strict=True)
        symbols = {self._symbols[name]: value for name, value in values}
        memory: dict[str, Any] = dict(self._program.constants)
        for name, value in zip(self._program.inputs, inputs, strict=True):
            if isinstance(name, str):
                memory[name] = value
        inputs.clear()
        with torch.no_grad():
            for place, (segment, run) in enumerate(self._steps):
                if segment.call is not None:
                    needed = viewed((segment.call.args, dict(segment.call.kwargs)))
                    self._add_empty(needed, memory, symbols)
                    _call(segment.call, self._program, memory, symbols)
                elif run is not None:
                    given = [memory[name] for name in segment.reads]
                    given += [symbols[symbol] for symbol in segment.symbols]
                    memory.update(zip(segment.gives, run(given), strict=True))
                for name in self._last[place]:
                    memory.pop(name, None)
            self._add_empty(viewed(tuple(self._program.outputs)), memory, symbols)
            outputs = [self._output(item, memory, symbols) for item in self._program.outputs]
            return self._program.with_repeats(outputs)

    def _add_empty(
        self, names: Iterable[str], memory: dict[str, Any], symbols: dict[sympy.Symbol, Any]
    ) -> None:
        """Buffers without elements, which no step fills."""
        for name in names:
            buffer = self._program.buffers[name]
            if name not in memory and 0 in buffer.shape:
                memory[name] = poisoned(buffer, symbols)

    def _output(self, item: Any, memory: dict[str, Any], symbols: dict[sympy.Symbol, Any]) -> Any:
        if isinstance(item, View):
            buffer = self._program.buffers[item.buffer]
            if (item.shape, item.stride, item.offset) == (buffer.shape, buffer.stride, 0):
                return memory[item.buffer]
        return output(item, memory, symbols)


def _last_uses(program: Program, segments: Sequence[Segment]) -> list[list[str]]:
    """Per segment the buffers that nobody needs after it."""
    needed = set(viewed(tuple(program.outputs)))
    found: list[list[str]] = []
    for segment in reversed(segments):
        mine = {*segment.reads, *segment.gives}
        found.append(sorted(mine - needed))
        needed |= mine
    return found[::-1]


def _call(
    step: Extern, program: Program, memory: dict[str, Any], symbols: dict[sympy.Symbol, Any]
) -> None:
    """Run a call, keep its results, and learn the symbols that they tell."""
    results = results_of(step, memory, symbols)
    for size, value in zip(step.numbers, results, strict=False):
        if size is not None:
            _learn(size, value, symbols)
    for name, value in zip(step.outs, results, strict=False):
        if name is not None and value is not None:
            buffer = program.buffers[name]
            for size, real in zip(buffer.shape, value.shape, strict=True):
                _learn(size, real, symbols)
            memory[name] = fitted(value, buffer, symbols)


def _learn(size: Any, value: Any, symbols: dict[sympy.Symbol, Any]) -> None:
    """`size` is `value`: that tells its symbol, where it has one that is not known yet."""
    if isinstance(size, int):
        return
    unknown = size.free_symbols - symbols.keys()
    if len(unknown) != 1:
        return
    (symbol,) = unknown
    if size == symbol:
        symbols[symbol] = value
    elif isinstance(size, sympy.Eq):  # a bool, as the number that it was made from
        symbols[symbol] = int(value)
    else:
        symbols[symbol] = solve(sympy.sympify(size).subs(symbols), value)


def fitted(value: torch.Tensor, buffer: Buffer, symbols: dict[sympy.Symbol, Any]) -> torch.Tensor:
    """A result in the dtype and layout that the program expects of it. Raises RuntimeError for
    another shape."""
    if value.layout is not torch.strided:
        return value
    shape = [number(size, symbols) for size in buffer.shape]
    stride = [number(size, symbols) for size in buffer.stride]
    dtype = dtype_of(buffer.dtype)
    if list(value.shape) != shape:
        raise RuntimeError(f"{buffer.name} is {list(value.shape)} where {shape} was traced")
    moved = value.numel() and any(
        size != 1 and have != want
        for size, have, want in zip(shape, value.stride(), stride, strict=True)
    )
    if value.dtype == dtype and not moved and not value.is_neg() and not value.is_conj():
        return value
    return torch.empty_strided(shape, stride, dtype=dtype).copy_(value)


def _told(segment: Segment, program: Program) -> set[sympy.Symbol]:
    """Symbols that the call of a segment tells."""
    call = segment.call
    if call is None:
        return set()
    sizes: list[Any] = [size for size in call.numbers if size is not None]
    for name in call.outs:
        sizes += () if name is None else program.buffers[name].shape
    return {symbol for size in sizes for symbol in _free(size)}


def _free(value: Any) -> set[sympy.Symbol]:
    expression = getattr(value, "value", value)
    return set(getattr(expression, "free_symbols", ()))


def _in_output(value: Any) -> set[sympy.Symbol]:
    if not isinstance(value, View):
        return _free(value)
    return set().union(*map(_free, (*value.shape, *value.stride, value.offset)))
