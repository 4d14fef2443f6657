"""The state of one lowering: buffers, steps, and what each FX node has become.

Takes FX nodes and values; gives buffers and appends steps. The op lowerings
(`pointwise`, `views`, `reductions`, ...) are functions over this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import word_of
from .index import Axis, Size, as_index, row_major
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
    load,
    real_axes,
    rebased,
    root,
    same_stride,
    shape_of,
    stride_of,
    strided,
)


class Declined(Exception):
    """A lowering does not cover this call; it becomes an extern."""


class LoweringError(Exception):
    """The graph holds something the loop IR cannot say; run it without lowering."""


class Work:
    """What lowering has made so far."""

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.builder = Builder()
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.steps: list[Step] = []
        self.env: dict[fx.Node, Any] = {}
        self.ranges: dict[str, Range] = {}  # integer buffers whose values are bounded
        self._roots: dict[int, tuple[Computed, Stored]] = {}
        self._copies: dict[tuple[int, tuple[Size, ...]], tuple[Value, View]] = {}
        self._filled: set[str] = set()
        self._step_names: set[str] = set()

    def buffer(
        self,
        name: str,
        dtype: str,
        shape: tuple[Size, ...],
        stride: tuple[Size, ...] | None = None,
        role: str = "temp",
        device: str = "cpu",
    ) -> Buffer:
        """A new buffer; its name is `name` or close to it."""
        unique = _unique(name, self.buffers.keys())
        stride = row_major(shape) if stride is None else stride
        made = self.buffers[unique] = Buffer(unique, dtype, shape, stride, role, device)
        return made

    def buffer_of(self, name: str, meta: torch.Tensor, role: str) -> Buffer:
        """A buffer for a tensor that exists: its very strides and device."""
        place = shape_of(meta), stride_of(meta), role, meta.device.type
        return self.buffer(name, word_of(meta.dtype), *place)

    def buffer_like(self, node: fx.Node, meta: torch.Tensor, role: str = "temp") -> Buffer:
        """Memory for a result: eager's layout where that is dense."""
        shape = shape_of(meta)
        stride = dense_stride(shape, stride_of(meta))
        return self.buffer(node.name, word_of(meta.dtype), shape, stride, role)

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

    def _note_range(self, store: Store) -> None:
        """Several nests may fill one buffer (cat): its range is the hull of theirs."""
        found = interval(store.value, self.ranges)
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
        key = (id(value), like)
        if key not in self._copies:
            buffer = self.buffer(node.name, value.dtype, shape, dense_stride(shape, like))
            self.copy(node, buffer, value)
            self._copies[key] = (value, View(buffer.name, shape, buffer.stride))
        return self._copies[key][1]

    def stored(self, node: fx.Node, value: Value) -> Stored:
        """`value` in memory of its own (or the memory it already is)."""
        if isinstance(value, Stored):
            return value
        return self.copy(node, self.buffer(node.name, value.dtype, value.shape), value)

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

    def settle(self, names: frozenset[str], nodes: Sequence[fx.Node]) -> None:
        """Before `names` are written: put views of them into memory where the graph has a
        copy (no strides say the view), for those `nodes` that are still to be read."""
        for node in nodes:
            value = self.env.get(node)
            if not isinstance(value, Mapped) or not isinstance(value.base, Stored):
                continue
            if value.base.buffer.name in names and strided(value) is None:
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


def laid_out(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy of `x` with these strides."""
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


def provenance(node: fx.Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The FX node name, and the rules behind it as "file:line name"."""
    return (node.name,), tuple(node.meta.get("eqsat_rules", ()))


def supported(value: Any) -> bool:
    """Whether nests can compute on this tensor: dense, on the CPU, of a dtype of the IR."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and word_of(value.dtype) in DTYPES
        and not value.is_neg()
    )


def has_strides(value: Any) -> bool:
    """Whether index arithmetic can say where the elements of this tensor lie, whatever its
    dtype."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not (value.is_conj() or value.is_neg())
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
