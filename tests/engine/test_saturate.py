"""Saturation: what matches, what does not, and that budgets hold before growth."""

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.apply import Applier
from eqsat.engine.encode import encode
from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.matcher import same_constant
from eqsat.engine.ops import OpTable
from eqsat.engine.pattern import compile_rule
from eqsat.engine.saturate import Saturator, _Running
from eqsat.engine.schedule import Phase

aten = torch.ops.aten
TABLE = OpTable(builtin_book().ops)
LEFT_AND_RIGHT = """
- rule: probe
  doc: For a test.
  vars:
{vars}
  match: {match}
  make: {make}
  when:
    - {when}
  numerics: reassociate
"""


def saturate(tmp_path, function, args, phase=None, weights=(), symbolic=False, **parts):
    """Runs one rule; gives (firings, budgets, failures)."""
    path = tmp_path / "probe.yaml"
    fields = {"when": "1 == 1", **parts}
    fields["vars"] = "\n".join(f"    {line}" for line in parts["vars"].split("; "))
    path.write_text(LEFT_AND_RIGHT.format(**fields))
    rules = load_book([path], TABLE).rules
    gm = make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*args)
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    encoding = encode(gm, TABLE, weights={names[i]: i for i in weights})
    applier = Applier(encoding.graph, TABLE)
    patterns = {rule.folder: [compile_rule(rule, TABLE)] for rule in rules}
    phase = phase or Phase("only", tuple(patterns), 4)
    with Saturator(encoding.graph, applier, patterns) as saturator:
        saturator.run(phase, list(patterns), len(encoding.graph) + max(phase.least, 0))
    return applier.firings, saturator.budgets, applier.failures


X, Y = torch.randn(4, 4), torch.randn(4, 4)


@pytest.mark.parametrize(
    ("function", "fires"),
    [
        (lambda x, y: x * torch.exp(y), 1),
        (lambda x, y: torch.exp(y) * x, 1),  # mul commutes
        (lambda x, y: torch.exp(x) * torch.exp(y), 2),
        (lambda x, y: x - torch.exp(y), 0),
    ],
)
def test_operands_of_a_commuting_op_match_in_both_orders(tmp_path, function, fires):
    firings, _, _ = saturate(
        tmp_path,
        function,
        (X, Y),
        vars="x: float[...a]; y: float[...b]",
        match="x * exp(y)",
        make="x / exp(-y)",
    )
    assert len(firings) == fires


@pytest.mark.parametrize(
    ("function", "fires"),
    [
        (lambda x: torch.softmax(x, -1), 1),
        (lambda x: torch.softmax(x, 1), 1),
        (lambda x: torch.softmax(x, 0), 0),
    ],
)
def test_dims_match_however_they_are_counted(tmp_path, function, fires):
    firings, _, _ = saturate(
        tmp_path,
        function,
        (X,),
        vars="x: float[...]",
        match="softmax(x, dim=-1)",
        make="exp(x) / sum(exp(x), dim=-1, keepdim=True)",
    )
    assert len(firings) == fires


@pytest.mark.parametrize(
    ("function", "fires"),
    [
        (lambda x: x * 2.0, 1),
        (lambda x: x * 2, 1),
        (lambda x: 2 * x, 1),
        (lambda x: x * 2.5, 0),
        (lambda x: torch.add(x, x, alpha=2), 0),
    ],
)
def test_numbers_in_a_pattern(tmp_path, function, fires):
    firings, _, _ = saturate(
        tmp_path, function, (X,), vars="x: float[...]", match="2 * x", make="x + x"
    )
    assert len(firings) == fires


def test_attributes_left_out_must_be_defaults(tmp_path):
    firings, _, _ = saturate(
        tmp_path,
        lambda x, y: torch.add(x, y, alpha=3),
        (X, Y),
        vars="x: float[...a]; y: float[...b]",
        match="x + y",
        make="x - (-y)",
    )
    assert not firings


def test_the_same_variable_is_the_same_class(tmp_path):
    firings, _, _ = saturate(
        tmp_path,
        lambda x, y: (x - x, x - y, torch.exp(x) - torch.exp(x)),
        (X, Y),
        vars="x: float[...]",
        match="x - x",
        make="x * 0",
    )
    assert len(firings) == 2


def test_a_failed_condition_is_remembered_with_its_values(tmp_path):
    firings, _, failures = saturate(
        tmp_path,
        torch.exp,
        (X,),
        vars="x: float[m, n]",
        match="exp(x)",
        make="exp(-(-x))",
        when="n > 100",
    )
    assert not firings
    (reason,) = failures["probe"]
    assert "n > 100" in reason and "n = 4" in reason


