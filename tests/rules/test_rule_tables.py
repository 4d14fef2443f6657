"""`benchmarks/rule_tables.py`: its baseline computes what the graph computes, and rewrites as
pattern passes do; its page says what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.benchmarks.file_order import in_file_order
from eqsat.benchmarks.rule_tables import DATA, PAGE, describe
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.profile import select
from eqsat.engine.stage import StageOptions, run_stage
from eqsat.lowering.lower import lowered_ops

BOOK = select(builtin_book(), "default")
TABLE = OpTable(BOOK.ops)
OPTIONS = StageOptions(inference=True, lowered=lowered_ops(TABLE), strict=True)


def block(x: Tensor, q: Tensor, k: Tensor) -> Tensor:
    wide = F.layer_norm(x, (8,))
    return F.gelu(wide @ q) * (wide @ k).view(2, 3, 8).view(6, 8) + x.view(2, 3, 8).view(6, 8) * 1.0


def chained(x: Tensor) -> Tensor:
    return x.t().t().t().t() * 1.0 * 1.0


PROGRAMS = [
    (block, ((6, 8), (8, 8), (8, 8))),
    (chained, ((3, 4),)),
    (lambda x: F.softmax(x.pow(2), -1).neg().neg(), ((3, 4),)),
]


def traced(program: Callable[..., Tensor], *shapes: tuple[int, ...]) -> fx.GraphModule:
    with FakeTensorMode():
        return make_fx(program)(*(torch.empty(shape) for shape in shapes))


def baseline(gm: fx.GraphModule, *, always: bool) -> fx.GraphModule:
    fired = run_stage(gm, "post_grad", BOOK, TABLE, OPTIONS).report.firings
    names = {firing.rule for firing in fired}
    return in_file_order(gm, BOOK, TABLE, OPTIONS, names, always=always)


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize(("program", "shapes"), PROGRAMS)
def test_the_baseline_changes_no_result(
    program: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...], always: bool
) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    gm = traced(program, *shapes)
    new = baseline(gm, always=always)
    torch.testing.assert_close(new(*inputs), program(*inputs), rtol=1e-5, atol=1e-5)


def test_a_rule_is_applied_until_it_matches_nowhere() -> None:
    gm = traced(chained, (3, 4))
    new = baseline(gm, always=True)
    (left,) = (node for node in new.graph.nodes if node.op == "call_function")
    assert left.target is torch.ops.aten.clone.default  # a result is no input


def test_rewrites_stay_at_whatever_price() -> None:
    """Opening a softmax is dearer by itself: the guarded form leaves it."""
    gm = traced(lambda x: F.softmax(x, -1), (3, 4))
    split = [rule.name for rule in BOOK.rules if rule.name == "softmax-split"]
    always, guarded = (
        in_file_order(gm, BOOK, TABLE, OPTIONS, split, always=always) for always in (True, False)
    )
    assert len(always.graph.nodes) > len(gm.graph.nodes)
    assert len(guarded.graph.nodes) == len(gm.graph.nodes)


def test_the_page_is_what_was_measured() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe(json.loads(DATA.read_text()))
