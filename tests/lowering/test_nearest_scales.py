"""Resizing by fractional factors: the elements that eager takes, on every path."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.nearest_scales import interpolate, with_eager_scales

FACTORS = (0.5, 0.9, 1.0, 1.05, 1.1, 1.3, 1.6, 2.0, 2.05, 2.1, 2.3, 2.9, 3.0)
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def compiled(fn: Any, *args: Any, **how: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="eqsat", options={"strict": True}, **how)(*args)


def numbered(*shape: int) -> torch.Tensor:
    """Elements that tell where they come from."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def draw(pick: random.Random, dims: int) -> tuple[torch.Tensor, list[float]]:
    sides = [pick.randint(1, 8) for _ in range(dims)]
    factors = [pick.choice([factor for factor in FACTORS if int(side * factor)]) for side in sides]
    x = numbered(pick.choice((1, 2)), pick.choice((1, 2, 3, 4, 7)), *sides)
    if dims > 1 and pick.random() < 0.5:
        x = x.to(memory_format=LAYOUTS[x.dim()])
    if pick.random() < 0.3:
        x = torch.cat([x, x], -1)[..., : sides[-1]]
    return x, factors


@pytest.mark.parametrize("seed", range(120))
def test_corrected_factors_make_the_decomposition_equal_to_eager(seed: int) -> None:
    """What torch's decomposition, traced with the corrected factors, gives."""
    pick = random.Random(seed)
    dims = pick.choice((1, 2, 2, 3, 3))
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    mode = pick.choice(("nearest", "nearest", "nearest-exact", linear))
    x, factors = draw(pick, dims)
    with enable_python_dispatcher():  # where AOTAutograd finds the decompositions
        graph = make_fx(lambda x: interpolate(x, None, factors, mode))(x)
    assert not any("upsample" in str(node.target) for node in graph.graph.nodes)
    wanted = F.interpolate(x, scale_factor=tuple(factors), mode=mode)
    tolerance = {"rtol": 1e-5, "atol": 1e-3} if mode == linear else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(graph(x), wanted, **tolerance)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_compiled(dims: int, mode: str) -> None:
    pick = random.Random(dims)
    cases = [draw(pick, dims) for _ in range(6)]

    def fn(*xs: torch.Tensor) -> Any:
        return [
            F.interpolate(x, scale_factor=tuple(factors), mode=mode)
            for x, (_, factors) in zip(xs, cases, strict=True)
        ]

    xs = [x for x, _ in cases]
    for got, want in zip(compiled(fn, *xs), fn(*xs), strict=True):
        assert torch.equal(got, want)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_every_spelling() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (
            F.interpolate(x, scale_factor=1.3),
            F.interpolate(x, None, 1.3, "nearest"),
            F.interpolate(x, scale_factor=1.3, recompute_scale_factor=True),
            F.interpolate(x, size=(4, 5)),
            F.interpolate(x, scale_factor=1.3, mode="bilinear"),
            nn.Upsample(scale_factor=(1.3, 2.1))(x),
            nn.UpsamplingNearest2d(scale_factor=1.3)(x),
            F.upsample(x, scale_factor=1.3),
            F.upsample_nearest(x, scale_factor=1.3),
        )

    x = numbered(1, 2, 3, 4)
    for got, want in zip(compiled(fn, x), fn(x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("sides", [(5, 7), (3, 7), (2, 3)])
def test_symbolic_sizes(sides: tuple[int, int]) -> None:
    """Whether a length stays as it is is asked of the symbols, which guards it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return interpolate(x, scale_factor=1.3)

    x = numbered(1, 2, *sides)
    with enable_python_dispatcher():
        graph = make_fx(fn, tracing_mode="symbolic")(x)
    assert torch.equal(graph(x), F.interpolate(x, scale_factor=1.3))


def test_gradients_follow_the_forward_pass() -> None:
    x = numbered(1, 2, 3, 4)
    given = [x.clone().requires_grad_() for _ in range(2)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=(1.3, 2.1))

    results = [compiled(fn, given[0]), fn(given[1])]
    for result in results:
        result.backward(numbered(*result.shape))
    assert torch.equal(results[0], results[1])
    assert torch.equal(given[0].grad, given[1].grad)  # type: ignore[arg-type]


def test_other_graphs_stay_as_they_are() -> None:
    plain = fx.symbolic_trace(lambda x: torch.relu(x))
    assert with_eager_scales(plain) is plain
    resizing = fx.symbolic_trace(nn.Upsample(scale_factor=1.3))
    changed = with_eager_scales(resizing)
    assert changed is not resizing
    assert F.interpolate in {node.target for node in resizing.graph.nodes}
    x = numbered(1, 1, 3, 3)
    assert torch.equal(changed(x), resizing(x))


def test_a_wrong_number_of_factors_is_an_error() -> None:
    with pytest.raises(ValueError, match="scale_factor"):
        interpolate(numbered(1, 1, 3, 3), None, (1.3,))
