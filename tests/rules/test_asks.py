"""What people asked of Inductor's pattern matcher and could not have, as rules.

docs/for_inductor_users.md tells of each; these are the programs behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

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
    )
    assert found["product-of-exps"] == 2
