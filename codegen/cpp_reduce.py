"""Accumulators of reductions in C++: types, identities, updates, merges, `omp simd` clauses.

Takes a `reduce` scalar; gives the statements that keep its running value. Float sums are kept
in the dtype of the reduction within a stretch of the row and in double over stretches, so a
long float32 sum stays within 1e-6. Arg-reductions keep a value and a position; their loops run
in order, and the first of equal values stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..lowering.loops import Scalar
from . import cpp_types


@dataclass(frozen=True)
class Accumulator:
    """The running value `name` of `scalar`; with `wide`, `part` is that of one stretch."""

    scalar: Scalar
    name: str
    wide: bool = False

    @property
    def kind(self) -> str:
        return str(self.scalar.value)

    @property
    def is_arg(self) -> bool:
        return self.kind in ("argmax", "argmin")

    @property
    def part(self) -> str:
        return f"p{self.name[1:]}" if self.wide else self.name

    @property
    def dtype(self) -> str:
        """The dtype whose order or arithmetic the accumulator uses."""
        return self.scalar.args[0].dtype if self.is_arg else self.scalar.dtype

    def type(self, part: bool = False) -> str:
        if self.wide and not part:
            return "double"
        if self.kind in ("any", "all") or self.dtype == "bool":
            return "int32_t"
        return cpp_types.VALUE_TYPES[self.dtype]

    @property
    def ranked(self) -> bool:
        """Extremes of floats in a row loop run on integers of the same order, in which nan
        wins: integer extremes vectorise without asking about nan at every step."""
        return self.kind in ("max", "min") and self.dtype in cpp_types.FLOATS

    @property
    def rank_type(self) -> str:
        return "int64_t" if self.dtype == "f64" else "int32_t"

    def rank(self, value: str) -> str:
        return f"eq_rank_{self.kind}({value})"

    def rank_update(self, value: str) -> str:
        sign = ">" if self.kind == "max" else "<"
        rank = self.rank(value)
        name = f"{self.name}_rank"
        return f"{name} = {rank} {sign} {name} ? {rank} : {name};"

    @property
    def init(self) -> str:
        match self.kind:
            case "max" | "argmax":
                return "0" if self.dtype == "bool" else cpp_types.lowest(self.dtype)
            case "min" | "argmin":
                return "1" if self.dtype == "bool" else cpp_types.highest(self.dtype)
            case "prod" | "all":
                return "1"
        return "0"

    def update(self, name: str, value: str) -> str:
        """The new running value of `name` after `value`; not for arg-reductions."""
        match self.kind:
            case "sum":
                return f"{name} + {value}"
            case "prod":
                return f"{name} * {value}"
            case "any":
                return f"{name} | ({value} != 0)"
            case "all":
                return f"{name} & ({value} != 0)"
        if self.dtype == "bool":
            return f"{name} {'|' if self.kind == 'max' else '&'} {value}"
        if self.dtype in cpp_types.FLOATS:
            return f"eq_{self.kind}({value}, {name})"  # the first of two zeros stays
        return f"{name} {'>' if self.kind == 'max' else '<'} {value} ? {name} : {value}"

    @property
    def clause(self) -> str:
        """How `omp simd` may combine lanes."""
        if self.ranked:
            return f"reduction({self.kind} : {self.name}_rank)"
        sign = {"sum": "+", "prod": "*", "any": "|", "all": "&"}.get(self.kind)
        if sign is None and self.dtype == "bool":
            sign = "|" if self.kind == "max" else "&"
        if sign is None:
            sign = self.kind
        return f"reduction({sign} : {self.part})"

    def better(self, name: str, value: str, position: str) -> str:
        """Whether `value` replaces the running value of an arg-reduction."""
        sign = ">" if self.kind == "argmax" else "<"
        test = f"({position} < 0) | ({value} {sign} {name})"
        if self.dtype in cpp_types.FLOATS:
            test += f" | (({value} != {value}) & ({name} == {name}))"
        return test

    def matches(self, name: str, value: str) -> str:
        """Whether `value` is the extreme `name`."""
        if self.dtype not in cpp_types.FLOATS:
            return f"{value} == {name}"
        return f"({value} == {name}) | (({value} != {value}) & ({name} != {name}))"

    def finish(self, name: str, position: str) -> str:
        """The value of the reduction in its dtype."""
        if self.is_arg:
            return f"({cpp_types.VALUE_TYPES[self.scalar.dtype]}){position}"
        if self.type() == "int32_t" and self.scalar.dtype == "bool":
            return f"{name} != 0"
        text = f"({cpp_types.VALUE_TYPES[self.scalar.dtype]}){name}"
        return cpp_types.rounded(text, self.scalar.dtype)


def accumulators(
    reductions: Sequence[Scalar], fresh: Callable[[], str], stretches: bool
) -> tuple[list[Accumulator], list[Accumulator]]:
    """Those that a pass keeps up to date, named by `fresh`; and extremes whose place is looked
    for as well, under the name of the accumulator that does. They are the value at that place,
    which of two zeros is the first, as in eager.

    `stretches`: the reduced range is walked in more than one stretch.
    """
    found, led = [], []
    leaders: dict[tuple[str, int], Accumulator] = {}
    for scalar in sorted(reductions, key=lambda scalar: scalar.value not in ("argmax", "argmin")):
        key = str(scalar.value).removeprefix("arg"), id(scalar.args[0])
        if scalar.value in ("max", "min") and key in leaders:
            led.append(Accumulator(scalar, leaders[key].name))
            continue
        wide = stretches and scalar.value == "sum" and scalar.dtype in cpp_types.FLOATS
        found.append(Accumulator(scalar, fresh(), wide))
        if found[-1].is_arg:
            leaders[key] = found[-1]
    return found, led