def test_symbolic_sizes_do_not_hold_conditions(tmp_path):
    def run(symbolic):
        return saturate(
            tmp_path,
            torch.exp,
            (X,),
            vars="x: float[m, n]",
            match="exp(x)",
            make="exp(-(-x))",
            when="m == 4",
            symbolic=symbolic,
        )[0]

    assert run(False)
    assert not run(True)


def test_a_cap_on_matches_acts_before_growth_and_is_reported(tmp_path):
    def function(x):
        for power in range(20):
            x = torch.exp(x * (power + 1.5))
        return x

    parts = {"vars": "x: float[...]", "match": "exp(x)", "make": "reciprocal(exp(-x))"}
    everything, budgets, _ = saturate(tmp_path, function, (X,), **parts)
    assert any(budget.what == "iterations" for budget in budgets)
    capped = Phase("small", ("probe",), 1, matches=5)
    firings, budgets, _ = saturate(tmp_path, function, (X,), phase=capped, **parts)
    assert len(firings) == 5 < len(everything)
    assert {budget.what for budget in budgets} >= {"matches of probe"}
    full = Phase("full", ("probe",), 8, least=10)
    firings, budgets, _ = saturate(tmp_path, function, (X,), phase=full, **parts)
    assert {budget.what for budget in budgets} >= {"nodes of probe"}
    assert 0 < len(firings) <= 10


PAIR_MERGE = """
- rule: pair-merge
  doc: Two products of the same rows become one.
  vars:
    x: float[m, c]
    a: float[c, n]
    b: float[c, k]
  match:
    first: mm(x, a)
    second: mm(x, b)
  when:
    - before(a, b)
  let:
    wide: mm(x, cat(a, b, dim=1))
  make:
    first: slice(wide, dim=1, start=0, end=n)
    second: slice(wide, dim=1, start=n, end=n + k)
  numerics: reassociate
"""


def merge_pairs(tmp_path, function, *args):
    """Runs `pair-merge`, all arguments but the first being weights."""
    path = tmp_path / "roots.yaml"
    path.write_text(PAIR_MERGE)
    (rule,) = load_book([path], TABLE).rules
    gm = make_fx(function, tracing_mode="fake")(*args)
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"][1:]
    encoding = encode(gm, TABLE, weights={name: at for at, name in enumerate(names)})
    applier = Applier(encoding.graph, TABLE)
    patterns = {rule.folder: [compile_rule(rule, TABLE)]}
    with Saturator(encoding.graph, applier, patterns) as saturator:
        saturator.run(Phase("only", (rule.folder,), 5), [rule.folder], 100)
    return applier.firings, saturator.budgets


def test_several_roots_share_what_they_read(tmp_path):
    firings, budgets = merge_pairs(
        tmp_path, lambda x, a, b: (x @ a, x @ b), X, Y, torch.randn(4, 6)
    )
    (firing,) = firings
    assert len(firing.roots) == 2
    assert not budgets


def test_a_value_with_very_many_readers_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("eqsat.engine.saturate._MOST_ROWS", 8)
    weights = [torch.randn(4, 4) for _ in range(3)]
    firings, budgets = merge_pairs(tmp_path, lambda x, *w: [x @ part for part in w], X, *weights)
    assert not firings
    assert budgets[0].what == "rows of pair-merge"


def test_a_banned_query_comes_back_with_twice_its_limit(tmp_path, monkeypatch):
    """Three readers of one value have up to nine pairs: too many twice, then not. Merged, they
    are read by more."""
    monkeypatch.setattr("eqsat.engine.saturate._ROWS", 4)
    bans = []
    ban = _Running.ban
    monkeypatch.setattr(
        _Running, "ban", lambda self, now: (bans.append(self.limit), ban(self, now))
    )
    weights = [torch.randn(4, 4) for _ in range(3)]
    firings, _ = merge_pairs(tmp_path, lambda x, *w: [x @ part for part in w], X, *weights)
    assert bans[:2] == [4, 8] and all(b == 2 * a for a, b in itertools.pairwise(bans))
    assert firings


def test_same_constant():
    assert same_constant(2, 2.0, True) and not same_constant(2, 2.0, False)
    assert not same_constant(0, -0.0, True)
    assert not same_constant(1, True, True)
    assert same_constant(float("nan"), float("nan"), False)
    assert same_constant((1, 2), (1, 2), False) and not same_constant((1,), (1, 2), True)
