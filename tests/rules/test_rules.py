"""Every built-in rule means what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from eqsat.engine.check import check_rule
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import Rule

BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Examples are tiny: handing them to threads costs more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("rule", BOOK.rules, ids=lambda rule: rule.name)
def test_both_sides_are_equal(rule: Rule) -> None:
    result = check_rule(rule, TABLE, seed=0, examples=10)
    assert result.ok, f"{rule.where} {rule.name}: " + "\n".join(result.failures)


@pytest.mark.slow
@pytest.mark.parametrize("rule", BOOK.rules, ids=lambda rule: rule.name)
def test_both_sides_are_equal_in_many_examples(rule: Rule) -> None:
    result = check_rule(rule, TABLE, seed=1, examples=200)
    assert result.ok, f"{rule.where} {rule.name}: " + "\n".join(result.failures)
