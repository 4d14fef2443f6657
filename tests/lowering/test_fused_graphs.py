"""Kernel counts of real graphs after fusion, and results against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.fuse import fuse
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Nest
from eqsat.lowering.lower import lower
from eqsat.lowering.plan import plan
from eqsat.lowering.simplify import simplify

aten = torch.ops.aten
DECOMPOSED = get_decompositions(
    [
        aten._softmax,
        aten._log_softmax,
        aten.native_layer_norm,
        aten.native_group_norm,
        aten.native_batch_norm,
        aten._native_batch_norm_legit_no_training,
        aten._softmax_backward_data,
        aten.gelu_backward,
        aten.addmm,
        aten.silu,
    ]
)


@pytest.fixture(scope="module")
def book() -> Any:
    return load_book([RULES / "ops", RULES / "scalar"])


def counts(fn: Callable[..., Any], args: tuple[Any, ...], book: Any, rules: Any) -> tuple[int, int]:
    """Nests and calls after fusion, once results are the same as eager's."""
    graph = make_fx(fn, DECOMPOSED, tracing_mode="fake")(*args)
    scalars = {entry.name: entry for entry in book.scalars}
    fused, _ = fuse(lower(graph, OpTable(book.ops), scalars), rules)
    program = simplify(fused)
    plan(program)
    expected = fn(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(interpret(program, args), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    kinds = [isinstance(step, Nest) for step in program.steps]
    return sum(kinds), len(kinds) - sum(kinds)


def residual_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    total = x + y
    return F.layer_norm(total, (64,), w, b), total


def mlp(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, a, b)), c, d)


def rope(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    turned = torch.cat([-q[..., half:], q[..., :half]], -1)
    return q * cos + turned * sin


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def batch_norm(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return F.relu(F.batch_norm(x, mean, var, w, b))


def attention(q: Any, k: Any, v: Any) -> Any:
    mask = torch.ones(q.shape[-2], q.shape[-2]).triu(1) * -1e9
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + mask, -1) @ v


def sizes(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.rand(shape) + 0.1 for shape in shapes)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[int, int]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), sizes((32, 64)), (1, 0)),
    "softmax over rows": (lambda x: torch.softmax(x, 0), sizes((32, 64)), (1, 0)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), sizes((4, 8, 64)), (1, 0)),
    "residual and layer norm": (
        residual_norm,
        sizes((4, 8, 64), (4, 8, 64), (64,), (64,)),
        (1, 0),
    ),
    "mlp": (mlp, sizes((8, 16), (32, 16), (32,), (16, 32), (16,)), (2, 2)),
    "rope": (rope, sizes((2, 4, 8, 16), (8, 16), (8, 16)), (1, 0)),
    "rms_norm": (rms_norm, sizes((4, 8, 64), (64,)), (1, 0)),
    "batch norm": (batch_norm, sizes((4, 8, 6, 6), (8,), (8,), (8,), (8,)), (1, 0)),
    "group norm": (lambda x: F.group_norm(x, 4), sizes((4, 8, 5, 5)), (1, 0)),
    "attention": (attention, sizes((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16)), (1, 2)),
    "mean and variance": (
        lambda x: (x.mean(-1), x.amax(-1), x.sum(-1)),
        sizes((32, 64)),
        (1, 0),
    ),
    "swiglu": (lambda x: F.silu(x[..., :8]) * x[..., 8:], sizes((4, 16)), (1, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, book: Any, fusion_rules: Any) -> None:
    fn, args, expected = CASES[name]
    assert counts(fn, args, book, fusion_rules) == expected
