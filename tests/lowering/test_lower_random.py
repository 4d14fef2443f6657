"""Random chains of views, maps and reductions over random shapes, strides and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import eqsat
from eqsat.engine.load import load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.interpret import interpret
from eqsat.lowering.lower import lower
from eqsat.lowering.spec import problems

TABLE = OpTable(load_book([str(Path(eqsat.__path__[0]) / "rules" / "ops")]).ops)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]
Step = Callable[[torch.Tensor], torch.Tensor]


def dim_of(x: torch.Tensor, draw: int) -> int:
    return draw % max(x.dim(), 1)


def halves(x: torch.Tensor, draw: int) -> torch.Tensor:
    """Split along a dim and put together the other way round."""
    dim = dim_of(x, draw)
    if not x.dim() or x.shape[dim] < 2:
        return x
    one, two = x.split([1, x.shape[dim] - 1], dim)
    return torch.cat([two, one], dim)


def regrouped(x: torch.Tensor, draw: int) -> torch.Tensor:
    """Another shape of as many elements."""
    count = x.numel()
    size = next((d for d in range(draw % 4 + 2, 1, -1) if count % d == 0), 1)
    return x.reshape(size, -1) if count else x.reshape(-1)


def picked(x: torch.Tensor, draw: int) -> torch.Tensor:
    dim = dim_of(x, draw)
    return x.select(dim, draw % x.shape[dim]) if x.dim() and x.shape[dim] else x


def cut(x: torch.Tensor, draw: int) -> torch.Tensor:
    return x.narrow(dim_of(x, draw), 0, max(x.shape[dim_of(x, draw)] - 1, 0)) if x.dim() else x


def strided(x: torch.Tensor, draw: int) -> torch.Tensor:
    return x[draw % 2 :: 2] if x.dim() else x


def reduced(x: torch.Tensor, draw: int) -> torch.Tensor:
    return x.sum(dim_of(x, draw), keepdim=bool(draw & 8)) if x.dim() else x.sum()


def largest(x: torch.Tensor, draw: int) -> torch.Tensor:
    return x.amax(dim_of(x, draw)) if x.dim() and x.numel() else x + 1


STEPS: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda x, d: x.transpose(0, dim_of(x, d)) if x.dim() else x,
    regrouped,
    picked,
    cut,
    strided,
    halves,
    lambda x, d: x.unsqueeze(dim_of(x, d)),
    lambda x, d: x.flip(dim_of(x, d)) if x.dim() else x,
    lambda x, d: x.roll(d % 3 - 1, dim_of(x, d)) if x.dim() else x,
    lambda x, d: x.unsqueeze(0).expand(2, *x.shape),
    lambda x, d: torch.nn.functional.pad(x, (1, d % 2), value=2) if x.dim() else x,
    lambda x, d: x.repeat(2, *([1] * (x.dim() - 1))) if x.dim() else x,
    lambda x, d: x.tril(d % 3 - 1) if x.dim() >= 2 else x,
    lambda x, d: x.diagonal(d % 2) if x.dim() >= 2 else x,
    lambda x, d: x.clone(),
    lambda x, d: x * 2 + x,
    lambda x, d: torch.where(x > d % 3, x, -x),
    lambda x, d: x.to(DTYPES[d % len(DTYPES)]),
    lambda x, d: x.clamp(-3, d % 5),
    reduced,
    largest,
]


@st.composite
def chains(draw: Any) -> list[Step]:
    picks = draw(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 15)), max_size=6))
    return [lambda x, step=step, number=number: step(x, number) for step, number in picks]


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 6]), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    x = torch.randint(-4, 5, [size * 2 for size in shape]).to(dtype)
    x = x[tuple(slice(None, None, 2) for _ in shape)]
    layout = draw(st.sampled_from(["sliced", "dense", "transposed"]))
    if layout == "dense":
        return x.contiguous()
    return x.t() if layout == "transposed" and x.dim() == 2 else x


@given(tensors(), chains(), st.sampled_from(["fake", "symbolic"]))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_chain_equals_eager(x: torch.Tensor, chain: list[Step], mode: str) -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = x
        for step in chain:
            value = step(value)
        return value, value + 1

    program = lower(make_fx(run, tracing_mode=mode)(x), TABLE, {})
    assert problems(program) == []
    for got, expected in zip(interpret(program, [x]), run(x), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        torch.testing.assert_close(got, expected, equal_nan=True)
        for size, real, wanted in zip(expected.shape, got.stride(), expected.stride(), strict=True):
            assert size <= 1 or real == wanted or not expected.numel()
