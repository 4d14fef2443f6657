"""Index expressions and sizes as text of any target.

Takes `Index` values, sizes (ints or sympy), the names given to axes, symbols and gathered
values, and a target's words for integer functions; gives expressions. The order of terms
depends on those names alone, so equal nests print equally whatever their axes were called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

import sympy

from ..lowering.index import Axis, Gathered, Index, Quotient, Remainder, Size, bounds
from ..lowering.loops import Scalar

_INT32_END = 2**31 - 1


class UnsupportedSize(Exception):
    """A symbolic size that has no spelling."""


@dataclass(frozen=True)
class Words:
    """How a target spells integer functions: templates of {0} and {1}. `exact` divides what
    divides evenly, `floor_div` and `remainder` round down for any sign."""

    exact: str
    floor_div: str
    remainder: str
    largest: str
    least: str
    power: str


def print_size(size: Size, symbols: Mapping[str, str], words: Words) -> str:
    """`size` as an expression; `symbols` maps sympy symbol names to argument names.

    Raises UnsupportedSize.
    """
    if isinstance(size, int):
        return str(size)
    places = {s: sympy.Symbol(symbols[s.name], integer=True) for s in _symbols_of(size)}
    return _print(sympy.sympify(size).xreplace(places), words)


def _symbols_of(size: sympy.Expr) -> list[sympy.Symbol]:
    return sorted(size.free_symbols, key=lambda symbol: symbol.name)


def _print(expr: sympy.Expr, words: Words) -> str:
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr.name)
    if expr.is_Add:
        return "(" + " + ".join(sorted(_print(part, words) for part in expr.args)) + ")"
    if expr.is_Mul:
        return _print_product(expr, words)
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        return "(" + " * ".join([_print(expr.base, words)] * int(expr.exp)) + ")"
    return _print_function(expr, words)


def _print_product(expr: sympy.Expr, words: Words) -> str:
    above, below = sympy.fraction(expr)
    if below != 1:  # exact: sizes are whole numbers
        return words.exact.format(_print(above, words), _print(below, words))
    return "(" + " * ".join(sorted(_print(part, words) for part in expr.args)) + ")"


def _print_function(expr: sympy.Expr, words: Words) -> str:
    name = expr.func.__name__
    if name == "floor":
        above, below = sympy.fraction(sympy.together(expr.args[0]))
        return words.floor_div.format(_print(above, words), _print(below, words))
    parts = [_print(part, words) for part in expr.args]
    match name:
        case "FloorDiv" | "CleanDiv":
            return words.floor_div.format(*parts)
        case "CeilDiv":
            return f"(-{words.floor_div.format(f'-{parts[0]}', parts[1])})"
        case "Mod" | "PythonMod":
            return words.remainder.format(*parts)
        case "ModularIndexing":
            return words.remainder.format(words.floor_div.format(*parts[:2]), parts[2])
        case "Max" | "Min":
            word = words.largest if name == "Max" else words.least
            return reduce(word.format, parts)
        case "PowByNatural":
            return words.power.format(*parts)
        case "Identity":
            return parts[0]
    raise UnsupportedSize(f"no spelling for the size {expr}")


class IndexPrinter:
    """Prints indices with the names that a kernel gave to axes, symbols and scalars. A target
    adds its words, and how it spells `gathered` values and `plain_division`: a quotient ("/")
    or remainder ("%") of texts that are never negative."""

    words: Words

    def __init__(
        self,
        axes: Mapping[Axis, str],
        symbols: Mapping[str, str],
        scalar_name: Callable[[Scalar], str],
    ) -> None:
        self._axes = axes
        self._symbols = symbols
        self._scalar_name = scalar_name

    def gathered(self, name: str) -> str:
        raise NotImplementedError

    def plain_division(self, value: str, divisor: str, sign: str, *, small: bool) -> str:
        """`small`: value and divisor fit into 32 bits, and the divisor is a number."""
        raise NotImplementedError

    def size(self, size: Size) -> str:
        return print_size(size, self._symbols, self.words)

    def index(self, index: Index) -> str:
        """`index` as an expression without outer brackets."""
        parts = sorted(
            (self._term(atom, size) for atom, size in index.terms), key=lambda t: (len(t), t)
        )
        parts = [part for part in parts if part != "0"]
        if index.const != 0 or not parts:
            parts.append(self.size(index.const))
        return " + ".join(parts)

    def _term(self, atom: object, size: Size) -> str:
        text = self._atom(atom)
        if text == "0" or size == 1:
            return text
        return f"{self.size(size)} * {text}"

    def _atom(self, atom: object) -> str:
        match atom:
            case Axis():
                return self._axes[atom]
            case Gathered(scalar=scalar):
                return self.gathered(self._scalar_name(scalar))
            case Quotient(value=value, divisor=divisor):
                return self._divided(value, divisor, "/")
            case Remainder(value=value, divisor=divisor):
                return self._divided(value, divisor, "%")
        raise TypeError(f"not an index atom: {atom!r}")

    def _divided(self, value: Index, divisor: Size, sign: str) -> str:
        low, high = bounds(value)
        text, below = self.index(value), self.size(divisor)
        if isinstance(low, int) and low >= 0:
            small = isinstance(high, int) and high <= _INT32_END and isinstance(divisor, int)
            return self.plain_division(text, below, sign, small=small)
        word = self.words.floor_div if sign == "/" else self.words.remainder
        return word.format(text, below)
