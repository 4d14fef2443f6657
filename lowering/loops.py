"""The loop IR on one screen.

A `Program` is a list of steps over named buffers. A `Nest` is a loop nest: parallel `axes`,
one group of reduced `raxes`, and stores of scalar values. Scalars form a hash-consed DAG
(`Builder`), loads carry logical indices (one `Index` per dim of the buffer, not yet
flattened); masks, tails, vector widths and loop order are the target's business.
An `Extern` calls an ATen op (or any callable) on strided views of buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .index import ASSERTED, Axis, Gathered, Index, Size, atoms, axes_of
from .sources import Source

DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool")
REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
MODES = ("set", "add", "mul", "max", "min")
SCANS = ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")


@dataclass(frozen=True, eq=False)
class Scalar:
    """One value per point of the iteration space. Equal scalars are the same object.

    op "load":   buffer, index (logical); args () or (mask, other): other where not mask,
                 and the load is not performed
    op "const":  value (bool, int or float; nan and inf allowed)
    op "index":  index[0] as an i64 value
    op "cast":   args (x,), dtype is the target
    op "reduce": value is one of REDUCTIONS, args (x,), over all raxes of the nest; max, min,
                 argmax and argmin let nan win; arg-reductions give the first flat position
    op "scan":   value is one of SCANS, args (x,): at each inner point the reduction of x over
                 the inner points up to and with this one, row-major over raxes; of equal
                 extremes, and of nans, the last one counts
    other:       a scalar op of rules/scalar on args; computed in `dtype` of its result
                 (comparisons: in the dtype of their operands)
    """

    op: str
    args: tuple[Scalar, ...] = ()
    dtype: str = "f32"
    buffer: str | None = None
    index: tuple[Index, ...] = ()
    value: Any = None
    serial: int = 0  # counts up in the order of making: a stable key for sorting


@dataclass(frozen=True)
class Buffer:
    """`shape` and `stride` count elements. role: "input", "temp" (arena), "output" (fresh
    each call), "extern" (memory of an extern call's result), "constant" (held tensor)."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    role: str = "temp"
    device: str = "cpu"  # "cpu", "cuda:0"


@dataclass(frozen=True)
class Store:
    """buffer[index] = value; or the old element and `value` joined by a mode of MODES, computed
    in the dtype of the buffer ("add" of bools is or; max and min let nan win). Points that may
    write to one element do so in the order of the axes, slowest first."""

    buffer: str
    index: tuple[Index, ...]
    value: Scalar
    mode: str = "set"


@dataclass(frozen=True)
class Nest:
    """for axes: [for raxes: ...]. A store whose index mentions a reduced axis, or whose value
    varies along one, happens inside the inner loop; any other once per point of `axes`. A scan
    varies along all reduced axes."""

    name: str
    axes: tuple[Axis, ...]
    raxes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()  # FX node names, in order
    rules: tuple[str, ...] = ()  # "file:line name" of the rules behind them


@dataclass(frozen=True)
class View:
    """A strided tensor over a buffer's memory; offset counts elements."""

    buffer: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size = 0


@dataclass(frozen=True)
class SizeValue:
    """A size (or SymInt input) used as an argument or returned."""

    value: Size


@dataclass(frozen=True)
class Extern:
    """outs = target(*args, **kwargs). Tensors in args are `View`, symbolic numbers
    `SizeValue`, anywhere inside lists and tuples. `outs` names a buffer per result, None
    for a result that nobody reads or that is not a tensor; `mutates` are buffers written in
    place. Externs with `ordered` keep their order among each other (random, effects).
    `numbers` has an entry per result too, where some are numbers: the size that one is."""

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[str | None, ...]
    single: bool = True  # the target returns one tensor, not a tuple
    mutates: tuple[str, ...] = ()
    ordered: bool = False
    numbers: tuple[Size | None, ...] = ()
    origins: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


Step = Nest | Extern


@dataclass(frozen=True)
class Program:
    """`inputs` has one entry per graph input: a buffer name, or a symbol or plain value for a
    number. `outputs` likewise: View, SizeValue, None or a plain Python value. `again` gives,
    for each output that is an earlier one once more, the place of that; all others are tensors
    of their own, be it of the same view."""

    inputs: tuple[str | SizeValue | None, ...]
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[View | SizeValue | int | float | bool | None, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)  # buffer -> torch.Tensor
    sources: Mapping[str, Source] = field(default_factory=dict)  # by FX node name
    again: Mapping[int, int] = field(default_factory=dict)

    def with_repeats(self, outputs: list[Any]) -> list[Any]:
        """`outputs`, a tensor for each, with the very tensor in the places of those that are
        returned again."""
        for place, first in self.again.items():
            outputs[place] = outputs[first]
        return outputs


class Builder:
    """Makes scalars; equal ones are shared."""

    def __init__(self) -> None:
        self._memo: dict[tuple[Any, ...], Scalar] = {}

    def make(
        self,
        op: str,
        args: tuple[Scalar, ...] = (),
        dtype: str = "f32",
        *,
        buffer: str | None = None,
        index: tuple[Index, ...] = (),
        value: Any = None,
    ) -> Scalar:
        key = (op, tuple(map(id, args)), dtype, buffer, index, type(value).__name__, repr(value))
        found = self._memo.get(key)
        if found is None:
            serial = len(self._memo)
            found = self._memo[key] = Scalar(op, args, dtype, buffer, index, value, serial)
        return found

    def load(self, buffer: Buffer, index: tuple[Index, ...]) -> Scalar:
        return self.make("load", (), buffer.dtype, buffer=buffer.name, index=index)

    def const(self, value: bool | int | float, dtype: str) -> Scalar:
        return self.make("const", (), dtype, value=value)

    def cast(self, value: Scalar, dtype: str) -> Scalar:
        return value if value.dtype == dtype else self.make("cast", (value,), dtype)


def scalars(nest: Nest) -> list[Scalar]:
    """Every scalar of a nest once, operands first, those in gathered indices included."""
    order: dict[int, Scalar] = {}
    stack: list[tuple[Scalar, bool]] = []
    for store in reversed(nest.stores):
        stack += [(store.value, False), *((part, False) for part in gathered(store.index))]
    while stack:  # not recursive: a fused chain may be thousands of scalars deep
        scalar, ready = stack.pop()
        if id(scalar) in order:
            continue
        if ready:
            order[id(scalar)] = scalar
        else:
            stack.append((scalar, True))
            stack += [(part, False) for part in reversed(operands(scalar))]
    return list(order.values())


def views_in(value: Any) -> Iterator[View]:
    """The views anywhere inside arguments of a call."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from views_in(item)
    elif isinstance(value, dict):
        yield from views_in(tuple(value.values()))


def operands(scalar: Scalar) -> tuple[Scalar, ...]:
    """Direct operands: arguments, then scalars that the load index gathers through."""
    return (*scalar.args, *gathered(scalar.index))


def gathered(index: tuple[Index, ...]) -> tuple[Scalar, ...]:
    return tuple(a.scalar for part in index for a in atoms(part) if isinstance(a, Gathered))


def varies(scalar: Scalar) -> frozenset[Axis]:
    """The axes that a scalar without reductions depends on."""
    inner = scalars(Nest("", (), (), (Store("", (), scalar),)))
    return frozenset(axis for one in inner for part in one.index for axis in axes_of(part))


def guards(nest: Nest) -> frozenset[str]:
    """The flags that must have been found true before a nest runs."""
    indices = [*(scalar.index for scalar in scalars(nest)), *(s.index for s in nest.stores)]
    found = (a for index in indices for part in index for a in atoms(part))
    named = (a.guard for a in found if isinstance(a, Gathered))
    return frozenset(guard for guard in named if guard not in ("", ASSERTED))
