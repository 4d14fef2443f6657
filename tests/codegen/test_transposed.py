"""Tiles of transposed loads: every width, sizes that are no multiple of a tile or of a block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import eqsat
from eqsat.reports import recording

SHAPES = [(64, 64), (67, 131), (17, 200), (16, 24)]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape) * 9).to(dtype)


def compiled(program: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> str:
    """Compares with eager, and gives the source."""
    with eqsat.options(strict=True), recording() as reports:
        got = torch.compile(program, backend="eqsat")(*inputs)
    wanted = program(*inputs)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    return "".join(report.source for report in reports)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool],
)
def test_widths(dtype: torch.dtype) -> None:
    """Elements of one, two, four and eight bytes."""

    def program(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([(x.t().contiguous() != 3).flatten() for x in inputs])

    def same(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()

    inputs = [made(dtype, *shape) for shape in SHAPES]
    compiled(program, *inputs)
    assert "eq_transpose(" in compiled(same, inputs[1])


def test_channels_last_both_ways() -> None:
    def there(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).contiguous(memory_format=torch.channels_last)

    def back(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous() + 1

    x = torch.randn(2, 40, 9, 11)
    assert "eq_transpose(" in compiled(there, x)
    assert "eq_transpose(" in compiled(back, x.to(memory_format=torch.channels_last))


def test_slices_of_larger_memory_and_sizes_that_change() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.t() * 2 + y

    run = torch.compile(program, backend="eqsat", dynamic=True)
    for rows, columns in ((50, 70), (8, 9), (33, 65), (1, 20)):
        x = torch.randn(rows + 3, columns + 5)[1 : rows + 1, 2 : columns + 2]
        y = torch.randn(columns, rows)
        torch.testing.assert_close(run(x, y), program(x, y))


def rolled(x: torch.Tensor) -> torch.Tensor:
    return torch.roll(x, (3, -5), (0, 1)).t().contiguous()


def rolled_flat(x: torch.Tensor) -> torch.Tensor:
    return torch.roll(x, 7).t().contiguous()


def folded(x: torch.Tensor) -> torch.Tensor:
    """Rows that come out of a division of the place."""
    rows, columns = x.shape
    return x.reshape(rows // 2, 2 * columns).t().contiguous().view(columns, -1)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("program", [rolled, rolled_flat, folded])
def test_memory_that_is_not_walked_in_even_steps(
    program: Callable[..., torch.Tensor], dynamic: bool
) -> None:
    run = torch.compile(program, backend="eqsat", dynamic=dynamic)
    for shape in ((100, 90), (24, 131)):
        x = torch.randn(shape)
        assert torch.equal(run(x), program(x))
