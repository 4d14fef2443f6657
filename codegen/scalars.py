"""Scalar ops as target text: picks the template of a `ScalarEntry` and fills it in.

Takes the entries of rules/scalar by name; gives expressions. The dtype that picks a template
is the result's, or the operands' for entries whose type ends in `-> bool`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..engine.rule import ScalarEntry
from ..lowering.loops import Scalar
from .cpp_types import FLOATS, HALVES

_ARGUMENT = re.compile(r"\$([a-z]\w*)")
# Work of what is not a scalar op, in the unit of `ScalarEntry.cost`.
_PLAIN_COST = {"const": 0.0, "index": 1.0, "load": 1.0, "cast": 1.0, "reduce": 1.0, "scan": 4.0}


class MissingScalar(Exception):
    """A scalar op without an entry, or an entry without a spelling for a dtype."""


def working_dtype(scalar: Scalar, entry: ScalarEntry) -> str:
    """The dtype the op computes in."""
    if entry.type.replace(" ", "").endswith("->bool") and scalar.args:
        return scalar.args[0].dtype
    return scalar.dtype


def pick(spellings: Mapping[str, str], dtype: str) -> str | None:
    """The template for `dtype`: its own, else that of the dtype it is computed in, else the
    one of its class."""
    keys = [dtype]
    if dtype in HALVES:
        keys.append("f32")
    keys += ["float", "num"] if dtype in FLOATS else ["bool"] if dtype == "bool" else ["int", "num"]
    return next((spellings[key] for key in [*keys, "any"] if key in spellings), None)


def find(scalars: Mapping[str, ScalarEntry], scalar: Scalar) -> ScalarEntry:
    entry = scalars.get(scalar.op)
    if entry is None:
        raise MissingScalar(f"no entry for scalar op '{scalar.op}' in rules/scalar")
    return entry


def spell(
    spellings: Mapping[str, str], entry: ScalarEntry, scalar: Scalar, operands: Sequence[str]
) -> str:
    """The expression for `scalar` with `operands` in place of $x, $y, $z."""
    dtype = working_dtype(scalar, entry)
    template = pick(spellings, dtype)
    if template is None:
        raise MissingScalar(f"{entry.span}: scalar op '{entry.name}' has no spelling for {dtype}")
    places = dict(zip(entry.args, operands, strict=True))
    return _ARGUMENT.sub(lambda found: places[found.group(1)], template)


def rounds(entry: ScalarEntry, scalar: Scalar) -> bool:
    """Whether a half result has to be rounded after computing in f32."""
    return scalar.dtype in HALVES and scalar.dtype in entry.widen


def cost(scalars: Mapping[str, ScalarEntry], scalar: Scalar) -> float:
    """Work of one scalar, in flops."""
    if scalar.op in _PLAIN_COST:
        return _PLAIN_COST[scalar.op]
    return find(scalars, scalar).cost
