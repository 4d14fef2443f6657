"""The op table: FX calls to canonical ones and back."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.expr import NOWHERE, Expr, Name
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import ArgumentsError, Bound, OpTable
from eqsat.engine.syntax import parse as parse_at
from eqsat.engine.world import EvaluateError

aten = torch.ops.aten


@pytest.fixture(scope="module")
def table() -> OpTable:
    return OpTable(load_book([RULES / "ops"]).ops)


def parse(text: str) -> Expr:
    return parse_at(text, NOWHERE)


def trace(function: Callable[..., Any], *args: Any, symbolic: bool = False) -> GraphModule:
    mode = "symbolic" if symbolic else "fake"
    return make_fx(function, tracing_mode=mode)(*args)


def bound_calls(table: OpTable, graph: GraphModule) -> list[Bound]:
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    found = [table.bind(node.target, node.args, node.kwargs) for node in calls]
    return [bound for bound in found if bound is not None]


def last(table: OpTable, function: Callable[..., Any], *args: Any) -> Bound:
    return bound_calls(table, trace(function, *args))[-1]


def rerun(table: OpTable, graph: GraphModule, *inputs: Any) -> Any:
    """The graph computed through the canonical form of every call."""
    values: dict[Node, Any] = {}
    feed = iter(inputs)

    def real(value: Any) -> Any:
        if isinstance(value, Node):
            return values[value]
        if isinstance(value, (list, tuple)):
            return type(value)(real(item) for item in value)
        return value

    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(feed)
        elif node.op == "get_attr":
            values[node] = getattr(graph, node.target)
        elif node.op == "call_function":
            bound = table.bind(node.target, node.args, node.kwargs)
            assert bound is not None, node.format_node()
            target, args, kwargs = table.call(bound.op, bound.args)
            values[node] = target(*real(args), **{k: real(v) for k, v in kwargs.items()})
        else:
            return real(node.args[0])
    return None


X = torch.randn(2, 3, 4)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "transpose": lambda x: x.transpose(-1, 0) + 1,
    "t": lambda x: x[0].t(),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, -1),
    "view": lambda x: x.view(-1, 4),
    "reshape": lambda x: x.transpose(0, 1).reshape(3, -1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "squeeze-all": lambda x: x[:1, :, :1].squeeze(),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (2, -1)),
    "expand": lambda x: x[:1].expand(5, -1, -1),
    "slice": lambda x: x[:, -2:, 1:100:2],
    "slice-empty": lambda x: x[:, 2:1],
    "select": lambda x: x[:, -1],
    "split": lambda x: x.split(3, -1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "cat": lambda x: torch.cat([x, x], -1),
    "stack": lambda x: torch.stack([x, x], -1),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "clone": lambda x: x.transpose(0, 1).contiguous(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=3),
    "flip": lambda x: x.flip(-1, 0),
    "roll": lambda x: x.roll(1, -1),
    "sum": lambda x: x.sum(),
    "sum-dims": lambda x: x.sum((-1, 0), keepdim=True),
    "sum-all-dims": lambda x: x.sum((0, 1, 2), keepdim=True),
    "sum-dtype": lambda x: x.sum(-1, dtype=torch.float64),
    "mean": lambda x: x.mean((1,)),
    "amax": lambda x: x.amax(),
    "max": lambda x: x.max(),
    "max-dim": lambda x: x.max(-1),
    "any-all": lambda x: ((x > 0).any(), (x > 0).any(-1), (x > 0).all(0, keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmax(-1, keepdim=True)),
    "prod": lambda x: (x.prod(), x.prod(-1)),
    "var": lambda x: (x.var(-1), x.var(), x.std((0, 1), correction=0)),
    "cumsum": lambda x: x.cumsum(-1),
    "topk": lambda x: x.topk(2)[0],
    "softmax": lambda x: (torch.softmax(x, -1), torch.log_softmax(x, 1)),
    "layer-norm": lambda x: torch.nn.functional.layer_norm(x, [4]),
    "cast": lambda x: x.half().double().to(torch.bool),
    "full": lambda x: x + torch.zeros(4) + torch.full((3, 1), 2) + torch.ones_like(x),
    "new": lambda x: x.new_zeros(3).sum() + x.new_full((2,), 7).sum(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "rsub": lambda x: 1 - x,
    "scalar-first": lambda x: (2 / x, 2**x),
    "products": lambda x: (x[0] @ x[0].t(), x @ x.mT),
    "index": lambda x: x[:, torch.tensor([0, 2])],
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1, 0]), x[0]),
    "tril": lambda x: x.tril(-1),
    "arange": lambda x: torch.arange(4) + torch.arange(1, 5) + x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_canonical_calls_compute_the_same(table: OpTable, name: str) -> None:
    graph = trace(FUNCTIONS[name], X)
    torch.testing.assert_close(
        rerun(table, graph, X), FUNCTIONS[name](X), rtol=0, atol=0, equal_nan=True
    )


def test_one_form_for_all_reshapes(table: OpTable) -> None:
    for function in (
        lambda x: x.reshape(6, 4),
        lambda x: x.view(-1, 4),
        lambda x: x.flatten(0, 1),
    ):
        bound = last(table, function, X)
        assert bound.op.name == "view" and bound.args[1] == (6, 4)


def test_dims_count_from_the_front_and_are_sorted(table: OpTable) -> None:
    assert last(table, lambda x: x.transpose(-1, 0), X).args[1] == (2, 1, 0)
    assert last(table, lambda x: x.sum((-1, 0)), X).args[1:] == ((0, 2), False, None)
    assert last(table, lambda x: x.sum((0, 1, 2)), X).args[1] is None
    assert last(table, lambda x: torch.softmax(x, -1), X).args[1] == 2
    assert last(table, lambda x: torch.stack([x, x], -1), X).args[1] == 3


def test_slices_lie_inside(table: OpTable) -> None:
    assert last(table, lambda x: x[:, :, -3:100], X).args[1:] == (2, 1, 4, 1)
    assert last(table, lambda x: x[:, 3:2], X).args[1:] == (1, 3, 3, 1)


def test_constants_are_full_of_their_kind(table: OpTable) -> None:
    graph = trace(lambda x: x + torch.zeros_like(x) + torch.ones(4, dtype=torch.int64), X)
    values = [b.args for b in bound_calls(table, graph) if b.op.name == "full"]
    assert values[0][:3] == ((2, 3, 4), 0.0, torch.float32) and type(values[0][1]) is float
    assert values[1][:3] == ((4,), 1, torch.int64) and type(values[1][1]) is int


def test_opaque_calls(table: OpTable) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    assert table.bind(aten.add_.Tensor, (x, 1), {}) is None
    assert table.bind(aten.native_dropout.default, (x, 0.5, True), {}) is None
    assert table.bind(aten.rand_like.default, (x,), {}) is None
    assert table.bind(aten.sym_size.int, (x, 0), {}) is None
    assert table.bind(torch.cond, (x,), {}) is None
    assert table.bind(operator.mul, (2, 3), {}) is None
    attention = aten.scaled_dot_product_attention.default
    assert table.bind(attention, (x, x, x), {}) is not None
    assert table.bind(attention, (x, x, x, None, 0.5), {}) is None


def test_cast_with_more_than_a_dtype_is_another_op(table: OpTable) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    plain = table.bind(aten._to_copy.default, (x,), {"dtype": torch.float16, "device": X.device})
    assert plain is not None and plain.op.name == "cast"
    moved = table.bind(aten._to_copy.default, (x,), {"device": torch.device("meta")})
    assert moved is not None and moved.op.name == "_to_copy"


def test_names(table: OpTable) -> None:
    assert table.find("sum.dim_IntList") is table.find("sum")
    assert table.find("no_such_op") is None
    undeclared = table.find("trunc")
    assert undeclared is not None and undeclared.overloads
    linear = table.find("F.linear")
    assert linear is not None and linear is not table.find("linear")
    assert "softmax" in table.names() and "F.linear" in table.names()


def test_torch_level_calls(table: OpTable) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = X
    bound = table.bind(torch.nn.functional.linear, (x, x), {})
    assert bound is not None and bound.op.name == "F.linear" and bound.args == (x, x, None)
    view = table.bind("view", (x, 6, 4), {})
    assert view is not None and view.args == (x, (6, 4))
    product = table.bind(operator.matmul, (x, x), {})
    assert product is not None and product.op is table.find("torch.matmul")
    target, args, kwargs = table.call(bound.op, (X, X[0], None))
    assert torch.equal(target(*args, **kwargs), X @ X[0].t())


def test_symbolic_sizes_stay_symbolic(table: OpTable) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, x.shape[2])[1:]

    graph = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
        torch.randn(5, 6, 7)
    )
    shape_env = next(iter(graph.graph.nodes)).meta["val"].shape[0].node.shape_env
    guards = len(shape_env.guards)
    view, cut = (b for b in bound_calls(table, graph) if b.op.name in ("view", "slice"))
    assert all(isinstance(size, torch.SymInt) for size in view.args[1])
    assert cut.args[2] == 1 and isinstance(cut.args[3], torch.SymInt)
    assert len(shape_env.guards) == guards


def test_call_picks_the_overload(table: OpTable) -> None:
    power = table.find("where")
    assert power is not None
    with pytest.raises(EvaluateError):
        table.call(table.find("bmm"), (X, 2.0))  # type: ignore[arg-type]


def test_arrange(table: OpTable) -> None:
    permute, cat, total = (table.find(name) for name in ("permute", "cat", "sum"))
    assert permute and cat and total
    assert table.arrange(permute, ["x", 0, 2, 1], {}) == {0: "x", 1: (0, 2, 1)}
    assert table.arrange(cat, [X, X], {"dim": 1}) == {0: (X, X), 1: 1}
    assert table.arrange(total, ["x", 1, True], {}) == {0: "x", 1: 1, 2: True}
    for args, kwargs in ((["x"], {"dims": 1, "nope": 2}), (["x", 1], {"dims": 2})):
        with pytest.raises(ArgumentsError):
            table.arrange(permute, args, kwargs)
    with pytest.raises(ArgumentsError):
        table.fill(permute, {0: "x"})


def test_macros_expand(table: OpTable) -> None:
    assert table.expand(parse("layer_norm(x, w, b, eps)")) == parse(
        "native_layer_norm(x, shape(w), w, b, eps)[0]"
    )
    assert table.expand(parse("transpose(k, -2, -1)")) == parse(
        "permute(k, swapped(rank(k), -2, -1))"
    )
    assert table.expand(parse("conv2d(x, w, b, **how)")) == parse(
        "convolution(x, w, b, transposed=False, output_padding=(0, 0), **how)"
    )
    assert table.expand(Name("x")) == Name("x")


def test_the_table_is_cheap(table: OpTable) -> None:
    entries = load_book([RULES / "ops"]).ops
    start = time.perf_counter()
    OpTable(entries)
    assert time.perf_counter() - start < 0.03


def test_an_overload_belongs_to_one_entry() -> None:
    seen = Counter(name for entry in load_book([RULES / "ops"]).ops for name in entry.aten)
    assert [name for name, count in seen.items() if count > 1] == []
    names = Counter(entry.name for entry in load_book([RULES / "ops"]).ops)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_declared_op_exists(table: OpTable) -> None:
    missing = [
        name
        for entry in load_book([RULES / "ops"]).ops
        for name in entry.aten
        if entry.aten and table.find(entry.name) is None
    ]
    assert not missing
