"""Random programs do what eager does; and the generator, the oracle and the shrinker are worth
their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsat
from eqsat.lowering import lower
from eqsat.tests.fuzz import graphs
from eqsat.tests.fuzz.announced import Look, announced, laid_out, traced
from eqsat.tests.fuzz.compare import Complaint, compare, wrong_elements
from eqsat.tests.fuzz.generate import generate
from eqsat.tests.fuzz.graphs import Finding, examine_all, examine_program, write
from eqsat.tests.fuzz.kinds.table import KINDS
from eqsat.tests.fuzz.noise import Noise
from eqsat.tests.fuzz.oracle import Verdict, judge
from eqsat.tests.fuzz.outcome import Outcome, run_eager
from eqsat.tests.fuzz.programs import Input, Program, Settings, Statement, read_program
from eqsat.tests.fuzz.shrink import needed, shrink
from eqsat.tests.pack_files import marker
from eqsat.tests.pack_files import write as write_rules

QUICK = range(1000, 1014)


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    return [generate(seed) for seed in range(200)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def program_of(*lines: str, outputs: str, inputs: dict[str, str], **more: Any) -> Program:
    return Program(
        ("n0",),
        ((6,),),
        tuple(Input(name, text) for name, text in inputs.items()),
        tuple(map(Statement, lines)),
        tuple(outputs.split()),
        **more,
    )


A = {"a": "tensor((n0, 4), torch.float32, 1)"}
AB = {**A, "b": "tensor((n0, 4), torch.float32, 2)"}


# The generator.


def test_a_seed_gives_one_program(programs: list[Program]) -> None:
    torch.manual_seed(5)
    assert [generate(seed).source() for seed in (7, 3, 7)] == [
        programs[seed].source() for seed in (7, 3, 7)
    ]
    state = torch.random.get_rng_state()
    generate(11)
    assert torch.equal(state, torch.random.get_rng_state())


def test_programs_run_twice_alike(programs: list[Program]) -> None:
    """In eager; but for those few that raise on purpose."""
    failures = 0
    for program in programs:
        raises = any(statement.kind == "raising" for statement in program.statements)
        first, second = run_eager(program), run_eager(program)
        raised = [outcome.error for outcome in first]
        failures += raised != [None] * len(raised) and not raises
        assert compare(first, second) == []
    assert failures < 0.05 * len(programs)


def test_programs_are_mixed(programs: list[Program]) -> None:
    kinds = Counter(statement.kind for program in programs for statement in program.statements)
    missing = set(KINDS) - set(kinds)
    extra = (generate(seed) for seed in range(len(programs), 5000))
    while missing:  # the rare ones take a few more
        missing -= {statement.kind for statement in next(extra).statements}
    lengths = [len(program.statements) for program in programs]
    assert min(lengths) >= 1 and max(lengths) > 40
    settings = [program.settings for program in programs]
    for name in ("backward", "grad_mode", "dynamic", "extraction", "interpreted"):
        assert len({getattr(entry, name) for entry in settings}) > 1
    assert any(0 in call for program in programs for call in program.calls)
    assert any(len(set(program.calls)) > 1 for program in programs)


def test_source_is_the_program(programs: list[Program]) -> None:
    for program in programs[:50]:
        again = read_program(program.source())
        assert read_program(again.source()) == again
        assert compare(run_eager(program), run_eager(again)) == []


# The oracle.


def test_random_programs_do_what_eager_does() -> None:
    found = list(examine_all(QUICK, jobs=0))
    assert [str(finding) for finding in found if finding.program is not None] == []


@pytest.fixture
def wrong_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that leaves long dims as they are."""
    right = lower.PYTHON["flip"]

    def flip(work: Any, node: Any, x: Any, dims: Any) -> Any:
        long = all(isinstance(x.shape[dim], int) and x.shape[dim] > 2 for dim in dims)
        return right(work, node, x, [] if long else dims)

    monkeypatch.setitem(lower.PYTHON, "flip", flip)  # type: ignore[arg-type]


def first_failure(start: int, wanted: str) -> Finding:
    """That of the first short program with this text that fails; none of them is built."""
    for seed in range(start, start + 400):
        program = generate(seed).with_settings(interpreted=True, extraction="cheapest")
        if wanted in program.function() and len(program.statements) < 25:
            finding = examine_program(seed, program)
            if finding.program is not None:
                return finding
    raise AssertionError("no program failed")


def test_a_wrong_lowering_is_found_and_cut_out(wrong_flip: None, tmp_path: Path) -> None:
    finding = first_failure(2000, "torch.flip(")
    program = finding.program
    assert program is not None and len(program.statements) <= 3
    assert "flip" in program.function() and "values" in finding.text
    path = write(finding, tmp_path)
    assert graphs.main(["--run", str(path)]) == 1


