"""FX graph to loop IR.

Takes a functional ATen graph with meta["val"]; gives a `Program`. Each node becomes memory
filled by a nest of its own, a view (index arithmetic, no code), or an extern call. Fusion is
another step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ..engine.dtypes import word_of
from ..engine.loop_choices import LoopChoices
from ..engine.memory import storage
from ..engine.op import Bound, Op
from ..engine.ops import OpTable
from ..engine.rule import ScalarEntry
from .assemble import ASSEMBLE
from .batch_norms import BATCH_NORMS
from .creation import CREATION
from .draws import DRAWS
from .externs import VALUES, as_argument, extern, meta_of
from .frozen import FROZEN
from .geometry import GEOMETRY
from .index import as_index
from .indexing import INDEXING
from .loops import Buffer, Nest, Program, Scalar, SizeValue, Step, Store, scalars
from .losses import LOSSES
from .norm_gradients import NORM_GRADIENTS
from .norms import NORMS
from .own_draws import own_draw
from .padding import PADDING
from .pointwise import Meaning
from .pools import POOLS
from .prims import PRIMS
from .promotion import promoted
from .quantize import QUANTIZE
from .reductions import REDUCTIONS
from .results import Result, Results
from .scans import SCANS
from .scatter import SCATTER
from .search import SEARCH
from .sources import sources_of
from .values import (
    Indices,
    Stored,
    Value,
    axes_for,
    root,
    size_of,
    strided,
)
from .views import VIEWS, Lower, broadcast_index, is_view
from .work import GENERATED, Declined, LoweringError, Work, has_strides, is_size, supported


def copy(work: Work, node: fx.Node, x: Value, *_: Any) -> Stored:
    """A copy in the dtype and layout that the result has."""
    return work.pointwise(node, node.meta["val"], lambda index: work.load(x, index))


EXTREMES = ("max", "min", "argmax", "argmin")
COPIES: Mapping[str, Lower] = {
    name: copy for name in ("clone", "cast", "_to_copy", "contiguous", "lift_fresh_copy")
}
CLASSES: Mapping[str, Mapping[str, Lower]] = {
    "pointwise": {**COPIES, **ASSEMBLE, **PADDING, **GEOMETRY, **LOSSES, **QUANTIZE, **PRIMS},
    "view": VIEWS,
    "creation": {**CREATION, **FROZEN},
    "reduction": {**REDUCTIONS, **NORMS, **NORM_GRADIENTS, **BATCH_NORMS, **SCANS, **POOLS},
    "indexed": {**INDEXING, **SEARCH},
    "scatter": SCATTER,
}
PYTHON: Mapping[str, Lower] = {
    name: lower for table in CLASSES.values() for name, lower in table.items()
}
# Overloads that no entry of rules/ops names, whose arguments a lowering takes as they are.
OVERLOADS: Mapping[str, str] = {
    "arange.start": "arange",
    "bucketize.Tensor": "bucketize",
    "norm.Scalar": "norm",
    "norm.ScalarOpt_dim": "norm",
    "scatter.reduce": "scatter_joined",
    "scatter.value_reduce": "scatter_joined",
    "searchsorted.Tensor": "searchsorted",
    "unsafe_split.Tensor": "unsafe_split",
}


def lower(
    gm: fx.GraphModule,
    table: OpTable,
    scalars: Mapping[str, ScalarEntry],
    loops: LoopChoices | None = None,
    *,
    own_random: bool = False,
) -> Program:
    """The loop IR of a graph.

    `scalars` are the scalar ops that the target can spell; a pointwise op whose meaning needs
    another is an extern. `loops` are the target's numbers, those of the CPU by default.
    `own_random`: random numbers are made in nests (`own_draws`), not drawn as eager draws them.
    Raises LoweringError where the graph passes something that is neither a tensor nor a number.
    """
    return Lowering(gm, table, scalars, loops, own_random).run()


def lowered_ops(table: OpTable, device: str = "cpu") -> dict[str, str]:
    """Which canonical ops become loop nests or index arithmetic on a device type, and as what:
    "pointwise", "view", "reduction", "creation", "indexed" or "scatter"; nothing but views where
    no loops are generated. The rest are extern calls."""
    found = {name: kind for kind, ops in CLASSES.items() for name in ops}
    for name in table.names():
        op = table.find(name)
        if op is not None and op.entry is not None and op.entry.scalar is not None:
            found[op.name] = "pointwise"
    if device not in GENERATED:
        found = {name: kind for name, kind in found.items() if kind == "view"}
    return found


class Lowering:
    """Walks the graph once."""

    def __init__(
        self,
        gm: fx.GraphModule,
        table: OpTable,
        scalars: Mapping[str, ScalarEntry],
        loops: LoopChoices | None,
        own_random: bool,
    ) -> None:
        self._work = Work(gm, loops, own_random)
        self._nodes = list(gm.graph.nodes)
        self._table = table
        self._scalars = scalars
        self._inputs: list[str | SizeValue | None] = []
        self._outputs: tuple[Result, ...] = ()
        self._again: dict[int, int] = {}
        self._mutating = False
        self._symbols: set[sympy.Symbol] = set()  # whose values the inputs give

    def run(self) -> Program:
        for node in self._nodes:
            self._visit(node)
        work = self._work
        return Program(
            tuple(self._inputs),
            work.buffers,
            tuple(work.steps),
            self._outputs,
            work.constants,
            sources_of(self._nodes),
            self._again,
        )

    def _visit(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self._work.env[node] = self._input(node)
            case "get_attr":
                self._work.env[node] = self._attribute(node)
            case "output":
                self._outputs = self._results(node.args[0])
            case _:
                self._work.device = next(iter(_devices(node)), "cpu")
                self._work.env[node] = self._call(node)

    def _input(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            buffer = self._work.buffer_of(node.name, value, "input")
            self._inputs.append(buffer.name)
            place = storage(value)
            if place is not None:
                self._work.given.setdefault(place, (buffer.name, value))
                self._work.homes[buffer.name] = place
            self._symbols |= symbols_in(value)
            return Stored(buffer)
        if isinstance(value, torch.SymInt):
            size = size_of(value)
            self._inputs.append(SizeValue(size))
            self._symbols |= symbols_in(value)
            return size
        if isinstance(value, torch.SymFloat | torch.SymBool):
            self._inputs.append(SizeValue(value.node.expr))
            self._symbols |= symbols_in(value)
            return SizeValue(value.node.expr)
        if value is not None and not isinstance(value, int | float | bool):
            raise LoweringError(f"input {node.name} is a {type(value).__name__}")
        self._inputs.append(None)
        return value

    def _attribute(self, node: fx.Node) -> Any:
        value: Any = self._work.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        buffer = self._work.buffer_of(node.name, value, "constant")
        with unset_fake_temporarily():  # AOTAutograd compiles under its fake mode
            self._work.constants[buffer.name] = value.detach()
        return Stored(buffer)

    def _call(self, node: fx.Node) -> Any:
        drawn = own_draw(self._work, node) if self._work.own_random else None
        if drawn is not None:
            return drawn
        value = node.meta.get("val")
        if node.target is not operator.getitem and not symbols_in(meta_of(node)) <= self._symbols:
            self._symbols |= symbols_in(meta_of(node))  # the call alone can tell
            return extern(self._work, node)
        if isinstance(value, torch.SymInt):
            return size_of(value)
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return SizeValue(value.node.expr)
        if isinstance(value, int | float | bool):
            return value
        if node.target is operator.getitem:
            return self._item(node)
        if node.target is torch.ops.aten.copy_.default:
            return self._write(node)
        try:
            return self._native(node)
        except Declined:
            return extern(self._work, node)

    def _item(self, node: fx.Node) -> Any:
        base, place = node.args
        assert isinstance(base, fx.Node) and isinstance(place, int)
        return self._work.env[base][place]

    def _native(self, node: fx.Node) -> Any:
        """Raises Declined where only the op itself will do."""
        if node.op != "call_function":
            raise Declined
        if not _all(supported, node) or len(_devices(node)) > 1:
            return self._view(node)
        work, made, given = self._work, DRAWS.get(node.target), node.args
        if made is None:
            bound = self._table.bind(node.target, node.args, node.kwargs)
            if bound is None:
                raise Declined
            if bound.op.entry is not None and bound.op.entry.scalar is not None:
                return self._pointwise(node, bound)
            made, given = PYTHON.get(_family(bound.op)), bound.args
        if made is None:
            raise Declined
        args = [as_argument(work, arg) for arg in given]
        mark = len(work.steps)
        try:
            value = made(work, node, *args)
            if any(map(_may_be_empty, work.steps[mark:])):
                raise Declined
            return value
        except Declined:
            work.undo(mark)
            raise

    def _view(self, node: fx.Node) -> Any:
        """A view of a tensor whose elements no nest can read (complex numbers, float8).

        Raises Declined where strides do not say it.
        """
        if not is_view(node.target) or not _all(has_strides, node) or len(_devices(node)) > 1:
            raise Declined
        bound = self._table.bind(node.target, node.args, node.kwargs)
        made = None if bound is None else VIEWS.get(_family(bound.op))
        if bound is None or made is None:
            raise Declined
        value = made(self._work, node, *(as_argument(self._work, arg) for arg in bound.args))
        if any(strided(view) is None for view in (value if isinstance(value, list) else [value])):
            raise Declined
        return value

    def _pointwise(self, node: fx.Node, bound: Bound) -> Stored:
        work, meta = self._work, node.meta["val"]
        entry = bound.op.entry
        assert entry is not None and entry.scalar is not None
        if not isinstance(meta, torch.Tensor):
            raise Declined
        expr, result = entry.scalar, word_of(meta.dtype)
        values = {
            param.name: as_argument(work, arg)
            for param, arg in zip(bound.op.params, bound.args, strict=True)
        }
        operands = {name: values[name] for name in values.keys() - _modifiers(bound.op)}
        dtype = _meeting(operands) if result == "bool" else result
        single = frozenset(name for name, value in values.items() if _is_single(value))

        def make(index: Indices) -> Scalar:
            read = {
                name: work.load(value, broadcast_index(index, value.shape))
                if isinstance(value, VALUES)
                else value
                for name, value in values.items()
            }
            return Meaning(work.builder, read, dtype, self._scalars or None, single).of(expr)

        return work.pointwise(node, meta, make)

    def _write(self, node: fx.Node) -> Any:
        """`copy_` at the end of a graph: a value is written into an input.

        What the graph still reads of inputs must be what they were before.
        """
        target, source = node.args[0], node.args[1]
        assert isinstance(target, fx.Node)
        work = self._work
        place = work.env[target]
        self._before_writes()
        buffer = place.buffer if isinstance(place, Stored) else None
        if (
            buffer is None
            or not isinstance(source, fx.Node)
            or not _all(supported, node)
            or len(_devices(node)) > 1
            or _overlaps(buffer.shape, buffer.stride)
        ):
            return extern(work, node)
        value = work.env[source]
        if root(value) is place or (isinstance(value, Stored) and value.buffer == buffer):
            return place
        axes = axes_for(buffer.shape)
        index = tuple(as_index(axis) for axis in axes)
        scalar = work.load(value, broadcast_index(index, value.shape))
        store = Store(buffer.name, index, work.builder.cast(scalar, buffer.dtype))
        work.nest(node, axes, (), [store])
        return place

    def _before_writes(self) -> None:
        """Once, before the first write: put into memory whatever later reads an input that is
        written, so that it reads the old value."""
        if self._mutating:
            return
        self._mutating = True
        work = self._work
        copies = [n for n in self._nodes if n.target is torch.ops.aten.copy_.default]
        written = {root(work.env[n.args[0]]) for n in copies if n.args[0] in work.env}
        names = {base.buffer.name for base in written if isinstance(base, Stored)}
        for copy in copies:
            source = copy.args[1]
            value = work.env.get(source)
            if not isinstance(value, VALUES) or copy.args[0] is source:
                continue
            if isinstance(value, Stored) and _is_all_of(work.env.get(copy.args[0]), value.buffer):
                continue  # the value was made in place
            base = root(value)
            if isinstance(base, Stored) and base.buffer.name in names:
                fresh = work.buffer(source.name, value.dtype, value.shape)
                work.env[source] = work.copy(source, fresh, value)
        outputs = [n for n in self._nodes[-1].all_input_nodes if n in work.env]
        work.settle(frozenset(names), outputs)

    def _results(self, outputs: Any) -> tuple[Result, ...]:
        listed = outputs if isinstance(outputs, list | tuple) else (outputs,)
        self._again = {
            place: listed.index(item)
            for place, item in enumerate(listed)
            if isinstance(item, fx.Node) and item in listed[:place]
        }
        results = Results(self._work, self._nodes, listed)
        return tuple(map(results.place, listed))


def symbols_in(value: Any) -> set[sympy.Symbol]:
    """The size symbols of a tensor, a symbolic number or several of them."""
    if isinstance(value, torch.Tensor):
        numbers: list[Any] = [*value.shape]
        if value.layout is torch.strided:
            numbers += [*value.stride(), value.storage_offset()]
        return symbols_in([size for size in numbers if isinstance(size, torch.SymInt)])
    if isinstance(value, list | tuple):
        return set().union(*map(symbols_in, value)) if value else set()
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return set(value.node.expr.free_symbols)
    return set()


def _family(op: Op) -> str:
    """The name that lowerings go by; an undeclared op has the arguments of its schema."""
    if op.entry is not None or op.name in PYTHON:
        return op.name
    return OVERLOADS.get(op.name, op.name.removesuffix(".default"))


def _modifiers(op: Op) -> frozenset[str]:
    """Arguments that say how (`alpha`), and are no operands."""
    return frozenset(param.name for param in op.params if not param.required)


def _meeting(values: Mapping[str, Any]) -> str:
    """The dtype in which tensors and numbers meet."""
    operands: list[Any] = []
    for value in values.values():
        if isinstance(value, VALUES):
            operands.append((value.dtype, len(value.shape)))
        elif isinstance(value, bool | int | float) or is_size(value):
            operands.append(value)
    return promoted(operands) if operands else "bool"


def _may_be_empty(step: Step) -> bool:
    """Whether a nest looks for an extreme among values that only a run can count: eager refuses
    to where there are none."""
    if not isinstance(step, Nest):
        return False
    sizes = [axis.size for axis in step.raxes if not isinstance(axis.size, int)]
    symbols = {symbol for size in sizes for symbol in size.free_symbols}
    unknown = any(symbol_is_type(symbol, SymT.UNBACKED_INT) for symbol in symbols)
    return unknown and any(s.op == "reduce" and s.value in EXTREMES for s in scalars(step))


def _is_single(value: Any) -> bool:
    return isinstance(value, VALUES) and all(size == 1 for size in value.shape)


def _all(fits: Callable[[torch.Tensor], bool], node: fx.Node) -> bool:
    """Whether every tensor that goes in or comes out is one that `fits`."""
    return all(map(fits, _tensors(node)))


def _devices(node: fx.Node) -> dict[str, None]:
    """The devices of all tensors that come out or go in, those of results first."""
    return {str(value.device): None for value in _tensors(node)}


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """What comes out, then what goes in."""
    flat: list[Any] = []
    for one in (node, *node.all_input_nodes):
        value = one.meta.get("val")
        flat += value if isinstance(value, list | tuple) else [value]
    return [value for value in flat if isinstance(value, torch.Tensor)]


def _is_all_of(place: Any, buffer: Buffer) -> bool:
    return isinstance(place, Stored) and place.buffer == buffer


def _overlaps(shape: tuple[Any, ...], stride: tuple[Any, ...]) -> bool:
    """Whether elements of an input may share memory."""
    return any(size != 1 and step == 0 for size, step in zip(shape, stride, strict=True))
