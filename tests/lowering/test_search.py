"""Places in sorted rows, and writes that join: the loops give what eager gives. The one call left
of a scatter refuses indices that are out of range."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eqsat.tests.lowering.compared import INF, NAN, check

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def row(length: int, dtype: torch.dtype, *front: int) -> torch.Tensor:
    """Sorted along the last dim, with equal neighbours."""
    made = torch.Generator().manual_seed(length)
    return torch.randint(0, 2 * length + 1, (*front, length), generator=made).sort(-1)[0].to(dtype)


def sought(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(4)
    return torch.randint(0, 40, shape, generator=made).to(dtype)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 31, 100])
def test_every_length(length: int, right: bool) -> None:
    x = torch.linspace(-2, 2.0 * length + 2, 97)
    check(lambda b, x: torch.searchsorted(b, x, right=right), row(length, torch.float32), x)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_every_dtype(dtype: torch.dtype, right: bool) -> None:
    check(
        lambda b, x: torch.bucketize(x, b, right=right, out_int32=right),
        row(20, dtype),
        sought(dtype, 5, 6),
    )


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize(
    "boundaries",
    [
        [-INF, -1.0, -0.0, 0.0, 1.0, INF],
        [-INF, -INF, 2.0, INF, INF, NAN, NAN],
        [NAN],
        [3.0, 1.0, 2.0, NAN, 0.0, 5.0],  # not sorted
    ],
)
def test_special_values(boundaries: list[float], right: bool) -> None:
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, 3.0, 7.0])
    check(lambda b, x: torch.searchsorted(b, x, right=right), torch.tensor(boundaries), x)


def test_rows_of_their_own() -> None:
    check(
        lambda b, x: torch.searchsorted(b, x, side="right"),
        row(9, torch.float32, 3, 2),
        sought(torch.float32, 3, 2, 5),
    )
    check(
        lambda b, x: torch.searchsorted(b, x),
        row(9, torch.int64, 4),
        sought(torch.int64, 7, 4).t(),
    )


def test_mixed_dtypes_meet_as_eagers_do() -> None:
    check(lambda b, x: torch.bucketize(x, b), row(9, torch.int32), torch.linspace(-1, 20, 50))
    check(lambda b, x: torch.bucketize(x, b), row(9, torch.float32) + 0.5, sought(torch.int64, 30))
    check(lambda b, x: torch.bucketize(x, b), row(9, torch.float32), torch.tensor(4.5))


def test_what_stays_a_call() -> None:
    check(
        lambda b, x, order: torch.searchsorted(b, x, sorter=order),
        torch.tensor([2.0, 3.0, 1.0]),
        torch.tensor([1.5, 2.5]),
        torch.tensor([2, 0, 1]),
        externs=1,
    )
    check(lambda b, x: torch.bucketize(x, b), torch.empty(0), torch.tensor([1.5]), externs=1)


def test_places_are_computed_where_they_are_read() -> None:
    program = check(
        lambda b, x, w: w[torch.bucketize(x * 2, b)] + 1,
        row(15, torch.float32),
        torch.linspace(-1, 20, 50),
        torch.randn(16),
    )
    assert len(program.steps) >= 2


@pytest.mark.parametrize("reduce", ["add", "multiply"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool])
def test_scatter_that_joins(dtype: torch.dtype, reduce: str) -> None:
    made = torch.Generator().manual_seed(2)
    index = torch.randint(0, 4, (6, 5), generator=made)
    draw: Any = lambda *shape: torch.randint(0, 4, shape, generator=made).to(dtype)  # noqa: E731
    x, source = draw(7, 5), draw(6, 5)
    with_source = lambda x, i, s: torch.scatter(x, 0, i, s, reduce=reduce)  # noqa: E731
    check(with_source, x, index, source, externs=1)
    check(lambda x, i: torch.scatter(x, 0, i, 3, reduce=reduce), x, index, externs=1)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_that_joins_special_values(reduce: str) -> None:
    x = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0])
    index = torch.tensor([0, 1, 2, 3, 4, 5, 2, 3, 0])
    source = torch.tensor([-0.0, -0.0, -INF, 0.0, 1.0, NAN, 1.0, 2.0, INF])
    check(lambda x, i, s: torch.scatter(x, 0, i, s, reduce=reduce), x, index, source, externs=1)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_scatter_that_joins_rounds_as_eager_does(dtype: torch.dtype, reduce: str) -> None:
    made = torch.Generator().manual_seed(1)
    index = torch.randint(0, 3, (40, 8), generator=made)
    x, source = (torch.rand(n, 8, generator=made).to(dtype) + 0.5 for n in (3, 40))
    check(lambda x, i, s: torch.scatter(x, 0, i, s, reduce=reduce), x, index, source, externs=1)
