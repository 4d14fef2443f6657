"""Random chains of reads and writes through indices, lowered, fused and interpreted.

Inputs are written at the end, so that what may be written in place, and what still reads the
old elements, comes in every order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import eqsat
from eqsat.engine.load import load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.fuse import fuse
from eqsat.lowering.interpret import interpret
from eqsat.lowering.lower import lower
from eqsat.lowering.simplify import simplify
from eqsat.lowering.spec import problems

TABLE = OpTable(load_book([str(Path(eqsat.__path__[0]) / "rules" / "ops")]).ops)
ROWS, COLUMNS = 5, 4
aten = torch.ops.aten

# What may happen to a tensor x, given another one u, places i (a vector) and g (a matrix).
OPS: list[Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]] = [
    lambda x, u, i, g, k: aten.index_put(x, [i], u[(i * k) % ROWS]),
    lambda x, u, i, g, k: aten.index_put(x, [i], u[(i + k) % ROWS], True),
    lambda x, u, i, g, k: aten.index_add(x, 0, i, u[(i * 2) % ROWS]),
    lambda x, u, i, g, k: aten.index_copy(x, 0, i, u[(i + k) % ROWS]),
    lambda x, u, i, g, k: aten.index_fill(x, 0, i, 1.5),
    lambda x, u, i, g, k: aten.index_put(x, [u > 0], torch.tensor(2.0)),
    lambda x, u, i, g, k: aten.scatter(x, 0, g, u),
    lambda x, u, i, g, k: aten.scatter_add(x, 1, g % COLUMNS, u),
    lambda x, u, i, g, k: aten.scatter_reduce(x, 0, g, u, "amax", include_self=k > 1),
    lambda x, u, i, g, k: aten.slice_scatter(x, u[:2], 0, k % 3, k % 3 + 2),
    lambda x, u, i, g, k: aten.select_scatter(x, u[k], 0, (k * 2) % ROWS),
    lambda x, u, i, g, k: aten.gather(x, 0, g) + k,
    lambda x, u, i, g, k: x[(i + k) % ROWS][:1] * u,
    lambda x, u, i, g, k: x * u.sin(),
    lambda x, u, i, g, k: x + u,
    lambda x, u, i, g, k: x.flip(0),
    lambda x, u, i, g, k: x / (u.abs().sum(1, keepdim=True) + 1),
    lambda x, u, i, g, k: x.t().reshape(ROWS, COLUMNS),
]


def chain(seed: int) -> Callable[..., tuple[Tensor, ...]]:
    drawn = random.Random(seed)
    steps = [
        (drawn.choice(OPS), drawn.random(), drawn.random(), drawn.randrange(4))
        for _ in range(drawn.randint(3, 8))
    ]
    shown = [drawn.random() for _ in range(drawn.randint(1, 3))]
    written = [drawn.random() for _ in range(drawn.randint(0, 2))]

    def run(x: Tensor, y: Tensor, s: Tensor, i: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        values = [x, y, s]
        for op, first, second, k in steps:
            pair = [
                values[int(r * len(values))] if r < 0.4 else values[-1] for r in (first, second)
            ]
            values.append(op(pair[0], pair[1], i, g, k))
        results = tuple(values[int(r * len(values))].clone() for r in shown)
        news = [values[int(r * len(values))] for r in written]
        news = [
            new.clone() if new._is_view() or any(new is old for old in (x, y)) else new
            for new in news
        ]
        for place, new in zip((x, y), news, strict=False):
            place.copy_(new)
        return results

    return run


@pytest.mark.parametrize("seed", range(24))
def test_chains_equal_eager(seed: int, fusion_rules: Any) -> None:
    torch.manual_seed(seed)
    run = chain(seed)
    numbers = [torch.randn(ROWS, COLUMNS) for _ in range(3)]
    places = [torch.randint(0, ROWS, shape) for shape in ((6,), (ROWS, COLUMNS))]
    given = [*numbers, *places]
    gm = make_fx(run, tracing_mode="fake")(*(value.clone() for value in given))
    gm.graph.eliminate_dead_code()
    program = lower(gm, TABLE, {})
    wanted = [value.clone() for value in given]
    results = run(*wanted)
    joined, _ = fuse(program, fusion_rules)
    for one in (program, joined, simplify(joined)):
        assert problems(one) == []
        ours = [value.clone() for value in given]
        got = interpret(one, ours)
        for have, want in zip((*got, *ours), (*results, *wanted), strict=True):
            torch.testing.assert_close(have, want)
