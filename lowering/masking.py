"""Restricting loads to the points where a mask holds.

Takes a mask; gives a callable for `rewrite.Rewriter`. Where a value is only wanted at some
points, the elements it would be computed from at other points need not exist.
"""

from __future__ import annotations

from .loops import Builder, Scalar


class Masked:
    """Restricts loads to the points where a mask holds: elsewhere the element that a
    producer would read need not exist."""

    def __init__(self, builder: Builder, mask: Scalar) -> None:
        self._builder = builder
        self._mask = mask

    def __call__(self, load: Scalar) -> Scalar:
        if load.args:
            own, other = load.args
            mask = self._builder.make("logical_and", (self._mask, own), "bool")
        else:
            mask, other = self._mask, self._builder.const(_zero(load.dtype), load.dtype)
        return self._builder.make(
            "load", (mask, other), load.dtype, buffer=load.buffer, index=load.index
        )


def _zero(dtype: str) -> bool | int | float:
    if dtype == "bool":
        return False
    return 0.0 if dtype in ("f64", "f32", "f16", "bf16") else 0
