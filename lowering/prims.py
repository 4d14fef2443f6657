"""Ops of torch's prims that graphs hold: Dynamo spells addcmul with a tensor as its factor,
which optimizers have, as an fma.

Takes operands; gives a fresh buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from ..engine.dtypes import word_of
from .externs import VALUES
from .loops import Scalar
from .promotion import FLOATS, opmath
from .values import Indices, Value
from .views import Lower, broadcast_index
from .work import Declined, Work


def fma(work: Work, node: fx.Node, *operands: Any) -> Value:
    """The product of the first two plus the third; the product is rounded first, as on the
    CPU."""
    meta = node.meta["val"]
    result = word_of(meta.dtype)
    if result not in FLOATS:
        raise Declined
    dtype, make, cast = opmath(result), work.builder.make, work.builder.cast

    def read(value: Any, at: Indices) -> Scalar:
        if isinstance(value, VALUES):  # a tensor without dims may have another dtype
            narrow = cast(work.load(value, broadcast_index(at, value.shape)), result)
            return cast(narrow, dtype)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Declined
        return work.builder.const(float(value), dtype)

    def value(at: Indices) -> Scalar:
        x, y, z = (read(operand, at) for operand in operands)
        product = cast(cast(make("mul", (x, y), dtype), result), dtype)
        return make("add", (product, z), dtype)

    return work.pointwise(node, meta, value)


PRIMS: Mapping[str, Lower] = {"prims.fma": fma}
