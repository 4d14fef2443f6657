"""Where results lie: which share memory, which are one tensor, with what strides; and that what
a forward graph saves is read as it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import eqsat
from eqsat.aliasing import guard_strides

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def _compiled(function: Function, dynamic: bool | None = None) -> Function:
    return torch.compile(  # type: ignore[no-any-return]
        function, backend="eqsat", fullgraph=True, dynamic=dynamic, options={"strict": True}
    )


def _relation(one: torch.Tensor, other: torch.Tensor) -> Any:
    if one is other:
        return "is"
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return "apart"
    return one.data_ptr() - other.data_ptr()


def _agree(ours: Any, eager: Any) -> None:
    torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6, equal_nan=True)
    for place, (a, b) in enumerate(zip(ours, eager, strict=True)):
        assert a.stride() == b.stride()
        for c, d in zip(ours[:place], eager[:place], strict=True):
            assert _relation(a, c) == _relation(b, d)


def diagonal_and_what_it_copies(x: torch.Tensor) -> Any:
    low = x.amin(-1)
    return torch.diag(low), low.squeeze(), low


def views_of_a_copied_diagonal(x: torch.Tensor) -> Any:
    found = torch.diag(x[0])
    return found[1:], found, found.unsqueeze(0)


def the_same_view_twice(x: torch.Tensor) -> Any:
    turned = x.sin().mT
    wide = x.cos().expand(2, *x.shape)
    return turned.contiguous(), turned.contiguous(), wide.to(x.dtype), wide.to(x.dtype), turned


def overlapping_views(x: torch.Tensor) -> Any:
    made = x + x
    return made.as_strided((2, 2), (1, 1)), made.as_strided((3,), (2,), 1), made


def parts_of_what_is_only_moved(x: torch.Tensor) -> Any:
    """Eager has a copy that lowering knows as a way to read the input."""
    turned = x.flip(0)
    return turned[..., ::2], turned, turned[1:]


def windows(x: torch.Tensor) -> Any:
    found = x.unfold(0, 2, 1)
    return torch.logical_or(found, found), (x * 2).unfold(-1, 2, 1)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize(
    "function",
    [
        diagonal_and_what_it_copies,
        views_of_a_copied_diagonal,
        the_same_view_twice,
        overlapping_views,
        parts_of_what_is_only_moved,
        windows,
    ],
)
def test_results_share_memory_as_eagers_do(function: Function, dynamic: bool) -> None:
    x = torch.randn(4, 4, 3)
    _agree(_compiled(function, dynamic)(x), function(x))


def test_a_size_that_guards_know_to_be_one() -> None:
    def pooled(x: torch.Tensor) -> Any:
        found = F.avg_pool1d(F.avg_pool1d(x, 2), 3, stride=2, padding=1, count_include_pad=False)
        return found.unsqueeze(3), found

    x = torch.randn(2, 1, 2)
    _agree(_compiled(pooled, dynamic=True)(x), pooled(x))


def test_sizes_that_divide_each_other() -> None:
    def rolled(x: torch.Tensor) -> Any:
        return (torch.roll(x, 2).swapaxes(0, 2),)

    compiled = _compiled(rolled, dynamic=True)
    for size in (4, 5):
        x = torch.randn(size, size, size)
        _agree(compiled(x), rolled(x))


def replaced_slice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = torch.slice_scatter(x, y * 2, 0, 0, 1)
    return found.sin().sin() @ found.t()


def replaced_row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = torch.select_scatter(x, y[0] * 2, 0, 1)
    return found.sin().sin() @ found.t()


WHOLE = torch.arange(9 * 7 * 24, dtype=torch.float32).reshape(9, 7, 24).sin()
LAYOUTS = {
    "gaps": WHOLE[:5, 1, 2:18:2],
    "dense": WHOLE[:5, 1, :16].clone(),
    "far": WHOLE[:5, :3, 1],
    "turned": WHOLE[:5, :3, 0].t(),
    "turned whole": WHOLE.permute(2, 0, 1)[:5, 3, :4],
    "repeated": WHOLE[0, 0, :6].expand(4, 6),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [replaced_slice, replaced_row])
def test_copies_of_memory_with_gaps(function: Function, layout: str, dynamic: bool) -> None:
    """They keep the gaps, also where they are saved for the gradient."""
    x = LAYOUTS[layout].detach().requires_grad_()
    y = torch.randn(1, x.shape[1], requires_grad=True)
    ours, eager = _compiled(function, dynamic)(x, y), function(x, y)
    _agree((ours,), (eager,))
    gradients = [torch.autograd.grad(value.sum(), (x, y)) for value in (ours, eager)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_a_saved_tensor_that_lies_otherwise_than_traced() -> None:
    """The backward graph as it was traced runs then, on whatever strides it is given."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(1, 3).expand(2, 3)
    graph.output((graph.call_function(torch.ops.aten.neg.default, (x,)),))
    gm = torch.fx.GraphModule({}, graph)
    run = guard_strides(lambda inputs: ["compiled"], gm)
    assert run([torch.randn(1, 3).expand(2, 3)]) == ["compiled"]
    dense = torch.randn(2, 3)
    assert torch.equal(run([dense])[0], -dense)
    x.meta["val"] = torch.empty(2, 3)
    assert guard_strides(len, gm) is len


