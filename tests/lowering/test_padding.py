"""Reflection and replication pads, patches, turns, products across and fixed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eqsat.lowering.loops import Extern, Nest
from eqsat.reports import recording
from eqsat.tests.lowering.compared import check, lowered, random, spoiled

aten = torch.ops.aten
SHAPES = {1: (2, 3, 9), 2: (2, 3, 7, 9), 3: (2, 2, 5, 4, 6)}
AMOUNTS = {1: [2, 3], 2: [2, 3, 1, 0], 3: [2, 3, 1, 0, 1, 2]}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_pads_and_their_gradients(kind: str, rank: int) -> None:
    forward = getattr(aten, f"{kind}_pad{rank}d").default
    backward = getattr(aten, f"{kind}_pad{rank}d_backward").default
    x, amounts = random(*SHAPES[rank]), AMOUNTS[rank]

    def every(x: torch.Tensor, y: torch.Tensor, grad: torch.Tensor) -> Any:
        return forward(y, amounts), forward(x.exp(), amounts) + 1, backward(grad, x, amounts) * 2

    check(every, x, spoiled(x), torch.randn_like(forward(x, amounts)))


@pytest.mark.parametrize("kind", ["reflect", "replicate"])
def test_pads_of_other_layouts_and_dtypes(kind: str) -> None:
    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        return F.pad(x, (1, 2, 1, 1), mode=kind), F.pad(y, (2, 0, 0, 2), mode=kind)

    last = random(2, 3, 7, 9).to(memory_format=torch.channels_last)
    check(every, last, random(2, 3, 7, 9, dtype=torch.bfloat16))
    check(every, random(2, 3, 9, 7).transpose(2, 3), random(1, 1, 7, 9).expand(2, 3, 7, 9))


def test_pads_that_cut() -> None:
    def every(x: torch.Tensor, i: torch.Tensor) -> Any:
        return F.pad(x, (-1, 2, 1, -1), mode="replicate"), F.pad(i, (1, 1, 1, 1), mode="replicate")

    check(every, random(2, 3, 7, 9), random(2, 3, 4, 4, dtype=torch.int64))


def test_pads_of_symbolic_sizes() -> None:
    def every(x: torch.Tensor) -> Any:
        return aten.reflection_pad2d(x, [1, 2, 2, 1]), aten.replication_pad2d(x, [1, 2, 2, 1])

    check(every, random(2, 3, 7, 9), mode="symbolic")


@pytest.mark.parametrize(
    ("size", "kernel", "dilation", "padding", "stride"),
    [
        ([8, 9], [3, 3], [1, 1], [1, 1], [2, 2]),
        ([8, 9], [3, 3], [2, 2], [0, 0], [1, 1]),
        ([8, 9], [2, 3], [1, 1], [0, 1], [2, 1]),
        ([14, 14], [7, 7], [1, 1], [0, 0], [7, 7]),
    ],
)
def test_col2im(size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    columns = F.unfold(random(2, 2, *size), kernel, dilation, padding, stride)

    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        window = (size, kernel, dilation, padding, stride)
        return aten.col2im(x, *window), aten.col2im(y.exp(), *window)

    check(every, columns, columns[0])


@pytest.mark.parametrize("k", range(-1, 5))
def test_rot90(k: int) -> None:
    check(lambda x: (x.rot90(k, (1, 3)), x.rot90(k, (2, 1)).exp()), random(2, 3, 4, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_cross(dtype: torch.dtype) -> None:
    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.linalg.cross(x, y, dim=1), torch.linalg.cross(x[:, :, :3], y[:1, :, :3])

    check(every, random(4, 3, 5, dtype=dtype), random(4, 3, 5, dtype=dtype, seed=1))


def test_round_decimals() -> None:
    def every(x: torch.Tensor) -> Any:
        return x.round(decimals=2), x.round(decimals=-1), x.round(decimals=0)

    check(every, spoiled(random(60) * 100))


def test_fixed_sequences_are_eager_s_own() -> None:
    def every(x: torch.Tensor) -> Any:
        shapes = torch.tril_indices(4, 5), torch.triu_indices(4, 5, 1)
        steps = torch.linspace(0, 1, 23), torch.logspace(0, 1, 7), torch.arange(0, 1, 0.1)
        return (*shapes, *steps, torch.linspace(-1, 1, 9, dtype=torch.float64) + x)

    program = lowered(every, [random(9)])
    assert not any(isinstance(step, Extern) for step in program.steps)
    (kept,) = check(lambda x: torch.linspace(0, 1, 9), random(1)).outputs
    assert any(isinstance(step, Nest) for step in program.steps) and kept is not None
    check(every, random(9))


def test_a_result_is_no_constant() -> None:
    """What the caller gets may be written to: it is a copy of what the graph keeps."""
    program = lowered(lambda x: torch.linspace(0, 1, 9), [random(1)])
    (out,) = program.outputs
    assert program.buffers[out.buffer].role != "constant"  # type: ignore[union-attr]


def test_long_sequences_stay_calls() -> None:
    check(lambda x: torch.linspace(0, 1, 100_001), random(1), externs=1)


def test_upsampling() -> None:
    """AOTAutograd opens these calls into indices and gathers."""

    def every(x: torch.Tensor) -> Any:
        return (
            F.interpolate(x, scale_factor=1.7),
            F.interpolate(x, size=(12, 5), mode="nearest-exact"),
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(11, 4), mode="bilinear", align_corners=True),
            F.interpolate(x, scale_factor=1.3, mode="bicubic"),
        )

    x = random(2, 3, 7, 9)
    torch._dynamo.reset()
    with recording() as reports:
        found = torch.compile(every, backend="eqsat")(x)
    assert not any(report.externs for report in reports)
    for got, want in zip(found, every(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
