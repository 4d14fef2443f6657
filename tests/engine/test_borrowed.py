"""Entries of kind `decompose`: torch's own decompositions, named in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eqsat.config import resolve
from eqsat.engine.borrowed import WRONG
from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.profile import select
from eqsat.engine.source import RuleErrors
from eqsat.reports import recording
from eqsat.session import open_session

aten = torch.ops.aten
PACK = """
- decompose: my-losses
  doc: A loss that torch spells in plain arithmetic.
  aten: [multi_margin_loss.default]
  numerics: reassociate
"""
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def decompositions(**options: Any) -> set[Any]:
    return set(open_session(resolve(None, options), lambda text: pytest.fail(text)).decompositions)


def test_a_pack_names_more_and_disable_fewer(tmp_path: Path) -> None:
    path = tmp_path / "pack.yaml"
    path.write_text(PACK)
    target = aten.multi_margin_loss.default
    assert target not in decompositions()
    assert target in decompositions(rules=str(path))
    assert target not in decompositions(rules=str(path), disable=["pack:my-losses"])
    assert aten.isin.Tensor_Tensor in decompositions()
    assert aten.isin.Tensor_Tensor not in decompositions(disable=["trace/torch-indices"])


def test_a_profile_keeps_what_it_allows() -> None:
    book = builtin_book()
    exact = {entry.name for entry in book.decompose if entry.numerics.float_class == "exact"}
    assert exact
    assert {entry.name for entry in select(book, "bitwise").decompose} == exact
    assert select(book, "default").decompose == book.decompose


def test_own_rules_come_first() -> None:
    """torch's decomposition of a loss is tried where the rule's conditions fail."""
    session = open_session(resolve(None, None), lambda _: None)
    function = session.decompositions[aten.mse_loss_backward.default]
    g, x = torch.tensor(0.5), torch.randn(3)
    wanted = aten.mse_loss_backward(g, x, x + 1, 1)
    torch.testing.assert_close(function(g, x, x + 1, 1), wanted)
    assert function(g, x, (x + 1).double(), 1) is NotImplemented


def test_a_list_of_built_in_entries_is_whole() -> None:
    assert builtin_book().warnings == ()
    names = [name for entry in builtin_book().decompose for name in entry.aten]
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_torch_decomposes_wrongly_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "pack.yaml"
    path.write_text(PACK.replace("multi_margin_loss.default", name))
    with pytest.raises(RuleErrors, match="E323"):
        load_book([path])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_keeps_its_gradients(causal: bool) -> None:
    """torch's core decompositions open the CPU's attention and lose what its backward reads."""

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    inputs = [torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3)]
    slope = torch.randn(1, 2, 5, 8)
    with recording() as reports:
        ours = torch.autograd.grad(torch.compile(f, backend="eqsat")(*inputs), inputs, slope)
    torch.testing.assert_close(ours, torch.autograd.grad(f(*inputs), inputs, slope))
    assert all(report.fallback == "" for report in reports)
    assert getattr(aten, ATTENTION.removesuffix(".default")).default not in decompositions()
