"""Every family of rewrites that pays: where cost chooses it, where cost leaves it, and how often
the cost model agrees with what was measured.

No GPU is needed: a stage only reads the numbers of its target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks import gains
from eqsat.engine.load import builtin_book
from eqsat.engine.ops import OpTable
from eqsat.engine.profile import select
from eqsat.engine.stage import StageOptions, run_stage
from eqsat.engine.target import load_target
from eqsat.lowering.lower import lowered_ops

BOOK = select(builtin_book(), "fast", (), ())
TABLE = OpTable(BOOK.ops)
LOWERED = lowered_ops(TABLE)
Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Family:
    """`rules`: at least one that these globs name is in the result for `chosen` (a program and
    the shapes of its inputs), and none is for `left`. All but the first `moving` inputs are
    parameters, which may be folded where `frozen`."""

    name: str
    rules: tuple[str, ...]
    chosen: tuple[Callable[..., Any], Shapes]
    left: tuple[Callable[..., Any], Shapes]
    moving: int = 1
    frozen: bool = True
    dtype: torch.dtype = torch.float32


def kept(program: Callable[..., Any], shapes: Shapes, family: Family, target: str) -> set[str]:
    """The rules whose results are in the cheapest form."""
    with FakeTensorMode():
        inputs = [torch.empty(tuple(shape), dtype=family.dtype) for shape in shapes]
        gm = make_fx(program)(*inputs)
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")][family.moving :]
    options = StageOptions(
        profile="fast",
        weights={name: at for at, name in enumerate(names)},
        frozen=frozenset(names) if family.frozen else frozenset(),
        target=load_target(target),
        inference=True,
        lowered=LOWERED,
        strict=True,
    )
    report = run_stage(gm, "post_grad", BOOK, TABLE, options).report
    fired = {firing.rule for firing in report.firings if firing.kept}
    return {rule for rule in fired if any(fnmatch(rule, glob) for glob in family.rules)}


def also(program: Callable[..., Any], *parts: Callable[..., Any]) -> Callable[..., Any]:
    """The program with values of the user's own that it also returns."""

    def both(*inputs: torch.Tensor) -> Any:
        return program(*inputs), *(part(*inputs) for part in parts)

    return both


def batch_normed(x, w, g, b, mean, spread):  # type: ignore[no-untyped-def]
    y = F.conv2d(x, w, padding=1)
    return torch.ops.aten._native_batch_norm_legit_no_training(y, g, b, mean, spread, 0.1, 1e-5)[0]


def gained(x, g, w):  # type: ignore[no-untyped-def]
    return (x.exp() * g) @ w


def scaled(x, r, w):  # type: ignore[no-untyped-def]
    return (x.exp() * r) @ w


