"""What the outline of a rule has to claim less, so that it holds.

Takes an outline and what the checker says of it; gives the next outline to try, one claim
weaker, with that claim in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .engine.check import CheckResult
from .engine.draw import Structure
from .engine.fill import TensorSpec
from .scaffold import Outline, TensorVar, narrowed

TOLERANCES = "{approximate: {rtol: 1.0e-3, atol: 1.0e-5}}"
_ASSUMPTIONS = ((), ("no_overflow",), ("no_overflow", "no_nan"), ("finite",))
_HALF = ("f16", "bf16")
_HOPELESS = ("runs away", "no example", "shape ")


@dataclass(frozen=True)
class Repair:
    """`outline` claims less than the one before it; `claim` says what was added."""

    outline: Outline
    claim: str


def repair(outline: Outline, failed: CheckResult) -> Repair | None:
    """The outline with less claimed, as a failure asks for; None where nothing is left."""
    reason = failed.failures[0].partition("\n")[0]
    if reason.startswith(_HOPELESS):
        return None
    return next(_repairs(outline, reason, failed.example), None)


def _repairs(outline: Outline, reason: str, example: Structure | None) -> Iterator[Repair]:
    """Repairs that fit, what says most about the failure first."""
    for condition in _conditions(outline, reason, example):
        if condition not in outline.when:
            yield _with_condition(outline, condition)
    if "gradient" in reason and outline.grad:
        yield Repair(replace(outline, grad=False), "grad: false")
    later = _ASSUMPTIONS.index(outline.assumes) + 1
    if ("inf" in reason or "nan" in reason) and later < len(_ASSUMPTIONS):
        assumes = _ASSUMPTIONS[later]
        yield Repair(replace(outline, assumes=assumes), f"assumes: [{', '.join(assumes)}]")
    wide = "float64" in reason and "apart" in reason  # no dtype is to blame
    if not wide and narrowed(outline) != outline:
        yield Repair(narrowed(outline), "the dtypes of the example alone")
    if outline.numerics == "reassociate":
        yield Repair(replace(outline, numerics=TOLERANCES), f"numerics: {TOLERANCES}")


def _with_condition(outline: Outline, condition: str) -> Repair:
    """The outline with one more condition; `t > 0` takes the place of `t != 0`."""
    name = condition.removesuffix(" > 0")
    kept = tuple(one for one in outline.when if one != f"{name} != 0")
    return Repair(replace(outline, when=(*kept, condition)), condition)


def _conditions(outline: Outline, reason: str, example: Structure | None) -> Iterator[str]:
    """Conditions that the failing example does not meet, and the snippet's own does."""
    constants = [name for name, kind in outline.vars.items() if kind == "const"]
    if "division by zero" in reason:
        yield from (f"{name} != 0" for name in constants if f"{name} > 0" not in outline.when)
    if example is None:
        return
    yield from (f"{letter} > 0" for letter in _empty(outline, example))
    for name in constants:
        value = example.constants.get(name)
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            yield f"finite({name})"
        elif value == 0 and f"{name} > 0" not in outline.when:
            yield f"{name} != 0"
        elif value < 0:
            yield f"{name} > 0"
    yield from _dtypes(outline, example)


def _empty(outline: Outline, example: Structure) -> list[str]:
    """The letters that are 0 in an example."""
    found: dict[str, None] = {}
    for name, kind in outline.vars.items():
        spec = example.tensors.get(name)
        if not isinstance(kind, TensorVar) or not isinstance(spec, TensorSpec):
            continue
        sizes = spec.shape[len(spec.shape) - len(kind.dims) :]
        found.update({dim: None for dim, size in zip(kind.dims, sizes, strict=True) if not size})
    return [letter for letter in found if letter.isidentifier()]


def _dtypes(outline: Outline, example: Structure) -> Iterator[str]:
    """That the floats, which are of one dtype, are of no half type."""
    floats = [
        name
        for name, kind in outline.vars.items()
        if isinstance(kind, TensorVar) and kind.word == "float"
    ]
    specs = [example.tensors[name] for name in floats]
    words = {str(spec.dtype) for spec in specs if isinstance(spec, TensorSpec)}
    half = words & {"torch.float16", "torch.bfloat16"}
    if len(words) == 1 and half and not any(outline.exact[name] in _HALF for name in floats):
        yield f"dtype({floats[0]}) in (f32, f64)"
