"""Random numbers made in nests: their distributions, and what they depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from eqsat.codegen.compile import compile_program
from eqsat.engine.ops import OpTable
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Program
from eqsat.lowering.lower import lower
from eqsat.lowering.meanings import MEANINGS
from eqsat.lowering.seeds import Seal, Unseal
from eqsat.lowering.spec import problems
from eqsat.reports import recording
from eqsat.tests.lowering.compared import book, compiled

COUNT = 100_000
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setenv("EQSAT_STRICT", "1")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def fast(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return torch.compile(
        function, backend="eqsat", fullgraph=True, options={"numerics": "fast"}, **how
    )


def program_of(function: Callable[..., Any], *args: torch.Tensor) -> Program:
    graph = make_fx(function, tracing_mode="fake")(*args)
    scalars = {one.name: one for one in book().scalars}
    program = lower(graph, OpTable(book().ops), scalars, own_random=True)
    assert problems(program) == []
    return program


def externs(program: Program) -> list[str]:
    return [str(step.target) for step in program.steps if isinstance(step, Extern)]


# Published with the algorithm (kat_vectors of Random123): counter, key, first two words.
ALL = 0xFFFFFFFF
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D)),
    ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB),
    ),
)


def signed(low: int, high: int) -> torch.Tensor:
    value = low | high << 32
    return torch.tensor([value - (1 << 64) if value >> 63 else value])


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_bits_are_those_of_philox(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, int]
) -> None:
    got = MEANINGS["random_bits"](signed(*key), signed(*counter[2:]), signed(*counter[:2]))
    assert torch.equal(got, signed(*words))


def gap(values: torch.Tensor, below: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The largest distance to a distribution function (Kolmogorov and Smirnov), in units in
    which a larger one than 2.5 has a probability of 1e-5."""
    ordered = values.double().flatten().sort().values
    steps = torch.arange(1, ordered.numel() + 1, dtype=torch.float64) / ordered.numel()
    return float((below(ordered) - steps).abs().max()) * math.sqrt(ordered.numel())


def normal_below(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


CONTINUOUS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "rand": (lambda d: torch.rand(COUNT, dtype=d), lambda x: x),
    "rand_like": (lambda d: torch.rand_like(torch.zeros(COUNT, dtype=d)), lambda x: x),
    "randn": (lambda d: torch.randn(COUNT, dtype=d), normal_below),
    "randn_like": (lambda d: torch.randn_like(torch.zeros(COUNT, dtype=d)), normal_below),
    "uniform": (lambda d: torch.zeros(COUNT, dtype=d).uniform_(-3, 5), lambda x: (x + 3) / 8),
    "normal": (
        lambda d: torch.zeros(COUNT, dtype=d).normal_(1, 2),
        lambda x: normal_below((x - 1) / 2),
    ),
    "exponential": (
        lambda d: torch.zeros(COUNT, dtype=d).exponential_(2),
        lambda x: 1 - torch.exp(-2 * x),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distributions(name: str, dtype: torch.dtype) -> None:
    draw, below = CONTINUOUS[name]
    with recording() as reports:
        values = fast(lambda: draw(dtype))()
    assert [e.target for report in reports for e in report.externs] == ["aten.randint.low"]
    assert values.dtype == dtype and gap(values, below) < 2.5
    neighbours = torch.corrcoef(torch.stack([values[1:], values[:-1]]).double())[0, 1]
    assert abs(float(neighbours)) * math.sqrt(COUNT) < 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_floats_stay_in_range(dtype: torch.dtype) -> None:
    def f() -> tuple[torch.Tensor, ...]:
        x = torch.zeros(COUNT, dtype=dtype)
        return torch.rand_like(x), x.uniform_(-3, 5), torch.randn_like(x)

    unit, between, normal = fast(f)()
    assert {part.dtype for part in (unit, between, normal)} == {dtype}
    assert bool(((unit >= 0) & (unit < 1)).all()) and bool(((between >= -3) & (between < 5)).all())
    for part, mean, deviation in (
        (unit, 0.5, 12**-0.5),
        (between, 1, 8 * 12**-0.5),
        (normal, 0, 1),
    ):
        assert float(part.double().mean()) == pytest.approx(mean, abs=0.03)
        assert float(part.double().std()) == pytest.approx(deviation, rel=0.03)


def spread(values: torch.Tensor, low: int, high: int) -> float:
    """Chi-square of whole numbers that are equally likely, as standard deviations from its mean."""
    assert int(values.min()) >= low and int(values.max()) < high
    counts = torch.bincount((values - low).flatten(), minlength=high - low).double()
    expected = values.numel() / (high - low)
    square = float(((counts - expected) ** 2 / expected).sum())
    return (square - (high - low - 1)) / math.sqrt(2 * (high - low - 1))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(0, 5, torch.int64), (-7, 100, torch.int32), (-128, 127, torch.float32)],
)
def test_whole_numbers(low: int, high: int, dtype: torch.dtype) -> None:
    with recording() as reports:
        values = fast(lambda: torch.randint(low, high, (COUNT,), dtype=dtype))()
    assert values.dtype == dtype and abs(spread(values.long(), low, high)) < 6
    assert len(reports[-1].externs) == 1 and reports[-1].kernels


