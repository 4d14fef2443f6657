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
from .externs import Operand
from .numbers import Evaluate
from .shims import BASE, address, dtype_code

ALIGNMENT = 64
FIELDS = 7  # int64 words of an Operand in entry_runtime.h
STATIC_OUTPUT, MADE_OUTPUT = -1, -2


def _as_strided(
    base: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    return base.as_strided(shape, stride, base.storage_offset() + offset)


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


@dataclass(frozen=True)
class Blueprint:
    inputs: tuple[int, ...]  # buffer of each graph input, -1 for a number
    slots: tuple[Slot, ...]
    operands: tuple[Operand, ...]
    evaluate: Evaluate
    arena: Any  # lowering.plan.MemoryPlan
    shims: tuple[str, ...]  # the graph's own, after those of the runtime
    steps: Mapping[int, PythonStep]
    drops: Mapping[int, tuple[int, ...]]  # after step: buffers whose tensors can be let go
    # ("value", v) | ("number", slot) | ("tensor", operand) | ("view", operand): a new view of it
    outputs: tuple[tuple[str, Any], ...]
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
        names = (*BASE, *blueprint.shims)
        self._shims = (ctypes.c_void_p * len(names))(*map(address, names))
        with torch.inference_mode(False):
            self._place_arena()
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

    # What a launch needs to know (see launch.c).

    def fresh(self) -> tuple[tuple[int, tuple[Any, ...]], ...]:
        """Per output buffer: its slot and the arguments of `torch.empty_strided`. Only asked
        for where the entry cannot allocate."""
        found = []
        for place, slot in enumerate(self.blueprint.slots):
            if slot.role == "output" and slot.whole is not None:
                shape, stride, _ = self._geometry(slot.whole)
                found.append((place, (shape, stride, slot.dtype)))
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
        what is let go after step n."""
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
        """A graph output that is a view."""
        kind, operand = self.blueprint.outputs[position]
        if kind == "tensor":
            return self.tensor(operand)
        whole = self.base(self.blueprint.operands[operand].buffer)
        return reinterpret(whole, *self._geometry(operand))

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
        return self.tensors[slot]

    # Inside.

    def _geometry(self, operand: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        known = self.blueprint.operands[operand]
        middle = known.geometry + known.rank
        shape = tuple(self.numbers[known.geometry : middle])
        return shape, tuple(self.numbers[middle : middle + known.rank]), self.numbers[known.offset]

    def _place_arena(self) -> None:
        """Allocate the arena and make the tensors over it that Python steps use."""
        slots = self.blueprint.slots
        sizes = {
            slot.name: max(self.numbers[slot.elements], 0) * slot.dtype.itemsize
            for slot in slots
            if slot.role == "temp"
        }
        offsets, total = self.blueprint.arena.assign(sizes) if sizes else ({}, 0)
        memory = torch.empty(total + ALIGNMENT, dtype=torch.uint8)
        start = -memory.data_ptr() % ALIGNMENT
        self._arena = memory[start : start + total]
        self._first = memory.data_ptr()
        self._last = self._first + memory.numel()
        for place, slot in enumerate(slots):
            if slot.role == "temp":
                self.pointers[place] = self._first + start + offsets.get(slot.name, 0)
        for operand in self._python_operands():
            slot = slots[self.blueprint.operands[operand].buffer]
            if slot.role == "temp":
                begin = offsets.get(slot.name, 0)
                piece = self._arena[begin : begin + sizes[slot.name]].view(slot.dtype)
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
        inside = self._first <= value.untyped_storage().data_ptr() < self._last
        if inside or value.is_neg() or value.is_conj() or (moved and value.numel() != 0):
            fitting = torch.empty_strided(shape, stride, dtype=dtype)
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
    return 0, 0, operand.buffer, code, operand.rank, operand.geometry, operand.offset


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's elements start; 0 for one without plain memory (packed, sparse)."""
    return tensor.data_ptr() if tensor.layout is torch.strided else 0
