"""Rules that never end, raise, panic or are wrong: bounded, named, and no harm to the rest."""

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.matcher import Matcher
from eqsat.engine.native import engine_class
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import RuleBook
from eqsat.engine.saturate import _MOST_ROWS, Saturator
from eqsat.engine.schedule import load_schedule
from eqsat.engine.stage import StageOptions, StageRun, StageWarning, run_stage

BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)

RULE = """
- rule: {name}
  doc: For a test.
  vars:
    x: float[...a]
    y: float[...a]
{third}
  match: {match}
  make: {make}
  when:
    - is_floating(x)
{both}
  numerics: reassociate
"""
SIDES = {
    "associate": ("(x + y) + z", "x + (y + z)"),
    "distribute": ("(x + y) * z", "x * z + y * z"),
    "spread": ("x + y", "(x + 0.5 * y) + 0.5 * y"),
}


def endless_rules(tmp_path):
    path = tmp_path / "endless.yaml"
    texts = []
    for name, (match, make) in SIDES.items():
        third = "    z: float[...a]" if "z" in match else ""
        both = "  both_ways: true" if name != "spread" else ""
        texts.append(RULE.format(name=name, match=match, make=make, third=third, both=both))
    path.write_text("".join(texts).replace("\n\n", "\n"))
    return load_book([path], TABLE).rules


def chain(length):
    """A residual stream of `length` scaled additions."""

    def run(x, *parts):
        for part in parts:
            x = x + part * 0.5
        return x * parts[0]

    return make_fx(run, tracing_mode="fake")(*(torch.randn(2, 8) for _ in range(length + 1)))


def most_nodes(size):
    """What the phases of post_grad allow in all for a graph of `size` nodes."""
    for phase in load_schedule().phases("post_grad"):
        size += max(phase.least, int(phase.growth * size))
    return size


@pytest.mark.parametrize("length", [6, 40, 300])
def test_endless_rules_end(tmp_path, length, monkeypatch):
    rows = []
    read = Saturator._read
    monkeypatch.setattr(Saturator, "_read", lambda *args: (rows.append(len(args[2])), read(*args)))
    gm = chain(length)
    rules = endless_rules(tmp_path)
    result = run_stage(gm, "post_grad", RuleBook((*BOOK.rules, *rules)), TABLE, StageOptions())
    report = result.report
    assert report.status in ("changed", "unchanged") and report.budgets
    assert report.egraph_nodes <= most_nodes(len(gm.graph.nodes))
    assert max(rows) <= _MOST_ROWS
    inputs = [torch.randn(2, 8) for _ in range(length + 1)]
    torch.testing.assert_close(gm(*inputs), result.gm(*inputs))


ONE = """
- rule: {name}
  doc: For a test.
  vars:
    x: float[...]
  match: {match}
  make: {make}
  numerics: reassociate
"""
DOUBLE = ONE.format(name="neg-neg-drop", match="-(-x)", make="x")


