"""Calls that no loop nest does: the original target, on strided views of buffers.

Takes an FX node; appends an `Extern` and gives the values of its results. Results are always
memory of their own: the result of an unlowered view op is copied, so that no buffer hides
inside another.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from ..engine.functional import mutable_form, written_places
from ..engine.memory import shares_memory
from .index import Size
from .loops import SizeValue
from .ranges import Range
from .values import Computed, Mapped, Stored, plain, rebased, root, shape_of, size_of, strided
from .work import LoweringError, Work

VALUES = (Stored, Computed, Mapped)
# Ops whose result holds nothing yet.
UNFILLED = frozenset(
    (
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty_strided.default,
    )
)


# Ops whose second result holds places along `dim`.
_PLACES = frozenset(
    (
        torch.ops.aten.topk.default,
        torch.ops.aten.sort.default,
        torch.ops.aten.sort.stable,
        torch.ops.aten.kthvalue.default,
        torch.ops.aten.median.dim,
        torch.ops.aten.mode.default,
    )
)


@dataclass(frozen=True)
class Fresh:
    """A target whose results share memory with its arguments, with the results copied."""

    target: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return copied(self.target(*args, **kwargs))


@dataclass(frozen=True)
class Placed:
    """A target whose argument `place` counts elements from the start of its first operand's
    storage. In the graph the operand lies `start` elements into a storage; here it may lie
    elsewhere, in memory that many buffers share."""

    target: Callable[..., Any]
    place: int

    def __call__(self, start: int, x: torch.Tensor, *args: Any) -> Any:
        given = list(args)
        given[self.place - 1] += x.storage_offset() - start
        return self.target(x, *given)


@dataclass(frozen=True)
class Bounded:
    """A target that may read all of its operand's storage, and raises where that is too small.
    In the graph the operand is all there is in its storage; so it is here, where it may have
    been put into memory that many buffers share."""

    target: Callable[..., Any]

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.untyped_storage().nbytes() != x.numel() * x.itemsize:
            x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
        return self.target(x, *args, **kwargs)


@dataclass(frozen=True)
class Flat:
    """A target whose results lie in nested tuples, with all of them in one list."""

    target: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        return leaves(self.target(*args, **kwargs))


def leaves(value: Any) -> list[Any]:
    """What is inside nested lists and tuples, in order."""
    if not isinstance(value, list | tuple):
        return [value]
    return [leaf for item in value for leaf in leaves(item)]


def copied(result: Any) -> Any:
    """Tensors copied, inside lists and tuples too."""
    if isinstance(result, torch.Tensor):
        return result.clone()
    if isinstance(result, list | tuple):
        return type(result)(copied(item) for item in result)
    return result


def extern(work: Work, node: fx.Node) -> Any:
    """Call the node's target as it is. Raises LoweringError where a result is neither a tensor
    nor nothing."""
    target, args, kwargs = _callee(work, node)
    written = _written(node)
    overwritten = _overwritten(node)
    if overwritten:
        return _filled(work, node, overwritten)
    mutates = tuple(dict.fromkeys(_pin(work, node, arg) for arg in written))
    target, meta = _own_memory(target, meta_of(node))
    if isinstance(meta, list | tuple) and any(isinstance(item, list | tuple) for item in meta):
        target = Flat(target)
    outs: tuple[str | None, ...] = (None,)
    numbers: tuple[Size | None, ...] = ()
    if mutates and isinstance(meta, torch.Tensor) and _returns_written(target):
        result = work.env[written[0]]
    else:
        outs, numbers, result = _results(work, node, meta)
    if mutates:
        work.settle(frozenset(mutates), list(work.env))
    target, args, kwargs = _placed(node, target, args, kwargs)
    work.extern(
        node,
        target=target,
        args=tuple(_operand(work, node, arg) for arg in args),
        kwargs={name: _operand(work, node, arg) for name, arg in kwargs.items()},
        outs=outs,
        single=not isinstance(meta, list | tuple),
        mutates=mutates,
        ordered=_ordered(node),
        numbers=numbers,
    )
    for name in mutates:
        work.ranges.pop(name, None)
    if node.target in _PLACES and outs[1] is not None:
        work.ranges[outs[1]] = _places(node)
    return result


def _places(node: fx.Node) -> Range:
    """The range of places along the dim that an op looks through."""
    x, target = node.args[0], node.target
    assert isinstance(x, fx.Node) and isinstance(target, torch._ops.OpOverload)
    shape = shape_of(x.meta["val"])
    place = [argument.name for argument in target._schema.arguments].index("dim")
    dim = node.args[place] if place < len(node.args) else node.kwargs.get("dim", -1)
    assert isinstance(dim, int)
    return (0, plain(shape[dim] - 1)) if shape else (0, 0)


def meta_of(node: fx.Node) -> Any:
    """The metadata of a call; of its items, where it has none itself."""
    if "val" in node.meta or not node.users:
        return node.meta.get("val")
    items: dict[int, fx.Node] = {}
    for user in node.users:
        place = user.args[1] if user.target is operator.getitem else None
        if not isinstance(place, int):
            return None
        items[place] = user
    return [meta_of(items[k]) if k in items else None for k in range(max(items) + 1)]


def _overwritten(node: fx.Node) -> list[fx.Node]:
    """The operands of a functional form that its op may write into as they are: fresh memory
    that nobody else looks at. Empty where one of them is not."""
    mutable = mutable_form(node.target)
    if mutable is None or mutable._schema.returns:
        return []
    found = [node.args[place] for place in written_places(mutable)]
    fresh = [
        item
        for item in found
        if isinstance(item, fx.Node) and item.target in UNFILLED and len(item.users) == 1
    ]
    # Two results that hold nothing yet are equal, so they may have become one node.
    return fresh if len(set(fresh)) == len(found) else []


def _filled(work: Work, node: fx.Node, written: list[fx.Node]) -> Any:
    """Call the op behind a functional form on the memory that it is given."""
    mutates = tuple(_pin(work, node, item) for item in written)
    work.extern(
        node,
        target=mutable_form(node.target),
        args=tuple(_operand(work, node, arg) for arg in node.args),
        kwargs={name: _operand(work, node, arg) for name, arg in node.kwargs.items()},
        outs=(),
        mutates=mutates,
        ordered=False,
    )
    for name in mutates:
        work.ranges.pop(name, None)
    results = [work.env[item] for item in written]
    return results if len(results) > 1 else results[0]


def _callee(work: Work, node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if node.op == "call_module":
        return work.gm.get_submodule(str(node.target)), node.args, node.kwargs
    if node.op == "call_method":
        return operator.methodcaller(str(node.target)), node.args, node.kwargs
    return node.target, node.args, node.kwargs


def _written(node: fx.Node) -> list[fx.Node]:
    """The arguments that the target writes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    found = []
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        listed = value if isinstance(value, list | tuple) else [value]
        found += [item for item in listed if isinstance(item, fx.Node)]
    return found


