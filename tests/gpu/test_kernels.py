"""Programs on a CUDA device against eager, each with no fall-back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from eqsat.reports import recording
from eqsat.tests.gpu.programs import PROGRAMS, draw

pytestmark = pytest.mark.gpu

EXTERN = ("number_on_the_host",)  # nothing that a kernel is made for


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compare(ours: Any, theirs: Any) -> None:
    """Equal within what float32 (or the half dtype) of sums in another order gives."""
    for one, other in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        assert one.stride() == other.stride() and one.device == other.device
        wide = one.dtype in (torch.float32, torch.float64)
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if wide else {}
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)


def copies(inputs: Any) -> list[Any]:
    """Copies with the strides and the alignment of the inputs."""
    return [x.clone() if x.data_ptr() % 16 == 0 else torch.cat([x[:1], x])[1:] for x in inputs]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    function, inputs = PROGRAMS[name]()
    mine, theirs = copies(inputs), copies(inputs)
    with recording() as reports:
        compiled = torch.compile(function, backend="eqsat", fullgraph=True, dynamic=dynamic)
        ours = compiled(*mine)
    compare(ours, function(*theirs))
    compare(mine, theirs)
    assert any(report.kernels for report in reports) or name in EXTERN
    again = copies(inputs)
    compare(compiled(*again), function(*copies(inputs)))


def test_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 32), nn.Softmax(-1)
    ).cuda()
    x, y = draw(100, 64), draw(100, 32)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - y).square().mean()

    ours = torch.autograd.grad(torch.compile(loss, backend="eqsat")(x), list(model.parameters()))
    compare(ours, torch.autograd.grad(loss(x), list(model.parameters())))


def test_dropout_draws_what_eager_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    x = draw(100, 100)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.3) + torch.rand_like(x)

    torch.manual_seed(3)
    ours = torch.compile(f, backend="eqsat")(x)
    torch.manual_seed(3)
    compare(ours, f(x))


def test_streams() -> None:
    """Temporaries of calls on two streams do not meet."""
    function = torch.compile(lambda x: (x.sin().sum(1, keepdim=True) + x).cos(), backend="eqsat")
    inputs = [draw(2000, 500) for _ in range(2)]
    wanted = [(x.sin().sum(1, keepdim=True) + x).cos() for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    found: list[list[torch.Tensor]] = [[], []]
    for _ in range(20):
        for stream, x, results in zip(streams, inputs, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(function(x))
    torch.cuda.synchronize()
    for results, expected in zip(found, wanted, strict=True):
        for result in results:
            compare(result, expected)


def test_a_captured_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry may be captured into a CUDA graph."""
    monkeypatch.setenv("EQSAT_STRICT", "1")
    function = torch.compile(lambda x: (x.softmax(-1) * 2).sum(0), backend="eqsat")
    x = draw(64, 100)
    function(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(x)
    x.copy_(draw(64, 100))
    graph.replay()
    compare(result, (x.softmax(-1) * 2).sum(0))


def test_reduce_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results stay what they are; a parameter that moves and other sizes are noticed."""
    monkeypatch.setenv("EQSAT_STRICT", "1")
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
    compiled = torch.compile(model, backend="eqsat", mode="reduce-overhead")
    with torch.no_grad():
        inputs = [draw(16, 64) for _ in range(5)]
        results = [compiled(x) for x in inputs]
        compare(results, [model(x) for x in inputs])
        model[0].weight.data = draw(64, 64)
        model[2].bias.add_(1)
        compare([compiled(x) for x in inputs], [model(x) for x in inputs])
        for x in [draw(3, 64) for _ in range(3)]:
            compare(compiled(x), model(x))


def test_recorded_writes_and_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")

    def f(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache.add_(x)
        y = cache.sin()
        return y, y[1:], cache * 2

    compiled = torch.compile(f, backend="eqsat", mode="reduce-overhead")
    ours, theirs = draw(8, 8), torch.empty(8, 8, device="cuda")
    theirs.copy_(ours)
    with torch.no_grad():
        for _ in range(4):
            x = draw(8, 8)
            found, wanted = compiled(ours, x), f(theirs, x)
            compare(found, wanted)
            compare(ours, theirs)
            assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()


def test_random_numbers_go_on_when_recorded() -> None:
    compiled = torch.compile(
        lambda x: torch.nn.functional.dropout(x, 0.5), backend="eqsat", mode="reduce-overhead"
    )
    x = torch.ones(1000, device="cuda")
    results = [compiled(x) for _ in range(6)]
    assert len({tuple(result.tolist()) for result in results}) == 6
