"""What noise stands for, and that faults which are no larger than it are not all that is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from eqsat.tests.fuzz.noise import Noise
from eqsat.tests.fuzz.oracle import judge
from eqsat.tests.fuzz.outcome import run_eager, run_wide
from eqsat.tests.fuzz.programs import Input, Program, Statement

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def program_of(text: str, inputs: dict[str, str]) -> Program:
    given = tuple(Input(name, made) for name, made in inputs.items())
    return Program(("n0",), ((6,),), given, (Statement(f"v1 = {text}"),), ("v1",))


def judged(program: Program, other: Function, monkeypatch: pytest.MonkeyPatch) -> str:
    """The verdict on a compiler that computes `other`."""

    def compiled(function: Function, backend: str = "", **_: Any) -> Function:
        return function if backend == "aot_eager" else lambda *xs: (other(*xs),)

    monkeypatch.setattr(torch, "compile", compiled)
    return judge(program).kind


LONG = {"a": "tensor((64, 40), torch.float32, 1)"}
PAIR = {**LONG, "b": "tensor((64, 40), torch.float32, 2)"}
DOUBLE = {"a": "tensor((64, 40), torch.float64, 1)"}
TIES = {"a": "tensor((8, 5), torch.float32, 1, 'ties')"}
ZEROS = {"a": "tensor((9, 12), torch.float32, 1) * 0"}
SPECIAL = {"a": "tensor((9, 12), torch.float32, 1, 'special')"}


def in_double(function: Function) -> Function:
    """Other rounding that nobody can object to."""
    return lambda *xs: function(*(x.double() for x in xs)).to(xs[0].dtype)


RIGHT: dict[str, tuple[str, dict[str, str], Function]] = {
    "gelu": ("F.gelu(a * 2)", LONG, in_double(lambda a: F.gelu(a * 2))),
    "digamma": ("torch.digamma(a.abs() + 1)", LONG, in_double(lambda a: (a.abs() + 1).digamma())),
    "rounded products": ("torch.lerp(a, b, 0.3)", PAIR, lambda a, b: a + (b - a) * 0.3),
    "scaled": ("torch.add(a, b, alpha=1.5)", PAIR, lambda a, b: a + b * 1.5),
    "formats": (
        "a[None, None].clone(memory_format=torch.channels_last).exp()", LONG,
        lambda a: a[None, None].exp().contiguous(memory_format=torch.channels_last) * (1 + 1e-7),
    ),
    "first zero": ("a.amax(1)", ZEROS, lambda a: a.max(1).values.abs()),
    "exact zero": (
        "F.layer_norm(a, (5,)) != 0", TIES,
        lambda a: in_double(lambda a: (a - a.mean(1, keepdim=True)).round(decimals=9))(a) != 0,
    ),
    "sign of nan": ("torch.signbit(a - a)", SPECIAL, lambda a: torch.signbit(-(a - a) + 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_other_right_results_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, inputs, other = RIGHT[name]
    assert judged(program_of(text, inputs), other, monkeypatch) in ("same", "close")


def off(function: Function, share: float) -> Function:
    return lambda *xs: function(*xs) * (1 + share)


WRONG: dict[str, tuple[str, dict[str, str], Function]] = {
    "gelu": ("F.gelu(a)", LONG, off(F.gelu, 2e-5)),
    "gelu by tanh": ("F.gelu(a)", LONG, lambda a: F.gelu(a, approximate="tanh")),
    "digamma": ("torch.digamma(a.abs() + 1)", LONG, lambda a: (a.abs() + 1.00001).digamma()),
    "exp": ("a.exp()", LONG, off(torch.exp, 1e-5)),
    "exp in double": ("a.exp()", DOUBLE, off(torch.exp, 1e-13)),
    "product": ("torch.addcmul(a, a, b)", {**PAIR}, lambda a, b: a + a * b * (1 + 1e-5)),
    "sum": ("a.sum(1)", LONG, off(lambda a: a.sum(1), 1e-4)),
    "eps": ("F.layer_norm(a, (40,))", LONG, lambda a: F.layer_norm(a, (40,), eps=1.5e-5)),
    "correction": ("a.var(1)", LONG, lambda a: a.var(1, correction=0)),
    "softmax": ("a.softmax(1)", LONG, off(lambda a: a.softmax(1), 1e-5)),
    "sign of a zero": ("a.amax(1)", {"a": "-tensor((9, 12), torch.float32, 1).abs() * 0"},
                       lambda a: a.amax(1).abs()),
    "sign": ("torch.signbit(a)", LONG, lambda a: ~torch.signbit(a)),
    "infinity": ("a.mean(1)", SPECIAL, lambda a: a.nan_to_num(0, 9e9, -9e9).mean(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_do_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, inputs, other = WRONG[name]
    assert judged(program_of(text, inputs), other, monkeypatch) == "differs"


def test_float64_runs_on_the_same_inputs() -> None:
    for kind in ("tame", "special", "ties"):
        for dtype in ("float32", "bfloat16", "int64", "bool"):
            program = program_of("a", {"a": f"tensor((50,), torch.{dtype}, 3, '{kind}')"})
            (eager,), (wide,) = run_eager(program), run_wide(program)
            narrow, double = eager.outputs[0].value, wide.outputs[0].value
            assert torch.equal(narrow.double().nan_to_num(), double.double().nan_to_num())
            assert double.dtype == (torch.float64 if narrow.is_floating_point() else narrow.dtype)


def test_the_order_decides_between_nan_and_infinity() -> None:
    a = torch.tensor([[1.0, 2.0, torch.inf]])
    means = []
    for seed in range(4):
        with Noise(seed):
            means.append(torch.var_mean(a, dim=[1], correction=0)[1])
    assert {bool(mean.isnan()) for mean in means} == {True, False}


def test_extremes_of_zeros_have_either_sign() -> None:
    a = torch.tensor([[0.0, -0.0, 0.0], [0.0, 0.0, 0.0], [-1.0, -0.0, -0.0]])
    signs = set()
    for seed in range(12):
        with Noise(seed):
            signs.add(tuple(a.amax(1).signbit().tolist()))
    assert signs == {(False, False, True), (True, False, True)}