def folded_mesh(a: torch.Tensor, b: torch.Tensor) -> Any:
    made = b @ a.mT
    part = (made - made)[:-1, 1:].diagonal(0)
    return torch.meshgrid(part, part, indexing="ij")


@pytest.mark.parametrize("size", [1, 4])
def test_several_views_of_what_a_rule_rewrites(size: int) -> None:
    a, b = torch.randn(size, size), torch.randn(size, size)
    found, wanted = _compiled(folded_mesh)(a, b), folded_mesh(a, b)
    torch.testing.assert_close(found, wanted)
    if size > 1:
        assert _relation(found[1], found[0]) == _relation(wanted[1], wanted[0])


def sum_of_nothing(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, -1).sum()


def product_of_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ij,kj->", x.reshape(7, 0), torch.ones(7, 1))


@pytest.mark.parametrize("function", [sum_of_nothing, product_of_nothing])
def test_reductions_over_several_dims_without_elements(function: Function) -> None:
    x = torch.randn(0)
    assert torch.equal(_compiled(function)(x), function(x))


def test_an_empty_result_beside_a_call_that_takes_a_float() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return c - torch.atan((b ^ 1).double()), torch.var_mean(F.linear(a, c), 2, True)[0]

    a, b = torch.randn(2, 2, 0, requires_grad=True), torch.ones(3, 0, dtype=torch.int64)
    c = torch.randn(3, 0, requires_grad=True)
    compiled = _compiled(f, dynamic=True)
    for size in (3, 5):
        b, c = torch.ones(size, 0, dtype=torch.int64), torch.randn(size, 0, requires_grad=True)
        ours, eager = compiled(a, b, c), f(a, b, c)
        torch.testing.assert_close(ours, eager)
        gradients = [
            torch.autograd.grad([v.sum() for v in values], (a, c)) for values in (ours, eager)
        ]
        torch.testing.assert_close(*gradients)


def test_draws_of_which_only_the_sizes_are_read() -> None:
    """Rules take the reader's operand away; the generator moves as eager's does."""

    def f(x: torch.Tensor) -> Any:
        drawn = torch.full_like(torch.empty_like(x).uniform_(-1, 2), 3.0)
        y = torch.sigmoid(x).view(-1).view(10, 2)
        return (y * 1.0).permute(1, 0).permute(1, 0).sin(), drawn

    x = torch.randn(4, 5, requires_grad=True)
    states = []
    for function in (f, _compiled(f)):
        torch.manual_seed(1)
        function(x)
        states.append(torch.random.get_rng_state())
    assert torch.equal(*states)


def test_numbers_that_a_rule_makes_of_symbols() -> None:
    """A scale that follows from sizes, but is none: a float constant."""

    def f(d: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(d, b, b)

    with eqsat.options(extraction="worst"):
        compiled = _compiled(f, dynamic=True)
        for sizes in ((12, 3, 3), (12, 2, 2)):
            d, b = torch.randn(sizes), torch.randn(sizes, requires_grad=True)
            ours, eager = compiled(d, b), f(d, b)
            torch.testing.assert_close(ours, eager)
