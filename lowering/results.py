"""Where the results of a graph lie.

Takes what the nodes of a graph have become; gives a view for each result. Two results share
memory where, and only where, the graph's fake values do: lowering knows copies as views
(`diagonal_copy`), and puts views into memory of their own, both of which only a caller that
gets the results could tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx

from ..engine.memory import storage
from .externs import VALUES
from .loops import SizeValue, View
from .values import (
    Stored,
    Value,
    dense_stride,
    fresh_stride,
    plain,
    same_stride,
    shape_of,
    size_of,
    stride_of,
)
from .work import LoweringError, Work, supported

Result = View | SizeValue | int | float | bool | None


class Results:
    """The results of one graph, placed one after the other."""

    def __init__(self, work: Work, nodes: Sequence[fx.Node], returned: Sequence[Any]) -> None:
        self._work = work
        self._makers: dict[int, fx.Node] = {}  # the first node in each memory
        for node in nodes:
            place = storage(node.meta.get("val"))
            if place is not None:
                self._makers.setdefault(place, node)
        distinct = {item for item in returned if isinstance(item, fx.Node)}
        self._counts = Counter(storage(item.meta.get("val")) for item in distinct)
        self._owners: dict[str, int] = {}  # the graph's memory that a buffer stands for

    def place(self, item: Any) -> Result:
        """Raises LoweringError for a result that is neither a tensor nor a number."""
        value = self._work.env[item] if isinstance(item, fx.Node) else item
        if isinstance(value, VALUES):
            view = self._view(item, value, item.meta["val"])
            if self._work.buffers[view.buffer].role == "temp":
                self._work.set_role(view.buffer, "output")
            return view
        if isinstance(value, sympy.Basic):
            return SizeValue(value)
        if value is None or isinstance(value, SizeValue | int | float | bool):
            return value
        raise LoweringError(f"the output {item} is a {type(value).__name__}")

    def _view(self, node: fx.Node, value: Value, meta: torch.Tensor) -> View:
        place = storage(meta)
        if place is None:
            return self._work.view(node, value, meta)
        name, given = self._work.given.get(place, ("", meta))
        if name and _reads_alike(given, meta):
            return _within(name, given, meta)
        shape, stride = shape_of(meta), stride_of(meta)
        if self._counts[place] > 1 or dense_stride(shape, stride) != stride:
            base = self._base(place, meta)
            if base is not None:
                return _within(base, self._makers[place].meta["val"], meta)
        view = self._work.view(node, value, meta)
        if self._is_free(view.buffer, place):
            self._owners[view.buffer] = place
            return view
        memory = self._work.buffer(node.name, value.dtype, view.shape, view.stride)
        self._owners[memory.name] = place
        return View(self._work.copy(node, memory, value).buffer.name, view.shape, view.stride)

    def _is_free(self, buffer: str, place: int) -> bool:
        """Whether a buffer is no other memory that the caller sees."""
        given = self._work.buffers[buffer].role == "input"
        return not given and self._owners.get(buffer, place) == place

    def _base(self, place: int, meta: torch.Tensor) -> str | None:
        """A buffer laid out as the graph's memory `place` is; None where there can be none."""
        maker = self._makers[place]
        first, value = maker.meta["val"], self._work.env.get(maker)
        shape, stride = shape_of(first), stride_of(first)
        if not isinstance(value, VALUES) or not _reads_alike(first, meta):
            return None
        name = value.buffer.name if isinstance(value, Stored) else ""
        if not name or not same_stride(shape, self._work.buffers[name].stride, stride):
            name = ""
        if not name or not self._is_free(name, place):
            if fresh_stride(shape, stride) != stride or not supported(first):
                return None
            memory = self._work.buffer_like(maker, first)
            self._work.env[maker] = self._work.copy(maker, memory, value)
            name = memory.name
        self._owners[name] = place
        if self._work.buffers[name].role == "temp":
            self._work.set_role(name, "output")
        return name


def _within(name: str, base: torch.Tensor, meta: torch.Tensor) -> View:
    """The view of a buffer, laid out as `base` is, that `meta` is of that."""
    start = size_of(meta.storage_offset()) - size_of(base.storage_offset())
    return View(name, shape_of(meta), stride_of(meta), plain(start))


def _reads_alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the same bytes mean the same number in both."""
    bits = (left.is_conj() == right.is_conj(), left.is_neg() == right.is_neg())
    return left.dtype == right.dtype and all(bits)
