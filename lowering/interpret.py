"""Runs loop IR with torch, slowly: the oracle for lowering, fusion and code generation.

Takes a `Program` and real inputs; gives the outputs. A nest is evaluated over its whole
iteration space at once: every scalar is a tensor with one dim per axis (size 1 where it does
not vary), every load an advanced index, so nothing here knows about strides or order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..engine.dtypes import dtype_of, word_of
from .index import Axis, Gathered, Index, Quotient, Remainder, Size
from .loops import Buffer, Extern, Nest, Program, Scalar, SizeValue, Store, View, scalars
from .meanings import MEANINGS
from .promotion import FLOATS

Disturb = Callable[[Scalar, torch.Tensor], torch.Tensor]


class BadProgram(Exception):
    """The program reads outside a buffer, or a call gives what was not announced."""


def interpret(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of `program`, tensors as fresh views of the memory it filled; one that is
    returned twice is one tensor.

    `inputs` are given as the graph takes them; inputs that the program writes are written.
    Raises BadProgram for a read or write outside a buffer.
    """
    symbols = bind_symbols(program, inputs)
    memory = memory_of(program, inputs, symbols)
    for step in program.steps:
        if isinstance(step, Nest):
            Points(step, program.buffers, memory, symbols).run()
        else:
            _call(step, program.buffers, memory, symbols)
    return program.with_repeats([output(item, memory, symbols) for item in program.outputs])


