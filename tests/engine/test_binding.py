"""Variables, sizes and conditions of a match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from eqsat.engine.binding import Failure, bind_vars
from eqsat.engine.evaluate import DEVICE, TensorWorld
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import Rule

TABLE = OpTable(load_book([RULES / "ops"]).ops)
WORLD = TensorWorld(TABLE)

RULE = """
- rule: scaled-product
  doc: A rule for tests.
  vars:
    x: float[..., m, k]
    w: float[k, 2 * n]
    b: num[n]
    c: const:float
    p: const:int
    axes: dims
    kind: dtype
  match: cast(matmul(x, w) * c + sum(b, dim=axes) + p, kind)
  when:
    - k <= 8
    - dtype(x) == dtype(w)
    - c > 0
  make: cast(matmul(x * c, w) + sum(b, dim=axes) + p, kind)
  numerics: reassociate
"""


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Rule:
    path = Path(tmp_path_factory.mktemp("rules")) / "scaled.yaml"
    path.write_text(RULE)
    return load_book([path], TABLE).rules[0]


GOOD: dict[str, Any] = {
    "x": torch.randn(5, 2, 3),
    "w": torch.randn(3, 8),
    "b": torch.arange(4),
    "c": 2.0,
    "p": 1,
    "axes": (0,),
    "kind": torch.float16,
}


def test_letters_and_leads_are_bound(rule: Rule) -> None:
    env = bind_vars(rule, GOOD, WORLD, TABLE)
    assert isinstance(env, dict)
    assert (env["m"], env["k"], env["n"], env["..."]) == (2, 3, 4, (5,))
    assert env[DEVICE] == torch.device("cpu") and env["x"] is GOOD["x"]


@pytest.mark.parametrize(
    ("change", "condition", "reason"),
    [
        ({"x": torch.randn(3)}, "x: float[..., m, k]", "rank 1"),
        ({"x": torch.ones(2, 3, dtype=torch.int64)}, "x: float[..., m, k]", "dtype i64"),
        ({"w": torch.randn(4, 8)}, "w: float[k, 2 * n]", "k is 3 elsewhere, 4 here"),
        ({"w": torch.randn(3, 7)}, "w: float[k, 2 * n]", "size 7, not 8"),
        ({"x": 2.0}, "x: float[..., m, k]", "2.0 is not a tensor"),
        ({"c": 2}, "c: const:float", "2"),
        ({"p": True}, "p: const:int", "True"),
        ({"kind": 3}, "kind: dtype", "3"),
        ({"w": torch.randn(3, 8).double()}, "dtype(x) == dtype(w)", "dtype(x) = float32"),
        ({"c": -1.0}, "c > 0", "c = -1.0"),
        (
            {"x": torch.randn(1, 9), "w": torch.randn(9, 8)},
            "k <= 8",
            "k = 9",
        ),
    ],
)
def test_the_first_failure_is_named(
    rule: Rule, change: dict[str, Any], condition: str, reason: str
) -> None:
    failure = bind_vars(rule, GOOD | change, WORLD, TABLE)
    assert isinstance(failure, Failure)
    assert failure.condition == condition and reason in failure.reason
    assert reason in str(failure)


def test_symbolic_sizes(rule: Rule) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.randn(5, 6, 7))
    same = torch.ops.aten.new_zeros.default(x, [x.shape[2], 8])
    failure = bind_vars(rule, GOOD | {"x": x, "w": same}, WORLD, TABLE)
    assert isinstance(failure, Failure) and failure.condition == "k <= 8"
    assert failure.reason.startswith("not statically known")
    other = mode.from_tensor(torch.randn(7, 8))
    failure = bind_vars(rule, GOOD | {"x": x, "w": other}, WORLD, TABLE)
    assert isinstance(failure, Failure)
    assert not mode.shape_env.guards  # type: ignore[union-attr]
