"""What people asked of Inductor's pattern matcher and could not have, as rules.

docs/for_inductor_users.md tells of each; these are the programs behind it.
"""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.fx_passes import fuse_attention

import eqsat
from eqsat.cli import main
from eqsat.reports import CompileReport, recording


def run(
    fn: Callable[..., Any],
    *args: Any,
    rules: str = "",
    folder: Path | None = None,
    dynamic: bool | None = False,
    **options: Any,
) -> tuple[Counter[str], list[CompileReport]]:
    """Compiles, compares with eager, and gives how often each rule is in the result."""
    if rules:
        assert folder is not None
        path = folder / "mine.yaml"
        path.write_text(rules)
        options["rules"] = [str(path)]
    torch._dynamo.reset()
    with recording() as reports, torch.no_grad():
        made = torch.compile(
            fn, backend="eqsat", dynamic=dynamic, options={"strict": True, **options}
        )
        torch.testing.assert_close(made(*args), fn(*args))
    return kept(reports), reports


def kept(reports: list[CompileReport]) -> Counter[str]:
    found: Counter[str] = Counter()
    for report in reports:
        for stage in report.stages:
            for firing in stage.firings:
                found[firing.rule.split(":")[-1]] += firing.kept
    return found


def fired(reports: list[CompileReport]) -> set[str]:
    """Names of the rules that fired, chosen or not, without their pack."""
    stages = [stage for report in reports for stage in report.stages]
    return {firing.rule.split(":")[-1] for stage in stages for firing in stage.firings}


MISH = """
- rule: mish-from-parts
  doc: x times the tanh of softplus is mish.
  vars:
    x: float[...]
  match: x * tanh(softplus(x))
  make: mish(x)
  numerics: reassociate
"""


def mish_by_hand(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(F.softplus(x))


SCRIPT = """
import torch
import torch.nn.functional as F

def program(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) * 0.125
    return torch.matmul(F.softmax(scores, dim=-1), v)

compiled = torch.compile(program, backend="eqsat")
with torch.no_grad():
    compiled(*(torch.randn(2, 4, 130, 64) for _ in range(3)))
"""

ASKED = ("--why-not", "sdpa-from-torch-scaled")


def answer(
    folder: Path, capsys: pytest.CaptureFixture[str], script: str, *arguments: str, **options: Any
) -> str:
    path = folder / "program.py"
    path.write_text(script)
    with eqsat.options(**options):
        assert main(["explain", str(path), *arguments]) == 0
    return capsys.readouterr().out


def test_row_1_the_condition_that_failed_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = SCRIPT.replace("64)", "512)")
    found = answer(tmp_path, capsys, wide, *ASKED, numerics="fast")
    assert "ops matched, then: d <= 256" in found and "(d = 512" in found


def test_row_2_the_part_that_does_not_match_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = SCRIPT.replace("dim=-1", "dim=-2")
    assert "the constants of F.softmax" in answer(tmp_path, capsys, other, *ASKED, numerics="fast")
    assert "nothing proves what it assumes (finite)" in answer(tmp_path, capsys, SCRIPT, *ASKED)
    assert "fired once, kept 1" in answer(tmp_path, capsys, SCRIPT, *ASKED, numerics="fast")


HALVES = {7, 8, 9, 10}  # patterns of Inductor that cast their softmax to f16


def spelling(number: int) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A pattern of Inductor as a program of the user's, with arguments it can take."""
    found = getattr(fuse_attention, f"_sfdp_pattern_{number}")
    names = {"__name__": "patterns", "__package__": None}
    code = found.__code__.replace(co_filename="patterns.py")  # Dynamo skips files of Inductor
    fn = types.FunctionType(code, {**found.__globals__, **names})
    batch, heads, length, size = 2, 4, 48, 32
    turned = "permute([0, 2, 1, 3])" in inspect.getsource(found)
    shape = (batch, length, heads, size) if turned else (batch, heads, length, size)
    values: dict[str, Any] = {}
    for name in inspect.signature(found).parameters:
        if name in ("query", "key", "value"):
            dtype = torch.float16 if number in HALVES else torch.float32
            values[name] = torch.randn((8, 48, 48) if number == 13 else shape, dtype=dtype)
        elif "scale" in name or "dropout" in name:
            values[name] = 0.0 if "dropout" in name else 5.5
        elif number in (15, 17, 20):
            values[name] = (torch.rand(batch, length) > 0.2).float()
        elif name == "causal_mask":
            values[name] = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
        else:
            values[name] = torch.randn(1, 1, length, length)
    return fn, values


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 31))
def test_row_6_one_rule_for_each_idea_and_not_for_each_spelling(number: int) -> None:
    if number == 28:  # pattern 4 with other strides
        fn, values = spelling(4)
        for name in ("query", "key", "value"):
            values[name] = values[name].transpose(1, 2).contiguous().transpose(1, 2)
    else:
        fn, values = spelling(number)
    torch._dynamo.reset()
    with recording() as reports, torch.no_grad():
        made = torch.compile(fn, backend="eqsat", options={"strict": True, "numerics": "fast"})
        torch.testing.assert_close(made(**values), fn(**values), rtol=5e-2, atol=2e-3)
    assert any("scaled_dot_product" in extern.target for r in reports for extern in r.externs)


