"""The state of one lowering: buffers, steps, and what each FX node has become.

Takes FX nodes and values; gives buffers and appends steps. The op lowerings
(`pointwise`, `views`, `reductions`, ...) are functions over this.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from ..engine.loop_choices import LoopChoices
from ..engine.memory import shares_memory, storage
from ..engine.target import load_target
from .index import ZERO, Axis, Size, as_index, row_major
from .loops import DTYPES, Buffer, Builder, Extern, Nest, Scalar, SizeValue, Step, Store, View
from .ranges import Range, hull, interval
from .values import (
    Computed,
    Guard,
    Indices,
    Mapped,
    Stored,
    Value,
    axes_for,
    dense_stride,
    fresh_stride,
    load,
    real_axes,
    rebased,
    root,
    same_stride,
    shape_of,
    stride_of,
    strided,
)

# Device types that loop nests are generated for; ops on any other are extern calls. Kernels for
# GPUs need Triton and the CUDA driver ("cuda" is what torch calls AMD's GPUs, too).
_HAS_KERNELS = find_spec("triton") is not None and torch.version.hip is None
GENERATED = frozenset({"cpu", "cuda"} if _HAS_KERNELS else {"cpu"})


class Declined(Exception):
    """A lowering does not cover this call; it becomes an extern."""


@dataclass(frozen=True)
class Guarded:
    """The flag that says whether `index` is in range, found out by step number `step`."""

    index: Value
    flag: str
    step: int


class LoweringError(Exception):
    """The graph holds something the loop IR cannot say; run it without lowering."""


class Work:
    """What lowering has made so far."""

    def __init__(
        self, gm: fx.GraphModule, loops: LoopChoices | None = None, own_random: bool = False
    ) -> None:
        self.gm = gm
        self.own_random = own_random  # random numbers are made in nests
        self.seeds: dict[str, Buffer] = {}  # drawn in this graph, by device
        self.draws = 0  # how many have been made with these
        self.loops = loops or load_target("cpu").loops
        self.builder = Builder()
        self.device = "cpu"  # where the node that is being lowered has its results
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.steps: list[Step] = []
        self.env: dict[fx.Node, Any] = {}
        self.given: dict[int, tuple[str, torch.Tensor]] = {}  # an input for each memory
        self.homes: dict[str, int] = {}  # the memory of each input
        self.ranges: dict[str, Range] = {}  # integer buffers whose values are bounded
        self._roots: dict[int, tuple[Computed, Stored]] = {}
        # By what a copy holds: its buffer, the value, and the number of the step that fills it.
        self._copies: dict[tuple[Any, ...], tuple[str, Value, int]] = {}
        self._filled: set[str] = set()
        self.guards: dict[tuple[int, Size, bool], Guarded] = {}  # by index tensor, size, wraps
        self._step_names: set[str] = set()

    def buffer(
        self,
        name: str,
        dtype: str,
        shape: tuple[Size, ...],
        stride: tuple[Size, ...] | None = None,
        role: str = "temp",
        device: str = "",
    ) -> Buffer:
        """A new buffer, on the device at hand unless given; its name is `name` or close to it."""
        unique = _unique(name, self.buffers.keys())
        stride = row_major(shape) if stride is None else stride
        made = self.buffers[unique] = Buffer(
            unique, dtype, shape, stride, role, device or self.device
        )
        return made

    def buffer_of(self, name: str, meta: torch.Tensor, role: str) -> Buffer:
        """A buffer for a tensor that exists: its very strides and device."""
        place = shape_of(meta), stride_of(meta), role, str(meta.device)
        return self.buffer(name, word_of(meta.dtype), *place)

    def buffer_like(self, node: fx.Node, meta: torch.Tensor, role: str = "temp") -> Buffer:
        """Memory for a result: eager's layout where elements have places of their own."""
        shape = shape_of(meta)
        operands = [before.meta.get("val") for before in node.all_input_nodes]
        is_view = any(shares_memory(value, meta) for value in operands)
        stride = (dense_stride if is_view else fresh_stride)(shape, stride_of(meta))
        return self.buffer(node.name, word_of(meta.dtype), shape, stride, role, str(meta.device))

    def nest(
        self,
        node: fx.Node,
        axes: tuple[Axis, ...],
        raxes: tuple[Axis, ...],
        stores: Sequence[Store],
    ) -> None:
        """Append a nest, unless it has no points to run."""
        for store in stores:
            self._note_range(store)
        if any(axis.size == 0 for axis in axes):
            return
        name = self._step_name(node.name)
        origins, rules = provenance(node)
        self.steps.append(
            Nest(name, real_axes(axes), real_axes(raxes), tuple(stores), origins, rules)
        )

    def undo(self, mark: int) -> None:
        """Forget all steps from number `mark` on."""
        del self.steps[mark:]
        self.guards = {key: one for key, one in self.guards.items() if one.step < mark}

    def _note_range(self, store: Store) -> None:
        """Several nests may fill one buffer (cat): its range is the hull of theirs."""
        found = interval(store.value, self.ranges) if store.mode in ("set", "max", "min") else None
        if store.buffer in self._filled:
            found = hull(found, self.ranges.pop(store.buffer, None))
        self._filled.add(store.buffer)
        if found is not None and self.buffers[store.buffer].role == "temp":
            self.ranges[store.buffer] = found

    def fill(self, node: fx.Node, buffer: Buffer, make: Callable[[Indices], Scalar]) -> Stored:
        """Append the nest `buffer[index] = make(index)` and give the buffer as a value."""
        return self.stores(node, buffer, self._at_every(buffer.shape, make))

    def pointwise(
        self, node: fx.Node, meta: torch.Tensor, make: Callable[[Indices], Scalar]
    ) -> Stored:
        """A fresh buffer like `meta`, filled pointwise. Nothing is left behind where `make`
        raises Declined."""
        value = self._at_every(shape_of(meta), make)
        return self.stores(node, self.buffer_like(node, meta), value)

    def stores(self, node: fx.Node, buffer: Buffer, value: Scalar) -> Stored:
        """Append the nest that stores `value`, made for the axes of the buffer's shape."""
        axes = axes_for(buffer.shape)
        index = tuple(as_index(axis) for axis in axes)
        value = self.builder.cast(value, buffer.dtype)
        self.nest(node, axes, (), [Store(buffer.name, index, value)])
        return Stored(buffer)

    def _at_every(self, shape: tuple[Size, ...], make: Callable[[Indices], Scalar]) -> Scalar:
        return make(tuple(as_index(axis) for axis in axes_for(shape)))

    def extern(self, node: fx.Node, **fields: Any) -> None:
        origins, rules = provenance(node)
        name = self._step_name(node.name)
        self.steps.append(Extern(name=name, origins=origins, rules=rules, **fields))

    def load(self, value: Value, index: Indices, guard: Guard | None = None) -> Scalar:
        return load(self.builder, value, index, guard)

    def view(self, node: fx.Node, value: Value, meta: torch.Tensor | None = None) -> View:
        """`value` as a strided tensor, laid out as `meta` says.

        A formula is put in memory first, and so is a view that strides cannot say.
        """
        shape = value.shape
        like = stride_of(meta) if meta is not None else row_major(shape)
        base = root(value)
        if isinstance(base, Computed):
            value = rebased(value, self._root_buffer(node, base))
        found = strided(value, like)
        if found is not None and (meta is None or same_stride(shape, found.stride, like)):
            return found
        return self._copied(node, value, dense_stride(shape, like))

    def _copied(self, node: fx.Node, value: Value, stride: tuple[Size, ...]) -> View:
        """A copy of `value` with these strides; one that was made before and holds the same
        elements in the same places, unless the caller of the graph gets it."""
        key = _memory(value, stride) or (id(value), stride)
        name, _, place = self._copies.get(key, ("", value, 0))
        if not self._holds(name, place, root(value)):
            device = _device_of(node)
            name = self.buffer(node.name, value.dtype, value.shape, stride, device=device).name
            place = len(self.steps)
            self.copy(node, self.buffers[name], value)
            self._copies[key] = (name, value, place)
        return View(name, value.shape, stride)

    def _holds(self, name: str, place: int, base: Stored | Computed) -> bool:
        """Whether step `place` still fills `name`, no caller of the graph gets that, and `base`,
        of which it is a copy, has not changed since."""
        if place >= len(self.steps) or name not in written(self.steps[place]):
            return False
        behind = base.buffer.name if isinstance(base, Stored) else ""
        changed = any(behind in written(step) for step in self.steps[place:])
        return self.buffers[name].role in ("temp", "extern") and not changed

    def stored(self, node: fx.Node, value: Value) -> Stored:
        """`value` in memory of its own (or the memory it already is)."""
        if isinstance(value, Stored):
            return value
        memory = self.buffer(node.name, value.dtype, value.shape, device=_device_of(node))
        return self.copy(node, memory, value)

    def copy(self, node: fx.Node, buffer: Buffer, value: Value) -> Stored:
        if buffer.dtype in DTYPES:
            return self.fill(node, buffer, lambda index: self.load(value, index))
        source = strided(value)  # of a dtype that only externs touch
        if source is None:
            raise LoweringError(f"no strides say where the elements of {node.name} lie")
        self.set_role(buffer.name, "extern")
        stride = [size if isinstance(size, int) else SizeValue(size) for size in buffer.stride]
        self.extern(node, target=laid_out, args=(source, stride), kwargs={}, outs=(buffer.name,))
        return Stored(self.buffers[buffer.name])

    def set_role(self, name: str, role: str) -> None:
        self.buffers[name] = replace(self.buffers[name], role=role)

    def _lies_in(self, node: fx.Node, value: Value, name: str) -> bool:
        """Whether what lowering has as a view of a buffer is one in the graph, too."""
        place, home = storage(node.meta.get("val")), self.homes.get(name)
        return strided(value) is not None and (home is None or place in (None, home))

    def settle(self, names: frozenset[str], nodes: Sequence[fx.Node]) -> None:
        """Before `names` are written: put views of them into memory where the graph has a
        copy, for those `nodes` that are still to be read."""
        for node in nodes:
            value = self.env.get(node)
            if not isinstance(value, Mapped) or not isinstance(value.base, Stored):
                continue
            name = value.base.buffer.name
            if name in names and not self._lies_in(node, value, name):
                self.env[node] = self.stored(node, value)

    def _root_buffer(self, node: fx.Node, base: Computed) -> Stored:
        found = self._roots.get(id(base))
        if found is None:
            made = self.stored(node, base)
            found = self._roots[id(base)] = (base, made)
        return found[1]

    def _step_name(self, name: str) -> str:
        unique = _unique(name, self._step_names)
        self._step_names.add(unique)
        return unique


