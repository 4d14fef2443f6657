"""What matrix products, convolutions and attention cost on a target.

Takes an op's name with tensors like its inputs and its result; gives flops and seconds. A
product is cut into tiles, each computed by one unit (a core, a streaming multiprocessor). A
tile takes the longer of its arithmetic and of moving its operands from the cache; tiles run in
waves of as many as there are units, so few tiles leave units idle and one tile too many takes a
whole wave. Never less than the traffic with memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .target import Target

# Products of matrices, and which argument holds the summed size as its last.
MATRICES: Mapping[str, int] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "linear", "mv", "dot"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), 1),
}
PRODUCTS = frozenset({*MATRICES, "convolution", "convolution_backward", "sdpa"})
_EDGES = (16, 32, 64, 128, 256)  # of a tile; a smaller matrix is not padded
_UNKNOWN_SIZE = 4096  # stands for a symbolic size without an example


@dataclass(frozen=True)
class Shape:
    """`batch` products of m x k by k x n."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> float:
        """Multiply-adds times two."""
        return 2.0 * self.batch * self.m * self.k * self.n


def product_shape(name: str, inputs: Sequence[Any], out: Any) -> Shape:
    """The product that an op of `PRODUCTS` is, or has the arithmetic of."""
    first = out[0] if isinstance(out, (tuple, list)) else out
    if name in MATRICES:
        summed = sizes(inputs[MATRICES[name]])
        rows = sizes(first)
        batch = math.prod(rows[:-2]) if name in ("bmm", "baddbmm", "matmul") else 1
        columns = 1 if name in ("mv", "addmv", "dot") or not rows else rows[-1]
        every = math.prod(rows)
        m = every // max(1, batch * columns)
        return Shape(batch, m, summed[-1] if summed else 1, columns)
    if name == "sdpa":  # scores and their product with the values, as one
        query, keys, result = sizes(inputs[0]), sizes(inputs[1]), sizes(first)
        return Shape(math.prod(query[:-2]), query[-2], query[-1] + result[-1], keys[-2])
    backward = name == "convolution_backward"
    weight, image = sizes(inputs[2 if backward else 1]), sizes(inputs[0] if backward else first)
    groups = 1
    if not backward and len(weight) > 1 and weight[1] and inputs[0].dim() > 1:
        groups = max(1, sizes(inputs[0])[1] // weight[1])
    columns = max(1, image[1] // groups) if len(image) > 1 else 1
    rows_of_one = math.prod(image) // max(1, columns * groups)
    k = math.prod(weight[1:]) * (2 if backward else 1)
    return Shape(groups, rows_of_one, k, columns)


def product_flops(name: str, inputs: Sequence[Any], out: Any) -> float:
    """Multiply-adds times two."""
    return product_shape(name, inputs, out).flops


def tiled_seconds(target: Target, shape: Shape, rate: float, itemsize: int) -> float:
    """Seconds of the best tiling. `rate` is that of all units, `itemsize` in bytes."""
    if not shape.flops:
        return 0.0
    unit, pipe = rate / target.units, target.cache_bandwidth / target.units
    best = math.inf
    for rows in {min(edge, shape.m) for edge in _EDGES}:
        for columns in {min(edge, shape.n) for edge in _EDGES}:
            if rows * columns > target.tile:
                continue
            tiles = shape.batch * -(-shape.m // rows) * -(-shape.n // columns)
            arithmetic = 2.0 * rows * columns * shape.k / unit
            operands = (rows + columns) * shape.k * itemsize / pipe
            best = min(best, -(-tiles // target.units) * max(arithmetic, operands))
    return best


def hint(size: Any) -> int:
    """A plain size: the example value of a symbolic one, never a guard."""
    if isinstance(size, int):
        return size
    node = size.node
    value = node.hint if node.has_hint() else None
    return _UNKNOWN_SIZE if value is None else int(value)


def sizes(value: torch.Tensor) -> tuple[int, ...]:
    """The plain sizes of a tensor."""
    return tuple(map(hint, value.shape))
