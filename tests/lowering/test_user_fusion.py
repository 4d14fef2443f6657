"""Fusion rules of the user's own: what may not be joined, what should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eqsat.engine.load import builtin_book, load_book
from eqsat.lowering.fusion_words import check_fusion_rules, fact_rows
from eqsat.lowering.pair_facts import FACTS
from eqsat.reports import recording

FORBID = """
- forbid: softmax-alone
  doc: The softmax is to be seen alone in a profile.
  producer: any
  consumer: any
  when:
    - {condition}
"""


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Tanh())
        self.second = torch.nn.Softmax(dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) * 3.0 + 1.0


def compiled(folder: Path, text: str, fn: Any, *args: torch.Tensor) -> Any:
    """The fusion report of the one graph of `fn`, with the rules of `text`."""
    path = folder / "mine.yaml"
    path.write_text(text)
    torch._dynamo.reset()
    with recording() as reports, torch.no_grad():
        made = torch.compile(fn, backend="eqsat", options={"rules": [str(path)], "strict": True})
        torch.testing.assert_close(made(*args), fn(*args))
    return next(report.fusion for report in reports if report.fusion is not None)


@pytest.mark.parametrize(
    ("condition", "apart"),
    [
        ("does(consumer, 'softmax')", True),
        ("does(consumer, 'Softmax')", True),
        ("does(consumer, 'soft*')", True),
        ("within(consumer, 'second')", True),
        ("does(producer, 'tanh') and not within(consumer, 'first*')", True),
        ("does(consumer, 'gelu')", False),
        ("within(consumer, 'third')", False),
    ],
)
def test_forbid_by_call_and_module(tmp_path: Path, condition: str, apart: bool) -> None:
    text = FORBID.replace("{condition}", condition)
    fusion = compiled(tmp_path, text, Block(), torch.randn(8, 40))
    assert (fusion.after > 1) == apart
    if apart:
        named = [pair for pair in fusion.rejected if pair.rule.endswith("softmax-alone")]
        assert named and all(pair.values for pair in named)


def test_avoid_is_heard_as_forbid_is(tmp_path: Path) -> None:
    text = FORBID.replace("forbid:", "avoid:").replace("{condition}", "does(consumer, 'softmax')")
    fusion = compiled(tmp_path, text, Block(), torch.randn(8, 40))
    assert fusion.after > 1
    assert any(pair.rule.endswith("softmax-alone") for pair in fusion.rejected)


def test_what_is_not_worth_it_is_left_apart(tmp_path: Path) -> None:
    """`worth` of a rule of one's own; its words are checked as those of `when` are."""
    rule = """
- fuse: small-ones
  doc: Small nests of one shape run in one loop.
  producer: pointwise
  consumer: pointwise
  when:
    - independent(producer, consumer)
    - alike(producer, consumer)
  worth:
    - {limit}
  gain: 4096
"""
    args = torch.randn(64, 6), torch.randn(64, 6), torch.randn(6)
    for limit, count in (("bytes(producer) < 10000", 1), ("bytes(producer) < 10", 2)):
        assert compiled(tmp_path, rule.replace("{limit}", limit), apart, *args).after == count
    path = tmp_path / "odd.yaml"
    path.write_text(rule.replace("{limit}", "byte(producer) < 10"))
    (found,) = check_fusion_rules(load_book([path]).fuse)
    assert (found.code, found.span.line) == ("E502", 10)


HELD = Block()


def test_a_module_held_in_a_global_has_the_same_paths(tmp_path: Path) -> None:
    text = FORBID.replace("{condition}", "within(consumer, 'second')")
    assert compiled(tmp_path, text, lambda x: HELD(x), torch.randn(8, 40)).after > 1


def apart(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> Any:
    """Two nests that have little memory in common."""
    return torch.sin(x + bias), torch.cos(y + bias)


def test_prefer_joins_what_gains_nothing_by_itself(tmp_path: Path) -> None:
    args = torch.randn(64, 6), torch.randn(64, 6), torch.randn(6)
    allow = """
- fuse: side-by-side
  doc: May run in one loop.
  producer: pointwise
  consumer: pointwise
  when:
    - independent(producer, consumer)
    - same_rows(producer, consumer)
    - same_columns(producer, consumer)
  gain: -1
"""
    like = """
- prefer: sin-with-cos
  doc: These two are wanted together.
  producer: pointwise
  consumer: pointwise
  when:
    - does(producer, 'sin') and does(consumer, 'cos')
  gain: 4096
"""
    assert compiled(tmp_path, allow, apart, *args).after == 2
    assert compiled(tmp_path, allow + like, apart, *args).after == 1
    assert compiled(tmp_path, allow + like.replace("'cos'", "'tan'"), apart, *args).after == 2


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("doez(producer, 'softmax')", "E502"),
        ("does(producer)", "E505"),
        ("does('softmax', producer)", "E505"),
        ("readers(producer, consumer) > 1", "E505"),
    ],
)
def test_wrong_words_are_found(tmp_path: Path, condition: str, code: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FORBID.replace("{condition}", condition))
    found = check_fusion_rules(load_book([path]).fuse)
    assert [problem.code for problem in found] == [code]
    assert found[0].span.line == 7


def test_the_built_in_rules_use_known_words() -> None:
    assert not check_fusion_rules(builtin_book().fuse)
    rows = list(fact_rows())
    assert [name for name, _, _ in rows] == list(FACTS)
    assert all(text for _, _, text in rows)
