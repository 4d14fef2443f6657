"""Every number that a compiled graph needs at run time, as one flat table.

Takes sizes (ints or sympy expressions over the graph's symbols) while the graph is being
compiled; gives positions in the table, and one generated Python function that fills the
table from the values of the symbols. Entry code and kernels read sizes from the table, so
expressions are evaluated once per set of shapes and never printed as C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy

from ..lowering.index import Size

Evaluate = Callable[..., list[int]]
_CALLS = {"Max": "max", "Min": "min"}
_QUOTIENTS = ("FloorDiv", "CleanDiv")
_REMAINDERS = ("Mod", "PythonMod")


class Numbers:
    """Interns runs of sizes. Equal runs share one place; a run lies in consecutive slots."""

    def __init__(self) -> None:
        self._sizes: list[Size] = []
        self._runs: dict[tuple[Size, ...], int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, size: Size) -> int:
        """The slot that holds `size`."""
        return self.run((size,))

    def run(self, sizes: Iterable[Size]) -> int:
        """The first of consecutive slots that hold `sizes` (0 for an empty run)."""
        key = tuple(plain(size) for size in sizes)
        if not key:
            return 0
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = len(self._sizes)
            self._sizes += key
        return found

    def symbols(self) -> list[str]:
        """Names of the symbols that any size mentions, sorted."""
        names: set[str] = set()
        for size in self._sizes:
            if isinstance(size, sympy.Basic):
                names |= {str(symbol) for symbol in size.free_symbols}
        return sorted(names)

    def function(self, symbols: Sequence[str]) -> Evaluate:
        """`f(*values of symbols) -> table`; `symbols` must cover `self.symbols()`."""
        places = {name: f"v{i}" for i, name in enumerate(symbols)}
        namespace: dict[str, Any] = {"slow": _Slow(places)}
        body = ", ".join(_print(size, places, namespace["slow"]) for size in self._sizes)
        text = f"def evaluate({', '.join(places.values())}): return [{body}]"
        exec(compile(text, "<eqsat sizes>", "exec"), namespace)
        function: Evaluate = namespace["evaluate"]
        return function


def plain(size: Any) -> Size:
    """An int where `size` is one (also as a sympy number), else the sympy expression."""
    if isinstance(size, bool | int):
        return int(size)
    expression = sympy.sympify(size)
    return int(expression) if expression.is_Integer else expression


class _Slow:
    """Evaluates expressions that have no short Python form by substitution."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._expressions: list[sympy.Expr] = []

    def add(self, expression: sympy.Expr) -> str:
        names = [str(symbol) for symbol in sorted(expression.free_symbols, key=str)]
        self._expressions.append(expression)
        values = "".join(f", {self._places[name]}" for name in names)
        return f"slow({len(self._expressions) - 1}{values})"

    def __call__(self, position: int, *values: int) -> int:
        expression = self._expressions[position]
        symbols = sorted(expression.free_symbols, key=str)
        value = expression.subs(dict(zip(symbols, values, strict=True)))
        return int(bool(value)) if value.is_Boolean else int(value)


def _print(size: Size, places: dict[str, str], slow: _Slow) -> str:
    """Python text for a size. Exact: no float division ever happens."""
    if isinstance(size, int) or size.is_Integer:
        return str(int(size))
    if size.is_Symbol:
        return places[str(size)]
    name = type(size).__name__
    parts = [_print(part, places, slow) for part in size.args] if name != "Mul" else []
    if name == "Add" and all(sympy.denom(part) == 1 for part in size.args):
        return f"({' + '.join(parts)})"
    if name == "Mul":
        return _print_product(size, places, slow)
    if name == "Pow" and size.exp.is_Integer and size.exp > 0:
        return f"({parts[0]} ** {parts[1]})"
    if name in _QUOTIENTS:
        return f"({parts[0]} // {parts[1]})"
    if name in _REMAINDERS:
        return f"({parts[0]} % {parts[1]})"
    if name == "ModularIndexing":
        return f"({parts[0]} // {parts[1]} % {parts[2]})"
    if name in _CALLS:
        return f"{_CALLS[name]}({', '.join(parts)})"
    return slow.add(size)


def _print_product(size: sympy.Expr, places: dict[str, str], slow: _Slow) -> str:
    """A product; a denominator divides it exactly, as every size is a whole number."""
    above, below = sympy.fraction(size)
    if below == 1:
        return "(" + " * ".join(_print(part, places, slow) for part in size.args) + ")"
    return f"({_print(above, places, slow)} // {_print(below, places, slow)})"
