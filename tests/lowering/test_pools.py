"""Pools and their gradients against eager, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eqsat.lowering.loops import Nest
from eqsat.tests.lowering.compared import INF, check, lowered, random, spoiled

aten = torch.ops.aten
Function = Callable[..., Any]

# kernel, stride, padding, dilation, ceil_mode
WINDOWS: dict[str, tuple[Any, ...]] = {
    "padded": ([3, 3], [2, 2], [1, 1]),
    "apart": ([2, 2], [3, 3], [0, 0]),
    "uneven": ([2, 3], [1, 2], [1, 0]),
    "spread": ([3, 3], [1, 1], [1, 1], [2, 2]),
    "ragged": ([3, 3], [2, 2], [1, 1], [1, 1], True),
    "large": ([7, 7], [2, 2], [3, 3]),
}


def image(*shape: int, last: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = random(*shape, dtype=dtype)
    return x.to(memory_format=torch.channels_last) if last else x


def layouts(names: Iterable[str]) -> list[Any]:
    """Every window in the usual layout, the trickiest with channels last too."""
    both = [(name, last) for name in names for last in (False, True)]
    return [
        pytest.param(name, last, id=f"{name}{' last' * last}")
        for name, last in both
        if not last or name in ("padded", "ragged")
    ]


@pytest.mark.parametrize(("name", "last"), layouts(WINDOWS))
def test_max_pool(name: str, last: bool) -> None:
    window = WINDOWS[name]

    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        values, places = aten.max_pool2d_with_indices(x, *window)
        return values, places, F.max_pool2d(y, *window), F.max_pool2d(x.relu(), *window)

    x = image(2, 3, 11, 13, last=last)
    broken = spoiled(x).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    check(every, broken if name == "padded" else x, broken)


def test_where_all_values_are_the_lowest() -> None:
    def every(x: torch.Tensor) -> Any:
        return aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])

    check(every, torch.full((1, 2, 7, 9), -INF))
    check(every, torch.full((1, 2, 7, 9), torch.iinfo(torch.int32).min, dtype=torch.int32))


@pytest.mark.parametrize(("name", "last"), layouts(WINDOWS))
def test_max_pool_backward(name: str, last: bool) -> None:
    window = (*WINDOWS[name], *([1, 1], False)[len(WINDOWS[name]) - 3 :])
    x = image(2, 3, 11, 13, last=last)
    values, places = aten.max_pool2d_with_indices(x, *window)

    def gradient(grad: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        return aten.max_pool2d_with_indices_backward(grad, x, *window, places) * 2

    check(gradient, torch.randn_like(values), x, places)


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGES: dict[str, tuple[Any, ...]] = {
    "padded": ([3, 3], [2, 2], [1, 1]),
    "apart": ([2, 2], [3, 3], [0, 0]),
    "side by side": ([2, 2], [2, 2], [0, 0]),
    "uneven": ([2, 3], [1, 2], [1, 0]),
    "ragged": ([3, 3], [2, 2], [1, 1], True),
    "inside only": ([3, 3], [2, 2], [1, 1], True, False),
    "divisor": ([3, 3], [2, 2], [1, 1], False, True, 5),
}


@pytest.mark.parametrize(("name", "last"), layouts(AVERAGES))
def test_avg_pool(name: str, last: bool) -> None:
    window = (*AVERAGES[name], *(False, True, None)[len(AVERAGES[name]) - 3 :])
    x = image(2, 3, 11, 13, last=last)

    def every(x: torch.Tensor, grad: torch.Tensor) -> Any:
        back = aten.avg_pool2d_backward(grad, x, *window)
        return aten.avg_pool2d(x, *window), F.relu(aten.avg_pool2d(x.exp(), *window)), back

    check(every, x, torch.randn_like(aten.avg_pool2d(x, *window)))


@pytest.mark.parametrize("size", [(3, 5), (11, 13), (4, 13), (20, 3), (1, 2)])
def test_adaptive_pools(size: tuple[int, int]) -> None:
    x = image(2, 3, 11, 13)
    values, places = aten.adaptive_max_pool2d(x, size)

    def every(x: torch.Tensor, grad: torch.Tensor, places: torch.Tensor) -> Any:
        return (
            aten._adaptive_avg_pool2d(x, size),
            aten._adaptive_avg_pool2d_backward(grad, x),
            aten.adaptive_max_pool2d_backward(grad, x, places),
        )

    check(every, x, torch.randn_like(values), places)
    check(lambda x: aten._adaptive_avg_pool2d(x, size), spoiled(x))
    points = (-(-11 // size[0]) + 1) * (-(-13 // size[1]) + 1)
    check(lambda x: aten.adaptive_max_pool2d(x, size), spoiled(x), externs=points > 80)


def test_equal_windows_of_an_adaptive_pool() -> None:
    check(lambda x: aten._adaptive_avg_pool2d(x, (3, 4)), image(2, 3, 12, 12))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    def every(x: torch.Tensor) -> Any:
        values, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        return values, places, aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1])

    check(every, image(2, 3, 9, 11, dtype=dtype))


def test_integers() -> None:
    check(
        lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]),
        random(2, 3, 9, 9, dtype=torch.int64),
    )


def test_three_dims_and_no_batch() -> None:
    cube = ([2, 2, 2], [2, 2, 2])

    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        values, places = aten.max_pool3d_with_indices(x, [3, 3, 3], [2, 2, 2], [1, 1, 1])
        flat = aten.avg_pool2d(y, [3, 3], [1, 1], [1, 1]), *aten.max_pool2d_with_indices(y, [2, 2])
        return values, places, aten.avg_pool3d(x, *cube), *flat

    check(every, random(2, 3, 6, 7, 5), random(3, 9, 9))


def test_symbolic_sizes() -> None:
    def every(x: torch.Tensor) -> Any:
        values, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        return values, places, aten.avg_pool2d(x, [3, 3], [2, 2], [1, 1], True, False)

    check(every, random(2, 3, 9, 12), mode="symbolic")


def test_few_points_are_written_out_and_many_reduced() -> None:
    few = lowered(lambda x: F.max_pool2d(x, 3), [image(1, 2, 12, 12)])
    many = lowered(lambda x: F.max_pool2d(x, 9), [image(1, 2, 18, 18)])
    assert [bool(step.raxes) for step in few.steps if isinstance(step, Nest)] == [False]
    assert [bool(step.raxes) for step in many.steps if isinstance(step, Nest)] == [True]


def test_nothing_to_pool() -> None:
    check(lambda x: F.avg_pool2d(x, 2), torch.randn(0, 3, 4, 4), externs=1)
