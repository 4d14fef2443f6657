"""Numerics classes are measured; random rules, endless rules and wrong code are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from eqsat.check_command import CheckSettings, check_paths
from eqsat.engine.check import CheckResult, check_rule
from eqsat.engine.compiled import compiled_failures
from eqsat.engine.distribution import distribution_differs
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import Rule

TABLE = OpTable(load_book([RULES / "ops"]).ops)


def load_rules(tmp_path: Path, *bodies: str) -> tuple[Rule, ...]:
    path = tmp_path / "rules.yaml"
    heads = (f"- rule: rule-{at}\n  doc: A rule.\n{body}\n" for at, body in enumerate(bodies))
    path.write_text("".join(heads))
    return load_book([path], TABLE).rules


def write_body(variables: str, match: str, make: str, rest: str) -> str:
    return f"  vars:\n    {variables}\n  match: {match}\n  make: {make}\n{rest}"


def check(tmp_path: Path, variables: str, match: str, make: str, rest: str) -> CheckResult:
    (rule,) = load_rules(tmp_path, write_body(variables, match, make, rest))
    return check_rule(rule, TABLE, seed=1, examples=40)


CAST = ("x: float[m, n]", "cast(cast(x, bf16), f32)", "x", "  when:\n    - dtype(x) == f32\n")
MEAN = (
    "x: float[m, n]",
    "mean(x, dim=1)",
    "sum(x, dim=1) / n",
    "  when:\n    - dtype(x) == f32 and n > 2\n",
)


def test_fewer_roundings_are_measured(tmp_path: Path) -> None:
    rest = "  assumes: [no_overflow]\n  grad: false\n"
    tagged = check(tmp_path, *CAST[:3], CAST[3] + "  numerics: fewer_roundings\n" + rest)
    assert tagged.ok and tagged.measured == "fewer_roundings", tagged
    wide = "  numerics:\n    approximate: {rtol: 0.1, atol: 0.1}\n" + rest
    loose = check(tmp_path, *CAST[:3], CAST[3] + wide)
    assert any("fewer_roundings" in text for text in loose.warnings), loose


def test_a_rule_about_nothing_is_checked(tmp_path: Path) -> None:
    rest = "  when:\n    - n == 0\n  numerics: exact\n"
    right = check(tmp_path, "x: float[n]", "relu(x)", "x", rest)
    assert right.ok and right.examples > 0, right
    wrong = check(tmp_path, "x: float[n]", "relu(x)", "cast(x, f64)", rest)
    assert not wrong.ok and "dtype" in wrong.failures[0]


def test_more_roundings_are_not_fewer(tmp_path: Path) -> None:
    rest = MEAN[3] + "  assumes: [no_overflow]\n"
    wrong = check(tmp_path, *MEAN[:3], rest + "  numerics: fewer_roundings\n")
    assert not wrong.ok and "error against float64" in wrong.failures[0]
    right = check(tmp_path, *MEAN[:3], rest + "  numerics: reassociate\n")
    assert right.ok and right.measured == "reassociate", right


def test_a_signed_zero_is_measured(tmp_path: Path) -> None:
    body = ("x: float[...]", "x + 0.0", "x")
    assert not check(tmp_path, *body, "  numerics: exact\n").ok
    right = check(tmp_path, *body, "  numerics: signed_zero\n")
    assert right.ok and right.measured == "signed_zero" and not right.warnings
    loose = check(tmp_path, *body, "  numerics: reassociate\n")
    assert "tagged reassociate, but every example was signed_zero" in loose.warnings


def test_loose_tolerances_warn(tmp_path: Path) -> None:
    body = ("x: float[...]", "tanh(x)", "sigmoid(x * 2.0001) * 2.0 - 1.0")
    when = "  when:\n    - dtype(x) in (f32, f64)\n  assumes: [finite]\n  grad: false\n"
    wide = "  numerics:\n    approximate: {rtol: 10.0, atol: 10.0}\n"
    result = check(tmp_path, *body, when + wide)
    assert result.ok and any("of the tolerance" in text for text in result.warnings), result


@pytest.mark.parametrize(
    ("make", "right"),
    [
        ("1.0 - rand_like(x)", True),
        ("rand_like(x) * 1.1", False),
        ("rand_like(x) + 0.1", False),
        ("maximum(rand_like(x), rand_like(x))", False),
    ],
)
def test_distributions_are_compared(tmp_path: Path, make: str, right: bool) -> None:
    rest = "  when:\n    - dtype(x) in (f32, f64)\n  numerics: random\n  grad: false\n"
    result = check(tmp_path, "x: float[n]", "rand_like(x)", make, rest)
    assert result.ok == right, result
    assert right or "distributions are" in result.failures[0]


def test_dependence_between_draws_is_seen() -> None:
    def alone() -> torch.Tensor:
        return torch.rand(4)

    def together() -> torch.Tensor:
        return torch.rand(1).expand(4)

    assert distribution_differs(alone, alone, seed=0) is None
    assert distribution_differs(alone, together, seed=0) is not None


@pytest.mark.parametrize("seed", range(8))
def test_equal_distributions_pass_under_every_seed(seed: int) -> None:
    def dropped() -> torch.Tensor:
        return torch.nn.functional.dropout(torch.ones(6), 0.3)

    def other() -> torch.Tensor:
        return torch.nn.functional.dropout(torch.ones(6), 0.4)

    assert distribution_differs(dropped, dropped, seed) is None
    assert distribution_differs(dropped, other, seed) is not None


ENDLESS = (
    "x: float[...]",
    "exp(x)",
    "exp(x - 1.0) * 2.718281828459045",
    "  when:\n    - dtype(x) == f64\n  numerics: reassociate\n  assumes: [finite, no_overflow]\n",
)
OVER = "exp2(x * 1.4426950408889634)"
BACK = "exp((x - 1.0) * 0.6931471805599453) * 2.0"


def test_a_rule_that_runs_away_alone_fails(tmp_path: Path) -> None:
    result = check(tmp_path, *ENDLESS)
    assert any("runs away" in text and "rounds" in text for text in result.failures), result


def test_a_rule_that_runs_away_with_another_warns(tmp_path: Path) -> None:
    one, two = load_rules(
        tmp_path,
        write_body("x: float[...]", "exp(x)", OVER, ENDLESS[3]),
        write_body("x: float[...]", "exp2(x)", BACK, ENDLESS[3]),
    )
    alone = check_rule(one, TABLE, seed=1, examples=20)
    assert not any("runs away" in text for text in (*alone.failures, *alone.warnings)), alone
    beside = check_rule(one, TABLE, seed=1, examples=20, beside=[two])
    assert any("runs away together with rule-1" in text for text in beside.warnings), beside


Outputs = Callable[[list[Any]], Sequence[Any]]


def compile_off_by_one(gm: fx.GraphModule) -> Outputs:
    def run(inputs: list[Any]) -> Sequence[Any]:
        return [value + (value.numel() == 6) for value in gm(*inputs)]

    return run


def compile_no_exp(gm: fx.GraphModule) -> Outputs:
    if any("exp" in str(node.target) for node in gm.graph.nodes):
        raise ValueError("no exp here")
    return lambda inputs: list(gm(*inputs))


def test_wrong_code_is_found_for_each_rule(tmp_path: Path) -> None:
    rest = "  when:\n    - dtype(x) == f32\n  numerics: exact\n"
    rules = load_rules(
        tmp_path,
        write_body("x: float[2, 3]", "neg(neg(x))", "x", rest),
        write_body("x: float[2, 2]", "abs(abs(x))", "abs(x)", rest),
        write_body("x: float[2, 2]", "exp(abs(x))", "exp(abs(x))", rest).replace(
            "exp(abs(x))", "exp(abs(abs(x)))", 1
        ),
    )
    pairs = [(rule, TABLE) for rule in rules]
    assert not compiled_failures(pairs, lambda gm: lambda inputs: list(gm(*inputs)))
    wrong = compiled_failures(pairs, compile_off_by_one)
    assert list(wrong) == ["rule-0"] and "side is wrong" in wrong["rule-0"]
    program = wrong["rule-0"][wrong["rule-0"].index("import torch") :]
    planted = "backend=lambda gm, _: lambda *a: tuple(t + 1 for t in gm(*a))"
    options = 'backend="eqsat", options={"disable": ["*"]}'
    assert options in program
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        exec(program.replace(options, planted), {})
    refused = compiled_failures(pairs, compile_no_exp)
    assert list(refused) == ["rule-2"] and "no exp here" in refused["rule-2"]


def test_a_check_compiles_with_the_real_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = "  when:\n    - dtype(x) == f32\n  numerics: exact\n"
    load_rules(tmp_path, write_body("x: float[m, n]", "neg(neg(x))", "x", rest))
    settings = CheckSettings(examples=8, compiled=None)
    assert check_paths([str(tmp_path / "rules.yaml")], settings) == 0
    assert "1 compiled, 0 wrong" in capsys.readouterr().out
