"""The state behind one running call of a compiled graph.

Takes a `Blueprint` (all that does not depend on shapes) and values for its symbols; gives an
`Instance`: the arena, the tables that the C entry reads, and the Python side of extern
calls. An instance serves one call at a time; concurrent calls use several.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..lowering.loops import SizeValue, View
from .arenas import ARENAS, Arena
from .externs import Operand
from .numbers import Evaluate
from .shims import BASE, address, dtype_code

FIELDS = 8  # int64 words of an Operand in entry_runtime.h
STATIC_OUTPUT, MADE_OUTPUT = -1, -2
LATE = -(2**63)  # as in entry_runtime.h


def _as_strided(
    base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    return base.as_strided(shape, stride, base.storage_offset() + offset)


def _reach(shape: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """The element behind the last one of a view; 0 for a view of none."""
    if 0 in shape:
        return 0
    return 1 + offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


def _elements_from(base: torch.Tensor) -> int:
    """How many elements of memory there are from where a tensor starts."""
    return int(base.untyped_storage().nbytes() // base.element_size() - base.storage_offset())


# A view of a tensor's storage; the offset counts elements from where the tensor starts.
reinterpret: Any = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", _as_strided)


class Context(ctypes.Structure):
    """As in entry_runtime.h."""

    _fields_ = (
        ("pointers", ctypes.c_void_p),
        ("owned", ctypes.c_void_p),
        ("operands", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("shims", ctypes.c_void_p),
        ("python", ctypes.c_void_p),
        ("launcher", ctypes.c_void_p),
        ("thread", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class TensorArgument:
    operand: int


@dataclass(frozen=True)
class NumberArgument:
    slot: int


@dataclass(frozen=True)
class PythonStep:
    """An extern call as Python runs it. `outs` are operands (whole buffers), None where the
    result is not kept."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[int | None, ...]
    single: bool


@dataclass(frozen=True)
class Slot:
    """A buffer's place in the tables. `role` as in loops.Buffer; `elements` is a slot of
    `Numbers` with the size of its memory in elements, where it is in the arena."""

    name: str
    dtype: torch.dtype
    role: str
    elements: int
    whole: int | None  # operand over the whole buffer, where tensors of it are made
    device: torch.device


@dataclass(frozen=True)
class Functions:
    """The table that the entry calls through, behind that of the runtime: `shims` of the graph,
    then `addresses` of what a GPU needs; `late` gives the one at a place that holds 0 yet."""

    shims: tuple[str, ...]
    addresses: tuple[int, ...]
    late: Callable[[int], int]


@dataclass(frozen=True)
class Blueprint:
    inputs: tuple[int, ...]  # buffer of each graph input, -1 for a number
    slots: tuple[Slot, ...]
    operands: tuple[Operand, ...]
    evaluate: Evaluate
    arena: Any  # lowering.plan.MemoryPlan
    taken: Mapping[int, int]  # buffers that lie where another one was, and which that is
    table: Functions
    steps: Mapping[int, PythonStep]
    drops: Mapping[int, tuple[int, ...]]  # after step: buffers whose tensors can be let go
    # ("value", v) | ("number", slot) | ("tensor", operand) | ("view", operand): a new view of it
    outputs: tuple[tuple[str, Any], ...]
    again: Mapping[int, int]  # as in loops.Program
    constants: Mapping[int, torch.Tensor]
    entry: int  # address of the C entry
    library: Any = field(repr=False)


