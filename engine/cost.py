"""What a node costs on a target.

Takes a `Target` and the ops that become generated kernels; gives integer costs
(femtoseconds) for the nodes of an e-graph. Pointwise work and views will be fused, so they
cost their arithmetic; a reduction costs the reading of its input and a share of a launch; a
product the larger of arithmetic and traffic; any other op a call into ATen, the traffic that
such a call forces on its neighbours, and arithmetic. Values that only depend on frozen inputs are
computed once, so they cost the memory they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .dtypes import word_of
from .egraph import FROZEN, LEAF, EGraph
from .expr import Binary, Call, Expr, Literal, Name, children
from .op import Op
from .target import Target

# Products, and which argument holds the summed size as its last.
PRODUCTS: Mapping[str, int] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "linear", "mv", "dot"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), 1),
}
_UNKNOWN_SIZE = 4096  # stands for a symbolic size without an example
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
    "pointwise", "view", "creation", "reduction" or "indexed". The rest are calls into ATen."""

    def __init__(self, target: Target, lowered: Mapping[str, str]) -> None:
        self.target = target
        self.lowered: Mapping[str, str] = {**lowered, "getitem": "view"}
        self._known: dict[tuple[int, ...], int] = {}
        self._flops: dict[str, float] = {}

    def cost(self, graph: EGraph, node: int) -> int:
        """Femtoseconds, at least 1. Leaves are free."""
        kind = graph.kind[node]
        if kind == LEAF:
            return 1
        out = graph.metadata.values[graph.meta[node]]
        if graph.level[graph.find(node)] == FROZEN:
            return 1 + round(self.target.memory * _bytes(out) * _SECOND)
        children = graph.children(node)
        key = (kind, graph.meta[node], *(graph.meta[child] for child in children))
        found = self._known.get(key)
        if found is None:
            inputs = [graph.metadata.values[graph.meta[child]] for child in children]
            seconds = self.seconds(graph.constructors[kind].op, inputs, out)
            found = self._known[key] = max(1, round(seconds * _SECOND))
        return found

    def seconds(self, op: Op, inputs: Sequence[Any], out: Any) -> float:
        """The price of `op` on tensors like `inputs` with a result like `out`."""
        target = self.target
        read, written = sum(map(_bytes, inputs)), _bytes(out)
        match self.lowered.get(op.name):
            case "view" | "creation":
                return target.view
            case "pointwise":
                return target.view + _count(out) * self._pointwise(op) / target.scalar_flops
            case "reduction":
                work = sum(map(_count, inputs)) / target.scalar_flops
                return target.reduction * target.launch + target.traffic(read) + work
            case "indexed":
                return target.launch + target.traffic(2 * written)
        if op.name in PRODUCTS or op.name in ("convolution", "sdpa", "convolution_backward"):
            rate = target.matrix_rate(_dtype(out, inputs))
            work = product_flops(op.name, inputs, out) / rate
            return target.extern + max(work, target.traffic(read + written))
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


def product_flops(name: str, inputs: Sequence[Any], out: Any) -> float:
    """Multiply-adds times two of a matrix product, convolution or attention."""
    first = out[0] if isinstance(out, (tuple, list)) else out
    if name in PRODUCTS:
        summed = inputs[PRODUCTS[name]].shape
        return 2.0 * _count(out) * (hint(summed[-1]) if len(summed) else 1)
    if name == "sdpa":
        query, keys = inputs[0], inputs[1]
        lengths = hint(keys.shape[-2]) * (hint(query.shape[-1]) + hint(first.shape[-1]))
        return 2.0 * math.prod(map(hint, query.shape[:-1])) * lengths
    weight = inputs[2] if name == "convolution_backward" else inputs[1]
    image = inputs[0] if name == "convolution_backward" else first
    per_output = _count(weight) / max(1, hint(weight.shape[0]))
    return 2.0 * _count(image) * per_output * (2 if name == "convolution_backward" else 1)


def hint(size: Any) -> int:
    """A plain size: the example value of a symbolic one, never a guard."""
    if isinstance(size, int):
        return size
    node = size.node
    value = node.hint if node.has_hint() else None
    return _UNKNOWN_SIZE if value is None else int(value)


def _count(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return float(math.prod(map(hint, value.shape)))
    if isinstance(value, (tuple, list)):
        return sum(map(_count, value))
    return 0.0


def _bytes(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        return _count(value) * value.dtype.itemsize
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    return 0.0


def _dtype(out: Any, inputs: Sequence[Any]) -> str:
    for value in (out, *inputs):
        if isinstance(value, torch.Tensor):
            return word_of(value.dtype)
    return "any"