def test_wide_ranges_of_whole_numbers() -> None:
    values = fast(lambda: torch.randint(-(2**30), 2**30, (COUNT,)))()
    assert gap(values, lambda x: (x + 2**30) / 2**31) < 2.5
    program = program_of(lambda: torch.randint(0, 2**40, (10,)))
    assert externs(program) == ["aten.randint.low"] and len(program.steps) == 1


@pytest.mark.parametrize(
    ("chance", "dtype"),
    [(0.0, torch.float16), (1e-3, torch.float32), (0.3, torch.bool), (1.0, torch.int64)],
)
def test_coins(chance: float, dtype: torch.dtype) -> None:
    def f() -> tuple[torch.Tensor, torch.Tensor]:
        each = torch.full((COUNT,), chance, dtype=torch.float64)
        return torch.empty(COUNT, dtype=dtype).bernoulli_(chance), torch.bernoulli(each)

    for values in fast(f)():
        assert set(values.double().unique().tolist()) <= {0.0, 1.0}
        bound = 5 * math.sqrt(chance * (1 - chance) / COUNT)
        assert float(values.double().mean()) == pytest.approx(chance, abs=bound)


def test_parameters_in_tensors() -> None:
    chances, means = torch.linspace(0, 1, 5), torch.linspace(-2, 2, 5, dtype=torch.float64)

    def f(p: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = p.expand(40_000, 5)
        coins = torch.bernoulli(rows), aten.bernoulli(torch.zeros(40_000, 5), p.expand(40_000, 5))
        return (*coins, torch.normal(m.expand(40_000, 5), p.double() + 0.5))

    first, second, normal = fast(f)(chances, means)
    for coins in (first, second):
        torch.testing.assert_close(coins.mean(0), chances, rtol=0, atol=0.0125)
    torch.testing.assert_close(normal.mean(0), means, rtol=0, atol=0.04)
    torch.testing.assert_close(normal.std(0), chances.double() + 0.5, rtol=0.03, atol=0)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_wrong_parameters_are_refused_as_eager_refuses_them(wrong: float) -> None:
    x = torch.tensor([0.5, wrong])
    for function in (torch.bernoulli, lambda x: torch.normal(0.0, x)):
        if wrong > 1 and function is not torch.bernoulli:
            continue
        errors = []
        for run in (function, fast(function)):
            with pytest.raises(RuntimeError) as error:
                run(x)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


def mixed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    noise = torch.rand_like(x)
    turned = (noise + torch.rand(x.shape)).t().contiguous()
    picked = noise[torch.tensor([2, 0])] * x[:2]
    coins = torch.bernoulli(noise)
    whole = torch.randint_like(x, 3, 90)
    return noise, turned, picked, coins, whole, F.dropout(x, 0.3), (noise * x).sum(1)


def test_fusion_and_threads_change_nothing() -> None:
    x = torch.randn(301, 77)
    program = program_of(mixed, x)
    runs = [lambda inputs: interpret(program, inputs), compiled(program)]
    runs.append(compile_program(program, {one.name: one for one in book().scalars}))
    threads = torch.get_num_threads()
    results = []
    try:
        for run in runs:
            for count in (1, threads):
                torch.set_num_threads(count)
                torch.manual_seed(5)
                results.append(run([x]))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        for place, (got, wanted) in enumerate(zip(result, results[0], strict=True)):
            if place < len(result) - 1:
                assert torch.equal(got, wanted), place
            else:  # a sum
                torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_interpreted_and_compiled_are_alike(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randn_like(x), torch.empty_like(x).exponential_(), x + torch.rand_like(x)

    x = torch.zeros(3000, dtype=dtype)
    program = program_of(f, x)
    results = []
    for run in (lambda inputs: interpret(program, inputs), compiled(program)):
        torch.manual_seed(1)
        results.append(run([x]))
    torch.testing.assert_close(results[1][:2], results[0][:2])
    assert torch.equal(results[1][2], results[0][2])


def test_seeds_repeat_and_calls_differ() -> None:
    run = fast(lambda: (torch.rand(50), torch.randn(50), torch.rand(50)))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = run(), run()
    torch.manual_seed(3)
    again = run()
    torch.set_rng_state(state)
    restored = run()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, restored, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[2])


@pytest.mark.parametrize("numerics", ["default", "bitwise"])
def test_other_numerics_keep_the_stream_of_eager(numerics: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), F.dropout(x, 0.4), torch.randint(9, (5,)), torch.bernoulli(x)

    x, results = torch.rand(40, 30), []
    run = torch.compile(f, backend="eqsat", options={"numerics": numerics})
    for each in (f, run):
        torch.manual_seed(2)
        results.append([*each(x), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_backward_of_dropout_has_the_mask_of_its_forward(dynamic: bool) -> None:
    run = fast(lambda x: F.dropout(x * 2, 0.25), dynamic=dynamic)
    for shape in ((64, 50), (33, 17)):
        x = torch.rand(shape, requires_grad=True) + 0.5
        x.retain_grad()
        out = run(x)
        out.sum().backward()
        kept = (out != 0).float()
        assert 0.6 < float(kept.mean()) < 0.9
        torch.testing.assert_close(out, x * 2 * kept / 0.75)
        torch.testing.assert_close(x.grad, 2 * kept / 0.75)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(rate: float) -> None:
    x = torch.rand(30, 4, requires_grad=True)
    out = fast(lambda x: F.dropout(x.sin(), rate))(x)
    out.sum().backward()
    torch.testing.assert_close(out, F.dropout(x.sin(), rate))
    torch.testing.assert_close(x.grad, torch.cos(x) * (1 - rate))


def part(x: torch.Tensor) -> torch.Tensor:
    noise = torch.rand_like(x) + torch.randint(3, x.shape) + torch.rand(x.shape)
    return F.dropout(x.sin() * noise, 0.5).cos() * x * torch.empty_like(x).bernoulli_(0.5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_checkpoint_makes_the_same_numbers_again(dynamic: bool) -> None:
    with recording() as reports:
        run = fast(lambda x: checkpoint(part, x, use_reentrant=False), dynamic=dynamic)
        x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
        state = torch.get_rng_state()
        (grad,) = torch.autograd.grad(run(x).sum(), x)
    targets = {e.target for report in reports for e in report.externs}
    assert targets == {"aten.randint.low", str(Seal()), str(Unseal())}
    step = 1e-6
    for place in ((0, 0), (3, 2), (8, 4)):
        sides = []
        for sign in (1, -1):
            moved = x.detach().clone()
            moved[place] += sign * step
            torch.set_rng_state(state)
            sides.append(run(moved.requires_grad_()).sum())
        slope = float(sides[0] - sides[1]) / (2 * step)
        assert float(grad[place]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_a_checkpoint_in_the_stream_of_eager() -> None:
    """Ops with one result, whose metadata the partitioner does not note."""
    x, grads = torch.randn(9, 5, requires_grad=True), []

    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(part, x, use_reentrant=False)

    for each in (torch.compile(run, backend="eqsat"), run):
        torch.manual_seed(3)
        out = each(x)
        torch.rand(2)  # draws in between
        grads.append((out, *torch.autograd.grad(out.sum(), x)))
    torch.testing.assert_close(grads[0], grads[1])


def test_a_seed_is_not_taken_for_a_state() -> None:
    seed = torch.tensor(-(2**63) + 5)
    assert torch.equal(Unseal()(Seal()(seed)), seed)
    with pytest.raises(RuntimeError):
        torch.set_rng_state(Seal()(seed))
    with pytest.raises(RuntimeError, match="unoptimised"):
        Unseal()(torch.get_rng_state())


def test_other_sizes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.rand_like(x), F.dropout(x, 0.5), torch.rand(x.shape[0], 3), torch.randn(())

    run = fast(f, dynamic=True)
    for shape in ((0, 4), (3, 0), (1, 1), (7, 4), (40, 31)):
        x = torch.ones(shape)
        got = run(x)
        assert [one.shape for one in got] == [one.shape for one in f(x)]
        assert bool(((got[0] >= 0) & (got[0] < 1)).all())
    assert got[0].unique().numel() > 1000


def test_a_given_generator_is_used() -> None:
    generator = torch.Generator().manual_seed(4)
    graph = make_fx(lambda: aten.rand.generator([4], generator=generator))()
    program = lower(
        graph, OpTable(book().ops), {one.name: one for one in book().scalars}, own_random=True
    )
    generator.manual_seed(4)
    assert torch.equal(
        interpret(program, [])[0], torch.rand(4, generator=torch.Generator().manual_seed(4))
    )