def bind_symbols(program: Program, inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """The value of every symbol that is an input, or a size or stride of one."""
    found: dict[sympy.Symbol, int] = {}
    for name, value in zip(program.inputs, inputs, strict=True):
        if isinstance(name, SizeValue):
            _bind(found, name.value, value)
        elif isinstance(name, str):
            buffer = program.buffers[name]
            stride = value.stride() if value.layout is torch.strided else buffer.stride
            for size, real in zip(
                (*buffer.shape, *buffer.stride), (*value.shape, *stride), strict=True
            ):
                _bind(found, size, real)
    return found


def _bind(found: dict[sympy.Symbol, int], size: Size, value: int) -> None:
    if isinstance(size, sympy.Symbol):
        found.setdefault(size, value)


def number(size: Size, symbols: Mapping[sympy.Symbol, int]) -> int:
    """The value of a size."""
    if isinstance(size, int):
        return size
    return int(size.subs(symbols))


def memory_of(
    program: Program, inputs: Sequence[Any], symbols: Mapping[sympy.Symbol, int]
) -> dict[str, torch.Tensor]:
    """A tensor per buffer; those the program fills start with a value that shows."""
    memory = {name: tensor.detach() for name, tensor in program.constants.items()}
    for entry, value in zip(program.inputs, inputs, strict=True):
        if isinstance(entry, str):
            memory[entry] = value.detach()
    for name, buffer in program.buffers.items():
        if name not in memory and buffer.role != "extern":
            memory[name] = poisoned(buffer, symbols)
    return memory


def poisoned(buffer: Buffer, symbols: Mapping[sympy.Symbol, int]) -> torch.Tensor:
    shape = [number(size, symbols) for size in buffer.shape]
    stride = [number(size, symbols) for size in buffer.stride]
    dtype = dtype_of(buffer.dtype)
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if dtype is not torch.bool:
        tensor.fill_(float("nan") if dtype.is_floating_point or dtype.is_complex else 77)
    return tensor


class Points:
    """One nest over all points of its iteration space. `disturb` may change the value of a
    scalar, and what a reduction or scan takes in."""

    def __init__(
        self,
        nest: Nest,
        buffers: Mapping[str, Buffer],
        memory: Mapping[str, torch.Tensor],
        symbols: Mapping[sympy.Symbol, int],
        disturb: Disturb | None = None,
    ) -> None:
        self._disturb = disturb
        self._nest = nest
        self._buffers = buffers
        self._memory = memory
        self._symbols = symbols
        self._axes = (*nest.axes, *nest.raxes)
        self._sizes = [number(axis.size, symbols) for axis in self._axes]
        self._place = {axis: k for k, axis in enumerate(self._axes)}
        self._values: dict[int, torch.Tensor] = {}

    def run(self) -> None:
        for scalar in scalars(self._nest):
            value = self._evaluate(scalar)
            if value.dtype != dtype_of(scalar.dtype):
                raise BadProgram(f"{scalar.op} is {value.dtype}, not {scalar.dtype}")
            if self._disturb is not None:
                value = self._disturb(scalar, value)
            self._values[id(scalar)] = value
        writes = [(store, self._indices(store.buffer, store.index)) for store in self._nest.stores]
        for store, index in writes:
            self._write(store.buffer, index, self._values[id(store.value)], store.mode)

    def places(self, store: Store) -> torch.Tensor:
        """Which elements of its buffer a store writes."""
        target = self._memory[store.buffer]
        marks = torch.zeros(target.shape, dtype=torch.bool)
        if 0 in self._sizes[: len(self._nest.axes)] or 0 in marks.shape:
            return marks
        indices = self._indices(store.buffer, store.index)
        parts = torch.broadcast_tensors(*indices)  # type: ignore[no-untyped-call]
        if parts:
            marks[tuple(parts)] = True
        return marks if parts else marks.fill_(True)

    def _write(self, name: str, index: list[torch.Tensor], value: torch.Tensor, mode: str) -> None:
        target = self._memory[name]
        if value.dtype != target.dtype:
            raise BadProgram(f"{value.dtype} stored into {name} of {target.dtype}")
        rows = len(self._nest.axes)
        every = self._sizes[:rows] + [1] * len(self._nest.raxes)
        within = [part.shape for part in index] + [value.shape]
        shape = torch.broadcast_shapes(every, *within)  # type: ignore[no-untyped-call]
        if 0 in shape:
            return
        place = torch.zeros(shape, dtype=torch.int64)
        for part, size in zip(index, target.shape, strict=True):
            place = place * size + part
        flat, place, value = target.reshape(-1), place.reshape(-1), value.expand(shape).reshape(-1)
        target.copy_(STORE[mode](flat, place, value).reshape(target.shape))

    def _evaluate(self, scalar: Scalar) -> torch.Tensor:
        dtype = dtype_of(scalar.dtype)
        args = [self._values[id(arg)] for arg in scalar.args]
        if self._disturb is not None and scalar.op in ("reduce", "scan"):
            args = [self._disturb(scalar, self._over_rows(arg)) for arg in args]
        match scalar.op:
            case "load":
                return self._load(scalar, args)
            case "const":
                return self._uniform(torch.tensor(scalar.value, dtype=dtype))
            case "index":
                return self._index(scalar.index[0])
            case "cast":
                return args[0].to(dtype)
            case "reduce":
                return self._reduce(str(scalar.value), args[0])
            case "scan":
                return self._scan(str(scalar.value), args[0])
        return MEANINGS[scalar.op](*args)

    def _uniform(self, value: torch.Tensor) -> torch.Tensor:
        return value.reshape([1] * len(self._axes))

    def _index(self, index: Index) -> torch.Tensor:
        total = self._uniform(torch.tensor(number(index.const, self._symbols)))
        for atom, size in index.terms:
            total = total + self._atom(atom) * number(size, self._symbols)
        return total

    def _atom(self, atom: Axis | Quotient | Remainder | Gathered) -> torch.Tensor:
        match atom:
            case Axis():
                place = self._place.get(atom)
                if place is None:
                    raise BadProgram(f"{self._nest.name} has no axis {atom.name}")
                shape = [1] * len(self._axes)
                shape[place] = self._sizes[place]
                return torch.arange(self._sizes[place]).reshape(shape)
            case Quotient(value=value, divisor=divisor):
                return self._index(value) // number(divisor, self._symbols)
            case Remainder(value=value, divisor=divisor):
                return self._index(value) % number(divisor, self._symbols)
        found = self._values[id(atom.scalar)].to(torch.int64)
        size = number(atom.size, self._symbols)
        if found.numel() and not bool(((found >= 0) & (found < size)).all()):
            raise BadProgram(f"a gathered index is outside 0 .. {size - 1}")
        return found

    def _indices(
        self, name: str, index: tuple[Index, ...], mask: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Index tensors, checked to lie in the buffer where the mask holds."""
        shape = self._memory[name].shape
        if len(shape) != len(index):
            raise BadProgram(f"{len(index)} indices for {name}, which has {len(shape)} dims")
        found = []
        for part, size in zip(index, shape, strict=True):
            value = self._index(part)
            if mask is not None:
                value = torch.where(mask, value, 0)
            outside = (value < 0) | (value >= max(size, 1))
            if bool(outside.any()) and 0 not in self._sizes:
                raise BadProgram(f"{self._nest.name}: {part} is outside a dim of {name}, {size}")
            found.append(value)
        return found

    def _load(self, scalar: Scalar, args: Sequence[torch.Tensor]) -> torch.Tensor:
        assert scalar.buffer is not None
        tensor = self._memory.get(scalar.buffer)
        if tensor is None:
            raise BadProgram(f"{scalar.buffer} is read before it is written")
        mask = args[0] if args else None
        index = self._indices(scalar.buffer, scalar.index, mask)
        if 0 in self._sizes and not self._runs(index, tensor):
            return self._uniform(torch.zeros((), dtype=tensor.dtype))
        if tensor.numel() == 0:
            if not args or bool(args[0].any()):
                raise BadProgram(f"a load from {scalar.buffer}, which is empty")
            return args[1]
        value = tensor[tuple(index)] if index else self._uniform(tensor)
        return value if mask is None else torch.where(mask, value, args[1])

    def _runs(self, index: Sequence[torch.Tensor], tensor: torch.Tensor) -> bool:
        """Whether a load can happen in a nest without inner points, outside of its inner loop."""
        pairs = zip(index, tensor.shape, strict=True)
        inside = all(bool(((part >= 0) & (part < size)).all()) for part, size in pairs)
        return inside and tensor.numel() != 0 and 0 not in self._sizes[: len(self._nest.axes)]

    def _over_rows(self, value: torch.Tensor) -> torch.Tensor:
        outer = len(self._nest.axes)
        return value.expand([*value.shape[:outer], *self._sizes[outer:]])

    def _reduce(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        outer = len(self._nest.axes)
        inner = self._sizes[outer:]
        whole = value.expand([*value.shape[:outer], *inner]).flatten(outer)
        result = REDUCE[kind](whole, outer) if whole.numel() else _empty(kind, whole, outer)
        return result.reshape([*value.shape[:outer], *([1] * len(inner))])

    def _scan(self, kind: str, value: torch.Tensor) -> torch.Tensor:
        outer = len(self._nest.axes)
        inner = self._sizes[outer:]
        whole = value.expand([*value.shape[:outer], *inner]).flatten(outer)
        result: torch.Tensor = SCAN[kind](whole, outer)
        return result.reshape([*value.shape[:outer], *inner])


def _empty(kind: str, value: torch.Tensor, dim: int) -> torch.Tensor:
    """A reduction over no points."""
    shape = [*value.shape[:dim], 1]
    if kind in ("sum", "any"):
        return torch.zeros(shape, dtype=value.dtype)
    if kind in ("prod", "all"):
        return torch.ones(shape, dtype=value.dtype)
    if kind in ("max", "min") and word_of(value.dtype) in FLOATS:
        edge = float("-inf") if kind == "max" else float("inf")
        return torch.full(shape, edge, dtype=value.dtype)
    if 0 in shape:
        wide = torch.int64 if kind.startswith("arg") else value.dtype
        return torch.zeros(shape, dtype=wide)
    raise BadProgram(f"{kind} over no points")


REDUCE: Mapping[str, Any] = {
    "sum": lambda x, d: x.sum(d, keepdim=True, dtype=x.dtype),
    "prod": lambda x, d: x.prod(d, keepdim=True, dtype=x.dtype),
    "max": lambda x, d: x.max(d, keepdim=True).values,  # of two zeros the first
    "min": lambda x, d: x.min(d, keepdim=True).values,
    "any": lambda x, d: x.any(d, keepdim=True),
    "all": lambda x, d: x.all(d, keepdim=True),
    "argmax": lambda x, d: x.argmax(d, keepdim=True),
    "argmin": lambda x, d: x.argmin(d, keepdim=True),
}


def _last_of_each(target: torch.Tensor, place: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`target` with `value` at `place`; of several values for one place the last."""
    turn = torch.arange(place.numel())
    last = torch.full(target.shape, -1).scatter_reduce(0, place, turn, "amax")
    return torch.where(last >= 0, value[last.clamp(min=0)], target)


def _multiplied(target: torch.Tensor, place: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """One point after the other: torch multiplies half floats as floats."""
    target = target.clone()
    for at, factor in zip(place.tolist(), value, strict=True):
        target[at] *= factor
    return target


def _extreme(reduce: str) -> Callable[..., torch.Tensor]:
    def write(target: torch.Tensor, place: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if target.dtype is torch.bool:
            wide = (part.to(torch.uint8) for part in (target, value))
            return write(next(wide), place, next(wide)).to(torch.bool)
        return target.scatter_reduce(0, place, value, reduce)

    return write


STORE: Mapping[str, Callable[..., torch.Tensor]] = {
    "set": _last_of_each,
    "add": lambda x, place, value: x.index_put((place,), value, accumulate=True),
    "mul": _multiplied,
    "max": _extreme("amax"),
    "min": _extreme("amin"),
}

SCAN: Mapping[str, Any] = {
    "sum": lambda x, d: x.cumsum(d, dtype=x.dtype),
    "prod": lambda x, d: x.cumprod(d, dtype=x.dtype),
    "max": lambda x, d: x.cummax(d).values,
    "min": lambda x, d: x.cummin(d).values,
    "argmax": lambda x, d: x.cummax(d).indices,
    "argmin": lambda x, d: x.cummin(d).indices,
    "logaddexp": torch.logcumsumexp,
}


def strided_view(
    view: View, memory: Mapping[str, torch.Tensor], symbols: Mapping[sympy.Symbol, int]
) -> torch.Tensor:
    """The tensor that a `View` names."""
    base = memory[view.buffer]
    shape = [number(size, symbols) for size in view.shape]
    stride = [number(size, symbols) for size in view.stride]
    if base.layout is not torch.strided:
        return base
    offset = base.storage_offset() + number(view.offset, symbols)
    return base.as_strided(shape, stride, offset)


def argument(
    value: Any, memory: Mapping[str, torch.Tensor], symbols: Mapping[sympy.Symbol, int]
) -> Any:
    if isinstance(value, View):
        return strided_view(value, memory, symbols)
    if isinstance(value, SizeValue):
        return _plain_number(value, symbols)
    if isinstance(value, list | tuple):
        return type(value)(argument(item, memory, symbols) for item in value)
    if isinstance(value, dict):
        return {key: argument(item, memory, symbols) for key, item in value.items()}
    return value


def _plain_number(value: SizeValue, symbols: Mapping[sympy.Symbol, int]) -> Any:
    found = sympy.sympify(value.value).subs(symbols)
    if found in (sympy.true, sympy.false):
        return bool(found)
    return int(found) if found.is_integer else float(found)


def results_of(
    step: Extern, memory: Mapping[str, torch.Tensor], symbols: Mapping[sympy.Symbol, int]
) -> list[Any]:
    """What an extern gives when it is called on this memory. Raises what the target raises."""
    args = [argument(arg, memory, symbols) for arg in step.args]
    kwargs = {name: argument(arg, memory, symbols) for name, arg in step.kwargs.items()}
    with torch.no_grad():
        result = step.target(*args, **kwargs)
    return [result] if step.single else list(result)


def _call(
    step: Extern,
    buffers: Mapping[str, Buffer],
    memory: dict[str, torch.Tensor],
    symbols: Mapping[sympy.Symbol, int],
) -> None:
    for name, tensor in zip(step.outs, results_of(step, memory, symbols), strict=False):
        if name is None:
            continue
        buffer = buffers[name]
        shape = [number(size, symbols) for size in buffer.shape]
        stride = [number(size, symbols) for size in buffer.stride]
        if list(tensor.shape) != shape or tensor.dtype != dtype_of(buffer.dtype):
            raise BadProgram(f"{step.name} gave {tensor.dtype} {list(tensor.shape)} for {buffer}")
        strides = zip(shape, tensor.stride(), stride, strict=True)
        if tensor.numel() and any(size > 1 and real != said for size, real, said in strides):
            # Metadata functions of torch are wrong for some ops; compiled graphs copy, too.
            tensor = torch.empty_strided(shape, stride, dtype=tensor.dtype).copy_(tensor)
        memory[name] = tensor


def output(
    item: Any, memory: Mapping[str, torch.Tensor], symbols: Mapping[sympy.Symbol, int]
) -> Any:
    if isinstance(item, View):
        return strided_view(item, memory, symbols)
    return _plain_number(item, symbols) if isinstance(item, SizeValue) else item
