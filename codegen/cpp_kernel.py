"""The text of one kernel while it is written: argument and value names, statements, scopes.

Takes a nest, its buffers and the scalar entries; gives lines of C++. Names are handed out in
the order of first use (`a0` buffers, `s0` symbols, `i0` parallel axes, `k0` reduced axes, `t0`
values), so that equal nests of different layers give equal text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..engine.loop_choices import LoopChoices
from ..engine.rule import ScalarEntry
from ..engine.target import load_target
from ..lowering.index import Axis, Index, flatten
from ..lowering.loops import Buffer, Nest, Scalar, Store
from . import cpp_types
from .cpp_index import IndexPrinter, print_size
from .passes import Analysis, analyse
from .scalars import find, rounds, spell


class SymbolNames(dict[str, str]):
    """sympy symbol name -> argument name, given out at first use."""

    def __missing__(self, name: str) -> str:
        self[name] = given = f"s{len(self)}"
        return given


class Kernel:
    """Writes statements for scalars and stores of one nest."""

    def __init__(
        self,
        nest: Nest,
        buffers: Mapping[str, Buffer],
        scalars: Mapping[str, ScalarEntry],
        loops: LoopChoices | None = None,
    ) -> None:
        self.nest = nest
        self.loops = loops or load_target("cpu").loops
        self.buffers = buffers
        self.scalars = scalars
        self.analysis: Analysis = analyse(nest)
        self.symbols = SymbolNames()
        self.axes = _axis_names(nest)
        self.printer = IndexPrinter(self.axes, self.symbols, self.name)
        self.arguments = _argument_names(self.analysis, nest)
        self.names: dict[int, str] = {}
        self.staged: dict[int, str] = {}  # loads that read a local tile instead
        self.unrounded: dict[str, str] = {}  # name of a half float -> of the float behind it
        self.lines: list[str] = []
        self._depth = 1
        self._values = 0

    # ---- text ----

    def write(self, line: str) -> None:
        """One line; pragmas start at the margin."""
        self.lines.append(line if line.startswith("#") else "  " * self._depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """`head { ... }` with names that end with it."""
        self.write(f"{head} {{".lstrip())
        self._depth += 1
        outside = dict(self.names)
        yield
        self.names = outside
        self._depth -= 1
        self.write("}")

    def fresh(self, letter: str = "t") -> str:
        self._values += 1
        return f"{letter}{self._values - 1}"

    def size(self, axis: Axis) -> str:
        return print_size(axis.size, self.symbols)

    # ---- values ----

    def name(self, scalar: Scalar) -> str:
        """The name or literal of a value that is defined here."""
        if scalar.op == "const":
            return cpp_types.literal(scalar.value, scalar.dtype)
        return self.names[id(scalar)]

    def define(self, scalar: Scalar) -> None:
        """Computes `scalar` into a new variable; its operands are defined."""
        if scalar.op == "const" or id(scalar) in self.names:
            return
        name = self.fresh()
        text = self.expression(scalar)
        if self._rounded(scalar):  # a store packs the float itself, in fewer steps
            self.unrounded[name] = f"{name}_float"
            self.write(f"const float {name}_float = {text};")
            text = cpp_types.rounded(f"{name}_float", scalar.dtype)
        self.write(f"const {cpp_types.VALUE_TYPES[scalar.dtype]} {name} = {text};")
        self.names[id(scalar)] = name

    def _rounded(self, scalar: Scalar) -> bool:
        """Whether `scalar` is a half float that its expression gives as any float."""
        if scalar.op in ("load", "index") or scalar.dtype not in cpp_types.HALVES:
            return False
        if scalar.op == "cast":
            return scalar.args[0].dtype != scalar.dtype
        return rounds(find(self.scalars, scalar), scalar)

    def expression(self, scalar: Scalar) -> str:
        """C++ for `scalar` before a result in half floats is rounded."""
        operands = [self.name(part) for part in scalar.args]
        match scalar.op:
            case "load":
                return self._load(scalar, operands)
            case "index":
                return self.printer.index(scalar.index[0])
            case "cast":
                value = f"eq_whole({operands[0]})" if _truncates(scalar) else operands[0]
                if self._rounded(scalar):
                    return f"(float){value}"
                return cpp_types.cast(value, scalar.args[0].dtype, scalar.dtype)
        entry = find(self.scalars, scalar)
        return spell(entry.cpp, entry, scalar, operands)

    def _load(self, scalar: Scalar, operands: Sequence[str]) -> str:
        place = self.staged.get(id(scalar)) or self.place(scalar.buffer or "", scalar.index)
        word = cpp_types.load(scalar.dtype, place)
        if not operands:
            return word
        return f"{operands[0]} ? {word} : {operands[1]}"

    def place(self, buffer: str, index: tuple[Index, ...]) -> str:
        """`a0[...]` for a logical index of a buffer."""
        return f"{self.arguments[buffer]}[{self.printer.index(self.position(buffer, index))}]"

    def position(self, buffer: str, index: tuple[Index, ...]) -> Index:
        return flatten(index, self.buffers[buffer].stride)

    def store(self, store: Store) -> None:
        """Writes the statement of one store; its value and indices are defined."""
        place = self.place(store.buffer, store.index)
        dtype = self.buffers[store.buffer].dtype
        value = cpp_types.cast(self.name(store.value), store.value.dtype, dtype)
        if store.mode != "set":
            value = cpp_types.joined(store.mode, cpp_types.load(dtype, place), value, dtype)
            word = cpp_types.packed(f"({value})", dtype)
        elif value in self.unrounded:
            word = cpp_types.packed(self.unrounded[value], dtype)
        else:
            word = cpp_types.stored(dtype, value)
        self.write(f"{place} = {word};")

    # ---- signature ----

    def signature(self) -> str:
        """The parameter list: buffers in order of first use, then symbols."""
        read = {s.buffer for s in self.analysis.order if s.op == "load"}
        written = {store.buffer for store in self.nest.stores}
        words = []
        for buffer, name in self.arguments.items():
            kind = cpp_types.MEMORY_TYPES[self.buffers[buffer].dtype]
            # A buffer on both sides is reached through one pointer; restrict would still be
            # true, but invites gcc to move its loads over its stores.
            limit = "" if buffer in read and buffer in written else " __restrict"
            words.append(f"{'' if buffer in written else 'const '}{kind}*{limit} {name}")
        return ", ".join([*words, *(f"int64_t {name}" for name in self.symbols.values())])


def _axis_names(nest: Nest) -> dict[Axis, str]:
    """Canonical names; an axis of size one needs no loop and is written 0."""
    names = {axis: f"i{place}" for place, axis in enumerate(nest.axes)}
    names |= {axis: f"k{place}" for place, axis in enumerate(nest.raxes)}
    return {axis: "0" if axis.size == 1 else name for axis, name in names.items()}


def _argument_names(analysis: Analysis, nest: Nest) -> dict[str, str]:
    used = [scalar.buffer for scalar in analysis.order if scalar.op == "load"]
    used += [store.buffer for store in nest.stores]
    return {name: f"a{place}" for place, name in enumerate(dict.fromkeys(n for n in used if n))}


def _truncates(scalar: Scalar) -> bool:
    """Whether a cast makes a float of an integer that was made of a float: gcc takes that for
    `trunc`, which keeps the sign of a zero, nan and what no integer holds."""
    (whole,) = scalar.args
    made = whole.op == "cast" and whole.args[0].dtype in cpp_types.FLOATS
    return (
        made and scalar.dtype in cpp_types.FLOATS and whole.dtype not in (*cpp_types.FLOATS, "bool")
    )
