"""Scans: cumsum, cumprod, cummax, cummin, logcumsumexp, alone and within larger nests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eqsat.lowering.fuse import fuse
from eqsat.lowering.loops import Nest, Program, scalars
from eqsat.tests.lowering.compared import INF, NAN, book, check, lowered, random, spoiled

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (*x.cummax(0), *x.cummin(-1))


def scans(program: Program) -> list[str]:
    """What each nest scans, in order."""
    nests = [step for step in program.steps if isinstance(step, Nest)]
    return [str(s.value) for nest in nests for s in scalars(nest) if s.op == "scan"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: torch.dtype) -> None:
    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        sums = (x.cumsum(0), x.cumsum(-1), y.cumprod(1), y.cumprod(0))
        return (*sums, x.logcumsumexp(0), x.logcumsumexp(1), *extremes(x))

    x = random(7, 37, dtype=dtype)
    check(every, x, (x / 8 + 1).to(dtype))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_what_is_not_finite(dtype: torch.dtype) -> None:
    def every(x: torch.Tensor) -> Any:
        return (x.cumsum(1), x.cumprod(0), x.logcumsumexp(0), x.logcumsumexp(1), *extremes(x))

    rows = torch.stack([random(9) for _ in range(12)]).to(dtype)
    rows[0], rows[1], rows[2] = -INF, INF, NAN
    rows[3, 0], rows[4, 4], rows[5, 8] = -INF, INF, NAN
    rows[6, 2], rows[6, 5] = NAN, NAN
    rows[7, 1], rows[7, 6] = INF, -INF
    rows[8] = torch.tensor([0.0, -0.0] * 4 + [0.0])
    check(every, torch.cat([rows, spoiled(random(5, 9).to(dtype))]))


@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap_and_widen(dtype: torch.dtype) -> None:
    def every(x: torch.Tensor) -> Any:
        return (x.cumsum(1), x.cumprod(0), *extremes(x))

    program = check(every, random(6, 19, dtype=dtype))
    assert len(scans(program)) == 6


def test_a_dtype_converts_first() -> None:
    def every(x: torch.Tensor, i: torch.Tensor) -> Any:
        return (
            x.cumsum(1, dtype=torch.int32),
            x.cumsum(0, dtype=torch.float64),
            i.cumprod(1, dtype=torch.int8),
            i.cumsum(1, dtype=torch.bfloat16),
        )

    check(every, random(4, 11) * 5, random(4, 11, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (1, 5), (5, 1)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    def every(x: torch.Tensor) -> Any:
        return (x.cumsum(0), x.cumprod(-1), x.logcumsumexp(0), *extremes(x))

    check(every, random(*shape))


@pytest.mark.parametrize(
    "x",
    [
        random(3, 65, 9).transpose(1, 2),
        random(3, 18, 40)[:, ::2, ::3],
        random(1, 9, 1).expand(4, 9, 33),
        random(2, 5, 4, 6).to(memory_format=torch.channels_last).flatten(2),
    ],
    ids=["transposed", "strided", "expanded", "channels-last"],
)
def test_layouts(x: torch.Tensor) -> None:
    def every(x: torch.Tensor) -> Any:
        return x.cumsum(1), x.cumsum(2), x.cumsum(0), *x.cummax(1), x.logcumsumexp(1)

    check(every, x)


def test_symbolic_sizes() -> None:
    def every(x: torch.Tensor) -> Any:
        return (x.cumsum(0) + 1, x.cumprod(1), *extremes(x))

    check(every, random(11, 13), mode="symbolic")


def test_a_long_sum_is_as_exact_as_in_eager() -> None:
    check(lambda x: (x.cumsum(0), x.logcumsumexp(0)), random(30011) + 3)


def test_an_unread_result_is_not_computed() -> None:
    program = check(lambda x: x.cummax(1).values, random(4, 9))
    assert scans(program) == ["max"]
    program = check(lambda x: x.cummin(1).indices, random(4, 9))
    assert scans(program) == ["argmin"]


FUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "before": lambda x: (x.exp() * 2).cumsum(1),
    "behind": lambda x: x.cumsum(1).relu() + x,
    "columns": lambda x: x.sin().cumsum(0).relu() + x,
    "nucleus": lambda x: (x.softmax(-1).cumsum(-1) < 0.9).sum(-1),
    "scan of a scan": lambda x: (x.cumsum(1) * 0.1).cumsum(1),
    "sum of a scan": lambda x: x.cumsum(1).sum(1),
    "place in a scan": lambda x: x.cumsum(1).argmax(1),
    "two scans": lambda x: x.cumsum(1) / x.abs().cumprod(1).clamp(min=1.0),
    "behind a sum": lambda x: (x - x.mean(1, keepdim=True)).cumsum(1),
    "backwards": lambda x: x.flip(1).cumsum(1).flip(1),
    "padding places": lambda x: (x > 0).int().cumsum(1) * (x > 0).int(),
}


@pytest.mark.parametrize("name", FUSED)
def test_within_larger_nests(name: str) -> None:
    check(FUSED[name], random(9, 70))


def test_one_nest_for_what_surrounds_a_scan() -> None:
    program = lowered(lambda x: (x.exp() * 2).cumsum(1).relu() + x, [random(64, 70)])
    fused, _ = fuse(program, book().fuse)
    assert len(fused.steps) == 1


def test_the_order_of_points_is_kept() -> None:
    """A reader that walks the scanned dim the other way round, or in pieces, stays apart or
    goes through it in order."""

    def every(x: torch.Tensor) -> Any:
        total = x.cumsum(1)
        return total.flip(1) * 2, total.reshape(4, 3, 8).transpose(1, 2).exp(), total.t() + 1

    check(every, random(4, 24))
