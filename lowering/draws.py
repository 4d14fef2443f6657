"""Random ops of which only the draw has to be ATen's.

Takes the arguments of the FX node (random ops have no canonical form); gives fresh buffers.
The generator is read exactly as eager reads it: same order, same dtype, same memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .index import Size
from .loops import Scalar, SizeValue
from .promotion import FLOATS, opmath
from .values import Indices, Stored, Value, shape_of, stride_of
from .work import Declined, Work


@dataclass(frozen=True)
class Coins:
    """Booleans in a given layout, each true with `probability`."""

    probability: float

    def __call__(self, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=torch.bool).bernoulli_(self.probability)

    def __str__(self) -> str:
        return "aten.bernoulli_.float"


def native_dropout(work: Work, node: fx.Node, x: Value, p: Any, train: Any) -> list[Value]:
    """x * mask * (1 / (1 - p)), and the mask."""
    out, mask = node.meta["val"]
    if work.device != "cpu":
        raise Declined
    if x.dtype not in FLOATS or not isinstance(p, int | float) or train is False or 0 in x.shape:
        raise Declined
    chance = 1.0 - p
    drawn = work.buffer(f"{node.name}_mask", "bool", shape_of(mask), stride_of(mask), "extern")
    layout = (_sizes(shape_of(mask)), _sizes(stride_of(mask)))
    work.extern(
        node, target=Coins(chance), args=layout, kwargs={}, outs=(drawn.name,), ordered=True
    )
    kept = Stored(drawn)
    return [dropped(work, node, out, x, kept, chance), kept]


def dropped(
    work: Work, node: fx.Node, out: torch.Tensor, x: Value, kept: Value, chance: float
) -> Stored:
    """x * kept * (1 / chance), a result that looks like `out`."""
    dtype, make = opmath(x.dtype), work.builder.make

    def value(index: Indices) -> Scalar:
        item = work.builder.cast(work.load(x, index), dtype)
        coin = work.builder.cast(work.load(kept, index), dtype)
        scale = work.builder.const(0.0 if chance == 0 else 1.0 / chance, dtype)
        return make("mul", (make("mul", (item, coin), dtype), scale), dtype)

    return work.pointwise(node, out, value)


def _sizes(values: Sequence[Size]) -> tuple[int | SizeValue, ...]:
    return tuple(size if isinstance(size, int) else SizeValue(size) for size in values)


DRAWS: Mapping[Any, Callable[..., Any]] = {torch.ops.aten.native_dropout.default: native_dropout}
