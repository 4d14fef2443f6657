"""Rule sets that never end: budgets bound time and memory, and the graph stays right."""

import time
import tracemalloc

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import RuleBook
from eqsat.engine.stage import StageOptions, run_stage

BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)
SECONDS, BYTES = 20.0, 200 << 20  # far above what is needed, far below what has no bound

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


@pytest.mark.parametrize("length", [6, 40])
def test_endless_rules_end(tmp_path, length):
    gm = chain(length)
    rules = endless_rules(tmp_path)
    tracemalloc.start()
    start = time.process_time()
    result = run_stage(gm, "post_grad", RuleBook((*BOOK.rules, *rules)), TABLE, StageOptions())
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < SECONDS and peak < BYTES
    report = result.report
    assert report.status in ("changed", "unchanged") and report.budgets
    inputs = [torch.randn(2, 8) for _ in range(length + 1)]
    torch.testing.assert_close(gm(*inputs), result.gm(*inputs))


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