SQUARE = (4096, 4096)
LOW = ((4096, 16), (16, 4096))
CHANNELS = [(c, 192, 1, 1) for c in (64, 96, 16)]
FAMILIES = (
    Family(
        "q/k/v merge",
        ("qkv-merge", "gate-up-merge"),
        (gains.qkv, [(16, 4096), *[SQUARE] * 3]),
        (gains.qkv, [(65536, 64), *[(64, 4096)] * 3]),
    ),
    Family(
        "gate/up merge",
        ("gate-up-merge",),
        (gains.gated, [(16, 4096), *[(4096, 14336)] * 2]),
        (gains.gated, [(65536, 64), *[(64, 4096)] * 2]),
    ),
    Family(
        "LoRA folded",
        ("low-rank-fold",),
        (gains.adapted, [(512, 4096), SQUARE, *LOW]),
        (
            also(gains.adapted, lambda x, w, a, b: x @ w, lambda x, w, a, b: x @ a),
            [(512, 4096), SQUARE, *LOW],
        ),
    ),
    Family(
        "LoRA re-associated",
        ("mm-low-rank-apart",),
        (gains.adapted_weight, [(64, 4096), SQUARE, *LOW]),
        (gains.adapted_weight, [(65536, 4096), SQUARE, *LOW]),
        frozen=False,
    ),
    Family(
        "norm gain folded",
        ("mm-rows-fold",),
        (gained, [(512, 4096), (4096,), SQUARE]),
        (also(gained, lambda x, g, w: x.exp() * g), [(512, 4096), (4096,), SQUARE]),
    ),
    Family(
        "norm scale behind the product",
        ("mm-scale-behind",),
        (scaled, [(8192, 4096), (8192, 1), (4096, 64)]),
        (scaled, [(8192, 64), (8192, 1), (64, 4096)]),
        moving=2,
    ),
    Family(
        "conv + bn",
        ("conv-bn-fold*",),
        (batch_normed, [(64, 64, 56, 56), (64, 64, 3, 3), *[(64,)] * 4]),
        (
            also(batch_normed, lambda x, w, *_: F.conv2d(x, w, padding=1)),
            [(64, 64, 56, 56), (64, 64, 3, 3), *[(64,)] * 4],
        ),
    ),
    Family(
        "matmul order",
        ("mm-right-first",),
        (gains.left_first, [SQUARE, SQUARE, (4096, 16)]),
        (also(gains.left_first, lambda a, b, x: a @ b), [SQUARE, SQUARE, (4096, 16)]),
        moving=3,
    ),
    Family(
        "Inception 1x1",
        ("conv-merge*",),
        (gains.branches, [(1, 192, 28, 28), *CHANNELS]),
        (gains.branches, [(64, 4, 112, 112), *[(256, 4, 1, 1)] * 3]),
    ),
    Family(
        "Fire expand",
        ("conv-expand-merge",),
        (gains.fire, [(1, 16, 55, 55), (64, 16, 1, 1), (64, 16, 3, 3)]),
        (gains.fire, [(64, 512, 55, 55), (512, 512, 1, 1), (64, 512, 3, 3)]),
    ),
    Family(
        "transposes",
        ("mm-transposed",),
        (gains.transposed, [SQUARE, SQUARE]),
        (
            also(gains.transposed, lambda x, h: x.t().contiguous() @ h.t().contiguous()),
            [SQUARE, SQUARE],
        ),
        moving=2,
    ),
    Family(
        "casts",
        ("mm-cast-drop",),
        (gains.wide_product, [(512, 4096), SQUARE]),
        (
            also(gains.wide_product, lambda x, w: x.float() @ w.float()),
            [(512, 4096), SQUARE],
        ),
        frozen=False,
        dtype=torch.bfloat16,
    ),
    Family(
        "common factor",
        ("mm-common-left",),
        (gains.two_terms, [(512, 4096), SQUARE, SQUARE]),
        (
            also(gains.two_terms, lambda x, a, b: x @ a, lambda x, a, b: x @ b),
            [(512, 4096), SQUARE, SQUARE],
        ),
    ),
    Family(
        "mean after linear",
        ("mean-over-*",),
        (gains.mean_after, [(32, 512, 1024), (4096, 1024), (4096,)]),
        (
            also(gains.mean_after, lambda x, w, b: F.linear(x, w, b)),
            [(32, 512, 4096), (16, 4096), (16,)],
        ),
    ),
    Family(
        "linear after linear",
        ("mm-mm-fold",),
        (gains.two_layers, [(512, 2048), (2048, 4096), (4096, 2048)]),
        (
            also(gains.two_layers, lambda x, a, b: x @ a),
            [(8192, 4096), (4096, 2100), (2100, 4096)],
        ),
    ),
    Family(
        "NAS cell",
        ("qkv-merge", "gate-up-merge", "mm-merge-four"),
        (gains.cell, [*[(16, 512)] * 2, *[(512, 512)] * 16]),
        (gains.cell, [*[(65536, 16)] * 2, *[(16, 1024)] * 16]),
        moving=2,
    ),
    Family(
        "sum of products",
        ("mm-sum-as-cat",),
        (gains.sum_of_products, [*[(64, 1024)] * 2, *[(1024, 4096)] * 2]),
        (gains.sum_of_products, [*[(65536, 4096)] * 2, *[(4096, 16)] * 2]),
        moving=2,
    ),
)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_cost_chooses_the_rewrite(family: Family) -> None:
    assert kept(*family.chosen, family, "h200")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_cost_leaves_the_rewrite(family: Family) -> None:
    assert not kept(*family.left, family, "h200")


def test_every_measured_family_is_a_rule() -> None:
    assert {row.family for row in gains.TABLE} == {family.name for family in FAMILIES}


def test_predicted_choices_agree_with_the_measured_ones() -> None:
    found = [gains.predict(row) for row in gains.TABLE]
    wrong = [f"{one.row.family} {one.row.size}: {one.gain:.2f}" for one in found if not one.agrees]
    assert len(wrong) <= 0.1 * len(found), "\n".join(wrong)


def test_a_loss_is_predicted() -> None:
    (row,) = [row for row in gains.TABLE if row.gain < 0.9]
    assert gains.predict(row).gain < 1
