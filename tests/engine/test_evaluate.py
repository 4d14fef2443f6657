"""Expressions on tensors, attributes and conditions; symbolic sizes never guard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from eqsat.engine.evaluate import DEVICE, TensorWorld, evaluate, holds
from eqsat.engine.expr import NOWHERE
from eqsat.engine.facts import PREDICATES
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.symbolic import arithmetic, same_constant
from eqsat.engine.syntax import parse
from eqsat.engine.world import EvaluateError, Truth

TABLE = OpTable(load_book([RULES / "ops"]).ops)
WORLD = TensorWorld(TABLE)
X = torch.randn(2, 3, 4)
Y = torch.randn(3, 4)


def value(text: str, **env: Any) -> Any:
    return evaluate(parse(text, NOWHERE), {"x": X, "y": Y, DEVICE: X.device, **env}, WORLD, TABLE)


def condition(text: str, **env: Any) -> tuple[bool, str]:
    return holds(parse(text, NOWHERE), {"x": X, "y": Y, **env}, WORLD, TABLE)


EQUAL = {
    "x * 2 + y": X * 2 + Y,
    "1 - x": 1 - X,
    "2 / x": 2 / X,
    "-x": -X,
    "x // 2": X // 2,
    "x % 2": X % 2,
    "x ** 2": X**2,
    "transpose(x, -2, -1)": X.transpose(-2, -1),
    "permute(x, 0, 2, 1)": X.permute(0, 2, 1),
    "view(x, 6, -1)": X.view(6, 4),
    "mean(x, dim=(1, 2))": X.mean((1, 2)),
    "cat(y, y, dim=-1)": torch.cat([Y, Y], -1),
    "topk(y, 2)[1]": Y.topk(2)[1],
    "split(y, 2, dim=1)[0]": Y[:, :2],
    "softmax(x, dim=-1)": torch.softmax(X, -1),
    "layer_norm(x, w, b, 1e-5)": torch.nn.functional.layer_norm(X, [4], Y[0], Y[1]),
    "batch_norm(x, m, m * m, None, None, 1e-5)": torch.nn.functional.batch_norm(
        X, Y[:, 0], Y[:, 0] ** 2
    ),
    "cast(x, f16)": X.half(),
    "cast(x, dtype(z))": X.double(),
    "full((2, n), 1, f64)": torch.ones(2, 7, dtype=torch.float64),
    "zeros_like(z)": torch.zeros(3, 4, dtype=torch.float64),
    "sdpa(x, x, x, scale=0.5)": torch.nn.functional.scaled_dot_product_attention(
        X, X, X, scale=0.5
    ),
    "rms_norm(x, w, 1e-5)": torch.nn.functional.rms_norm(X, [4], Y[0], 1e-5),
    "abs(x)": X.abs(),
    "slice(x, dim=-1, start=1, end=n)": X[..., 1:],
}


@pytest.mark.parametrize("text", EQUAL)
def test_tensor_expressions(text: str) -> None:
    env = {"w": Y[0], "b": Y[1], "m": Y[:, 0], "z": Y.double(), "n": 7}
    got = value(text, **env)
    assert got.dtype == EQUAL[text].dtype
    torch.testing.assert_close(got, EQUAL[text], rtol=0, atol=0)


def test_attributes() -> None:
    assert value("max(n - 1, 0) * 2 + len(shape(x))", n=3) == 7
    assert value("abs(-n)", n=3) == 3
    assert value("(n, dtype(x), rank(y))", n=3) == (3, torch.float32, 2)
    assert value("how.groups + 1", how={"groups": 4}) == 5
    assert value("swapped(3, -1, 0)") == (2, 1, 0)
    assert value("promoted(x, z)", z=Y.double()) is torch.float64
    assert value("promoted(dtype(x), f16)") is torch.float32


def test_each_maps_over_a_list() -> None:
    got = value("each(relu, xs)", xs=[X, Y])
    assert torch.equal(got[0], X.relu()) and torch.equal(got[1], Y.relu())
    assert value("xs[1]", xs=[X, Y]) is Y


def test_known_values_are_not_made_again() -> None:
    inner = parse("relu(x)", NOWHERE)
    got = evaluate(parse("relu(x) + 1", NOWHERE), {"x": X}, WORLD, TABLE, {inner: X})
    assert torch.equal(got, X + 1)


@pytest.mark.parametrize("text", ["q", "no_such(x)", "view(x)", "bmm(x, 2)", "1 / 0", "how.a"])
def test_what_has_no_value_says_why(text: str) -> None:
    with pytest.raises(EvaluateError, match=r"."):
        value(text, how={})


def test_conditions() -> None:
    assert condition("n <= 4 and dtype(x) in (f16, f32)", n=4)[0]
    assert condition("0 < n < 5 and not n == 3", n=4)[0]
    good, reason = condition("n <= 4", n=5)
    assert not good and "n = 5" in reason
    good, reason = condition("dtype(x) == f16")
    assert not good and "dtype(x) = float32" in reason
    assert condition("same_shape(x, y)") == (False, "same_shape(x, y) = False")
    assert condition("contiguous(x) and broadcastable(x, y)")[0]
    assert not condition("contiguous(z)", z=X.transpose(0, 1))[0]


def test_questions_about_the_graph_are_free_without_one() -> None:
    assert condition("is_weight(x) and not is_input(x)")[0]
    assert condition("users(x) == 1 or n > 4", n=1)[0]
    assert not condition("is_weight(x) and n > 4", n=1)[0]


def symbolic(*sizes: int) -> torch.Tensor:
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.randn(sizes))


def test_symbolic_sizes_hold_only_where_known() -> None:
    x = symbolic(5, 6)
    shape_env = x.shape[0].node.shape_env  # type: ignore[attr-defined]
    m, n = x.shape
    for text in ("m == n", "m != n", "m % 2 == 0", "not m == 4", "m in (5, 6)", "m < n"):
        good, reason = condition(text, m=m, n=n)
        assert not good and "not statically known" in reason, text
    assert condition("m == m and m >= 0 and shape(s) == (m, n) and m + 1 > m", m=m, n=n, s=x)[0]
    assert value("unsqueezed(shape(s), 0)", s=x) == (1, m, n)
    assert not shape_env.guards


def test_predicates_are_documented() -> None:
    assert all(predicate.doc for predicate in PREDICATES.values())
    assert PREDICATES["before"].about_graph and not PREDICATES["dtype"].about_graph
    assert condition("before(x, y)")[0] and WORLD.position(X) is Truth.FREE


@pytest.mark.parametrize(
    ("left", "right", "in_float", "in_int"),
    [
        (2, 2.0, True, False),
        (2, 2, True, True),
        (0.0, -0.0, False, False),
        (0, -0.0, False, False),
        (float("nan"), float("nan"), True, True),
        (True, 1, False, False),
        ((1, 2), (1, 2), True, True),
        (None, None, True, True),
        ("none", "tanh", False, False),
        (2, 3, False, False),
    ],
)
def test_same_constant(left: Any, right: Any, in_float: bool, in_int: bool) -> None:
    assert same_constant(left, right, True) is in_float
    assert same_constant(left, right, False) is in_int


@pytest.mark.parametrize(
    ("op", "left", "right"),
    [
        ("**", 10, 10**9),
        ("**", -2, 64),
        ("*", (0, 1), 10**9),
        ("*", 10**9, "x"),
        ("*", 2**40, 2**40),
    ],
)
def test_constants_stay_small(op, left, right):
    """No rule can make the compiler compute with numbers that torch does not have."""
    with pytest.raises(EvaluateError, match=r"too large|64 bits"):
        arithmetic(op, left, right)
    assert arithmetic(op, 3, 5) == {"**": 243, "*": 15}[op]