def _device_of(node: fx.Node) -> str:
    """Where the result of a node is; "" where it has none."""
    value = node.meta.get("val")
    return str(value.device) if isinstance(value, torch.Tensor) else ""


def written(step: Step) -> frozenset[str]:
    """The buffers that a step writes."""
    if isinstance(step, Nest):
        return frozenset(store.buffer for store in step.stores)
    return frozenset(name for name in (*step.outs, *step.mutates) if name is not None)


def _memory(value: Value, stride: tuple[Size, ...]) -> tuple[Any, ...] | None:
    """What memory of these strides holds: the buffer behind `value` and which of its elements
    lies where. None where that cannot be told."""
    base = root(value)
    known = all(isinstance(step, int) for step in stride) and 0 not in value.shape
    if not isinstance(base, Stored) or not known:
        return None
    dims = [dim for dim, size in enumerate(value.shape) if size != 1]
    dims.sort(key=lambda dim: -stride[dim])
    index = [ZERO] * len(value.shape)
    for place, dim in enumerate(dims):
        index[dim] = as_index(Axis(f"m{place}", value.shape[dim]))
    element = value.place(tuple(index)) if isinstance(value, Mapped) else tuple(index)
    return (base.buffer.name, *(value.shape[dim] for dim in dims), element)


def laid_out(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy of `x` with these strides."""
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


def provenance(node: fx.Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The FX node name, and the rules behind it as "file:line name"."""
    return (node.name,), tuple(node.meta.get("eqsat_rules", ()))


def supported(value: Any) -> bool:
    """Whether nests can compute on this tensor: dense, of a dtype of the IR, on a device that
    code is generated for."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type in GENERATED
        and word_of(value.dtype) in DTYPES
        and not value.is_neg()
    )


def has_strides(value: Any) -> bool:
    """Whether index arithmetic can say where the elements of this tensor lie, whatever its
    dtype."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type in GENERATED
        and not (value.is_conj() or value.is_neg())
    )


def wanted(node: fx.Node) -> frozenset[int]:
    """Which results of a node with several are read."""
    if any(user.target is not operator.getitem for user in node.users):
        return frozenset(range(len(node.meta["val"])))
    return frozenset(
        user.args[1] for user in node.users if user.users and isinstance(user.args[1], int)
    )


def is_size(value: Any) -> bool:
    """Whether a lowered argument is a number of elements, plain or symbolic."""
    return not isinstance(value, bool) and (isinstance(value, int) or _is_expression(value))


def sizes(value: Any) -> tuple[Size, ...]:
    """A list argument of sizes. Raises Declined where an entry is not one."""
    if is_size(value):
        return (value,)
    if not isinstance(value, list | tuple) or not all(is_size(item) for item in value):
        raise Declined
    return tuple(value)


def number(value: Any) -> int:
    """A static integer argument. Raises Declined for anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Declined
    return value


def _is_expression(value: Any) -> bool:
    return hasattr(value, "free_symbols") and getattr(value, "is_integer", False) is True


def _unique(name: str, taken: Any) -> str:
    if name not in taken:
        return name
    count = 1
    while f"{name}_{count}" in taken:
        count += 1
    return f"{name}_{count}"
