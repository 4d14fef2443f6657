"""What the fusion rules join, run as C++: results as eager's, in as few kernels as can be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from eqsat.reports import recording


def kernels(fn: Callable[..., Any], *args: Any) -> int:
    """Loop nests of the graphs of `fn`, once its results are eager's."""
    torch._dynamo.reset()
    expected = fn(*args)
    with recording() as reports, torch.no_grad():
        got = torch.compile(fn, backend="eqsat", options={"strict": True})(*args)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    return sum(report.fusion.after for report in reports if report.fusion is not None)


def heads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Three parts of each row, each in memory of its own."""
    return tuple(part.clone(memory_format=torch.contiguous_format) for part in x.chunk(3, -1))


def shared_heads(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Keys of two heads added up, then turned: a sum over two that is read at two places."""
    k = x.sum(2)
    half = k.shape[-1] // 2
    return k * cos + torch.cat([-k[..., half:], k[..., :half]], -1) * sin


def channels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """(n, c, h, w) and (n, c * h * w) are the same walk through memory."""
    return torch.relu(x).flatten(1) * w


def turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second operand is read transposed."""
    return torch.exp(x) + torch.sin(y).transpose(-1, -2)


def siblings(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(-1), x.amax(-1), x.mean(-1), x * 2


def normed(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A reduction, what follows it in its rows, and the sum that others need, at once."""
    total = x + y
    return F.rms_norm(total, (total.shape[-1],), w), total


def cheap(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A mask that two readers need is computed by each."""
    mask = torch.arange(x.shape[-1]) < 5
    return torch.where(mask, x, 0.0), torch.where(mask, w, 1.0) @ x


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "slices of one buffer": (heads, ((6, 48),), 1),
    "slices of an odd buffer": (heads, ((7, 33),), 1),
    "sum over shared heads": (shared_heads, ((3, 4, 2, 5, 8), (5, 8), (5, 8)), 1),
    "flattened domains": (channels, ((2, 3, 5, 7), (105,)), 1),
    "transposed reads": (turned, ((2, 33, 17), (2, 17, 33)), 1),
    "sibling reductions": (siblings, ((31, 65),), 1),
    "norm with two results": (normed, ((2, 9, 33), (2, 9, 33), (33,)), 1),
    "recomputed mask": (cheap, ((9, 9), (9, 9)), 2),
    "one row": (normed, ((1, 1), (1, 1), (1,)), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    fn, shapes, count = CASES[name]
    torch.manual_seed(0)
    assert kernels(fn, *(torch.randn(shape) for shape in shapes)) <= count


@pytest.mark.parametrize("shape", [(4, 8, 5, 7), (3, 129, 9, 9), (16, 3, 1, 1), (64, 32)])
def test_batch_norm_writes_its_statistics_in_its_own_kernel(shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    kind = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
    eager = torch.nn.Sequential(kind(shape[1]), torch.nn.ReLU()).train()
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, backend="eqsat", options={"strict": True})
    with recording() as reports:
        for _ in range(2):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-4)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    counts = [report.fusion.after for report in reports if report.fusion is not None]
    assert max(counts) <= 2  # the statistics with the rows, and the number of batches


@pytest.mark.parametrize(("shape", "dim"), [((16, 40), -1), ((3, 1000), -1), ((300, 100), 0)])
def test_softmax_in_place(shape: tuple[int, ...], dim: int) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.softmax(x, dim))
        return x.sum()

    torch._dynamo.reset()
    x = torch.randn(shape)
    y = x.clone()
    compiled = torch.compile(fn, backend="eqsat", options={"strict": True})
    torch.testing.assert_close(compiled(y), fn(x))
    torch.testing.assert_close(y, x)
