"""Copies that calls and callers need: made once where they hold the same, apart where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Nest, Program
from eqsat.lowering.lower import lower
from eqsat.lowering.spec import problems

aten = torch.ops.aten


@pytest.fixture(scope="module")
def book() -> Any:
    return load_book([RULES / "ops", RULES / "scalar"])


def lowered(fn: Callable[..., Any], book: Any, *args: torch.Tensor) -> Program:
    """The program of `fn`, once it gives what eager gives."""
    graph = make_fx(fn, tracing_mode="fake", pre_dispatch=True)(*args)
    program = lower(graph, OpTable(book.ops), {entry.name: entry for entry in book.scalars})
    assert not problems(program)
    inputs = [arg.clone() for arg in args]
    for got, want in zip(interpret(program, inputs), fn(*args), strict=True):
        torch.testing.assert_close(got, want)
    return program


def copies(program: Program) -> int:
    return sum(isinstance(step, Nest) for step in program.steps)


def heads(x: torch.Tensor) -> torch.Tensor:
    """The rows of all heads after one another, as a product wants them."""
    return torch.sin(x).permute(0, 2, 1, 3)


def test_a_call_and_the_caller_share_a_copy(book: Any) -> None:
    """What the product reads is also returned, transposed: the same memory."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        rows = aten.reshape(heads(x), [6, 8])
        return aten.mm(rows, w), aten.t(rows)

    program = lowered(fn, book, torch.randn(2, 2, 3, 4), torch.randn(8, 5))
    assert copies(program) == 2  # the sine, and its rows in order


def test_two_calls_share_a_copy(book: Any) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        turned = heads(x)
        first, second = aten.reshape(turned, [6, 8]), aten.reshape(turned, [6, 8])
        return aten.mm(first, w), aten.mm(aten.t(w), aten.t(second))

    program = lowered(fn, book, torch.randn(2, 2, 3, 4), torch.randn(8, 5))
    assert copies(program) == 2


def test_two_results_never_share_memory(book: Any) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = torch.sin(x)
        return y.t().clone(memory_format=torch.contiguous_format), y.t().clone(
            memory_format=torch.contiguous_format
        )

    program = lowered(fn, book, torch.randn(3, 4))
    first, second = program.outputs
    assert first.buffer != second.buffer  # type: ignore[union-attr]


def of_an_input(rows: torch.Tensor) -> Any:
    return (rows[-1],)


def in_pieces(rows: torch.Tensor) -> Any:
    return tuple(rows.chunk(2))


def behind_a_view(rows: torch.Tensor) -> Any:
    return (aten._unsafe_view(rows, [2, -1])[0, :1],)


@pytest.mark.parametrize("views", [of_an_input, in_pieces, behind_a_view])
def test_views_of_a_copying_reshape_are_views_of_one_copy(
    book: Any, views: Callable[..., Any]
) -> None:
    """Strides could say them as views of what was copied, too."""

    def fn(x: torch.Tensor) -> Any:
        return views(aten.reshape(x.unsqueeze(1).expand(4, 3), [12]))

    program = lowered(fn, book, torch.randn(4))
    assert {program.buffers[view.buffer].role for view in program.outputs} == {"output"}  # type: ignore[union-attr]
    assert len({view.buffer for view in program.outputs}) == 1  # type: ignore[union-attr]


def test_a_result_and_a_view_of_its_copy_lie_apart(book: Any) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = torch.sin(x)
        return y, aten.reshape(y.unsqueeze(1).expand(4, 3), [12])[0]

    program = lowered(fn, book, torch.randn(4))
    first, second = program.outputs
    assert first.buffer != second.buffer  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_reshape_that_is_a_view_is_not_copied(book: Any, size: int) -> None:
    def fn(x: torch.Tensor) -> Any:
        return (aten.reshape(x, [-1, 2])[1:],)

    program = lowered(fn, book, torch.randn(size, 4))
    assert copies(program) == 0