def run_with(tmp_path, *texts):
    """Both negations of `exp(-(-x)) + 1` are dropped by a good rule that runs beside others."""
    path = tmp_path / "mine.yaml"
    path.write_text("".join((*texts, DOUBLE)))
    book = load_book([path], TABLE)
    gm = make_fx(lambda x: torch.exp(torch.neg(-x)) + 1, tracing_mode="fake")(torch.randn(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StageWarning)
        result = run_stage(gm, "post_grad", book, TABLE, StageOptions())
    x = torch.randn(3, 4)
    torch.testing.assert_close(result.gm(x), gm(x))
    assert [n.target for n in result.gm.graph.nodes].count(torch.ops.aten.neg.default) == 0
    return result.report


def test_a_rule_that_runs_away_is_set_aside(tmp_path):
    make = "exp(x * 0.125) * exp(x * 0.375) * exp(x * 0.5)"
    report = run_with(tmp_path, ONE.format(name="grow", match="exp(x)", make=make))
    assert "nodes of grow" in {budget.what for budget in report.budgets}
    assert not report.disabled


def test_a_rule_that_raises_is_disabled(tmp_path, monkeypatch):
    build = Matcher.build

    def broken(self, *args):
        if self.rule.name == "raises":
            raise ZeroDivisionError("a bug in a fact")
        return build(self, *args)

    monkeypatch.setattr(Matcher, "build", broken)
    report = run_with(tmp_path, ONE.format(name="raises", match="exp(x)", make="1 / exp(-x)"))
    (disabled,) = report.disabled
    assert disabled.rule == "raises" and disabled.where.endswith("mine.yaml:2")
    assert disabled.reason == "ZeroDivisionError: a bug in a fact"


def test_a_rule_that_makes_the_engine_panic_is_disabled(tmp_path, monkeypatch):
    class Panic(BaseException):
        pass

    class Fragile:
        """egglog, but it panics on one query of a rule that reads `exp`, every time."""

        def __init__(self, **how):
            self.engine = engine_class()(**how)
            self.bad = None

        def run_program(self, *commands):
            for command in map(str, commands):
                if ":ruleset q." in command and "o.exp" in command:
                    self.bad = command.split(":ruleset ")[1].split()[0]
                if self.bad is not None and f"(run {self.bad})" in command:
                    self.engine = None  # nothing may be asked of it any more
                    raise Panic("index out of bounds")
            return self.engine.run_program(*commands)

        def __getattr__(self, name):
            return getattr(self.engine, name)

    monkeypatch.setattr("eqsat.engine.saturate.engine_class", lambda: Fragile)
    report = run_with(tmp_path, ONE.format(name="panics", match="exp(x)", make="1 / exp(-x)"))
    (disabled,) = report.disabled
    assert (disabled.rule, disabled.reason) == ("panics", "egglog: index out of bounds")


def test_what_a_wrong_rule_made_before_it_was_caught_is_gone(tmp_path):
    """Its shapes are right for the square matrix and wrong for the other."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        ONE.format(name="wrong", match="permute(x, 1, 0)", make="x").replace(
            "float[...]", "float[m, n]"
        )
    )
    book = load_book([path], TABLE)
    x, y = torch.randn(3, 3), torch.randn(3, 5)
    gm = make_fx(lambda x, y: (x.t().exp(), y.t().exp()), tracing_mode="fake")(x, y)
    with pytest.warns(StageWarning, match="rule wrong"):
        result = run_stage(gm, "post_grad", book, TABLE, StageOptions())
    assert [disabled.rule for disabled in result.report.disabled] == ["wrong"]
    assert not result.report.firings
    torch.testing.assert_close(result.gm(x, y), gm(x, y))


def test_a_restart_tells_of_every_failed_match_once(tmp_path):
    """A rule that is caught after it fired starts the stage anew."""
    wrong = ONE.format(name="wrong", match="permute(x, 1, 0)", make="x")
    picky = ONE.format(name="picky", match="exp(x)", make="x").replace(
        "  numerics", "  when:\n    - m > 100\n  numerics"
    )
    path = tmp_path / "mine.yaml"
    path.write_text((wrong + picky).replace("float[...]", "float[m, n]"))
    book = load_book([path], TABLE)
    x, y = torch.randn(3, 3), torch.randn(3, 5)
    gm = make_fx(lambda x, y: (x.t().exp(), y.t().exp()), tracing_mode="fake")(x, y)
    told = []
    run = StageRun(gm, "post_grad", book, TABLE, StageOptions())
    run.prepare(lambda rule, matched, reason: told.append((rule.name, tuple(matched))))
    assert "wrong" in run.applier.disabled and not run.applier.firings
    assert len(told) == len(set(told))
    assert [name for name, _ in told].count("picky") == 2
    assert [name for name, _ in told].count("wrong") == 1


def test_merges_of_many_layers_are_all_found():
    """Matches whose weights are out of order are no matches, so they use up no budget."""
    layers = 40

    def run(x, *weights):
        for at in range(0, len(weights), 6):
            bq, wq, bk, wk, bv, wv = weights[at : at + 6]
            q, k, v = torch.addmm(bq, x, wq), torch.addmm(bk, x, wk), torch.addmm(bv, x, wv)
            x = torch.relu(q * k + v)
        return x

    shapes = ((8,), (8, 8)) * 3 * layers
    gm = make_fx(run, tracing_mode="fake")(torch.randn(4, 8), *map(torch.randn, shapes))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"][1:]
    weights = {name: at for at, name in enumerate(names)}
    report = run_stage(gm, "post_grad", BOOK, TABLE, StageOptions(weights=weights)).report
    fired = {firing.rule: firing.count for firing in report.firings}
    assert fired["qkv-merge-bias"] == layers
    assert not [budget for budget in report.budgets if budget.phase == "merge"]
