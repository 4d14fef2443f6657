"""Reads and writes through index tensors, lowered and interpreted, against eager.

Every case runs with fixed and with symbolic sizes, unfused and fused; none needs the ATen op.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import eqsat
from eqsat.engine.load import load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.fuse import fuse
from eqsat.lowering.guards import Refusal
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Nest, Program
from eqsat.lowering.lower import lower
from eqsat.lowering.show import show_program
from eqsat.lowering.spec import problems

TABLE = OpTable(load_book([str(Path(eqsat.__path__[0]) / "rules" / "ops")]).ops)
aten = torch.ops.aten


def tensors() -> dict[str, torch.Tensor]:
    """`i` has equal indices, `n` negative ones, `two` two dims; `small` is in range along any
    dim of any of them."""
    made = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(shape, generator=made)  # noqa: E731
    pick = lambda high, *shape: torch.randint(0, high, shape, generator=made)  # noqa: E731
    return {
        "x": draw(5, 6),
        "y": draw(5, 4, 3, 7),
        "t": draw(6, 5).t(),
        "src": draw(9, 6),
        "i": pick(5, 9),
        "n": pick(10, 9) - 5,
        "i32": pick(5, 9).int(),
        "two": pick(5, 3, 4),
        "small": pick(3, 9, 6),
        "one": torch.tensor(2),
        "none": torch.empty(0, dtype=torch.int64),
        "empty": draw(5, 0),
        "ints": pick(90, 5, 6) - 45,
        "mask": draw(5, 6) > 0,
        "rows": draw(5) > 0,
        "long": pick(5, 40),
        "wide": draw(40, 6),
    }


READS: list[Callable[..., Any]] = [
    lambda x, i: F.embedding(i, x),
    lambda x, two: F.embedding(two, x),
    lambda x, i32: F.embedding(i32, x) * 2,
    lambda x, one: F.embedding(one, x),
    lambda x, none: F.embedding(none, x),
    lambda t, i: F.embedding(i, t),
    lambda x, small: x.gather(0, small[:, :4]),
    lambda x, small: x.gather(1, small[:5]),
    lambda x, small: x.gather(-1, small[:2, :3]) + 1,
    lambda t, small: t.gather(1, small[:5]),
    lambda x, n: x[n],
    lambda x, n: x[:, n],
    lambda x, two: x[two, two - 3],
    lambda x, i, n: x[i, n],
    lambda x, one: aten.index(x, [one]),
    lambda x, one, i: aten.index(x, [one, i]),
    lambda x, none: x[none],
    lambda x, i32: x[i32.long()],
    lambda x, two: x[two, torch.arange(4)],
    lambda x, two: x[two[:, :1], two[0]],
    lambda y, two: y[:, two.clamp(0, 2)],
    lambda y, i: y[i, :, i.clamp(0, 2)],
    lambda y, i: y[:, i.clamp(0, 3), i.clamp(0, 2)],
    lambda y, i: y[:, i.clamp(0, 3), :, i],
    lambda y, one, i: aten.index(y, [one, None, None, i]),
    lambda empty, i: empty[i],
    lambda x, i: x[i.flip(0)].relu() + x[i],
    lambda x, i: x.index_select(0, i),
    lambda x, i: x.index_select(1, i),
    lambda x, n: aten.take(x, n),
    lambda t, two: aten.take(t, two + 20),
    lambda x, small: x.gather(1, small[:5].remainder(6)),
    lambda x, i: (x * 2)[i] + x[i + 1 - 1],
    lambda ints, n: ints[n],
    lambda mask, n: mask[n],
    lambda x, n: x.half()[n] * 2,
    lambda x, n: x.bfloat16()[n].sum(1),
    lambda x, n: x.double()[n].softmax(1),
]
WRITES: list[Callable[..., Any]] = [
    lambda x, small, src: x.scatter(0, small, src),
    lambda x, small, src: x.scatter(1, small[:5], src[:5]),
    lambda t, small, src: t.scatter(0, small[:, :5], src[:, :5] * 2),
    lambda x, small: x.scatter(0, small[:, :3], 7.5),
    lambda ints, small: ints.scatter(0, small, 3),
    lambda mask, small: mask.scatter(0, small, True),
    lambda x, small, src: x.scatter_add(0, small, src),
    lambda x, small, src: x.scatter_add(1, small[:5], src[:5]),
    lambda ints, small: ints.scatter_add(0, small, small * 2**62),
    lambda x, i, src: x.scatter_add(0, i[:, None].expand(9, 6), src),
    lambda x, small, src: x.scatter(0, small, src, reduce="add"),
    lambda x, small: x.scatter(0, small, 1.5, reduce="multiply"),
    lambda x, small, src: x.scatter_reduce(0, small, src, "sum"),
    lambda x, small, src: x.scatter_reduce(0, small, src, "prod"),
    lambda x, small, src: x.scatter_reduce(0, small, src, "amax"),
    lambda x, small, src: x.scatter_reduce(1, small[:5], src[:5], "amin"),
    lambda x, small, src: x.scatter_reduce(0, small, src / src.relu(), "amax"),
    lambda ints, small: ints.scatter_reduce(0, small, small * 9 - 20, "amin"),
    lambda x, small, src: x.scatter_reduce(0, small, src, "mean"),
    lambda ints, small: ints.scatter_reduce(0, small, small * 5 - 7, "mean", include_self=False),
    lambda x, small, src: x.scatter_reduce(0, small, src, "sum", include_self=False),
    lambda x, small, src: x.scatter_reduce(1, small[:5], src[:5], "amax", include_self=False),
    lambda ints, small: ints.scatter_reduce(0, small, small * 9, "amin", include_self=False),
    lambda mask, small: mask.scatter_reduce(0, small, small > 1, "amin", include_self=False),
    lambda mask, small: mask.scatter_add(0, small, small > 1),
    lambda x, i, src: x.index_reduce(0, i, src, "prod"),
    lambda x, i, src: x.index_reduce(0, i, src, "amax", include_self=False),
    lambda x, i, src: x.index_reduce(0, i, src, "mean"),
    lambda x, n, src: x.index_put((n,), src),
    lambda x, n, src: x.index_put((n,), src, accumulate=True),
    lambda x, n: x.index_put((n,), torch.tensor(3.0), accumulate=True),
    lambda x, i: x.index_put((i[:, None].expand(9, 4),), torch.tensor(1.0), accumulate=True),
    lambda x, i, src: aten.index_put(x, [None, i], src[:5, :1].expand(5, 9)),
    lambda y, two: aten.index_put(y, [None, two.clamp(0, 3)], torch.arange(7.0)),
    lambda y, i: aten.index_put(y, [i, None, i.clamp(0, 2)], i[:, None, None] * torch.ones(4, 7)),
    lambda y, i: aten.index_put(
        y, [None, i.clamp(0, 3), i.clamp(0, 2)], i[:, None] * torch.ones(7)
    ),
    lambda x, two, src: x.index_put((two, two - 2), src[:3, :4]),
    lambda x, two, src: x.index_put((two, two - 2), src[:3, :4], accumulate=True),
    lambda x, one, src: x.index_put((one,), src[0]),
    lambda x, none, src: x.index_put((none,), src[:0]),
    lambda empty, i: empty.index_put((i,), torch.tensor(1.0)),
    lambda x, mask: x.index_put((mask,), torch.tensor(2.0)),
    lambda x, rows: x.index_put((rows,), torch.tensor(2.0)),
    lambda x, mask: x.index_put((mask,), torch.tensor(2.0), accumulate=True),
    lambda mask, i: mask.index_put((i,), torch.tensor(True)),
    lambda x, n, src: aten._unsafe_index_put(x, [n], src),
    lambda x, i: x.put(i, i * 0.5),
    lambda t, two: t.put(two - 20, two * 1.0, accumulate=True),
    lambda x, two: x.put(two, torch.arange(12.0)),
    lambda x, i, src: x.index_add(0, i, src),
    lambda x, i, src: x.index_add(0, i, src, alpha=-2),
    lambda x, i, src: x.index_add(1, i, src[:, :5].t()),
    lambda x, i: x[:, 0].index_add(0, i, i * 0.5),
    lambda ints, small: ints.index_add(0, small[0], small[:6], alpha=3),
    lambda x, i, src: x.index_copy(0, i, src),
    lambda mask, i: mask.index_copy(0, i[:2], torch.ones(2, 6, dtype=torch.bool)),
    lambda x, n: x.index_fill(1, n, 2.0),
    lambda x, n: x.index_fill(0, n, torch.tensor(1.5)),
    lambda ints, n: ints.index_fill(0, n, 2),
    lambda x, src: x.diagonal_scatter(src[0, :5]),
    lambda x, src: x.diagonal_scatter(src[0, :4], -1),
    lambda y: y.diagonal_scatter(torch.ones(5, 3, 4), 0, 3, 1),
    lambda y, src: y.diagonal_scatter(src[:5, :4].reshape(5, 4, 1).expand(5, 4, 3), 2, 2, 3),
    lambda wide, long: aten.embedding_dense_backward(wide, long, 5, -1, False),
    lambda wide, long: aten.embedding_dense_backward(wide, long, 5, 3, False),
    lambda wide, long: aten.embedding_dense_backward(wide, long - 1, 3, 1, False),
    lambda wide, long: aten.embedding_dense_backward(
        wide.view(8, 5, 6), long.view(8, 5).int(), 7, 0, False
    ),
]
# Half floats are added up as floats where eager does so, else each sum is rounded.
HALVES: list[Callable[..., Any]] = [
    lambda x, i, src: x.bfloat16().index_put((i,), src.bfloat16(), accumulate=True),
    lambda x, i, src: x.half().index_add(0, i, src.half()),
    lambda x, i, src: x.half()[:, 0].index_add(0, i, src[:, 0].half()),
    lambda x, long, wide: x.bfloat16().scatter_add(0, long[:, None].expand(40, 6), wide.bfloat16()),
    lambda x, small, src: x.half().scatter_reduce(0, small, src.half(), "prod"),
    lambda x, small, src: x.half().scatter_reduce(0, small, src.half(), "amax"),
    lambda wide, long: aten.embedding_dense_backward(wide.bfloat16(), long, 5, -1, False),
]
# Eager raises for each of these.
REFUSED: list[Callable[..., Any]] = [
    lambda x, i: F.embedding(i + 1, x),
    lambda x, n: F.embedding(n, x),
    lambda x, n: x[n - 1],
    lambda x, n: x[:, n * 2],
    lambda x, i: x[i, i + 2],
    lambda x, small: x.gather(0, small + 4),
    lambda x, small: x.gather(1, small[:5] - 1),
    lambda x, i: x.index_select(0, i + 1),
    lambda x, i: x.index_select(1, i + 3),
    lambda y, i: y.index_select(2, i + 3),
    lambda x, i: aten.take(x, i + 30),
    lambda x, small, src: x.scatter(0, small + 5, src),
    lambda x, small: x.scatter(1, small[:5] - 7, 1.0),
    lambda x, small, src: x.scatter_add(1, small[:5] + 6, src[:5]),
    lambda x, small, src: x.scatter_reduce(0, small - 1, src, "amax"),
    lambda x, i, src: x.index_put((i + 1,), src),
    lambda x, n, src: x.index_put((n * 2,), src, accumulate=True),
    lambda x, i: x.put(i + 100, i * 1.0),
    lambda x, i, src: x.index_add(0, i + 1, src),
    lambda x, i: x[:, 0].index_add(0, i + 1, i * 0.5),
    lambda x, i, src: x.index_copy(0, i - 5, src),
    lambda x, small, src: x.scatter(0, small * 5, src, reduce="add"),
    lambda x, i: x.index_fill(0, i + 5, 1.0),
    lambda x, i: F.embedding(i + 1, x).sum() * 0,
]
# What nests do not cover stays a call of the op.
CALLED: list[Callable[..., Any]] = [
    lambda x, small, src: x.half().scatter_reduce(0, small, src.half(), "mean"),
    lambda x, mask: x.masked_scatter(mask, torch.arange(30.0)),
    lambda wide, long: aten.embedding_dense_backward(wide, long, 5, -1, True),
    lambda empty, none: empty.index_select(0, none),
]


def label(function: Callable[..., Any]) -> str:
    text = " ".join(inspect.getsource(function).split())
    return re.sub(r"^lambda[^:]*: ", "", text.rstrip(","))


def given(function: Callable[..., Any]) -> list[torch.Tensor]:
    known = tensors()
    return [known[name] for name in inspect.signature(function).parameters]


def lowered(function: Callable[..., Any], mode: str) -> Program:
    program = lower(make_fx(function, tracing_mode=mode)(*given(function)), TABLE, {})
    assert problems(program) == [], show_program(program)
    return program


def calls(program: Program) -> list[Any]:
    """What is called of ATen, refusals and the making of numbers apart."""
    made = (aten.arange.default, aten.arange.start_step)
    return [
        step.target
        for step in program.steps
        if isinstance(step, Extern)
        and not isinstance(step.target, Refusal)
        and step.target not in made
    ]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("function", [*READS, *WRITES, *HALVES], ids=label)
def test_equals_eager(function: Callable[..., Any], mode: str, fusion_rules: Any) -> None:
    program = lowered(function, mode)
    assert calls(program) == []
    expected = function(*given(function))
    joined, _ = fuse(program, fusion_rules)
    assert problems(joined) == [], show_program(joined)
    for one in (program, joined):
        (got,) = interpret(one, given(function))
        assert got.dtype == expected.dtype
        exact = expected.dtype in (torch.float16, torch.bfloat16)
        close = {"rtol": 0.0, "atol": 0.0} if exact else {}
        torch.testing.assert_close(got, expected, equal_nan=True, **close)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("function", REFUSED, ids=label)
def test_raises_what_eager_raises(
    function: Callable[..., Any], mode: str, fusion_rules: Any
) -> None:
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(*given(function))
    program = lowered(function, mode)
    assert calls(program) == []
    for one in (program, fuse(program, fusion_rules)[0]):
        with pytest.raises(expected.type) as got:
            interpret(one, given(function))
        assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("function", CALLED, ids=label)
def test_the_rest_is_called(function: Callable[..., Any]) -> None:
    program = lowered(function, "fake")
    assert calls(program) != []
    (got,) = interpret(program, given(function))
    torch.testing.assert_close(got, function(*given(function)))


def checks(program: Program) -> list[Extern]:
    return [
        step
        for step in program.steps
        if isinstance(step, Extern) and isinstance(step.target, Refusal)
    ]


def test_what_is_in_range_is_not_checked() -> None:
    assert not checks(lowered(lambda x: x[torch.arange(5)], "fake"))
    assert not checks(lowered(lambda x, i: x[i.clamp(0, 4)], "fake"))
    assert not checks(lowered(lambda x, i: x[i % 5], "fake"))
    assert checks(lowered(lambda x, i: x[i.clamp(0, 5)], "fake"))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_places_that_an_op_found_are_not_checked(mode: str) -> None:
    found: list[Callable[..., Any]] = [
        lambda x: x.gather(1, x.topk(2).indices),
        lambda x: x.gather(0, x.sort(0).indices),
        lambda x: x.gather(0, x.sort(dim=0, stable=True).indices),
        lambda x: x.gather(1, x.kthvalue(2, 1, keepdim=True).indices),
        lambda x: x.gather(1, x.median(1, keepdim=True).indices),
    ]
    for function in found:
        program = lowered(function, mode)
        assert not checks(program)
        (got,) = interpret(program, given(function))
        torch.testing.assert_close(got, function(*given(function)))
    assert checks(lowered(lambda x: x.gather(0, x.topk(5, 1).indices[:, :3]), mode))


def test_a_gathered_index_is_shown_by_name() -> None:
    text = show_program(lowered(lambda x, i: x.index_add(0, i, x[i]), "fake"))
    assert "x_1[[%5 by index_in_range], i1]" in text
    assert "index_add[[%0 by index_add_in_range], i1] += %1" in text


def test_an_index_is_checked_once_per_size() -> None:
    both = lowered(lambda x, i: F.embedding(i, x) + F.embedding(i, x * 2), "fake")
    assert len(checks(both)) == 1
    other = lowered(
        lambda x, y, i: F.embedding(i, x).sum() + F.embedding(i, y[:3, 0, 0]).sum(), "fake"
    )
    assert len(checks(other)) == 2


def test_an_expanded_index_is_checked_at_its_own_elements() -> None:
    program = lowered(lambda x, i, src: x.scatter_add(0, i[:, None].expand(9, 6), src), "fake")
    nest = program.steps[0]
    assert isinstance(nest, Nest)
    assert [axis.size for axis in nest.raxes] == [9]


def test_producers_and_consumers_join_a_gather(fusion_rules: Any) -> None:
    program = lowered(lambda x, i: (x[i + 1 - 1] * 2).relu().softmax(1), "fake")
    joined, _ = fuse(program, fusion_rules)
    nests = [step for step in joined.steps if isinstance(step, Nest)]
    assert len(nests) == 2  # the check with the index, and everything else


def test_a_producer_joins_the_source_of_a_scatter(fusion_rules: Any) -> None:
    program = lowered(lambda x, i, src: x.index_add(0, i, (src * 2).exp()), "fake")
    joined, _ = fuse(program, fusion_rules)
    assert sum(isinstance(step, Nest) for step in joined.steps) == 3  # check, copy, sums


def test_a_chain_of_writes_needs_one_copy() -> None:
    def chain(x: torch.Tensor, i: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return x.index_put((i,), src).index_add(0, i, src).index_fill(0, i[:2], 1.0)

    program = lowered(chain, "fake")
    written = [
        store.buffer for step in program.steps if isinstance(step, Nest) for store in step.stores
    ]
    out = program.outputs[0].buffer  # type: ignore[union-attr]
    assert written.count(out) == 4
    (got,) = interpret(program, given(chain))
    torch.testing.assert_close(got, chain(*given(chain)))


def test_an_old_value_that_is_read_later_stays() -> None:
    def both(x: torch.Tensor, i: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        first = x.index_put((i,), src)
        return first.index_fill(0, i, 1.0) + first

    (got,) = interpret(lowered(both, "fake"), given(both))
    torch.testing.assert_close(got, both(*given(both)))


def test_a_mutated_input_is_written_in_place() -> None:
    def update(x: torch.Tensor, i: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        before = x.sum()
        made = x.index_copy(0, i, src)
        x.copy_(made)
        return made.sum() - before

    program = lowered(update, "fake")
    wholes = [
        step
        for step in program.steps
        if isinstance(step, Nest) and step.stores[0].buffer == "x_1" and not step.raxes
    ]
    assert len(wholes) == 1
    x, i, src = given(update)
    expected = update(x.clone(), i, src)
    (got,) = interpret(program, [x, i, src])
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(x, tensors()["x"].index_copy(0, i, src))


@pytest.mark.parametrize("shown", ["itself", "view", "reshaped"])
def test_a_result_is_not_the_memory_of_an_input(shown: str) -> None:
    def update(x: torch.Tensor, i: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        made = x.index_copy(0, i, src)
        x.copy_(made)
        return {"itself": made, "view": made[1:], "reshaped": made.reshape(3, 10)}[shown]

    x, i, src = given(update)
    (got,) = interpret(lowered(update, "fake"), [x, i, src])
    assert got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    torch.testing.assert_close(got, update(tensors()["x"], i, src))
