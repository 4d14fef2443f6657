"""What a compiled function must share with eager beyond values: strides, aliasing, mutation,
dtypes, None results, sizes that change, and raised errors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

Function = Callable[..., Any]


def _compiled(function: Function, **how: Any) -> Function:
    return torch.compile(function, backend="eqsat", fullgraph=True, **how)  # type: ignore[no-any-return]


def _same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    for a, b in zip(_tensors(ours), _tensors(theirs), strict=True):
        assert a.stride() == b.stride()
        assert a.dtype == b.dtype


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def test_inputs_written_in_place() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y.sin())
        y[1:].mul_(2)
        return x * y

    ours = [torch.randn(4, 3), torch.randn(4, 3)]
    theirs = [t.clone() for t in ours]
    _same(_compiled(f)(*ours), f(*theirs))
    _same(ours, theirs)


def test_a_strided_input_written_in_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x.sum()

    base = torch.randn(6, 8)
    twin = base.clone()
    _same(_compiled(f)(base[::2].t()), f(twin[::2].t()))
    _same(base, twin)


def test_overlapping_copy() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[1:] = x[:-1].clone()
        return x.cumsum(0)

    x = torch.arange(20.0).reshape(5, 4)
    twin = x.clone()
    _same(_compiled(f)(x), f(twin))
    _same(x, twin)


def test_outputs_that_alias_inputs_and_each_other() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x, x.t(), y, y.view(-1), y[1:], y

    x = torch.randn(3, 4)
    out, expected = _compiled(f)(x), f(x)
    _same(out, expected)
    assert out[0].data_ptr() == x.data_ptr() and out[1].data_ptr() == x.data_ptr()
    out[2].zero_()
    assert out[3].abs().sum() == 0 and out[4].abs().sum() == 0


def _of_itself(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x**1
    return y[-2:, ...], y


def _of_a_sum(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return y[-3:], y, y, y.view(-1), y.view_as(y)


def _of_a_copy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 1
    return y.view(-1), y.split(1)[0], y.t(), y, x * 1, x.t(), (x * 1).view(-1)


def _of_a_turned_copy(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x * 1).t().contiguous()
    return y.view(-1), y.t(), x.t(), x, x * 1, y.unsqueeze(0).squeeze(0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("f", [_of_itself, _of_a_sum, _of_a_copy, _of_a_turned_copy])
def test_views_come_before_what_they_are_of(f: Function, dynamic: bool) -> None:
    """Outputs that share memory do, and no two that are tensors of their own are one."""
    x = torch.randn(3, 4)
    ours, theirs = _compiled(f, dynamic=dynamic)(x), f(x)
    _same(ours, theirs)
    assert _sharing((x, *ours)) == _sharing((x, *theirs))


def _sharing(tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    return [
        (one is other, one.data_ptr() - other.data_ptr())
        if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        else None
        for place, one in enumerate(tensors)
        for other in tensors[:place]
    ]


def test_strides_are_eagers() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.permute(2, 0, 1)
        return x.transpose(0, 1) * 2, turned.neg(), turned.contiguous() + 1, x[:, None] - 1

    x = torch.randn(2, 3, 4)
    _same(_compiled(f)(x), f(x))
    image = torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last)

    def g(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return image + 1, torch.relu(image).mean(1), nn.functional.avg_pool2d(image, 2)

    _same(_compiled(g)(image), g(image))


@pytest.mark.parametrize("dynamic", [False, True])
def test_operands_that_kernels_want_dense(dynamic: bool) -> None:
    """What eager copies before it calls a kernel is copied here, too."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.group_norm(x, 1)

    for x in (torch.randn(1, 2).expand(3, 2), torch.randn(4, 6, 8)[::2, ::2].mT):
        torch._dynamo.reset()
        _same(_compiled(f, dynamic=dynamic)(x), f(x))


def test_none_and_number_results() -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return x + 1, None, x.shape[0], "text", x.sum()

    x = torch.randn(3)
    out = _compiled(f, dynamic=True)(x)
    assert out[1:4] == (None, 3, "text")
    _same([out[0], out[4]], [x + 1, x.sum()])