def test_a_right_lowering_passes_what_was_cut_out(tmp_path: Path) -> None:
    program = program_of("v1 = torch.flip(a, (0,))", outputs="v1", inputs=A)
    path = write(Finding(1, "differs", "text", program), tmp_path)
    assert graphs.main(["--run", str(path)]) == 0


def test_a_wrong_rule_is_found_and_cut_out(tmp_path: Path) -> None:
    rules = write_rules(tmp_path / "wrong.yaml", marker(1, op="erf"))
    with eqsat.options(rules=[rules]):
        finding = first_failure(2038, "torch.erf(")
    assert finding.program is not None and len(finding.program.statements) <= 3
    assert "erf" in finding.program.function()


PROPERTIES: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "values": ("a + 1", lambda a: a + 1.001),
    "metadata": ("a + 1", lambda a: (a + 1).double()),
    "strides": ("a + 1", lambda a: (a + 1).t().contiguous().t()),
    "requires_grad": ("a + 1", lambda a: (a + 1).requires_grad_()),
    "aliasing": ("a.t()", lambda a: a.t().clone(memory_format=torch.preserve_format)),
    "error": ("a + 1", lambda a: a[9]),
    "generator": ("a + 1", lambda a: a + 1 + 0 * torch.rand(())),
    "value": ("a.shape[0]", lambda a: float(a.shape[0])),
}