def test_row_11_a_rule_that_is_wrong_is_named_and_left_out(tmp_path: Path) -> None:
    rules = """
- rule: sine-wrong
  doc: Not true, and not even of the same shape.
  vars:
    x: float[m, n]
  match: sin(x)
  make: cos(sum(x, 1))
  numerics: exact
"""
    with pytest.warns(UserWarning, match=r"rule mine:sine-wrong .* is wrong here"):
        _, reports = run(torch.sin, torch.randn(8, 6), rules=rules, folder=tmp_path, strict=False)
    disabled = [one for report in reports for stage in report.stages for one in stage.disabled]
    assert [one.rule for one in disabled] == ["mine:sine-wrong"]
    assert disabled[0].where.endswith("mine.yaml:2") and "float32[8]" in disabled[0].reason


def test_row_20_one_line_for_each_pair_left_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
import torch

compiled = torch.compile(lambda x: torch.softmax(x, -1).mean(1), backend="eqsat")
with torch.no_grad():
    compiled(torch.randn(16, 30, 20))
"""
    (line,) = answer(tmp_path, capsys, script, "--rejected", "--node", "mean").splitlines()
    assert "_softmax = aten._softmax, mean = aten.mean]" in line
    assert "(rules/fusion/joining.yaml:" in line and "same_rows(producer, consumer) = False" in line
    nothing = answer(tmp_path, capsys, script, "--rejected", "--node", "aten.gelu")
    assert nothing == "no pair that was left apart holds 'aten.gelu'\n"


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) * 0.125
    return torch.matmul(torch.softmax(scores, dim=-1), v)


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_3_and_4_dynamic_sizes_do_not_break_a_match(dynamic: bool) -> None:
    args = [torch.randn(2, 4, length, 64) for length in (160, 130, 130)]
    if dynamic:  # the lengths; the size of a head is a fixed number of the model
        for arg in args:
            torch._dynamo.mark_dynamic(arg, 2)
    found, reports = run(attention, *args, dynamic=None, numerics="fast")
    assert [name for name in found if name.startswith("sdpa-from") and found[name]]
    assert any("scaled_dot_product" in extern.target for r in reports for extern in r.externs)


def test_row_8_an_argument_may_be_called_out(tmp_path: Path) -> None:
    def program(out: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        return mish_by_hand(out) + input

    found, _ = run(program, torch.randn(9), torch.randn(9), rules=MISH, folder=tmp_path)
    assert found["mish-from-parts"] == 1


TWO_SUMS = """
- rule: sums-merge
  doc: Two row sums of one tensor, scaled, become one sum.
  vars:
    x: float[m, n]
  match:
    first: sum(x * 2.0, 1)
    second: sum(x * 4.0, 1)
  let:
    total: sum(x, 1)
  make:
    first: total * 2.0
    second: total * 4.0
  numerics: reassociate
