"""Index expressions and sizes as C++ text.

Takes `Index` values, sizes (ints or sympy) and the names given to axes, symbols and gathered
values; gives `int64_t` expressions. The order of terms depends on those names alone, so equal
nests print equally whatever their axes were called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy

from ..lowering.index import Axis, Gathered, Index, Quotient, Remainder, Size, bounds
from ..lowering.loops import Scalar

_INT32_END = 2**31 - 1


class UnsupportedSize(Exception):
    """A symbolic size that has no C++ spelling."""


def print_size(size: Size, symbols: Mapping[str, str]) -> str:
    """`size` as a C++ expression; `symbols` maps sympy symbol names to argument names."""
    if isinstance(size, int):
        return str(size)
    places = {s: sympy.Symbol(symbols[s.name], integer=True) for s in _symbols_of(size)}
    return _print(sympy.sympify(size).xreplace(places))


def _symbols_of(size: sympy.Expr) -> list[sympy.Symbol]:
    return sorted(size.free_symbols, key=lambda symbol: symbol.name)


def _print(expr: sympy.Expr) -> str:
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return str(expr.name)
    if expr.is_Add:
        return "(" + " + ".join(sorted(_print(part) for part in expr.args)) + ")"
    if expr.is_Mul:
        return _print_product(expr)
    if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
        return "(" + " * ".join([_print(expr.base)] * int(expr.exp)) + ")"
    return _print_function(expr)


def _print_product(expr: sympy.Expr) -> str:
    above, below = sympy.fraction(expr)
    if below != 1:  # exact: sizes are whole numbers
        return f"({_print(above)} / {_print(below)})"
    return "(" + " * ".join(sorted(_print(part) for part in expr.args)) + ")"


def _print_function(expr: sympy.Expr) -> str:
    parts = [_print(part) for part in expr.args] if expr.func.__name__ != "floor" else []
    match expr.func.__name__:
        case "FloorDiv" | "CleanDiv":
            return f"eq_floor_div_int<int64_t>({parts[0]}, {parts[1]})"
        case "CeilDiv":
            return f"(-eq_floor_div_int<int64_t>(-{parts[0]}, {parts[1]}))"
        case "Mod" | "PythonMod":
            return f"eq_remainder_int<int64_t>({parts[0]}, {parts[1]})"
        case "ModularIndexing":
            quotient = f"eq_floor_div_int<int64_t>({parts[0]}, {parts[1]})"
            return f"eq_remainder_int<int64_t>({quotient}, {parts[2]})"
        case "Max" | "Min":
            name = "eq_max" if expr.func.__name__ == "Max" else "eq_min"
            text = parts[0]
            for part in parts[1:]:
                text = f"{name}<int64_t>({text}, {part})"
            return text
        case "PowByNatural":
            return f"eq_pow_int<int64_t>({parts[0]}, {parts[1]})"
        case "Identity":
            return parts[0]
        case "floor":
            above, below = sympy.fraction(sympy.together(expr.args[0]))
            return f"eq_floor_div_int<int64_t>({_print(above)}, {_print(below)})"
    raise UnsupportedSize(f"no C++ spelling for the size {expr}")


class IndexPrinter:
    """Prints indices with the names that a kernel gave to axes, symbols and scalars."""

    def __init__(
        self,
        axes: Mapping[Axis, str],
        symbols: Mapping[str, str],
        scalar_name: Callable[[Scalar], str],
    ) -> None:
        self._axes = axes
        self._symbols = symbols
        self._scalar_name = scalar_name

    def size(self, size: Size) -> str:
        return print_size(size, self._symbols)

    def index(self, index: Index) -> str:
        """`index` as an int64_t expression without outer brackets."""
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
                return f"(int64_t){self._scalar_name(scalar)}"
            case Quotient(value=value, divisor=divisor):
                return self._divided(value, divisor, "/")
            case Remainder(value=value, divisor=divisor):
                return self._divided(value, divisor, "%")
        raise TypeError(f"not an index atom: {atom!r}")

    def _divided(self, value: Index, divisor: Size, sign: str) -> str:
        low, high = bounds(value)
        text, below = self.index(value), self.size(divisor)
        if isinstance(low, int) and low >= 0:
            if isinstance(high, int) and high <= _INT32_END and isinstance(divisor, int):
                # 32 bits: gcc vectorises division by a constant there, not in 64.
                return f"(int64_t)((uint32_t)({text}) {sign} {below}u)"
            return f"(({text}) {sign} {below})"
        name = "eq_floor_div_int" if sign == "/" else "eq_remainder_int"
        return f"{name}<int64_t>({text}, {below})"


def step_along(index: Index, axis: Axis) -> Size:
    """How far `index` moves when `axis` grows by one, at most places (0: not at all)."""
    total: Size = 0
    for atom, size in index.terms:
        if atom == axis:
            inner: Size = 1
        elif isinstance(atom, Remainder):
            inner = step_along(atom.value, axis)
        else:
            continue
        total = total + size * inner
    return total
