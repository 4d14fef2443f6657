"""What a node costs on a target.

Takes a `Target` and the ops that become generated kernels; gives integer costs
(femtoseconds) for the nodes of an e-graph. docs/costs.md explains each term. Pointwise work and
views will be fused, so they cost their arithmetic, and a kernel of their own only where a product
or the caller reads what they make; a reduction costs the reading of its input and a share of a
launch; a product the larger of arithmetic and traffic (`products`); any other op a call into
ATen, the traffic that such a call forces on its neighbours, and arithmetic. Values that only
depend on frozen inputs are computed once, so they cost the memory they hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .dtypes import word_of
from .egraph import FROZEN, LEAF, EGraph
from .expr import Binary, Call, Expr, Literal, Name, children
from .op import Op
from .products import PRODUCTS, hint, product_shape, sizes, tiled_seconds
from .target import Target

_PLAIN = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "maximum",
        "minimum",
        "where",
        "relu",
        "square",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "logical_not",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bit_not",
    ]
)
_FREE = frozenset({"narrow", "exact", "largest"})  # these say a dtype and compute nothing
_OPAQUE = 4.0  # flops per element of a call into ATen: it computes what its open form would
_FUNCTION = 8.0  # flops of an exp, a root, ...; a division is half of that
_SECOND = 10**15


class CostModel:
    """`cost` of nodes. `lowered` says which ops generated kernels cover, and as what:
    "pointwise", "view", "creation", "reduction", "indexed" or "scatter". The rest are calls into
    ATen."""

    def __init__(self, target: Target, lowered: Mapping[str, str]) -> None:
        self.target = target
        self.lowered: Mapping[str, str] = {**lowered, "getitem": "view"}
        self._known: dict[tuple[int, ...], int] = {}
        self._flops: dict[str, float] = {}
        self._stored: set[int] = set()
        self._cold = False

    def survey(self, graph: EGraph, roots: Iterable[int]) -> None:
        """Learns which classes must be in memory, whichever kernels are made: those of `roots`
        and what products read, through views too. To be called when the graph has changed."""
        waiting = list(map(graph.find, roots))
        views: dict[int, list[int]] = {}
        inputs = 0.0
        for node, kind in enumerate(graph.kind):
            if kind == LEAF:
                inputs += _bytes(graph.metadata.values[graph.meta[node]])
            if kind == LEAF or graph.level[graph.find(node)] == FROZEN:
                continue
            op = graph.constructors[kind].op
            if op.name in PRODUCTS:
                waiting += graph.children(node)
            elif self.lowered.get(op.name) == "view":
                views.setdefault(graph.find(node), []).extend(graph.children(node))
        self._cold = inputs > self.target.cache
        self._stored = set()
        while waiting:
            owner = waiting.pop()
            if owner not in self._stored:
                self._stored.add(owner)
                waiting += views.get(owner, ())

    def cost(self, graph: EGraph, node: int) -> int:
        """Femtoseconds, at least 1. Leaves are free."""
        kind = graph.kind[node]
        if kind == LEAF:
            return 1
        out = graph.metadata.values[graph.meta[node]]
        owner = graph.find(node)
        if graph.level[owner] == FROZEN:
            return 1 + round(self.target.memory * _bytes(out) * _SECOND)
        children = graph.children(node)
        stored = owner in self._stored
        cold = tuple(self._cold and self._is_input(graph, child) for child in children)
        key = (kind, stored, graph.meta[node], *(graph.meta[child] for child in children), *cold)
        found = self._known.get(key)
        if found is None:
            inputs = [graph.metadata.values[graph.meta[child]] for child in children]
            seconds = self.seconds(graph.constructors[kind].op, inputs, out, stored, cold)
            found = self._known[key] = max(1, round(seconds * _SECOND))
        return found

    @staticmethod
    def _is_input(graph: EGraph, owner: int) -> bool:
        """Whether nothing that runs before makes the class: an input or a folded constant."""
        return graph.kind[owner] == LEAF or graph.level[owner] == FROZEN

    def seconds(
        self,
        op: Op,
        inputs: Sequence[Any],
        out: Any,
        stored: bool = False,
        cold: Sequence[bool] = (),
    ) -> float:
        """The price of `op` on tensors like `inputs` with a result like `out`, which is in
        memory in any case where it is `stored`. `cold` says per input whether it comes from
        memory whatever its size."""
        target = self.target
        read, written = sum(map(_bytes, inputs)), _bytes(out)
        match self.lowered.get(op.name):
            case "view" | "creation":
                apart = target.strided * target.traffic(written) if _is_apart(op, out) else 0.0
                return target.view + apart
            case "pointwise":
                kernel = target.launch + target.traffic(2 * written) if stored else 0.0
                work = _count(out) * self._pointwise(op) / target.scalar_flops
                return target.view + kernel + work
            case "reduction":
                work = sum(map(_count, inputs)) / target.scalar_flops
                return target.reduction * target.launch + target.traffic(read) + work
            case "indexed" | "scatter":
                return target.launch + target.traffic(2 * written)
        if op.name in PRODUCTS:
            shape = product_shape(op.name, inputs, out)
            dtype, size = _dtype(out, inputs)
            work = tiled_seconds(target, shape, target.matrix_rate(dtype), size)
            fresh = sum(_bytes(x) for x, is_cold in zip(inputs, cold, strict=False) if is_cold)
            return target.extern + max(work, target.traffic(read + written, fresh))
        work = _OPAQUE * (sum(map(_count, inputs)) + _count(out)) / target.scalar_flops
        return target.extern + 2 * target.traffic(read + written) + work

    def _pointwise(self, op: Op) -> float:
        """Flops per element."""
        found = self._flops.get(op.name)
        if found is None:
            entry, found = op.entry, 1.0
            if entry is not None and entry.flops is not None:
                found = entry.flops
            elif entry is not None and entry.scalar is not None:
                found = scalar_flops(entry.scalar)
            self._flops[op.name] = found
        return found


def scalar_flops(expr: Expr) -> float:
    """A rough count for a pointwise meaning: 1 per plain operation, more per function."""
    return max(_flops(expr), 1.0)


def _flops(expr: Expr) -> float:
    below = [_flops(part) for part in children(expr)]
    match expr:
        case Name() | Literal():
            return 0.0
        case Binary(op=op):
            return sum(below) + (1.0 if op in "+-*" else _FUNCTION / 2)
        case Call(fn="pick"):  # one of the alternatives, of which the last is the usual one
            return below[-1]
        case Call(fn="given"):
            return max(below)
        case Call(fn=fn):
            return sum(below) + (0.0 if fn in _FREE else 1.0 if fn in _PLAIN else _FUNCTION)
    return sum(below) + 1.0


def _is_apart(op: Op, out: Any) -> bool:
    """Whether the rows of a slice lie apart in memory, with what was left out in between."""
    if op.name not in ("slice", "getitem") or not isinstance(out, torch.Tensor):
        return False
    expected = 1
    for size, stride in zip(reversed(out.shape), reversed(out.stride()), strict=True):
        if hint(size) != 1:
            if hint(stride) != expected:
                return True
            expected *= hint(size)
    return False


def _count(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return float(math.prod(sizes(value)))
    if isinstance(value, (tuple, list)):
        return sum(map(_count, value))
    return 0.0


def _bytes(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return _count(value) * value.dtype.itemsize
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    return 0.0


def _dtype(out: Any, inputs: Sequence[Any]) -> tuple[str, int]:
    """The dtype that a product is computed in, and the bytes of an element."""
    for value in (out, *inputs):
        if isinstance(value, torch.Tensor):
            return word_of(value.dtype), value.dtype.itemsize
    return "any", 1