"""


def test_row_9_roots_far_apart_keep_the_order_of_the_graph(tmp_path: Path) -> None:
    """`second` is read by what `first` needs nothing of, and the other way round."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = (x * 2.0).sum(1)
        between = torch.tanh(y * first)
        second = (x * 4.0).sum(1)
        return between * second + first

    args = torch.randn(5, 300), torch.randn(5)
    found, _ = run(program, *args, rules=TWO_SUMS, folder=tmp_path)
    assert found["sums-merge"] >= 1


def test_row_12_a_pattern_still_sees_what_other_rules_rewrote(tmp_path: Path) -> None:
    """silu-split opens silu before the user's folder comes; the composite stays in sight."""
    rules = """
- rule: swiglu-as-mish
  doc: Stands for a kernel of the user that takes both operands.
  vars:
    x: float[...]
    y: float[...]
  match: silu(x) * y
  make: where(ge(x, -inf), x * sigmoid(x) * y, x * sigmoid(x) * y)
  numerics: reassociate
"""
    args = torch.randn(33), torch.randn(33)
    _, reports = run(lambda x, y: F.silu(x) * y, *args, rules=rules, folder=tmp_path)
    assert {"silu-split", "swiglu-as-mish"} <= fired(reports)


def test_row_13_a_decomposition_can_be_switched_off() -> None:
    x = torch.randn(64, 32)
    _, with_rule = run(F.silu, x)
    _, without = run(F.silu, x, disable=["silu-split"])
    names = [
        {f.rule for r in rs for s in r.stages for f in s.firings} for rs in (with_rule, without)
    ]
    assert "silu-split" in names[0] and "silu-split" not in names[1]


def test_row_16_a_number_in_a_pattern_is_a_typed_variable(tmp_path: Path) -> None:
    rules = """
- rule: scaled-softmax
  doc: A positive scale of the logits moves into the shift-free form.
  vars:
    x: float[m, n]
    scale: const:float
  match: softmax(x * scale, 1)
  when:
    - scale > 0
  let:
    top: amax(x, 1, keepdim=True)
  make: softmax((x - top) * scale, 1)
  numerics: reassociate
  assumes: [finite]
"""
    x = torch.randn(6, 11)
    for scale in (0.5, 3.0):
        _, reports = run(
            lambda x, scale=scale: torch.softmax(x * scale, 1),
            x,
            rules=rules,
            folder=tmp_path,
            numerics="fast",
        )
        assert "scaled-softmax" in fired(reports)
    _, reports = run(
        lambda x: torch.softmax(x * -1.0, 1), x, rules=rules, folder=tmp_path, numerics="fast"
    )
    assert "scaled-softmax" not in fired(reports)


def test_row_17_views_and_clones_between_do_not_hide_a_pattern(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        soft = F.softplus(x).clone().view(4, 6).reshape(-1)
        return x * torch.tanh(soft[:]).contiguous()

    found, _ = run(program, torch.randn(24), rules=MISH, folder=tmp_path)
    assert found["mish-from-parts"] == 1


def test_row_18_overlapping_matches_are_both_there(tmp_path: Path) -> None:
    """a*b*c holds a*b and b*c; each is a match of its own."""
    rules = """
- rule: product-of-exps
  doc: A product of exponentials is the exponential of a sum.
  vars:
    x: float[...]
    y: float[...]
  match: exp(x) * exp(y)
  when:
    - same_dtype(x, y)
  make: exp(x + y)
  numerics: reassociate
  assumes: [finite]
"""
    args = [torch.randn(8) for _ in range(3)]
    found, _ = run(
        lambda a, b, c: torch.exp(a) * torch.exp(b) * torch.exp(c),
        *args,
        rules=rules,
        folder=tmp_path,
        numerics="fast",
        disable=["mul-of-exponentials*"],
    )
    assert found["product-of-exps"] == 2