def test_gradients_that_are_none() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a * 2, b.detach() * a.detach()

    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    out = _compiled(f)(a, b)
    out[0].sum().backward()
    assert b.grad is None and a.grad is not None
    torch.testing.assert_close(a.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_that_change(dynamic: bool | None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x @ w, -1)
        half = y.shape[0] // 2
        return y, y[:half].sum(0), x.new_zeros(x.shape[0], 2) + half, y.reshape(-1)

    w = torch.randn(5, 6)
    compiled = _compiled(f, dynamic=dynamic)
    for n in (4, 7, 2, 31):
        x = torch.randn(n, 5)
        _same(compiled(x, w), f(x, w))


def test_empty_and_zero_dimensional_tensors() -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * s, x.sum(), x.mean(0), torch.softmax(x, 1), s.exp() + 1, x.amax(1)

    for shape in ((0, 3), (3, 1)):
        x, s = torch.randn(shape), torch.tensor(2.0)
        _same(_compiled(f)(x, s), f(x, s))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_types_round_where_eager_does(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 3 + 1) / 7, x.to(torch.float32) * 0.1, torch.sigmoid(x) * x, x.sum(1)

    x = torch.randn(5, 9).to(dtype)
    for ours, theirs in zip(_compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_random_numbers_are_eagers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.ones(50)
    torch.manual_seed(3)
    ours = _compiled(f)(x)
    torch.manual_seed(3)
    _same(ours, f(x))


def test_errors_are_eagers() -> None:
    def pick(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)[i] * 2

    x, i = torch.randn(4), torch.tensor([0, 7])
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        _compiled(pick)(x, i)


def test_inputs_that_begin_to_overlap() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(10)
        return a * b

    compiled = _compiled(f)
    _same(compiled(torch.ones(4), torch.full((4,), 2.0)), f(torch.ones(4), torch.full((4,), 2.0)))
    base = torch.arange(6.0)
    twin = base.clone()
    _same(compiled(base[:4], base[2:]), f(twin[:4], twin[2:]))
    _same(base, twin)


def test_calls_from_many_threads() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).softmax(-1) @ w

    compiled = _compiled(f)
    w = torch.randn(16, 16)
    inputs = [torch.randn(16, 16) for _ in range(24)]
    compiled(inputs[0], w)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda x: compiled(x, w), inputs))
    for x, out in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(out, f(x, w))


def _kept_back(d):
    old = d.clone()
    d[1:] -= d[1:]
    return old


def _kept_back_views(d):
    old = d.clone()
    d.add_(1)
    return old[1:], old.t(), old * 2, d


def _swapped(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)
    return a + 1


def _read_by_a_call(a, w):
    old = a.clone()
    a.mul_(2)
    return torch.nn.functional.linear(old, w), old


@pytest.mark.parametrize(
    ("function", "count"),
    [(_kept_back, 1), (_kept_back_views, 1), (_swapped, 2), (_read_by_a_call, 2)],
)
def test_a_copy_outlives_a_write_into_what_it_is_of(function, count):
    """A form of `clone(x)` is x: but not after x was written."""
    inputs = [torch.randn(4, 4) for _ in range(count)]
    ours = [value.clone() for value in inputs]
    found = torch.compile(function, backend="eqsat", options={"strict": True})(*ours)
    torch.testing.assert_close((found, ours), (function(*inputs), inputs))


def _turned(a, b):
    return b.reshape(b.shape[-1], b.shape[0], -1)


def _diagonal_read_as_memory(a, b):
    return torch.diag(a).as_strided((2,), (2,)), torch.diag(a)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_turned, _diagonal_read_as_memory])
def test_results_lie_where_eager_has_them(function, dynamic):
    """In an input, at its place there, if they are views of it; else in memory of their own."""
    whole = torch.randn(4, 4)
    a, b = whole, whole.view(4, 2, 2)[1:]
    options = {"strict": True}
    found = torch.compile(function, backend="eqsat", dynamic=dynamic, options=options)(a, b)
    wanted = function(a, b)
    torch.testing.assert_close(found, wanted)
    leaves = torch.utils._pytree.tree_leaves
    for ours, eager in zip(leaves(found), leaves(wanted), strict=True):
        inside = [
            value.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
            for value in (ours, eager)
        ]
        assert inside[0] == inside[1] and ours.storage_offset() == eager.storage_offset()


def test_overlapping_inputs_of_sizes_that_change():
    def f(a, d):
        d.mul_(2)
        return torch.nn.functional.rms_norm(a, (a.shape[-1],))

    compiled = torch.compile(f, backend="eqsat", options={"strict": True})
    for shape in ((1, 1), (1, 2), (3, 5)):
        ours, theirs = (torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape) for _ in "ab")
        torch.testing.assert_close(compiled(ours, ours.view(-1)), f(theirs, theirs.view(-1)))
        torch.testing.assert_close(ours, theirs)


def _written_through_another(a, c):
    a[1:2] = -2
    return c.to(torch.float32)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_that_is_an_overlapping_input(dynamic):
    ours, theirs = torch.ones(2), torch.ones(2)
    compiled = torch.compile(_written_through_another, backend="eqsat", dynamic=dynamic)
    found, wanted = (
        compiled(ours, ours[1:]),
        _written_through_another(theirs, theirs[1:]),
    )
    torch.testing.assert_close((found, ours), (wanted, theirs))


def test_one_part_returned_twice():
    def parts(x, y):
        z = x + y
        return torch.chunk(z, 2, -1)[-1], torch.chunk(z, 2, -1)[-1]

    x, y = torch.randn(5), torch.randn(5)
    compiled = torch.compile(parts, backend="eqsat", options={"strict": True})
    torch.testing.assert_close(compiled(x, y), parts(x, y))


def test_the_gradient_of_a_slice_from_before_the_start():
    x = torch.randn(1, requires_grad=True)
    compiled = torch.compile(lambda c: c[-2:].sum(0), backend="eqsat", options={"strict": True})
    compiled(x).backward()
    torch.testing.assert_close(x.grad, torch.ones(1))
