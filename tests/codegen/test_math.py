"""The float32 functions of eqsat_math.h against float64, in units of the last place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from eqsat.codegen.cpp import KernelText, emit_nest
from eqsat.lowering.index import Axis, as_index
from eqsat.lowering.loops import Buffer, Builder, Nest, Store
from eqsat.tests.codegen.drafts import call, compile_texts, scalar_table

INF, NAN = float("inf"), float("nan")
SPECIALS = [
    *(0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 2.0, 0.5, -0.5, 1e-45, -1e-45, 1e-40, -1e-40),
    *(1.17549435e-38, 88.72283, 88.7229, -87.4, -103.97, -103.98, -104.1, 127.9999, 128.0),
    *(29999.5, 30000.5, 1e15, -6e15, 1e30, 3.4e38, -3.4e38, 8388608.0, 16777216.0),
]
# Largest error in units of the last place; sin and cos hold this up to the largest float.
LIMITS: Mapping[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "exp": (torch.exp, 1.1),
    "exp2": (torch.exp2, 1.1),
    "expm1": (torch.expm1, 1.5),
    "log": (torch.log, 1.0),
    "log2": (torch.log2, 0.6),
    "log10": (torch.log10, 0.6),
    "log1p": (torch.log1p, 1.6),
    "sin": (torch.sin, 1.7),
    "cos": (torch.cos, 1.7),
    "tanh": (torch.tanh, 1.5),
    "erf": (torch.erf, 1.8),
    "sigmoid": (torch.sigmoid, 2.6),
    "sqrt": (torch.sqrt, 0.51),
    "rsqrt": (torch.rsqrt, 1.6),
}


def samples() -> torch.Tensor:
    """Floats of every size by their bits, and dense stretches where the functions bend."""
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(2**31), 2**31, (400_000,), generator=generator).to(torch.int32)
    dense = [torch.linspace(low, high, 200_001) for low, high in ((-5, 5), (-110, 130))]
    near_zero = torch.linspace(-1e-3, 1e-3, 50_001)
    quarters = (torch.arange(20_000, dtype=torch.float64) * (torch.pi / 2)).float()
    circle = torch.linspace(-30_000, 30_000, 300_001)
    parts = [bits.view(torch.float32), *dense, near_zero, quarters, circle, torch.tensor(SPECIALS)]
    return torch.cat(parts)


def ulps(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Error of finite float32 values against float64, in units of the last place."""
    size = exact.abs().clamp(min=2.0**-126)
    spacing = torch.exp2(torch.floor(torch.log2(size)) - 23)
    return (actual.double() - exact).abs() / spacing


def unary(op: str, count: int) -> tuple[Nest, dict[str, Buffer]]:
    builder, axis = Builder(), Axis("i", count)
    buffers = {name: Buffer(name, "f32", (count,), (1,)) for name in ("x", "o")}
    value = builder.make(op, (builder.load(buffers["x"], (as_index(axis),)),), "f32")
    return Nest("n", (axis,), (), (Store("o", (as_index(axis),), value),)), buffers


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    return samples()


@pytest.fixture(scope="module")
def kernels(inputs: torch.Tensor) -> dict[str, tuple[KernelText, Any]]:
    table = scalar_table()
    texts = {op: emit_nest(*unary(op, len(inputs)), table) for op in LIMITS}
    built = compile_texts(texts)
    return {op: (texts[op], built[op]) for op in LIMITS}


@pytest.mark.parametrize("op", LIMITS)
def test_error_in_ulps(op: str, inputs: torch.Tensor, kernels: Any) -> None:
    wanted, limit = LIMITS[op]
    actual = torch.empty_like(inputs)
    text, kernel = kernels[op]
    call(kernel, text, {"x": inputs, "o": actual})
    exact = wanted(inputs.double())
    rounded = exact.float()
    if op == "sigmoid":  # 1 / (1 + exp(-x)), as in eager, is 0 where exp(-x) overflows
        rounded[inputs < -88.7] = actual[inputs < -88.7]
    finite = rounded.isfinite() & actual.isfinite()
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    overflow = (exact.abs() > 3.402e38) & ~exact.isinf()
    assert bool((finite | same | overflow).all())
    checked = finite & ~((inputs < -87.3) if op == "sigmoid" else torch.zeros_like(finite))
    errors = ulps(actual[checked], exact[checked])
    worst = int(errors.argmax())
    assert errors[worst] <= limit, (inputs[checked][worst], errors[worst])
    zeros = exact == 0
    assert torch.equal(actual[zeros].signbit(), exact[zeros].signbit())


def test_power_is_rounded_almost_correctly() -> None:
    generator = torch.Generator().manual_seed(5)
    bases = torch.cat([torch.randn(100_000, generator=generator) * 10, torch.tensor(SPECIALS * 32)])
    whole = (torch.randn(50_000, generator=generator) * 6).round()
    broken = torch.randn(50_000, generator=generator) * 4
    edges = torch.tensor(SPECIALS).repeat_interleave(32)
    powers = torch.cat([whole, broken, edges])
    count = len(bases)
    builder, axis = Builder(), Axis("i", count)
    buffers = {name: Buffer(name, "f32", (count,), (1,)) for name in ("x", "y", "o")}
    place = (as_index(axis),)
    operands = tuple(builder.load(buffers[name], place) for name in ("x", "y"))
    nest = Nest("n", (axis,), (), (Store("o", place, builder.make("pow", operands, "f32")),))
    text = emit_nest(nest, buffers, scalar_table())
    actual = torch.empty(count)
    kernel = compile_texts({"pow": text})["pow"]
    call(kernel, text, {"x": bases, "y": powers, "o": actual})
    exact = bases.double() ** powers.double()
    rounded = exact.float()
    finite = rounded.isfinite() & actual.isfinite()
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    assert bool((finite | same).all())
    assert ulps(actual[finite], exact[finite]).max() <= 0.52
    zeros = exact == 0
    assert torch.equal(actual[zeros].signbit(), exact[zeros].signbit())
