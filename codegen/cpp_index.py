"""Index expressions and sizes as C++ text: `int64_t` expressions (`index_text.py`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..lowering.index import Axis, Index, Quotient, Remainder, Size, axes_of
from . import index_text

WORDS = index_text.Words(
    exact="({0} / {1})",
    floor_div="eq_floor_div_int<int64_t>({0}, {1})",
    remainder="eq_remainder_int<int64_t>({0}, {1})",
    largest="eq_max<int64_t>({0}, {1})",
    least="eq_min<int64_t>({0}, {1})",
    power="eq_pow_int<int64_t>({0}, {1})",
)


def print_size(size: Size, symbols: Mapping[str, str]) -> str:
    """`size` as a C++ expression; `symbols` maps sympy symbol names to argument names."""
    return index_text.print_size(size, symbols, WORDS)


class IndexPrinter(index_text.IndexPrinter):
    """Indices in C++."""

    words = WORDS

    def gathered(self, name: str) -> str:
        return f"(int64_t){name}"

    def plain_division(self, value: str, divisor: str, sign: str, *, small: bool) -> str:
        if small:  # 32 bits: gcc vectorises division by a constant there, not in 64.
            return f"(int64_t)((uint32_t)({value}) {sign} {divisor}u)"
        return f"(({value}) {sign} {divisor})"


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


def is_linear(index: Index, axes: Collection[Axis]) -> bool:
    """Whether `index` moves by the same step at every place along each of `axes`: none of them
    is inside a quotient or a remainder."""
    return not any(
        isinstance(atom, Quotient | Remainder) and not axes_of(atom.value).isdisjoint(axes)
        for atom, _ in index.terms
    )
