"""Near misses name the place, the condition and its values."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.why import why_not

TABLE = OpTable(builtin_book().ops)
RULE = """
- rule: probe
  doc: For a test.
  vars:
    x: float[m, n]
  match: relu(exp(x)) * 2
  make: exp(x) * 2
  when:
    - n > 100
  numerics: exact
"""


def ask(tmp_path, function, name="probe", **how):
    path = tmp_path / "probe.yaml"
    path.write_text(RULE)
    gm = make_fx(function, tracing_mode="fake")(torch.randn(3, 4))
    return why_not(gm, "post_grad", load_book([path], TABLE), TABLE, name, **how)


def test_a_condition_that_failed(tmp_path):
    answer = ask(tmp_path, lambda x: torch.relu(torch.exp(x)) * 2)
    (miss,) = answer.misses
    assert (miss.at, miss.matched, miss.total) == ("mul", 3, 3)
    assert "n > 100" in miss.reason and "n = 4" in miss.reason
    assert "at mul" in str(answer)


def test_an_op_that_is_not_there(tmp_path):
    (miss,) = ask(tmp_path, lambda x: torch.relu(torch.sin(x)) * 2).misses
    assert (miss.at, miss.matched) == ("mul", 2)
    assert miss.reason == "sin is sin, not exp"


def test_a_tensor_in_the_place_of_a_number(tmp_path):
    (miss,) = ask(tmp_path, lambda x: torch.relu(torch.exp(x)) * x).misses
    assert "a tensor as y" in miss.reason


def test_only_at_one_node(tmp_path):
    answer = ask(tmp_path, lambda x: torch.sin(x) * 2 + torch.exp(x) * 2, at="mul_1")
    assert [miss.at for miss in answer.misses] == ["mul_1"]


def test_a_name_that_does_not_exist(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'probe'"):
        ask(tmp_path, torch.exp, name="prob")
    with pytest.raises(ValueError, match="no node"):
        ask(tmp_path, torch.exp, at="nowhere")


def test_a_symbolic_size_is_named(tmp_path):
    path = tmp_path / "probe.yaml"
    path.write_text(RULE)
    gm = make_fx(lambda x: torch.relu(torch.exp(x)) * 2, tracing_mode="symbolic")(torch.randn(3, 4))
    answer = why_not(gm, "post_grad", load_book([path], TABLE), TABLE, "probe")
    assert "n > 100" in answer.misses[0].reason and "n = s" in answer.misses[0].reason


def test_an_op_that_the_graph_lacks(tmp_path):
    assert "no exp" in ask(tmp_path, torch.sin).note


def test_a_form_that_costs_more_has_both_costs(tmp_path):
    text = RULE.replace("exp(x) * 2\n  when:\n    - n > 100", "relu(exp(x)) * 2 + exp(x) - exp(x)")
    path = tmp_path / "probe.yaml"
    path.write_text(text)
    gm = make_fx(lambda x: torch.relu(torch.exp(x)) * 2, tracing_mode="fake")(torch.randn(3, 4))
    answer = why_not(gm, "post_grad", load_book([path], TABLE), TABLE, "probe")
    assert answer.fired == 1 and answer.kept == 0 and answer.costs is not None
    assert answer.costs[0] > answer.costs[1] and "not chosen" in str(answer)


def layer(x, w):
    hidden = torch.nn.functional.gelu(x @ w).softmax(-1)
    return torch.cat([hidden, x], -1).view(-1, 2).sum(-1), hidden.transpose(0, 1)


def answers(mode, step):
    gm = make_fx(layer, tracing_mode=mode)(torch.randn(4, 6), torch.randn(6, 6))
    book = builtin_book()
    for rule in book.rules[::step]:
        answer = why_not(gm, rule.stage, book, TABLE, rule.name)
        assert str(answer) and answer.to_json()["rule"] == rule.name


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_some_rules_have_an_answer(mode):
    answers(mode, 60)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_every_rule_has_an_answer(mode):
    answers(mode, 1)
