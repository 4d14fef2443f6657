"""The page on coverage is current, and tensors that no nest can read are left to externs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eqsat.benchmarks.coverage import PAGE, describe, lowerings, rules_by_op
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.reports import recording

BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe(), "run `python -m benchmarks.coverage`"


def test_every_declared_op_has_a_row() -> None:
    found = lowerings(BOOK, TABLE)
    assert {entry.name for entry in BOOK.ops} <= set(found)
    assert (found["silu"], found["permute"], found["sum"]) == ("pointwise", "view", "reduction")
    assert (found["mm"], found["transpose"], found["gather"]) == (
        "extern",
        "*as permute*",
        "indexed",
    )


def test_rules_are_found_by_either_side() -> None:
    rules = rules_by_op(BOOK, TABLE)
    assert "silu-split" in rules["silu"] and "silu-split" in rules["sigmoid"]
    assert "silu-split" in rules["mul"]  # spelled `*`


def number(dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 5, dtype=torch.complex128).mul(4).to(dtype)


def compiled(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """The result of `function` without any fallback, compared with eager's."""
    torch._dynamo.reset()
    strict = {"strict": True}
    with recording() as reports:
        result = torch.compile(function, backend="eqsat", options=strict)(*inputs)
    wanted = function(*inputs)
    torch.testing.assert_close(result, wanted, check_stride=True)
    pairs = zip(tree_leaves(result), tree_leaves(wanted), strict=True)
    assert all((a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg()) for a, b in pairs)
    return reports


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t()[1:] + 1,
        lambda x: x[:, None].expand(4, 3, 5).contiguous(),
        lambda x: [part * x.real[:, :2] for part in x[:, :4].split(2, 1)],
        lambda x: x.unfold(1, 3, 1).exp(),
        lambda x: x.conj().t()[1:] * x.diagonal(),
        lambda x: x.flip(0)[1:].t() + x.roll(2, 1)[1:].t(),
        lambda x: x.t()[2:],
        lambda x: torch.cat([x, x], 1).reshape(-1).sum(),
        lambda x: torch.view_as_real(x.resolve_conj()) + 1,
        lambda x: (x.conj(), x.resolve_conj().imag, x.imag.resolve_neg() * 2),
    ],
)
@pytest.mark.parametrize("conjugated", [False, True])
def test_complex_tensors_go_to_externs(function: Callable[[Tensor], Any], conjugated: bool) -> None:
    x = number(torch.complex128)
    compiled(function, x.conj() if conjugated else x)


def test_parts_of_complex_memory_are_read_in_place() -> None:
    x = number(torch.complex128)
    compiled(lambda x: torch.view_as_complex(torch.view_as_real(x)[1:]) + 1, x)


def test_a_view_of_complex_memory_costs_no_copy() -> None:
    reports = compiled(lambda x: x.t()[1:].exp(), number(torch.complex64))
    assert [one.target for one in reports[-1].externs] == ["aten.exp.default"]
    assert not reports[-1].kernels


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fn, torch.uint16])
def test_dtypes_without_a_word_pass_through(dtype: torch.dtype) -> None:
    x = number(torch.complex64 if dtype.is_complex else torch.float32).abs().to(dtype)
    compiled(lambda x: x.t()[1:].contiguous(), x)


def test_new_memory_has_the_strides_that_were_asked_for() -> None:
    def make(x: Tensor) -> list[Tensor]:
        return [x.new_empty_strided((3, 4), steps) for steps in [(1, 2), (0, 1), (1, 3), (9, 2)]]

    x = torch.ones(2)
    torch._dynamo.reset()
    found = torch.compile(make, backend="eqsat", options={"strict": True})(x)
    assert [one.stride() for one in found] == [one.stride() for one in make(x)]


def test_recordings_inside_one_another_both_end() -> None:
    with recording() as outer:
        with recording() as inner:
            pass
        compiled(lambda x: x + 1, torch.ones(2))
    assert outer and not inner


def test_a_negated_view_is_read_with_its_sign() -> None:
    compiled(lambda x: (x * 2, x.t()[1:] + 1), number(torch.complex128).conj().imag)


@pytest.mark.parametrize("dim", [0, 1])
def test_the_place_of_an_integer_among_one_is_zero(dim: int) -> None:
    x = torch.tensor([[-8], [5]])
    compiled(lambda x: (x.max(1), x.min(1), x.argmax(dim), x[:1].argmin(dim)), x)
    compiled(lambda x: (x.max(0), x.argmin(0)), x[0, 0])
