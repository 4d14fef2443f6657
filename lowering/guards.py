"""Indices read from data that only the data can tell to be in range.

Takes the index tensors of an op and the dims they index; appends a nest per tensor that finds
out whether all of it is in range, as a flag, and one step that raises what eager raises where
a flag is false. Whatever goes through such an index names the flag (`index.Gathered`), so it
runs after that step and never touches memory out of range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .externs import operand
from .index import ASSERTED, Size, as_index
from .loops import Scalar, SizeValue, Store, View, varies
from .promotion import INTS
from .ranges import Range, at_most, inside, interval
from .values import Value, axes_for, plain, shape_of, size_of, stride_of
from .work import Declined, Guarded, Work

# Ops that do nothing but raise where their first argument is false.
ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)


@dataclass(frozen=True)
class Wanted:
    """An index tensor into a dim of `size`; `wraps` allows negative ones, counted from the
    end. `given` is the argument of the op that it was made from, where it is none itself."""

    value: Value
    size: Size
    wraps: bool = False
    given: Value | None = None


@dataclass(frozen=True)
class Refusal:
    """Raises what `target` says about an index out of range, unless all flags are true.

    Called with the flags, then the arguments of the op: index tensors as they are, others as
    a dict of size, stride and dtype, as only their layout counts. Raises IndexError where the
    op raises nothing.
    """

    target: Any

    def __call__(self, flags: Sequence[torch.Tensor], args: Any, kwargs: Any) -> None:
        if all(map(bool, flags)):
            return
        self.target(*map(_made, args), **{name: _made(arg) for name, arg in kwargs.items()})
        raise IndexError(f"{self.target}: an index is out of range")

    def __str__(self) -> str:
        return f"refusal of {self.target}"


def _made(arg: Any) -> Any:
    if isinstance(arg, dict):
        return torch.empty_strided(**arg)
    if isinstance(arg, list | tuple):
        return [_made(item) for item in arg]
    return arg


def guard(work: Work, node: fx.Node, wanted: Sequence[Wanted]) -> list[str]:
    """For each index tensor the flag that says whether it is in range, "" where that is known
    or nothing is read through it; `ASSERTED` on devices that would have to be waited for.

    Raises Declined, before anything is appended, for what is no index.
    """
    if any(one.value.dtype not in INTS or one.size == 0 for one in wanted):
        raise Declined
    if work.device != "cpu":
        return ["" if _safe(work, one) else ASSERTED for one in wanted]
    flags = [_flag(work, node, one) for one in wanted]
    news = [flag for flag, new in flags if new]
    if news:
        indices = {id(one.given or one.value) for one in wanted}
        args = [_argument(work, arg, indices) for arg in node.args]
        kwargs = {name: _argument(work, arg, indices) for name, arg in node.kwargs.items()}
        views = [View(flag, (), ()) for flag in news]
        work.extern(
            node,
            target=Refusal(node.target),
            args=(views, args, kwargs),
            kwargs={},
            outs=(),
            mutates=tuple(news),
            ordered=True,
        )
    return [flag for flag, _ in flags]


def _flag(work: Work, node: fx.Node, one: Wanted) -> tuple[str, bool]:
    """A flag, and whether nobody asked for it before."""
    if _safe(work, one):
        return "", False
    axes = axes_for(one.value.shape)
    scalar = work.load(one.value, tuple(map(as_index, axes)))
    key = (id(one.value), one.size, one.wraps)
    if key in work.guards:
        return work.guards[key].flag, False
    flag = work.buffer(f"{node.name}_in_range", "bool", ())
    holds = _in_range(work, scalar, one)
    axes = tuple(axis for axis in axes if axis in varies(scalar))  # not those of an expand
    if axes:
        holds = work.builder.make("reduce", (holds,), "bool", value="all")
    work.guards[key] = Guarded(one.value, flag.name, len(work.steps))
    work.nest(node, (), axes, [Store(flag.name, (), holds)])
    return flag.name, True


def _safe(work: Work, one: Wanted) -> bool:
    """Whether nothing is read through an index, or all of it is known to be in range."""
    at = tuple(map(as_index, axes_for(one.value.shape)))
    found = interval(work.load(one.value, at), work.ranges)
    return 0 in one.value.shape or known(found, one.size, wraps=one.wraps)


def known(found: Range | None, size: Size, *, wraps: bool) -> bool:
    """Whether an index of this range is in range for a dim of `size`."""
    if inside(found, size):
        return True
    if found is None or not wraps:
        return False
    return at_most(plain(-size), found[0]) and at_most(found[1], plain(size - 1))


def _in_range(work: Work, index: Scalar, one: Wanted) -> Scalar:
    make, wide = work.builder.make, work.builder.cast(index, "i64")
    low = plain(-one.size) if one.wraps else 0
    tests = (
        make("ge", (wide, size_scalar(work, low)), "bool"),
        make("lt", (wide, size_scalar(work, one.size)), "bool"),
    )
    return make("logical_and", tests, "bool")


def size_scalar(work: Work, size: Size) -> Scalar:
    """A number of elements as an i64 value."""
    if isinstance(size, int):
        return work.builder.const(size, "i64")
    return work.builder.make("index", (), "i64", index=(as_index(size),))


def _argument(work: Work, arg: Any, indices: set[int]) -> Any:
    """An argument of the op as `Refusal` takes it."""
    if isinstance(arg, list | tuple):
        return [_argument(work, item, indices) for item in arg]
    if isinstance(arg, torch.SymInt):
        return _number(size_of(arg))
    if not isinstance(arg, fx.Node):
        return arg
    meta, value = arg.meta["val"], work.env[arg]
    if not isinstance(meta, torch.Tensor):
        return operand(work, arg, value)
    if id(value) in indices:
        return work.view(arg, value)
    size, stride = (list(map(_number, f(meta))) for f in (shape_of, stride_of))
    return {"size": size, "stride": stride, "dtype": meta.dtype}


def _number(size: Size) -> int | SizeValue:
    return size if isinstance(size, int) else SizeValue(size)
