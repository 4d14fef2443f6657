"""Graphs whose sizes are known only while they run, and random calls that are run again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from eqsat.reports import recording


@pytest.fixture(autouse=True)
def _captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    monkeypatch.setenv("EQSAT_VERIFY", "1")
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


def number(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.sum().int().item()


def number_as_float(x: torch.Tensor) -> torch.Tensor:
    return torch.full((3,), x.sum().item()) * x.sum().item() + x[0, :3]


def flag(x: torch.Tensor) -> torch.Tensor:
    return x + (x.sum() > 0).item()


def length(x: torch.Tensor) -> torch.Tensor:
    count = (x > 0).sum().item()
    return torch.ones(count + 2).cumsum(0) + torch.arange(count + 2)


def places(x: torch.Tensor) -> torch.Tensor:
    return (x > 0).nonzero() * 2 + 1


def chosen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = x[x > 0]
    return kept * 2 + 1, kept.exp().sum() + kept.numel()


def chosen_twice(x: torch.Tensor) -> torch.Tensor:
    kept = torch.masked_select(x, x > 0) - 0.5
    return torch.cat([kept[kept > 0].tanh(), kept])


def distinct(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values, inverse, counts = torch.unique((x * 3).int(), return_inverse=True, return_counts=True)
    return values * 2, inverse + 1, counts.float().log()


def found(x: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.where(x > 0)
    return x[rows, columns].exp() * rows - columns


def repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(x, (x[:, 0] > 0).int(), dim=0).relu() + 1


def written(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    kept = x[x > 0].clone()
    x.mul_(2)
    return kept.cos()


PROGRAMS = [
    *(number, number_as_float, flag, length, places, chosen, chosen_twice),
    *(distinct, found, repeated, written),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_sizes_from_data(program: Callable[..., Any]) -> None:
    """Many, few, one and no elements; each compiled once."""
    torch.manual_seed(0)
    x = torch.randn(7, 5)
    one = -x.abs() - 0.1
    one[2, 3] = 0.7
    with recording() as reports, warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = torch.compile(program, backend="eqsat", fullgraph=True)
        for data in (x, x + 0.4, one, -x.abs() - 0.1):
            mine, theirs = data.clone(), data.clone()
            torch.testing.assert_close(compiled(mine), program(theirs))
            torch.testing.assert_close(mine, theirs)
    assert [report.kind for report in reports] == ["capture", "inference"]
    assert not any(report.fallback for report in reports)
    assert reports[1].kernels


def test_an_empty_extreme_raises() -> None:
    def largest(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].amax() + 1

    compiled = torch.compile(largest, backend="eqsat", fullgraph=True)
    torch.testing.assert_close(compiled(torch.tensor([1.0, 3.0, -1.0])), torch.tensor(4.0))
    for run in (compiled, largest):
        with pytest.raises((RuntimeError, IndexError)):
            run(-torch.ones(3))


def test_a_check_of_a_size_raises() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        count = x.sum().int().item()
        torch._check(count < 5)
        return torch.zeros(count) + 1

    compiled = torch.compile(checked, backend="eqsat", fullgraph=True)
    assert compiled(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(RuntimeError):
        compiled(torch.ones(7))


def test_gradients_through_chosen_elements() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x[x > 0].sin() * 2).sum()

    x = torch.randn(6, 4, requires_grad=True)
    torch.compile(program, backend="eqsat", fullgraph=True)(x).backward()
    got, x.grad = x.grad, None
    program(x).backward()
    torch.testing.assert_close(got, x.grad)


def test_dropout_is_drawn_again_alike() -> None:
    """The backward of a checkpoint draws what the forward drew."""

    def part(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.5).cos() * x

    def program(x: torch.Tensor) -> Any:
        return checkpoint(part, x, use_reentrant=False)

    x = torch.randn(9, 5, requires_grad=True)
    grads = []
    for run in (torch.compile(program, backend="eqsat", fullgraph=True), program):
        torch.manual_seed(3)
        out = run(x)
        torch.rand(2)  # draws in between
        out.sum().backward()
        grads.append((out.detach(), x.grad))
        x.grad = None
    torch.testing.assert_close(grads[0], grads[1])
