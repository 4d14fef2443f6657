"""Products written straight into their part of a concatenation: right, and with fewer bytes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.codegen.out_views import fits_in_view
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.in_place_parts import out_form, with_parts_in_place
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Nest, Program, View
from eqsat.lowering.lower import lower
from eqsat.lowering.spec import problems
from eqsat.reports import recording

aten = torch.ops.aten
Fn = Callable[..., Any]


@pytest.fixture(scope="module")
def book() -> Any:
    return load_book([RULES / "ops", RULES / "scalar"])


def lowered(fn: Fn, book: Any, *args: torch.Tensor) -> Program:
    graph = make_fx(fn, tracing_mode="fake", pre_dispatch=True)(*args)
    return lower(graph, OpTable(book.ops), {entry.name: entry for entry in book.scalars})


def checked(fn: Fn, book: Any, *args: torch.Tensor) -> tuple[Program, Program]:
    """The program of `fn` before and after, once both are legal and give what eager gives."""
    before = lowered(fn, book, *args)
    after = with_parts_in_place(before, partial(fits_in_view, measure=False))
    wanted = fn(*args)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for program in (before, after):
        assert not problems(program)
        got = interpret(program, [arg.clone() for arg in args])
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other)
    return before, after


def nests(program: Program) -> int:
    return sum(isinstance(step, Nest) for step in program.steps)


def in_place(program: Program) -> int:
    return sum(isinstance(step, Extern) and bool(step.mutates) for step in program.steps)


def t(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def columns(x: Any, y: Any, a: Any, b: Any) -> Any:
    return aten.cat([aten.mm(x, a), aten.mm(y, b)], 1)


def rows(x: Any, y: Any, b: Any) -> Any:
    return aten.cat([aten._softmax(x, 1, False), aten.mm(y, b)], 0)


def stacked(x: Any, a: Any, b: Any) -> Any:
    return aten.stack([aten.mm(x, a), aten.mm(x, b)], 0)


def stacked_inside(x: Any, a: Any, b: Any) -> Any:
    return aten.stack([aten.mm(x, a), aten.mm(x, b)], 1)


def cache(past: Any, x: Any, a: Any) -> Any:
    """One more row behind those that are there, read by a product and kept."""
    keys = aten.cat([past, aten.mm(x, a)], 0)
    return keys, aten.mm(keys, aten.t(keys))


def biased(x: Any, y: Any, bias: Any, b: Any) -> Any:
    return aten.cat([aten.mul(x, 2), aten.addmm(bias, y, b)], 1)


def batches(x: Any, y: Any) -> Any:
    return aten.cat([x, aten.bmm(x, y)], 0)


def reshaped(x: Any, past: Any, a: Any) -> Any:
    """The product is seen with another shape before it is put in place."""
    return aten.cat([past, aten.view(aten.mm(x, a), [2, 3, 4])], 1)


def alone(x: Any, a: Any) -> Any:
    return aten.cat([aten.mm(x, a)], 0)


def empty_beside(x: Any, past: Any, a: Any) -> Any:
    return aten.cat([past, aten.mm(x, a)], 0)


SAVING: list[tuple[Fn, tuple[torch.Tensor, ...], int]] = [
    (columns, (t(4, 3), t(4, 5), t(3, 6), t(5, 2)), 2),
    (rows, (t(3, 6), t(4, 5), t(5, 6)), 1),
    (stacked, (t(4, 3), t(3, 6), t(3, 6)), 2),
    (stacked_inside, (t(4, 3), t(3, 6), t(3, 6)), 2),
    (cache, (t(7, 4), t(1, 3), t(3, 4)), 1),
    (biased, (t(4, 2), t(4, 3), t(6), t(3, 6)), 1),
    (batches, (t(2, 3, 3), t(2, 3, 3)), 1),
    (alone, (t(4, 3), t(3, 6)), 1),
    (empty_beside, (t(4, 3), t(0, 6), t(3, 6)), 1),
]


@pytest.mark.parametrize(("fn", "args", "moved"), SAVING, ids=[fn.__name__ for fn, _, _ in SAVING])
def test_results_are_written_in_place(
    book: Any, fn: Fn, args: tuple[torch.Tensor, ...], moved: int
) -> None:
    before, after = checked(fn, book, *args)
    assert in_place(after) == moved
    assert nests(after) == nests(before) - moved
    assert len(after.buffers) == len(before.buffers) - moved


def twice(x: Any, a: Any) -> Any:
    y = aten.mm(x, a)
    return aten.cat([y, y], 0)


def returned(x: Any, past: Any, a: Any) -> Any:
    y = aten.mm(x, a)
    return aten.cat([past, y], 0), y


def read_elsewhere(x: Any, past: Any, a: Any) -> Any:
    y = aten.mm(x, a)
    return aten.cat([past, y], 0), aten.mm(y, aten.t(y))


def promoted(x: Any, past: Any, a: Any) -> Any:
    return aten.cat([aten.to(past, torch.float64), aten.mm(x, a)], 0)


def turned(x: Any, past: Any, a: Any) -> Any:
    """No rows of unit stride, which BLAS wants."""
    return aten.cat([past, aten.t(aten.mm(x, a))], 0)


def spread(x: Any, y: Any, past: Any) -> Any:
    """Batches in the middle of others: ATen would multiply one by one."""
    return aten.cat([past, aten.bmm(x, y)], 1)


def a_piece(x: Any, past: Any, a: Any) -> Any:
    return aten.cat([past, aten.slice(aten.mm(x, a), 0, 1, 3)], 0)


def fused_anyway(x: Any, past: Any, a: Any) -> Any:
    """No memory at all for the concatenation."""
    return aten.sin(aten.cat([aten.exp(past), aten.mm(x, a)], 0))


STAYING: list[tuple[Fn, tuple[torch.Tensor, ...]]] = [
    (twice, (t(4, 3), t(3, 6))),
    (returned, (t(4, 3), t(2, 6), t(3, 6))),
    (read_elsewhere, (t(4, 3), t(2, 6), t(3, 6))),
    (promoted, (t(4, 3), t(2, 6), t(3, 6))),
    (turned, (t(6, 3), t(2, 6), t(3, 4))),
    (spread, (t(2, 3, 3), t(2, 3, 3), t(2, 1, 3))),
    (reshaped, (t(6, 3), t(2, 2, 4), t(3, 4))),
    (a_piece, (t(4, 3), t(2, 6), t(3, 6))),
    (fused_anyway, (t(4, 3), t(2, 6), t(3, 6))),
]


@pytest.mark.parametrize(("fn", "args"), STAYING, ids=[fn.__name__ for fn, _ in STAYING])
def test_the_copy_stays(book: Any, fn: Fn, args: tuple[torch.Tensor, ...]) -> None:
    before, after = checked(fn, book, *args)
    assert after is before


def test_bytes_that_a_reader_needs_are_never_moved_past_it(book: Any) -> None:
    """Something reads the buffer before the copy: the call would write too early."""
    args = (t(4, 3), t(4, 5), t(3, 6), t(5, 2))
    program = lowered(columns, book, *args)
    fits = partial(fits_in_view, measure=False)
    (joined,) = {step.stores[0].buffer for step in program.steps if isinstance(step, Nest)}
    buffer = program.buffers[joined]
    look = Extern(
        "look",
        aten.clone.default,
        (View(joined, buffer.shape, buffer.stride),),
        {},
        ("seen",),
    )
    first = next(k for k, step in enumerate(program.steps) if isinstance(step, Nest))
    steps = (*program.steps[:first], look, *program.steps[first:])
    seen = replace(buffer, name="seen", role="extern")
    changed = replace(program, steps=steps, buffers={**program.buffers, "seen": seen})
    assert in_place(with_parts_in_place(program, fits)) == 2
    assert with_parts_in_place(changed, fits) is changed


def test_a_part_that_nobody_writes_is_found(book: Any) -> None:
    """A call in its out-form fills its part alone: without the other nothing is whole."""
    _, after = checked(rows, book, t(3, 6), t(4, 5), t(5, 6))
    calls = tuple(step for step in after.steps if isinstance(step, Extern))
    assert any("nobody wrote" in found for found in problems(replace(after, steps=calls)))


def test_ops_without_an_out_form() -> None:
    assert out_form(aten.mm.default) is aten.mm.out
    assert out_form(aten.mm.out) is None
    assert out_form(torch.cat) is None
    assert out_form(aten.topk.default) is None  # two results


def part(pick: random.Random, shape: list[int]) -> tuple[Fn, list[torch.Tensor]]:
    """An operand of a random kind."""
    m, n = shape
    kind = pick.choice(["mm", "mm", "addmm", "given", "exp", "turned", "softmax"])
    if kind == "mm":
        return aten.mm, [t(m, 3), t(3, n)]
    if kind == "addmm":
        return aten.addmm, [t(n), t(m, 2), t(2, n)]
    if kind == "turned":
        return (lambda x, y: aten.t(aten.mm(x, y))), [t(n, 3), t(3, m)]
    one: Fn = {"given": lambda x: x, "exp": torch.exp, "softmax": partial(F.softmax, dim=1)}[kind]
    return one, [t(m, n)]


@pytest.mark.parametrize("seed", range(40))
def test_random_concatenations(book: Any, seed: int) -> None:
    pick = random.Random(seed)
    dim = pick.randrange(2)
    makers: list[Fn] = []
    args: list[torch.Tensor] = []
    counts: list[int] = []
    for _ in range(pick.randrange(1, 5)):
        shape = [4, 4]
        shape[dim] = pick.choice([0, 1, 2, 5])
        maker, operands = part(pick, shape)
        makers.append(maker)
        counts.append(len(operands))
        args += operands
    again = pick.random() < 0.2
    tail = pick.choice(["none", "product", "sin", "first"])

    def fn(*given: torch.Tensor) -> Any:
        left = iter(given)
        made = [
            maker(*(next(left) for _ in range(n))) for maker, n in zip(makers, counts, strict=True)
        ]
        whole = aten.cat([*made, made[0]] if again else made, dim)
        if tail == "product":
            return whole, aten.mm(whole, aten.t(whole))
        if tail == "first":
            return whole, made[0] * 2
        return aten.sin(whole) if tail == "sin" else whole

    checked(fn, book, *args)


def compiled_nests(fn: Fn, *args: torch.Tensor, dynamic: bool = False) -> int:
    """Nests of the compiled graphs, once their results are eager's."""
    torch._dynamo.reset()
    options = {"strict": True, "verify": True}
    with recording() as reports, torch.no_grad():
        got = torch.compile(fn, backend="eqsat", options=options, dynamic=dynamic)(*args)
    torch.testing.assert_close(got, fn(*args), rtol=1e-4, atol=1e-5)
    return sum(report.fusion.after for report in reports if report.fusion is not None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    def fn(x: Any, y: Any, a: Any, b: Any) -> Any:
        return torch.cat([x @ a, y @ b], 1)

    assert compiled_nests(fn, t(8, 3), t(8, 5), t(3, 6), t(5, 7), dynamic=dynamic) == 0


def test_compiled_with_a_nest_beside_it() -> None:
    def fn(x: Any, y: Any, b: Any, past: Any) -> Any:
        return torch.cat([F.softmax(x, 1), y @ b, past], 0)

    assert compiled_nests(fn, t(3, 6), t(4, 5), t(5, 6), t(2, 6)) == 2


def test_compiled_layer_behind_a_cache() -> None:
    def fn(past: Any, x: Any, weight: Any, bias: Any) -> Any:
        return torch.cat([past, F.linear(x, weight, bias)], 2)

    assert compiled_nests(fn, t(2, 5, 4), t(2, 5, 3), t(7, 3), t(7)) == 1


def test_gradients() -> None:
    def fn(x: Any, y: Any, a: Any, b: Any) -> Any:
        return torch.cat([x @ a, torch.relu(y @ b)], 1)

    args = [t(8, 3), t(8, 5), t(3, 6), t(5, 7)]
    given = [[arg.clone().requires_grad_() for arg in args] for _ in range(2)]
    options = {"strict": True, "verify": True}
    torch._dynamo.reset()
    results = [torch.compile(fn, backend="eqsat", options=options)(*given[0]), fn(*given[1])]
    grad = torch.randn_like(results[1])
    for result in results:
        result.backward(grad)
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    for one, other in zip(*given, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