def _pin(work: Work, node: fx.Node, written: fx.Node) -> str:
    """Make the value of `written` memory that its views share; gives the buffer's name."""
    value = work.env[written]
    base = root(value)
    if isinstance(base, Computed):
        memory = work.stored(node, base)
        for other, found in list(work.env.items()):
            if isinstance(found, VALUES) and root(found) is base:
                work.env[other] = rebased(found, memory)
    elif strided(value) is None:
        work.env[written] = work.stored(written, value)
    base = root(work.env[written])
    assert isinstance(base, Stored)
    return base.buffer.name


def _returns_written(target: Any) -> bool:
    """`add_` and its kin give back the tensor that they wrote."""
    info = target._schema.returns[0].alias_info
    return info is not None and bool(info.is_write)


def _own_memory(target: Any, meta: Any) -> tuple[Any, Any]:
    """The target that gives results in memory of their own, and what they look like."""
    if not isinstance(target, torch._ops.OpOverload):
        return target, meta
    aliases = any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in target._schema.returns
    )
    if not aliases:
        return target, meta
    return Fresh(target), copied(meta)


def _placed(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The call with a storage offset, if it has one, that holds wherever the operand lies."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return target, args, kwargs
    names = [argument.name for argument in node.target._schema.arguments]
    if "storage_offset" not in names or not isinstance(args[0], fx.Node):
        return target, args, kwargs
    place, base = names.index("storage_offset"), args[0].meta["val"]
    if _fills_storage(args[0]) and not _written(node):
        return Bounded(target), args, kwargs
    whole = tuple(args[k] if k < len(args) else kwargs.get(name) for k, name in enumerate(names))
    if whole[place] is None:
        return target, args, kwargs
    return Placed(target, place), (base.storage_offset(), *whole), {}


def _fills_storage(node: fx.Node) -> bool:
    """Whether a tensor is all that its storage has room for: an op has just made it. (Fake
    storages do not tell: they grow with what is asked of them.)"""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    value = node.meta["val"]
    others = (before.meta.get("val") for before in node.all_input_nodes)
    return node.op == "call_function" and not any(shares_memory(value, x) for x in others)


_Results = tuple[tuple[str | None, ...], tuple[Size | None, ...], Any]


def _results(work: Work, node: fx.Node, meta: Any) -> _Results:
    """Buffers for the results, the sizes that others are, and the values by which the graph
    knows them all."""
    if meta is None:
        return (), (), None
    if not isinstance(meta, list | tuple):
        value = _value(work, node, meta)
        return (_name(value),), (_number(value),), value
    used = _used(node)
    values = [
        None
        if isinstance(item, torch.Tensor) and used is not None and place not in used
        else _value(work, node, item)
        for place, item in enumerate(meta)
    ]
    flat = leaves(values)
    return tuple(map(_name, flat)), tuple(map(_number, flat)), values


def _value(work: Work, node: fx.Node, meta: Any) -> Any:
    """What the graph knows a result by."""
    if isinstance(meta, torch.Tensor):
        return _buffer(work, node, meta)
    if isinstance(meta, list | tuple):
        return [_value(work, node, item) for item in meta]
    if meta is None:
        return None
    if isinstance(meta, torch.SymFloat | torch.SymBool):
        return SizeValue(meta.node.expr)
    if isinstance(meta, int | torch.SymInt) and not isinstance(meta, bool):
        return size_of(meta)
    raise LoweringError(f"{node.name} gives a {type(meta).__name__}")


def _name(value: Any) -> str | None:
    return value.buffer.name if isinstance(value, Stored) else None


def _number(value: Any) -> Size | None:
    if isinstance(value, SizeValue):
        return value.value
    return value if isinstance(value, sympy.Basic) else None


def _used(node: fx.Node) -> set[int] | None:
    """Which results are read; None where the tuple itself is, or tells sizes."""
    whole = any(user.target is not operator.getitem for user in node.users)
    if whole or node.meta.get("unbacked_bindings"):
        return None
    return {int(user.args[1]) for user in node.users}  # type: ignore[arg-type]


def _buffer(work: Work, node: fx.Node, meta: torch.Tensor) -> Stored:
    return Stored(work.buffer_of(node.name, meta, "extern"))


def _operand(work: Work, node: fx.Node, arg: Any) -> Any:
    """An FX argument as the runtime takes it."""
    if isinstance(arg, fx.Node):
        return operand(work, arg, work.env[arg])
    if isinstance(arg, list | tuple):
        items = [_operand(work, node, item) for item in arg]
        return tuple(items) if isinstance(arg, tuple) else items
    if isinstance(arg, dict):
        return {key: _operand(work, node, item) for key, item in arg.items()}
    if isinstance(arg, slice):
        return slice(*(_operand(work, node, part) for part in (arg.start, arg.stop, arg.step)))
    if isinstance(arg, torch.SymInt | torch.SymFloat | torch.SymBool):
        return SizeValue(arg.node.expr)
    return arg


def operand(work: Work, node: fx.Node, value: Any) -> Any:
    """The value of `node` as a `View`, `SizeValue` or plain object."""
    if isinstance(value, VALUES):
        return work.view(node, value, node.meta["val"])
    if isinstance(value, list | tuple):
        return [
            work.view(node, item, meta) if isinstance(item, VALUES) else item
            for item, meta in zip(value, node.meta["val"], strict=True)
        ]
    if isinstance(value, sympy.Basic):
        return SizeValue(value)
    return value


def _ordered(node: fx.Node) -> bool:
    """Random draws and whatever may have effects."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return (
        torch.Tag.nondeterministic_seeded in target.tags
        or node.is_impure()
        or not (target._schema.returns)
        or target._schema.is_mutable
    )


def as_argument(work: Work, arg: Any) -> Any:
    """A canonical argument with nodes replaced by their values and sizes by expressions."""
    if isinstance(arg, fx.Node):
        return work.env[arg]
    if isinstance(arg, torch.SymInt):
        expr = arg.node.expr
        return int(expr) if expr.is_Integer else sympy.expand(expr)
    if isinstance(arg, torch.SymFloat | torch.SymBool):
        return SizeValue(arg.node.expr)
    if isinstance(arg, list | tuple):
        return [as_argument(work, item) for item in arg]
    return arg
