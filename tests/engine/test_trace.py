"""Decompositions applied while AOTAutograd traces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import RULES, builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.source import RuleErrors
from eqsat.engine.trace import decomposition_table

TABLE = OpTable(load_book([RULES / "ops"]).ops)
aten = torch.ops.aten

RULE = """
- rule: gelu-open
  doc: A rule for tests.
  stage: trace
  vars:
    x: float[..., n]
  match: gelu(x)
  when:
    - n <= 8
  make: x * 0.5 * (erf(x * 0.7071067811865476) + 1.0)
  numerics: reassociate
"""


def load(tmp_path: Path, text: str) -> dict[torch._ops.OpOverload, object]:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return decomposition_table(load_book([path], TABLE), TABLE)  # type: ignore[return-value]


def test_conditions_decide(tmp_path: Path) -> None:
    table = load(tmp_path, RULE)
    gelu = table[aten.gelu.default]
    x = torch.randn(3, 8)
    torch.testing.assert_close(gelu(x), torch.nn.functional.gelu(x))  # type: ignore[operator]
    assert gelu(torch.randn(3, 9)) is NotImplemented  # type: ignore[operator]
    assert gelu(torch.tensor(1.0)) is NotImplemented  # type: ignore[operator]
    assert gelu(x, approximate="tanh") is NotImplemented  # type: ignore[operator]


def test_a_rule_of_two_ops_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleErrors, match="matches one op"):
        load(tmp_path, RULE.replace("match: gelu(x)", "match: gelu(relu(x))"))


def test_builtin_backwards_have_the_gradients_of_eager() -> None:
    book = builtin_book()
    table = decomposition_table(book, OpTable(book.ops))
    assert aten.gelu_backward.default in table

    def gradient(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x) * torch.nn.functional.silu(x)
        return torch.autograd.grad(y.sum(), x)[0]

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    graph = make_fx(gradient, decomposition_table=table)(x)
    targets = {node.target for node in graph.graph.nodes}
    assert aten.gelu_backward.default not in targets
    torch.testing.assert_close(graph(x), gradient(x), rtol=1e-12, atol=1e-12)
