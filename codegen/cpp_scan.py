"""Running values of scans in C++: state, updates, results, `omp simd` clauses.

Takes `scan` scalars; gives the statements that carry their values from one inner point to the
next. `at` is "" for a plain variable, or "[lane]" for one entry of an array of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..lowering.loops import Scalar
from . import cpp_types


@dataclass(frozen=True)
class Running:
    """The running sum, prod, max, min or logaddexp of `operand`; with `places`, also where an
    extreme is."""

    kind: str
    operand: Scalar
    name: str
    places: bool = False

    @property
    def dtype(self) -> str:
        """The dtype whose order or arithmetic the scan uses."""
        return self.operand.dtype

    @property
    def states(self) -> list[tuple[str, str, str]]:
        """Type, name and first value of each variable that is carried along."""
        kind = cpp_types.VALUE_TYPES[self.dtype]
        match self.kind:
            case "sum":
                return [(kind, self.name, "0")]
            case "prod":
                return [(kind, self.name, "1")]
            case "logaddexp":
                lowest = cpp_types.lowest(self.dtype)
                return [(kind, self.name, lowest), (kind, f"{self.name}_sum", "0")]
        most = self.kind == "max"
        first = cpp_types.lowest(self.dtype) if most else cpp_types.highest(self.dtype)
        states = [(kind, self.name, first)]
        return [*states, ("int64_t", f"{self.name}_at", "0")] if self.places else states

    def update(self, at: str, value: str, position: str) -> list[str]:
        """Statements that take `value`, found at inner point `position`, in."""
        name = f"{self.name}{at}"
        match self.kind:
            case "sum":
                return [f"{name} = {name} + {value};"]
            case "prod":
                return [f"{name} = {name} * {value};"]
            case "logaddexp":
                return self._logaddexp(at, value)
        take = f"{self.name}_take"
        lines = [f"const bool {take} = {self._wins(name, value)};"]
        lines.append(f"{name} = {take} ? {value} : {name};")
        if self.places:
            place = f"{self.name}_at{at}"
            lines.append(f"{place} = {take} ? {position} : {place};")
        return lines

    def _wins(self, name: str, value: str) -> str:
        """The later of equal values wins, and a nan against anything."""
        test = f"({value} {'>=' if self.kind == 'max' else '<='} {name})"
        return f"{test} | ({value} != {value})" if self.dtype in cpp_types.FLOATS else test

    def _logaddexp(self, at: str, value: str) -> list[str]:
        """The largest exponent so far, and the sum of all powers relative to it."""
        kind, most, total = cpp_types.VALUE_TYPES[self.dtype], self.name, f"{self.name}_sum"
        gap, power = f"{self.name}_gap", f"{self.name}_power"
        return [
            # equal infinities have no difference
            f"const {kind} {gap} = {value} == {most}{at} ? 0 : {value} - {most}{at};",
            f"const {kind} {power} = eq_exp({gap} > 0 ? -{gap} : {gap});",
            f"{total}{at} = {gap} > 0 ? {total}{at} * {power} + 1 : {total}{at} + {power};",
            f"{most}{at} = {gap} > 0 ? {value} : {most}{at};",
        ]

    def result(self, scalar: Scalar, at: str) -> str:
        """The value of `scalar` at the point that was taken in last."""
        if scalar.value in ("argmax", "argmin"):
            return f"{self.name}_at{at}"
        text = f"{self.name}{at}"
        if self.kind == "logaddexp":
            text = f"({text} + eq_log({self.name}_sum{at}))"
        return cpp_types.rounded(text, self.dtype)

    @property
    def clause(self) -> str | None:
        """How `omp simd` scans in lanes; None where it cannot."""
        if self.kind not in ("sum", "prod"):
            return None
        return f"reduction(inscan, {'+' if self.kind == 'sum' else '*'} : {self.name})"


def running_values(scans: Iterable[Scalar], fresh: Callable[[], str]) -> dict[int, Running]:
    """What to carry for each scan, by id. An extreme and its place are carried as one."""
    groups: dict[tuple[int, str], list[Scalar]] = {}
    for scan in scans:
        key = id(scan.args[0]), str(scan.value).removeprefix("arg")
        groups.setdefault(key, []).append(scan)
    found: dict[int, Running] = {}
    for (_, kind), group in groups.items():
        places = any(scan.value != kind for scan in group)
        running = Running(kind, group[0].args[0], fresh(), places)
        found |= {id(scan): running for scan in group}
    return found
