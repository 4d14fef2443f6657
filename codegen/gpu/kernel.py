"""The text of one Triton kernel while it is written: names, values, masks, accesses.

Takes a tiled nest, its buffers and the scalar entries; gives lines of Triton. Values are tiles
with a dim per axis of `Tiling.shaped`, of size 1 along what they do not vary with, or plain
scalars where they vary with none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ...engine.rule import ScalarEntry
from ...lowering.collisions import private_axes
from ...lowering.index import Axis, Gathered, Index, atoms, bounds, flatten
from ...lowering.loops import Buffer, Scalar, Store, gathered
from ..cpp_kernel import SymbolNames
from ..cpp_types import HALVES
from ..passes import Analysis, analyse
from ..scalars import find, rounds, spell
from . import spelling
from .tiles import Block, Tiled

_INT32_END = 2**31 - 1
_ROOM = 2**24  # elements by which the last blocks may reach past the end of an axis


class Kernel:
    """Writes statements for scalars and stores of one nest."""

    def __init__(
        self, tiled: Tiled, buffers: Mapping[str, Buffer], scalars: Mapping[str, ScalarEntry]
    ) -> None:
        self.nest, self.tiling = tiled.nest, tiled.tiling
        self.buffers, self.scalars = buffers, scalars
        self.analysis: Analysis = analyse(self.nest)
        self.symbols = SymbolNames()
        self.axes = {
            axis: "0" if axis.size == 1 else axis.name
            for axis in (*self.nest.axes, *self.nest.raxes)
        }
        self.printer = spelling.IndexPrinter(self.axes, self.symbols, self.name)
        self.arguments = _argument_names(self.analysis, self.nest.stores)
        self.names: dict[int, str] = {}
        self.spread: dict[int, frozenset[Axis]] = {}  # the dims of each value
        self.lines: list[str] = []
        self.private = private_axes(self.nest, buffers)
        # Nothing is read where rows are empty; indices along them are not even kept.
        self._no_rows = any(axis.size == 0 for axis in self.nest.raxes)
        self._depth = 1
        self._values = 0

    # ---- text ----

    def write(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """A loop, with names that end with it."""
        self.write(f"{head}:")
        self._depth += 1
        outside = dict(self.names)
        yield
        self.names = outside
        self._depth -= 1

    def fresh(self, letter: str = "t") -> str:
        self._values += 1
        return f"{letter}{self._values - 1}"

    # ---- tiles ----

    @property
    def shape(self) -> str:
        """The shape of a full tile."""
        sizes = [str(block.size) for block in self.tiling.blocks if self._is_dim(block)]
        return f"[{', '.join(sizes)}]"

    def place(self, axis: Axis) -> int:
        """Which dim of a tile an axis is."""
        return self.tiling.shaped.index(axis)

    def along(self, text: str, axis: Axis) -> str:
        """A one-dimensional `text` as a tile along `axis`."""
        rank = len(self.tiling.shaped)
        if rank == 1:
            return text
        dims = [":" if dim == self.place(axis) else "None" for dim in range(rank)]
        return f"{text}[{', '.join(dims)}]"

    def kept(self, text: str) -> str:
        """What is left of a tile reduced along its last dim, with that dim again."""
        rank = len(self.tiling.shaped)
        return text if rank == 1 else f"{text}[{', '.join([':'] * (rank - 1))}, None]"

    def mask(self, dims: Iterable[Axis]) -> str:
        """Which points of a tile along `dims` exist; "" where all do."""
        found = set(dims)
        parts = [
            f"{block.axis.name}_in"
            for block in self.tiling.blocks
            if block.axis in found and not block.covers and block.size > 1
        ]
        return " & ".join(parts)

    def full(self, value: str) -> str:
        return f"tl.broadcast_to({value}, {self.shape})"

    def _is_dim(self, block: Block) -> bool:
        return block.axis in self.tiling.shaped

    def _dims(self, axes: Iterable[Axis]) -> frozenset[Axis]:
        return frozenset(axes) & frozenset(self.tiling.shaped)

    # ---- values ----

    def name(self, scalar: Scalar) -> str:
        """The name of a value that is defined here, or a constant."""
        if scalar.op == "const":
            return spelling.constant(scalar.value, scalar.dtype)
        return self.names[id(scalar)]

    def dims(self, scalar: Scalar) -> frozenset[Axis]:
        return self.spread.get(id(scalar), frozenset())

    def define(self, scalar: Scalar) -> None:
        """Computes `scalar` into a new variable; its operands are defined."""
        if scalar.op == "const" or id(scalar) in self.names:
            return
        text, dims = self._expression(scalar)
        self.assign(scalar, text, dims)

    def assign(self, scalar: Scalar, text: str, dims: frozenset[Axis]) -> str:
        name = self.fresh()
        self.write(f"{name} = {text}")
        self.names[id(scalar)] = name
        self.spread[id(scalar)] = dims
        return name

    def _expression(self, scalar: Scalar) -> tuple[str, frozenset[Axis]]:
        operands = [self.name(part) for part in scalar.args]
        dims = frozenset[Axis]().union(*map(self.dims, scalar.args))
        match scalar.op:
            case "load":
                return self._load(scalar)
            case "index":
                index = scalar.index[0]
                return self._as_i64(index), dims | self.index_dims((index,))
            case "cast":
                source = scalar.args[0].dtype
                return spelling.cast(operands[0], source, scalar.dtype), dims
        entry = find(self.scalars, scalar)
        text = spell(entry.triton, entry, scalar, operands)
        if rounds(entry, scalar):
            return spelling.rounded(text, scalar.dtype), dims
        return f"({text}).to({spelling.variable_type(scalar.dtype)})", dims

    def _as_i64(self, index: Index) -> str:
        if not index.terms:
            return f"tl.full([], {self.printer.index(index)}, tl.int64)"
        return f"({self.printer.index(index)}).to(tl.int64)"

    def _load(self, scalar: Scalar) -> tuple[str, frozenset[Axis]]:
        at = self.index_dims(scalar.index)
        mask, *other = scalar.args or (None,)
        dims = at if mask is None else at | self.dims(mask)
        if self._no_rows:
            dims |= frozenset(self.nest.raxes)
        words = [self.mask(dims), "" if mask is None else f"({self.name(mask)})"]
        conditions = " & ".join(filter(None, words))
        self._check(scalar.index, conditions)
        place = self.position(scalar.buffer or "", scalar.index)
        address = self.address(scalar.buffer or "", place, at, dims)
        call = f"tl.load({address}, {conditions}, other=0)" if conditions else f"tl.load({address})"
        word = spelling.loaded(call, scalar.dtype)
        if mask is None:
            return word, dims
        return f"tl.where({self.name(mask)}, {word}, {self.name(other[0])})", dims | self.dims(
            other[0]
        )

    def _check(self, index: tuple[Index, ...], conditions: str) -> None:
        """Stops the kernel where an index that data decides is out of range, as eager's do."""
        for atom in (a for part in index for a in atoms(part) if isinstance(a, Gathered)):
            if atom.guard:
                name, size = self.name(atom.scalar), self.printer.size(atom.size)
                holds = f"(0 <= {name}) & ({name} < {size})"
                holds = f"({holds}) | ~({conditions})" if conditions else holds
                self.write(f'tl.device_assert({holds}, "index out of bounds")')

    # ---- memory ----

    def index_dims(self, index: tuple[Index, ...]) -> frozenset[Axis]:
        found = self._dims(atom for part in index for atom in atoms(part) if isinstance(atom, Axis))
        return found.union(*(self.dims(scalar) for scalar in gathered(index)))

    def position(self, buffer: str, index: tuple[Index, ...]) -> Index:
        return flatten(index, self.buffers[buffer].stride)

    def address(self, buffer: str, place: Index, at: frozenset[Axis], dims: frozenset[Axis]) -> str:
        """A pointer to element `place`, which has the dims `at`, as a tile of `dims`."""
        zeros = [
            f"0 * {block.axis.name}"
            for block in self.tiling.blocks
            if block.axis in dims - at and block.axis in self.tiling.shaped
        ]
        text = self.printer.index(place)
        return f"{self.arguments[buffer]} + ({' + '.join([text, *zeros])})"

    def store(self, store: Store, point: frozenset[Axis]) -> None:
        """Writes the statement of one store, which happens at every point of the dims `point`;
        its value and indices are defined."""
        dtype = self.buffers[store.buffer].dtype
        place = self.position(store.buffer, store.index)
        at = self.index_dims(store.index)
        dims = at | self.dims(store.value)
        if store.mode != "set" and self._collides():
            dims |= point
        value = spelling.cast(self.name(store.value), store.value.dtype, dtype)
        if dtype in HALVES:
            value = f"({value}).to({spelling.TYPES[dtype]})"
        mask = self.mask(dims)
        self._check(store.index, mask)
        address = self.address(store.buffer, place, at, dims)
        tail = f", {mask}" if mask else ""
        if store.mode == "set":
            self.write(f"tl.store({address}, {value}{tail})")
        elif self._collides():
            value = f"({value}).to({spelling.TYPES[dtype]}) + 0 * ({self.printer.index(place)})"
            self.write(f'tl.atomic_add({address}, {value}{tail}, sem="relaxed")')
        else:
            other = ", other=0" if mask else ""
            old = f"tl.load({address}{tail}{other})"
            old = f"({old} != 0)" if dtype == "bool" else old
            self.write(f"tl.store({address}, {_joined(store.mode, old, value, dtype)}{tail})")

    def _collides(self) -> bool:
        axes = (*self.nest.axes, *self.nest.raxes)
        return self.private is not None and any(
            axis not in self.private and axis.size != 1 for axis in axes
        )

    # ---- sizes ----

    def wide(self) -> bool:
        """Whether positions need 64 bits."""
        sizes = [block.axis.size for block in self.tiling.blocks]
        total = 1
        for size in sizes:
            if not isinstance(size, int):
                return True
            total *= size
        if total + _ROOM > _INT32_END:
            return True
        loads = [(s.buffer or "", s.index) for s in self.analysis.order if s.op == "load"]
        stores = [(store.buffer, store.index) for store in self.nest.stores]
        ends = (bounds(self.position(*access)) for access in (*loads, *stores))
        return not all(
            isinstance(end, int) and abs(end) + _ROOM < _INT32_END
            for low, high in ends
            for end in (low, high)
        )

    def signature(self) -> str:
        """The parameter list: buffers in order of first use, then symbols."""
        return ", ".join([*self.arguments.values(), *self.symbols.values()])


def _argument_names(analysis: Analysis, stores: Iterable[Store]) -> dict[str, str]:
    used = [scalar.buffer for scalar in analysis.order if scalar.op == "load"]
    used += [store.buffer for store in stores]
    return {name: f"a{place}" for place, name in enumerate(dict.fromkeys(n for n in used if n))}


def _joined(mode: str, old: str, new: str, dtype: str) -> str:
    """What a store of this mode leaves in place of `old`."""
    if dtype == "bool":
        return f"{old} {'|' if mode in ('add', 'max') else '&'} {new}"
    if mode in ("max", "min"):
        return f"nan_{mode}({old}, {new})"
    return f"{old} {'+' if mode == 'add' else '*'} {new}"
