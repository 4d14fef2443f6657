"""How operands of different dtypes meet, and what a kernel computes in.

Takes the short names that the loop IR uses ("f32", "bf16", "i64", ...); gives such names. A
dtype outside `loops.DTYPES` (complex, float8, quantised) keeps torch's own name: it may lie in
a buffer that only externs touch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..engine.dtypes import dtype_of, word_of

FLOATS = frozenset(("f64", "f32", "f16", "bf16"))
HALVES = frozenset(("f16", "bf16"))
INTS = frozenset(("i64", "i32", "i16", "i8", "u8"))


def opmath(dtype: str) -> str:
    """The dtype that a kernel computes in."""
    return "f32" if dtype in HALVES else dtype


def promoted(operands: Iterable[tuple[str, int] | bool | int | float]) -> str:
    """The dtype in which operands meet, as torch promotes them.

    Takes (dtype, rank) of tensors and Python numbers. A tensor with dims outranks one
    without, and that a number, unless the weaker one is of a higher category (bool, integer,
    floating).
    """
    ranks: list[str | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, tuple):
            name, level = operand[0], 0 if operand[1] else 1
        else:
            name, level = number_dtype(operand), 2
        ranks[level] = _join(ranks[level], name)
    known = [name for name in ranks if name is not None]
    return max(known, key=_category)  # the first of those of the highest category


def number_dtype(value: object) -> str:
    """The dtype a Python number has by itself; symbolic sizes are integers."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return word_of(torch.get_default_dtype())
    return "i64"


def _join(first: str | None, second: str) -> str:
    if first is None:
        return second
    return word_of(torch.promote_types(dtype_of(first), dtype_of(second)))


def _category(name: str) -> int:
    return 0 if name == "bool" else 1 if name in INTS else 2
