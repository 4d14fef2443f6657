"""Index expressions: linear forms over loop axes, with floor division and remainder.

Takes axes and sizes; gives `Index`, an immutable sum `const + sum(coefficient * atom)`.
An atom is an `Axis`, a `Quotient`, a `Remainder` or a `Gathered` value. Every operation
returns the simplified form, using that an axis runs over 0 .. size - 1. Sizes are ints, or
sympy expressions over positive integer symbols for dynamic shapes; with symbols a
simplification is made only when it holds for every value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import sympy

Size: TypeAlias = int | sympy.Expr


@dataclass(frozen=True)
class Axis:
    """A loop axis: takes the values 0 .. size - 1."""

    name: str
    size: Size


@dataclass(frozen=True)
class Quotient:
    """floor(value / divisor), divisor > 0."""

    value: Index
    divisor: Size


@dataclass(frozen=True)
class Remainder:
    """value - divisor * floor(value / divisor), divisor > 0."""

    value: Index
    divisor: Size


ASSERTED = "asserted"


@dataclass(frozen=True)
class Gathered:
    """An index read from data: `scalar` is a `loops.Scalar` of an integer dtype in
    0 .. size - 1 (already wrapped where the op wraps negative indices).

    Where only the data can tell that it is, `guard` names the flag that says so: a bool buffer
    that a step has found true before anything is accessed here (lowering/guards.py). Or it is
    `ASSERTED`: the kernel looks itself, and stops.
    """

    scalar: Any
    size: Size
    guard: str = ""


Atom = Axis | Quotient | Remainder | Gathered


@dataclass(frozen=True)
class Index:
    """`const + sum(coefficient * atom)`; terms are sorted, coefficients are never zero."""

    terms: tuple[tuple[Atom, Size], ...] = ()
    const: Size = 0

    def __add__(self, other: Index | Size) -> Index:
        other = as_index(other)
        return _build({**dict(self.terms)}, other.terms, _sum(self.const, other.const))

    def __sub__(self, other: Index | Size) -> Index:
        return self + as_index(other) * -1

    def __mul__(self, factor: Size) -> Index:
        if factor == 0:
            return ZERO
        if factor == 1:
            return self
        terms = tuple((atom, _product(size, factor)) for atom, size in self.terms)
        return Index(terms, _product(self.const, factor))

    def __str__(self) -> str:
        parts = [text(atom) if size == 1 else f"{size}*{text(atom)}" for atom, size in self.terms]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    def coefficient(self, axis: Axis) -> Size:
        """The factor of `axis` itself, not counting uses inside quotients."""
        return next((size for atom, size in self.terms if atom == axis), 0)


ZERO = Index()


def as_index(value: Index | Axis | Size) -> Index:
    match value:
        case Index():
            return value
        case Axis():
            return ZERO if value.size == 1 else Index(((value, 1),))
    return Index((), value)


def floor_div(value: Index, divisor: Size) -> Index:
    """floor(value / divisor) for divisor > 0; 0 for the size of an axis without places, where
    nothing is ever accessed."""
    if divisor == 1:
        return value
    if divisor == 0:
        return ZERO
    outer, rest = _split(value, divisor)
    low, high = bounds(rest)
    if _at_least(low, 0) and _below(high, divisor):
        return outer
    if isinstance(divisor, int):
        shared = _common(rest, divisor)
        if shared > 1:
            return outer + floor_div(_exact_div(rest, shared), divisor // shared)
    if len(rest.terms) == 1 and rest.const == 0:
        atom, size = rest.terms[0]
        if size == 1 and isinstance(atom, Quotient):
            return outer + floor_div(atom.value, _product(atom.divisor, divisor))
        if size == 1 and isinstance(atom, Remainder):
            ratio = _ratio(atom.divisor, divisor)
            if ratio is not None:
                return outer + remainder(floor_div(atom.value, divisor), ratio)
    return outer + Index(((Quotient(rest, divisor), 1),))


def remainder(value: Index, divisor: Size) -> Index:
    """value mod divisor, in 0 .. divisor - 1, for divisor > 0; 0 as in `floor_div`."""
    if divisor in (0, 1):
        return ZERO
    _, rest = _split(value, divisor)
    low, high = bounds(rest)
    if _at_least(low, 0) and _below(high, divisor):
        return rest
    if isinstance(divisor, int):
        shared = _common(rest, divisor)
        if shared > 1:
            return remainder(_exact_div(rest, shared), divisor // shared) * shared
    if len(rest.terms) == 1 and rest.const == 0:
        atom, size = rest.terms[0]
        if size == 1 and isinstance(atom, Remainder):
            ratio = _ratio(atom.divisor, divisor)
            if ratio is not None:
                return remainder(atom.value, divisor)
    return Index(((Remainder(rest, divisor), 1),))


def substitute(
    value: Index,
    places: Mapping[Axis, Index],
    gathers: Mapping[Gathered, Index] | None = None,
) -> Index:
    """`value` with every axis in `places` replaced, inside quotients and remainders too.

    Gathered values are replaced by their entry in `gathers`, and left alone without one:
    `rewrite.Rewriter` handles those, as they hold loads.
    """
    total = Index((), value.const)
    for atom, size in value.terms:
        total = total + _substitute_atom(atom, places, gathers or {}) * size
    return total


def _substitute_atom(
    atom: Atom, places: Mapping[Axis, Index], gathers: Mapping[Gathered, Index]
) -> Index:
    match atom:
        case Axis():
            return places.get(atom, as_index(atom))
        case Quotient(value=value, divisor=divisor):
            return floor_div(substitute(value, places, gathers), divisor)
        case Remainder(value=value, divisor=divisor):
            return remainder(substitute(value, places, gathers), divisor)
        case Gathered() if atom in gathers:
            return gathers[atom]
    return Index(((atom, 1),))


def atoms(value: Index) -> Iterator[Atom]:
    """All atoms, those inside quotients and remainders included."""
    for atom, _ in value.terms:
        yield atom
        if isinstance(atom, Quotient | Remainder):
            yield from atoms(atom.value)


def axes_of(value: Index) -> frozenset[Axis]:
    """Axes mentioned directly or inside quotients (not inside gathered scalars)."""
    return frozenset(atom for atom in atoms(value) if isinstance(atom, Axis))


def bounds(value: Index) -> tuple[Size, Size]:
    """Smallest and largest value (inclusive); coefficients of symbols count as positive."""
    low: Size = value.const
    high: Size = value.const
    for atom, size in value.terms:
        first, last = _atom_bounds(atom)
        ends = (_product(first, size), _product(last, size))
        if _negative(size):
            ends = (ends[1], ends[0])
        low, high = _sum(low, ends[0]), _sum(high, ends[1])
    return low, high


def flatten(index: tuple[Index, ...], strides: tuple[Size, ...], offset: Size = 0) -> Index:
    """The linear element position of a logical index in a strided buffer."""
    total = as_index(offset)
    for part, stride in zip(index, strides, strict=True):
        total = total + part * stride
    return total


def unflatten(position: Index, shape: tuple[Size, ...]) -> tuple[Index, ...]:
    """The logical index of row-major element `position` in `shape`."""
    if 0 in shape:  # there is no such element
        return (ZERO,) * len(shape)
    parts: list[Index] = []
    for size in reversed(shape[1:]):
        parts.append(remainder(position, size))
        position = floor_div(position, size)
    if shape:
        parts.append(position if shape[0] != 1 else ZERO)
    return tuple(reversed(parts))


def row_major(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Contiguous strides of `shape` (size-0 and size-1 dims count as 1)."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = _product(step, size if not isinstance(size, int) else max(size, 1))
    return tuple(reversed(strides))


def text(atom: Atom) -> str:
    match atom:
        case Axis(name=name):
            return name
        case Quotient(value=value, divisor=divisor):
            return f"(({value}) // {divisor})"
        case Remainder(value=value, divisor=divisor):
            return f"(({value}) % {divisor})"
    return f"[{atom.scalar}]"


def _build(table: dict[Atom, Size], more: tuple[tuple[Atom, Size], ...], const: Size) -> Index:
    for atom, size in more:
        total = _sum(table.get(atom, 0), size)
        if total == 0:
            del table[atom]
        else:
            table[atom] = total
    if any(isinstance(atom, Remainder) for atom in table):
        rejoined = _rejoin(table, const)
        if rejoined is not None:
            return rejoined
    return Index(tuple(sorted(table.items(), key=lambda item: _order(item[0]))), const)


def _rejoin(table: dict[Atom, Size], const: Size) -> Index | None:
    """c*n*(e // n) + c*(e % n) = c*e, where both parts are present."""
    for atom, size in table.items():
        if not isinstance(atom, Remainder):
            continue
        partner = _as_terms(floor_div(atom.value, atom.divisor))
        scale = _product(size, atom.divisor)
        if partner and all(table.get(a) == _product(s, scale) for a, s in partner):
            left = {a: s for a, s in table.items() if a != atom and a not in dict(partner)}
            return _build(left, (atom.value * size).terms, _sum(const, 0)) + Index(
                (), _product(atom.value.const, size)
            )
    return None


def _as_terms(value: Index) -> tuple[tuple[Atom, Size], ...]:
    return value.terms if value.const == 0 else ()


@lru_cache(maxsize=65536)
def _order(atom: Atom) -> tuple[int, str]:
    rank = {Axis: 0, Quotient: 1, Remainder: 2, Gathered: 3}[type(atom)]
    return rank, text(atom) if not isinstance(atom, Gathered) else f"{atom.scalar.serial:09}"


def _atom_bounds(atom: Atom) -> tuple[Size, Size]:
    match atom:
        case Axis(size=size) | Gathered(size=size):
            return 0, _sum(size, -1)
        case Remainder(divisor=divisor):
            return 0, _sum(divisor, -1)
    low, high = bounds(atom.value)
    if isinstance(low, int) and isinstance(high, int) and isinstance(atom.divisor, int):
        return low // atom.divisor, high // atom.divisor
    return (0 if _at_least(low, 0) else low), high


def _split(value: Index, divisor: Size) -> tuple[Index, Index]:
    """value = divisor * outer + rest, moving what divides exactly into `outer`."""
    outer: dict[Atom, Size] = {}
    rest: dict[Atom, Size] = {}
    for atom, size in value.terms:
        ratio = _ratio(size, divisor)
        if ratio is not None:
            outer[atom] = ratio
        else:
            rest[atom] = size
    const, left = 0, value.const
    if isinstance(value.const, int) and isinstance(divisor, int):
        const, left = divmod(value.const, divisor)
        low, _ = bounds(Index(tuple(rest.items()), left))
        if not _at_least(low, 0):
            const, left = 0, value.const
    key = lambda item: _order(item[0])  # noqa: E731
    return (
        Index(tuple(sorted(outer.items(), key=key)), const),
        Index(tuple(sorted(rest.items(), key=key)), left),
    )


def _ratio(value: Size, divisor: Size) -> Size | None:
    """value / divisor where that is a whole number for every value of the symbols."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value // divisor if value % divisor == 0 else None
    return exact_ratio(value, divisor)


@lru_cache(maxsize=65536)
def exact_ratio(value: Size, divisor: Size) -> Size | None:
    """value / divisor, of which one is an expression, where that is always a whole number."""
    ratio = sympy.cancel(sympy.sympify(value) / divisor)
    if sympy.denom(ratio) == 1 and ratio.is_integer:
        return _plain(ratio)
    return None


def _common(value: Index, divisor: int) -> int:
    numbers = [size for _, size in value.terms] + [value.const, divisor]
    if not all(isinstance(number, int) for number in numbers):
        return 1
    return int(sympy.igcd(*numbers)) if value.terms else 1


def _exact_div(value: Index, divisor: int) -> Index:
    return Index(
        tuple((atom, size // divisor) for atom, size in value.terms), value.const // divisor
    )


def _plain(value: Size) -> Size:
    return int(value) if isinstance(value, sympy.Integer) else value


def _sum(a: Size, b: Size) -> Size:
    return a + b if isinstance(a, int) and isinstance(b, int) else _symbolic_sum(a, b)


@lru_cache(maxsize=65536)
def _symbolic_sum(a: Size, b: Size) -> Size:
    return _plain(sympy.expand(a + b))


def _product(a: Size, b: Size) -> Size:
    return a * b if isinstance(a, int) and isinstance(b, int) else _symbolic_product(a, b)


@lru_cache(maxsize=65536)
def _symbolic_product(a: Size, b: Size) -> Size:
    return _plain(sympy.expand(a * b))


def _negative(value: Size) -> bool:
    return value < 0 if isinstance(value, int) else bool(value.is_negative)


def _at_least(value: Size, low: int) -> bool:
    if isinstance(value, int):
        return value >= low
    return bool((value - low).is_nonnegative)


def _below(value: Size, limit: Size) -> bool:
    if isinstance(value, int) and isinstance(limit, int):
        return value < limit
    return bool(sympy.expand(sympy.sympify(limit) - value).is_positive)