class Instance:
    """One set of tables. `numbers` is the evaluated table of sizes."""

    def __init__(self, blueprint: Blueprint, values: Sequence[int]) -> None:
        self.blueprint = blueprint
        self.numbers = array("q", blueprint.evaluate(*values))
        count = max(len(blueprint.slots), 1)
        self.pointers = (ctypes.c_void_p * count)()
        self.owned = (ctypes.c_void_p * count)()
        self.operands = array("q", [w for o in blueprint.operands for w in _words(o)])
        self.tensors: list[Any] = [None] * len(blueprint.slots)
        self._views: dict[int, torch.Tensor] = {}
        table = blueprint.table
        functions = (*map(address, (*BASE, *table.shims)), *table.addresses)
        self._shims = (ctypes.c_void_p * len(functions))(*functions)
        self._arenas = self._plan_arenas()
        ARENAS.join()
        for slot, tensor in blueprint.constants.items():
            self.tensors[slot] = tensor
            self.pointers[slot] = address_of(tensor)
        self.context = Context(
            ctypes.addressof(self.pointers),
            ctypes.addressof(self.owned),
            self.operands.buffer_info()[0],
            self.numbers.buffer_info()[0],
            ctypes.addressof(self._shims),
        )

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():  # else the modules may be gone already
            _delete_handles(getattr(self, "operands", ()))
            if hasattr(self, "context"):
                ARENAS.quit()

    @property
    def arena_bytes(self) -> int:
        """Bytes of all temporaries that live at once."""
        return sum(arena.size for arena in self._arenas)

    # Around a call.

    def enter(self) -> None:
        """Take memory for temporaries."""
        for arena in self._arenas:
            if arena.enter():
                self._move_into(arena)

    def leave(self) -> None:
        """Give that memory back."""
        for arena in self._arenas:
            arena.leave()

    # What a launch needs to know (see launch.c).

    def fresh(self) -> tuple[tuple[int, tuple[Any, ...]], ...]:
        """Per output buffer: its slot and the arguments of `torch.empty_strided`. Only asked
        for where the entry cannot allocate."""
        found = []
        for place, slot in enumerate(self.blueprint.slots):
            if slot.role == "output" and slot.whole is not None:
                shape, stride, _ = self._geometry(slot.whole)
                found.append((place, (shape, stride, slot.dtype, slot.device)))
        return tuple(found)

    def output_codes(self) -> tuple[list[int], tuple[Any, ...]]:
        """Per graph output: the buffer it is, STATIC_OUTPUT or MADE_OUTPUT; and the values
        of the static ones."""
        codes: list[int] = []
        values: list[Any] = []
        for kind, what in self.blueprint.outputs:
            operand = self.blueprint.operands[what] if kind in ("tensor", "view") else None
            whole = kind == "tensor" and operand is not None and operand.whole
            codes.append(STATIC_OUTPUT if operand is None else MADE_OUTPUT)
            if whole and operand is not None:
                codes[-1] = operand.buffer
            values.append(self.numbers[what] if kind == "number" else what)
        return codes, tuple(values)

    def passing(self) -> list[int]:
        """Buffers whose tensor belongs to one call only."""
        lasting = ("temp", "constant")
        return [i for i, slot in enumerate(self.blueprint.slots) if slot.role not in lasting]

    # Called while the graph runs.

    def run_step(self, number: int) -> None:
        """Run one extern in Python; what the target raises passes through. -1 - n stands for
        what is let go after step n; numbers from LATE on, for a function of the table that is
        needed now."""
        if number < LATE + len(self._shims):
            table = self.blueprint.table
            place = number - LATE
            first = len(self._shims) - len(table.addresses)
            self._shims[place] = table.late(place - first)
            return
        if number < 0:
            for slot in self.blueprint.drops[-1 - number]:
                self.tensors[slot] = None
            return
        step = self.blueprint.steps[number]
        args = [self._resolve(value) for value in step.args]
        kwargs = {name: self._resolve(value) for name, value in step.kwargs.items()}
        result = step.target(*args, **kwargs)
        results = (result,) if step.single else result
        if any(operand is not None for operand in step.outs):
            for operand, value in zip(step.outs, results, strict=False):
                if operand is not None and value is not None:
                    self._keep(operand, value)

    def make_output(self, position: int) -> Any:
        """A graph output that is a view. Raises RuntimeError where it reaches out of its memory."""
        kind, operand = self.blueprint.outputs[position]
        known = self.blueprint.operands[operand]
        whole = self.base(known.buffer)
        if kind == "tensor" and known.whole:
            return whole
        shape, stride, offset = self._geometry(operand)
        if _reach(shape, stride, offset) > _elements_from(whole):
            return _as_strided(whole, shape, stride, offset)  # raises what eager does
        return reinterpret(whole, shape, stride, offset)

    def tensor(self, operand: int) -> Any:
        """The tensor for an operand: its buffer's own tensor, or a view of it."""
        found = self._views.get(operand)
        if found is not None:
            return found
        known = self.blueprint.operands[operand]
        base = self.base(known.buffer)
        return base if known.whole else reinterpret(base, *self._geometry(operand))

    def base(self, slot: int) -> Any:
        """The tensor behind a buffer outside the arena; None for an effect token."""
        if self.tensors[slot] is None and self.owned[slot]:
            self.tensors[slot] = adopt_handle(self.owned[slot])
        before = self.blueprint.taken.get(slot)
        if before is not None:
            whole = self.blueprint.slots[slot].whole
            assert whole is not None
            return reinterpret(self.base(before), *self._geometry(whole))
        return self.tensors[slot]

    # Inside.

    def _geometry(self, operand: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        known = self.blueprint.operands[operand]
        middle = known.geometry + known.rank
        shape = tuple(self.numbers[known.geometry : middle])
        return shape, tuple(self.numbers[middle : middle + known.rank]), self.numbers[known.offset]

    def _plan_arenas(self) -> list[Arena]:
        """Where each temporary lies, per device."""
        sizes: dict[torch.device, dict[str, int]] = {}
        for slot in self.blueprint.slots:
            if slot.role == "temp":
                sizes.setdefault(slot.device, {})[slot.name] = self._bytes(slot)
        plans = ((device, self.blueprint.arena.assign(known)) for device, known in sizes.items())
        return [Arena(device, *plan) for device, plan in plans]

    def _bytes(self, slot: Slot) -> int:
        return max(self.numbers[slot.elements], 0) * slot.dtype.itemsize

    def _move_into(self, arena: Arena) -> None:
        """Have the temporaries of a device in its block, and the tensors over them that Python
        steps use."""
        slots, block = self.blueprint.slots, arena.block
        assert block is not None
        for place, slot in enumerate(slots):
            if slot.name in arena.offsets:
                self.pointers[place] = arena.address + arena.offsets[slot.name]
        with torch.inference_mode(False):
            for operand in self._python_operands():
                slot = slots[self.blueprint.operands[operand].buffer]
                if slot.name in arena.offsets:
                    begin = arena.offsets[slot.name]
                    piece = block[begin : begin + self._bytes(slot)].view(slot.dtype)
                    self._views[operand] = reinterpret(piece, *self._geometry(operand))

    def _python_operands(self) -> set[int]:
        found: set[int] = set()
        for step in self.blueprint.steps.values():
            found |= {out for out in step.outs if out is not None}
            pending = [*step.args, *step.kwargs.values()]
            while pending:
                value = pending.pop()
                if isinstance(value, TensorArgument):
                    found.add(value.operand)
                elif isinstance(value, list | tuple):
                    pending += value
                elif isinstance(value, dict):
                    pending += value.values()
        return found

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, TensorArgument):
            return self.tensor(value.operand)
        if isinstance(value, NumberArgument):
            return self.numbers[value.slot]
        if type(value) is list:
            return [self._resolve(item) for item in value]
        if type(value) is tuple:
            return tuple(map(self._resolve, value))
        if type(value) is dict:
            return {key: self._resolve(item) for key, item in value.items()}
        return value

    def _keep(self, operand: int, value: Any) -> None:
        """Make `value` the memory of the operand's buffer, in the layout that is expected."""
        known = self.blueprint.operands[operand]
        if self.blueprint.slots[known.buffer].role in ("temp", "output"):
            self.tensor(operand).copy_(value)
            return
        tensor = self._fit(operand, value)
        self.tensors[known.buffer] = tensor
        self.pointers[known.buffer] = address_of(tensor)

    def _fit(self, operand: int, value: torch.Tensor) -> torch.Tensor:
        if value.layout is not torch.strided:
            return value
        shape, stride, _ = self._geometry(operand)
        dtype = self.blueprint.operands[operand].dtype
        if value._is_zerotensor():
            value = value.clone()  # as autograd makes them, without memory
        if value.dtype != dtype:  # metadata functions of torch are wrong for some mixtures
            value = value.to(dtype)
        if tuple(value.shape) != shape:
            name = self.blueprint.slots[self.blueprint.operands[operand].buffer].name
            raise RuntimeError(
                f"eqsat: {name} was traced as {dtype} {list(shape)} but the op gave "
                f"{value.dtype} {list(value.shape)}"
            )
        moved = any(
            size != 1 and have != want
            for size, have, want in zip(shape, value.stride(), stride, strict=True)
        )
        inside = any(arena.holds(value) for arena in self._arenas)
        if inside or value.is_neg() or value.is_conj() or (moved and value.numel() != 0):
            fitting = torch.empty_strided(shape, stride, dtype=dtype, device=value.device)
            return fitting.copy_(value)
        return value


