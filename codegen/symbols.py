"""Where the values of size symbols come from when a compiled graph is called.

Takes a program and the symbols it needs; gives a function from the list of graph inputs to
the symbols' values: from a SymInt input where there is one, else from the sizes (or strides)
of a tensor input. Dynamo has already guarded that the inputs agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy

from ..lowering.index import Size
from ..lowering.loops import Program, SizeValue

Bind = Callable[[list[Any]], tuple[int, ...]]


class UnboundSymbol(Exception):
    """A size symbol that no graph input determines (it depends on data)."""


def symbol_of(name: str) -> sympy.Symbol:
    """The symbol that a kernel asks for by name."""
    return sympy.Symbol(name, integer=True)


def bind_symbols(program: Program, names: Sequence[str]) -> Bind:
    """`f(inputs) -> values of names`. Raises UnboundSymbol."""
    found: dict[str, str] = {}
    for size, text in _sources(program):
        symbol, expression = _solve(size, text)
        if symbol is not None:
            found.setdefault(symbol, expression)
    missing = [name for name in names if name not in found]
    if missing:
        raise UnboundSymbol(f"no graph input determines {', '.join(missing)}")
    body = "".join(f"{found[name]}, " for name in names)
    namespace: dict[str, Any] = {}
    exec(compile(f"def bind(inputs): return ({body})", "<eqsat symbols>", "exec"), namespace)
    bind: Bind = namespace["bind"]
    return bind


def solve(size: sympy.Expr, value: int) -> int:
    """The value of the one symbol of `size`, where the whole is `value`. Raises UnboundSymbol."""
    symbol, text = _solve(size, "value")
    if symbol is None:
        raise UnboundSymbol(f"{size} = {value} tells no symbol")
    found: int = eval(text, {"value": value})
    return found


def _sources(program: Program) -> Iterator[tuple[Size, str]]:
    """Sizes known at a call, best sources first: (size, Python text that reads it)."""
    tensors = []
    for position, value in enumerate(program.inputs):
        if isinstance(value, SizeValue):
            yield value.value, f"inputs[{position}]"
        elif isinstance(value, str):
            tensors.append((position, program.buffers[value]))
    for position, buffer in tensors:
        for dim, size in enumerate(buffer.shape):
            yield size, f"inputs[{position}].size({dim})"
    for position, buffer in tensors:
        for dim, stride in enumerate(buffer.stride):
            yield stride, f"inputs[{position}].stride({dim})"


def _solve(size: Size, text: str) -> tuple[str | None, str]:
    """The symbol of `a * symbol + b`, and text that computes it from text for the whole."""
    if isinstance(size, int) or len(size.free_symbols) != 1:
        return None, text
    (symbol,) = size.free_symbols
    if size == symbol:
        return str(symbol), text
    factor = size.coeff(symbol, 1)
    rest = sympy.expand(size - factor * symbol)
    if not (factor.is_Integer and factor != 0 and rest.is_Integer):
        return None, text
    return str(symbol), f"({text} - {int(rest)}) // {int(factor)}"