@pytest.mark.parametrize("what", PROPERTIES)
def test_each_property_is_compared(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that gets one property wrong, and it alone, is told just that."""
    text, wrong = PROPERTIES[what]
    program = program_of(f"v1 = {text}", outputs="v1", inputs=A)
    assert judge(program).kind == "same"

    def compiled(function: Any, backend: str = "", **_: Any) -> Any:
        return (lambda a: (wrong(a),)) if backend == "eqsat" else function

    monkeypatch.setattr(torch, "compile", compiled)
    verdict = judge(program)
    assert verdict.fails and verdict.signature() == {what}


def test_writes_beside_an_input_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"a": "tensor((n0,), torch.float32, 1, 'tame', 'strided')"}
    program = program_of("a.add_(1)", "v1 = a * 2", outputs="v1", inputs=inputs)
    assert judge(program).kind == "same"

    def compiled(function: Any, backend: str = "", **_: Any) -> Any:
        def run(a: torch.Tensor) -> Any:
            result = function(a)
            a.as_strided((1,), (1,), 1).fill_(7)  # between the first two elements
            return result

        return run if backend == "eqsat" else function

    monkeypatch.setattr(torch, "compile", compiled)
    assert [(one.place, one.what) for one in judge(program).complaints] == [
        ("call 0, input 0", "values")
    ]


def test_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"a": "tensor((n0, 4), torch.float32, 1).requires_grad_()"}
    program = program_of(
        "v1 = a.sin()", outputs="v1", inputs=inputs, settings=Settings(backward=True)
    )
    assert judge(program).kind in ("same", "close")

    def compiled(function: Any, backend: str = "", **_: Any) -> Any:
        def run(a: torch.Tensor) -> Any:
            b = a * 2
            return (function(a)[0].detach() + b - b.detach(),)

        return run if backend == "eqsat" else function

    monkeypatch.setattr(torch, "compile", compiled)
    assert {one.place for one in judge(program).complaints} == {"call 0, gradient 0"}


def test_what_torch_announces_otherwise_is_no_failure() -> None:
    """Its kernel leaves an empty tensor as it is, its metadata functions do not."""
    inputs = {"a": "tensor((0, 2, 2, 2), torch.float32, 1)"}
    program = program_of("v1 = F.pixel_unshuffle(a, 2)", outputs="v1", inputs=inputs)
    (look,) = announced(program)[0]
    assert look is not None and look.shape == (0, 8, 1, 1)
    verdict = judge(program)
    assert (verdict.kind, verdict.signature()) == ("torch", {"metadata"})


def test_strides_of_the_traced_graph() -> None:
    """Where a graph says other strides than the op gives, its results are laid out as it says."""
    program = program_of("v1 = a.sin().t()", "v2 = a + 1", outputs="v1", inputs=A)
    eager = run_eager(program)[0].outputs[0]
    assert traced(program)[0][0] == Look(tuple(eager.value.shape), torch.float32, eager.stride)
    turned = laid_out(torch.ones(2, 3), torch.empty(3, 2, device="meta").t())
    assert turned.stride() == (1, 2) and bool((turned == 1).all())


def test_what_torch_itself_changes_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of("v1 = a + 1", outputs="v1", inputs=A)
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda a: (a + 2,))
    assert judge(program).kind == "torch"


# Noise.


def outcomes(program: Program, count: int = 20) -> tuple[Outcome, list[Outcome]]:
    (eager,) = run_eager(program)
    return eager, [run_eager(program, Noise(seed))[0] for seed in range(count)]


def test_noise_shows_what_rounding_decides() -> None:
    """Sums of three in two orders differ in few places: there comparisons are not held against
    a compiler, elsewhere they are."""
    program = program_of("v1 = (a + b + 0.1) > (b + 0.1 + a)", outputs="v1", inputs=AB)
    eager, noisy = outcomes(program)
    samples = [outcome.outputs[0].value for outcome in noisy]
    flipped = ~eager.outputs[0].value
    wrong = wrong_elements(eager.outputs[0].value, flipped, samples)
    assert not wrong.all()
    program = program_of("v1 = a > b", outputs="v1", inputs=AB)
    eager, noisy = outcomes(program)
    samples = [outcome.outputs[0].value for outcome in noisy]
    assert wrong_elements(eager.outputs[0].value, ~eager.outputs[0].value, samples).all()


@pytest.mark.parametrize("text", ["a.t()[1:]", "a.neg().relu()", "torch.where(a > 0, a, b)"])
def test_noise_leaves_alone_what_is_exact(text: str) -> None:
    program = program_of(f"v1 = {text}", "v2 = v1 * 2", outputs="v1 v2", inputs=AB)
    eager, noisy = outcomes(program, 3)
    assert compare([eager], [noisy[0]]) == []


def test_noise_grows_where_rounding_errors_grow() -> None:
    """Large numbers that cancel may differ by much, small ones may not."""
    program = program_of(
        "v1 = (a * 1e4).sum(0) - (a.flip(0) * 1e4).sum(0)", "v2 = a.sum(0)",
        outputs="v1 v2", inputs=A,
    )  # fmt: skip
    eager, noisy = outcomes(program)
    for place, allowed in ((0, 1e-3), (1, 1e-8)):
        value = eager.outputs[place].value
        samples = [outcome.outputs[place].value for outcome in noisy]
        assert not wrong_elements(value, value + allowed, samples).any()
        assert wrong_elements(value, value + 1e5 * allowed, samples).all()


def test_elements_without_noise_are_exact() -> None:
    a = torch.tensor([1.0, float("nan"), float("inf"), 0.0])
    for place, other in enumerate((2.0, 1.0, float("nan"), -0.0)):
        b = a.clone()
        b[place] = other
        assert wrong_elements(a, b, [a, a]).nonzero().tolist() == [[place]]
        assert not wrong_elements(a, b, [a, b * 1]).any() or place == 0


# The shrinker.


def test_shrinking_keeps_what_fails() -> None:
    lines = [f"v{k} = {'a' if k == 1 else f'v{k - 1}'} * 2 + b" for k in range(1, 20)]
    lines[9] = "v10 = v9.cumsum(0)"
    program = program_of(*lines, outputs="v5 v19 v10", inputs=AB)

    def fails(candidate: Program) -> bool:
        return "cumsum" in candidate.function() and run_eager(candidate)[0].error is None

    smaller = shrink(program, fails)
    assert [statement.text for statement in smaller.statements] == ["v10 = v9.cumsum(0)"]
    assert smaller.outputs == ("v10",) and smaller.calls == ((1,),)


def test_writes_in_place_stay_with_their_target() -> None:
    program = program_of("v1 = a * 2", "v1.add_(b)", "v2 = b * 3", outputs="v1", inputs=AB)
    assert [statement.text for statement in needed(program).statements] == [
        "v1 = a * 2",
        "v1.add_(b)",
    ]


# The command.


def test_lost_processes_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(seed: int) -> Finding:
        import os  # noqa: PLC0415 - in the forked process

        os._exit(3) if seed == 5 else None
        return Finding(seed, "same")

    monkeypatch.setattr(graphs, "examine", crash)
    found = list(examine_all([4, 5, 6], jobs=1))
    assert [finding.kind for finding in found] == ["same", "lost", "same"]


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    program = program_of("v1 = a + 1", outputs="v1", inputs=A)
    kinds = {1: Finding(1, "same"), 2: Finding(2, "differs", str(_verdict()), program)}
    monkeypatch.setattr(graphs, "examine_all", lambda seeds, jobs: map(kinds.get, seeds))
    arguments = ["--count", "1", "--out", str(tmp_path), "--seed"]
    assert graphs.main([*arguments, "1"]) == 0
    assert graphs.main([*arguments, "2"]) == 1
    said = capsys.readouterr().out
    assert str(tmp_path / "program_2.py") in said and "seed 2" in said


def _verdict() -> Verdict:
    return Verdict("differs", (Complaint("call 0, output 0", "values", "1 of 2"),))
