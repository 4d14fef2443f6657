"""`verify`: what goes wrong in a compile, or in its first call, is named and does no harm."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import eqsat
from eqsat import backend
from eqsat.codegen.compile import CompiledGraph, CompileOptions, compile_program
from eqsat.codegen.verified import VerifiedGraph
from eqsat.engine.rule import ScalarEntry
from eqsat.lowering.agreement import DISTURBANCES, differing
from eqsat.lowering.index import as_index
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Buffer, Builder, Nest, Program, Scalar, Store
from eqsat.lowering.verify import VerifyError, check_program
from eqsat.reports import recording


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def changed(program: Program, change: Callable[[Builder, Scalar], Scalar]) -> Program:
    """`program` with another value in the first store of its last nest."""
    nest = program.steps[-1]
    assert isinstance(nest, Nest)
    store, *more = nest.stores
    value = change(Builder(), store.value)
    wrong = replace(nest, stores=(replace(store, value=value), *more))
    return replace(program, steps=(*program.steps[:-1], wrong))


def doubled(builder: Builder, value: Scalar) -> Scalar:
    return builder.make("add", (value, value), value.dtype)


def slightly_more(builder: Builder, value: Scalar) -> Scalar:
    return builder.make("mul", (value, builder.const(1.001, value.dtype)), value.dtype)


def shifted(builder: Builder, value: Scalar) -> Scalar:
    """Every load one element to the left, round the corner."""
    args = tuple(shifted(builder, arg) for arg in value.args)
    index = tuple(as_index(0) for _ in value.index) if value.op == "load" else value.index
    return builder.make(
        value.op, args, value.dtype, buffer=value.buffer, index=index, value=value.value
    )


def program_of(f: Callable[..., Any], *inputs: torch.Tensor) -> Program:
    """The fused program of `f`."""
    found: list[Program] = []
    with pytest.MonkeyPatch.context() as patch:
        make = backend.compile_program
        patch.setattr(
            backend, "compile_program", lambda p, *rest: (found.append(p), make(p, *rest))[1]
        )
        torch.compile(f, backend="eqsat")(*inputs)
    return found[0]


def some(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() - x.mean(-1, keepdim=True)) * 2


X = torch.linspace(-1, 1, 60).reshape(5, 12)


def verified(
    run: Program, said: Program, lowered: Program, table: Mapping[str, ScalarEntry]
) -> tuple[VerifiedGraph, list[str]]:
    """Compiles `run` and has it checked as if it were `said`, made from `lowered`."""
    compiled = compile_program(run, table, CompileOptions(verify=True))
    assert isinstance(compiled, CompiledGraph) and compiled.parts is not None
    compiled.parts = replace(
        compiled.parts, program=replace(compiled.parts.program, steps=said.steps)
    )
    heard: list[str] = []
    plain = lambda inputs: interpret(lowered, inputs)  # noqa: E731
    return VerifiedGraph(
        compiled, lowered, {}, plain, lambda error: heard.append(str(error))
    ), heard


@pytest.mark.parametrize("change", [doubled, slightly_more, shifted])
def test_a_kernel_that_is_not_its_nest(change: Any, table: Mapping[str, ScalarEntry]) -> None:
    right = program_of(some, X)
    graph, heard = verified(changed(right, change), right, right, table)
    torch.testing.assert_close(graph([X])[0], some(X))
    (text,) = heard
    assert "its kernel differs from its loop IR" in text and right.steps[-1].name in text
    torch.testing.assert_close(graph([X])[0], some(X))  # from now on plainly
    assert len(heard) == 1


def test_a_nest_that_is_not_its_parts(table: Mapping[str, ScalarEntry]) -> None:
    right = program_of(some, X)
    wrong = changed(right, doubled)
    graph, heard = verified(wrong, wrong, right, table)
    torch.testing.assert_close(graph([X])[0], some(X))
    assert "differs from the nests that it was fused from" in heard[0]


def test_what_is_right_passes(table: Mapping[str, ScalarEntry]) -> None:
    right = program_of(some, X)
    graph, heard = verified(right, right, right, table)
    for _ in range(2):
        torch.testing.assert_close(graph([X])[0], some(X))
    assert heard == []


def test_inputs_are_written_once() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        y.mul_(torch.rand(()) + 1)
        return x.sum()

    with eqsat.options(verify=True, strict=True):
        compiled = torch.compile(program, backend="eqsat")
        results = []
        for run in (compiled, program):
            torch.manual_seed(0)
            x, y = torch.ones(4), torch.full((4,), 2.0)
            results.append((run(x, y), x, y, run(x, y), torch.rand(2)))
    torch.testing.assert_close(results[0], results[1])


def broken_step(step: str, patch: pytest.MonkeyPatch) -> None:
    """Makes a step of the compile give a program that is wrong."""
    whole = getattr(backend, step)

    def wrong(*args: Any, **how: Any) -> Any:
        made = whole(*args, **how)
        program = made[0] if isinstance(made, tuple) else made
        nest = program.steps[-1]
        store = nest.stores[0]
        place = (*store.index[:-1], store.index[-1] + 3)
        moved = replace(nest, stores=(replace(store, index=place),))
        program = replace(program, steps=(*program.steps[:-1], moved))
        return (program, *made[1:]) if isinstance(made, tuple) else program

    patch.setattr(backend, step, wrong)


@pytest.mark.parametrize("step", ["lower", "fuse", "simplify"])
def test_a_broken_step_is_named(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_step(step, monkeypatch)
    monkeypatch.delenv("EQSAT_STRICT", raising=False)
    with (
        eqsat.options(verify=True),
        recording() as reports,
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        got = torch.compile(some, backend="eqsat")(X)
    torch.testing.assert_close(got, some(X))
    told = [str(w.message) for w in seen if issubclass(w.category, backend.EqsatWarning)]
    assert len(told) == 1 and f"verify: after {step}" in told[0] and "outside a dim" in told[0]
    assert any(report.fallback for report in reports)
    torch._dynamo.reset()
    with eqsat.options(verify=True, strict=True), pytest.raises(Exception, match=f"after {step}"):
        torch.compile(some, backend="eqsat")(X)


def test_a_broken_first_call_falls_back_or_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    make = backend.compile_program

    def wrong(program: Program, *rest: Any) -> CompiledGraph:
        compiled = make(changed(program, doubled), *rest)
        assert compiled.parts is not None
        steps = program.steps
        compiled.parts = replace(
            compiled.parts, program=replace(compiled.parts.program, steps=steps)
        )
        return compiled

    monkeypatch.setattr(backend, "compile_program", wrong)
    with eqsat.options(verify=True, strict=False):
        compiled = torch.compile(some, backend="eqsat")
        with pytest.warns(backend.EqsatWarning, match=r"nest \w+ \(nodes: .*exp.*rules: "):
            torch.testing.assert_close(compiled(X), some(X))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(compiled(X), some(X))
    torch._dynamo.reset()
    with eqsat.options(verify=True, strict=True):
        compiled = torch.compile(some, backend="eqsat")
        with pytest.raises(VerifyError, match="its kernel differs"):
            compiled(X)


def test_copies_agree_to_the_bit_and_sums_do_not() -> None:
    """Tolerances follow from what was computed."""
    x = torch.tensor([1.0, -0.0, float("nan"), 3.0])
    near = x.clone()
    near[3] = torch.nextafter(near[3], torch.tensor(9.0))
    assert differing(near, x, [x, x]).tolist() == [False, False, False, True]
    total = Scalar("reduce", (), "f32", value="sum", serial=1)
    moved = [disturb(total, x) for disturb in DISTURBANCES]
    assert not differing(near, x, moved).any()
    assert differing(x * 1.01, x, moved).tolist() == [True, False, False, True]
    copy = Scalar("load", (), "f32")
    assert all(torch.equal(disturb(copy, x[:2]), x[:2]) for disturb in DISTURBANCES)


def test_a_comparison_that_rounding_decides_may_go_either_way() -> None:
    wanted, other = torch.tensor([True, True]), torch.tensor([True, False])
    assert differing(other, wanted, [wanted, other]).tolist() == [False, False]
    assert differing(other, wanted, [wanted, wanted]).tolist() == [False, True]


def test_an_output_of_the_wrong_dtype_is_a_problem() -> None:
    axes = ()
    value = Builder().const(1, "i64")
    nest = Nest("n", axes, (), (Store("y", (), value),))
    buffers = {"y": Buffer("y", "f32", (), (), "output")}
    with pytest.raises(VerifyError, match="stores i64 into y, f32"):
        check_program("lower", Program((), buffers, (nest,), ()))
