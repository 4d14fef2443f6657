"""Whole graphs from AOTAutograd, lowered and interpreted inside torch.compile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F

import eqsat
from eqsat.engine.load import load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Nest, Program
from eqsat.lowering.lower import lower
from eqsat.lowering.spec import problems

TABLE = OpTable(load_book([str(Path(eqsat.__path__[0]) / "rules" / "ops")]).ops)
PROGRAMS: list[Program] = []


def compile_graph(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    program = lower(gm, TABLE, {})
    PROGRAMS.append(program)
    assert problems(program) == []

    def run(args: list[Any]) -> list[Any]:
        return interpret(program, args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def compiled(function: Any, *, dynamic: bool = False) -> Any:
    torch._dynamo.reset()
    PROGRAMS.clear()
    backend = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)


class Attention(nn.Module):
    """One post-norm transformer block with embeddings, written out by hand."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(20, width)
        self.places = nn.Embedding(12, width)
        self.register_buffer("ids", torch.arange(12)[None])
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, length = x.shape
        bias = (1.0 - mask[:, None, None, :].float()) * -10000.0
        h = self.tokens(x) + self.places(self.ids[:, :length])
        q, k, v = (
            layer(h).view(rows, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / 4.0 + bias, -1)
        mixed = (weights @ v).transpose(1, 2).reshape(rows, length, -1)
        h = self.first(h + self.out(mixed))
        h = self.second(h + self.down(F.gelu(self.up(h))))
        return h, h[:, 0]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.one(x)))
        h = F.max_pool2d(F.silu(h + self.two(h)), 2)
        return self.last(h.mean((2, 3)))


def leaves(value: Any) -> list[torch.Tensor]:
    return [item for item in torch.utils._pytree.tree_leaves(value) if item is not None]


def assert_trains_alike(model: nn.Module, args: tuple[Any, ...], *, dynamic: bool) -> None:
    """Outputs, gradients and buffers after one step are eager's."""
    other = copy.deepcopy(model)
    results = []
    for module, call in ((model, model), (other, compiled(other, dynamic=dynamic))):
        out = call(*args)
        sum(item.pow(2).sum() for item in leaves(out)).backward()
        grads = [parameter.grad for parameter in module.parameters()]
        results.append([*leaves(out), *leaves(grads), *module.buffers()])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("dynamic", [False, True])
def test_attention_trains(dynamic: bool) -> None:
    torch.manual_seed(0)
    args = (torch.randint(0, 20, (2, 7)), torch.ones(2, 7, dtype=torch.long))
    assert_trains_alike(Attention(), args, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_convolutions_train_and_update_statistics(dynamic: bool) -> None:
    torch.manual_seed(0)
    assert_trains_alike(Convolutions(), (torch.randn(3, 3, 6, 6),), dynamic=dynamic)


def test_channels_last_inference() -> None:
    model = Convolutions().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-4)


def test_one_compile_serves_every_size() -> None:
    function = compiled(
        lambda x: torch.softmax(x.view(-1, 2, 3).sum(1), -1) * x.shape[0], dynamic=True
    )
    for rows in (4, 6, 10):
        x = torch.randn(rows, 3)
        expected = torch.softmax(x.view(-1, 2, 3).sum(1), -1) * rows
        torch.testing.assert_close(function(x), expected)
    assert len(PROGRAMS) == 1


def swap(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x.view(-1) * 2, y


def reverse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(x.flip(0))
    return y + x


def crossed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    new = y.t() + 1
    y.copy_(x.t())
    x.copy_(new)
    return x.sum() + y.sum()


def part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1:].mul_(2)
    y[:, ::2] = x[:, :2]
    return x.sum()


@pytest.mark.parametrize("function", [swap, reverse, crossed, part])
def test_inputs_are_written_after_they_are_read(function: Callable[..., Any]) -> None:
    ours = [torch.randn(3, 3), torch.randn(3, 3)]
    theirs = [tensor.clone() for tensor in ours]
    got, expected = leaves(compiled(function)(*ours)), leaves(function(*theirs))
    for one, other in zip([*got, *ours], [*expected, *theirs], strict=True):
        torch.testing.assert_close(one, other)


def test_an_expanded_input_is_written_by_eager() -> None:
    gm = fx.Graph()
    x, y = gm.placeholder("x"), gm.placeholder("y")
    x.meta["val"], y.meta["val"] = torch.zeros(1, 3).expand(2, 3), torch.ones(2, 3)
    gm.call_function(torch.ops.aten.copy_.default, (x, y)).meta["val"] = x.meta["val"]
    gm.output(())
    (step,) = lower(fx.GraphModule({}, gm), TABLE, {}).steps
    assert isinstance(step, Extern) and step.mutates == ("x",)


def test_random_draws_keep_their_order() -> None:
    def draws(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) - torch.rand_like(x)

    function = compiled(draws)
    torch.manual_seed(3)
    expected = draws(torch.zeros(4))
    torch.manual_seed(3)
    torch.testing.assert_close(function(torch.zeros(4)), expected)
    externs = [step for step in PROGRAMS[0].steps if isinstance(step, Extern)]
    assert all(step.ordered for step in externs)


def test_subgraphs_are_called_as_they_are() -> None:
    def branch(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, torch.sin, torch.cos, (x,))

    x = torch.randn(3)
    got = compiled(branch)(torch.tensor(True), x)
    torch.testing.assert_close(got, x.sin())


def test_complex_and_sparse_stay_with_eager() -> None:
    x = torch.randn(4, 4)
    got = compiled(lambda x: torch.fft.fft(x * 2).abs() + 1)(x)
    torch.testing.assert_close(got, torch.fft.fft(x * 2).abs() + 1)
    assert {type(step) for step in PROGRAMS[0].steps} == {Nest, Extern}


def test_a_constant_of_the_graph_is_kept() -> None:
    table = torch.arange(4.0)
    gm = fx.GraphModule({}, fx.Graph())
    gm.register_buffer("table", table)
    x = gm.graph.placeholder("x")
    x.meta["val"] = torch.zeros(4)
    held = gm.graph.get_attr("table")
    held.meta["val"] = table
    total = gm.graph.call_function(torch.ops.aten.add.Tensor, (x, held))
    total.meta["val"] = torch.zeros(4)
    gm.graph.output((total,))
    program = lower(gm, TABLE, {})
    assert torch.equal(interpret(program, [torch.ones(4)])[0], table + 1)


def test_the_same_value_may_be_returned_twice() -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return y, y.t(), y[0]

    x = torch.randn(3, 3)
    for got, expected in zip(compiled(twice)(x), twice(x), strict=True):
        torch.testing.assert_close(got, expected)
    assert sum(buffer.role == "output" for buffer in PROGRAMS[0].buffers.values()) == 1


def test_a_tensor_that_is_returned_twice_is_one_tensor() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    total = graph.call_function(torch.ops.aten.neg.default, (x,))
    turned = graph.call_function(torch.ops.aten.alias.default, (total,))
    made = torch.zeros(4)
    x.meta["val"], total.meta["val"], turned.meta["val"] = torch.zeros(4), made, made.view(4)
    graph.output((total, total, turned))
    first, again, other = interpret(lower(fx.GraphModule({}, graph), TABLE, {}), [torch.ones(4)])
    assert first is again
    assert first is not other and first.data_ptr() == other.data_ptr()