def lower_argument(value: Any, operand: Any, number: Any) -> Any:
    """`value` with views and sizes replaced by references into the tables; `operand(view)`
    and `number(size)` give the places."""
    if isinstance(value, View):
        return TensorArgument(operand(value))
    if isinstance(value, SizeValue):
        return NumberArgument(number(value.value))
    if isinstance(value, list):
        return [lower_argument(item, operand, number) for item in value]
    if type(value) is tuple:
        return tuple(lower_argument(item, operand, number) for item in value)
    if isinstance(value, dict):
        return {key: lower_argument(item, operand, number) for key, item in value.items()}
    return value


def adopt_handle(handle: int | None) -> torch.Tensor:
    """A tensor that shares the one behind an AOTI handle."""
    copy = ctypes.c_void_p()
    make = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
    if make(address("aoti_torch_new_tensor_handle"))(handle, ctypes.addressof(copy)):
        raise RuntimeError("eqsat: a tensor handle could not be shared")
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    # The function for a single tensor leaks a reference in torch 2.13.
    (stolen,) = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([capsule(copy, None, None)])
    tensor: torch.Tensor = stolen
    return tensor


def delete_handle(handle: int) -> None:
    """Free an AOTI tensor handle."""
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    function(address("aoti_torch_delete_tensor_object"))(handle)


def _delete_handles(operands: Sequence[int]) -> None:
    for place in range(0, len(operands), FIELDS):
        if operands[place]:
            delete_handle(operands[place])


def _words(operand: Operand) -> tuple[int, ...]:
    """An Operand of entry_runtime.h before its handle is made."""
    code = dtype_code(operand.dtype)
    place = -1 if operand.device.type == "cpu" else operand.device.index or 0
    return 0, 0, operand.buffer, code, operand.rank, operand.geometry, operand.offset, place


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's elements start; 0 for one without plain memory (packed, sparse)."""
    return tensor.data_ptr() if tensor.layout is torch.strided else 0
