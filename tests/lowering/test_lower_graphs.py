"""Small functions lowered and interpreted, against eager: views, reductions, gathers, creation.

Every case runs with fixed and with symbolic sizes. Strides must be eager's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import eqsat
from eqsat.engine.load import load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Nest, Program
from eqsat.lowering.lower import lower, lowered_ops
from eqsat.lowering.spec import problems

TABLE = OpTable(load_book([str(Path(eqsat.__path__[0]) / "rules" / "ops")]).ops)
TENSORS: dict[str, torch.Tensor] = {}


def setup_module() -> None:
    torch.manual_seed(0)
    TENSORS.update(
        x=torch.randn(4, 6),
        y=torch.randn(2, 3, 4, 5),
        w=torch.randn(6),
        w3=torch.randn(3),
        xi=torch.randint(0, 4, (3, 5)),
        b=torch.rand(4, 6) > 0.5,
        e=torch.randn(0, 6),
        s0=torch.tensor(2.5),
        xt=torch.randn(6, 4).t(),
        xs=torch.randn(8, 12)[::2, ::2],
        xe=torch.randn(4, 1).expand(4, 6),
        ye=torch.randn(2, 8, 9),
    )


CASES: list[Callable[..., Any]] = [
    lambda x: x.sum(),
    lambda x: x.sum(0),
    lambda x: x.sum((0, 1), keepdim=True),
    lambda x: x.mean(-1),
    lambda x: x.prod(1),
    lambda x: x.amax((0, 1)),
    lambda x: x.amin(1, keepdim=True),
    lambda b: b.any(),
    lambda b: b.all(1),
    lambda x: x.argmax(),
    lambda x: x.argmax(0),
    lambda x: x.argmin(1, keepdim=True),
    lambda x: x.max(1),
    lambda x: x.min(0, keepdim=True),
    lambda x: x.max(),
    lambda x: x.var(1),
    lambda x: x.std(0, unbiased=False),
    lambda x: torch.var_mean(x, 1),
    lambda x: torch.std_mean(x, 0, keepdim=True),
    lambda x: x.var(),
    lambda x: x.norm(),
    lambda x: x.norm(1, 1),
    lambda x: torch.linalg.vector_norm(x, 3, dim=0),
    lambda x: torch.linalg.vector_norm(x, float("inf")),
    lambda x: torch.logsumexp(x, 1),
    lambda x: torch.softmax(x, 0),
    lambda x: torch.log_softmax(x, 1),
    lambda x: torch.softmax(x.half(), 1),
    lambda x: torch.softmax(x.half(), 1, dtype=torch.float32),
    lambda x, w: F.layer_norm(x, (6,), w, w),
    lambda x: F.layer_norm(x.bfloat16(), (6,)),
    lambda y, w3: F.group_norm(y.reshape(2, 3, 20), 3, w3, w3),
    lambda y, w3: F.group_norm(y, 1, w3, w3),
    lambda x, w: F.rms_norm(x, (6,), w),
    lambda x, w: torch.ops.aten._fused_rms_norm(x, (6,), w, None),
    lambda y, w3: F.batch_norm(y, w3, w3.abs(), w3, w3),
    lambda xi: xi.sum(),
    lambda xi: xi.float().mean(),
    lambda xi: xi.prod(1),
    lambda b: b.sum(1),
    lambda x: x.half().sum(1),
    lambda xi: xi.max(1),
    lambda b: b.max(1),
    lambda b: b.int().argmax(),
    lambda e: e.sum(),
    lambda e: e.sum(0),
    lambda e: e.mean(),
    lambda e: e.any(1),
    lambda e: e.softmax(1),
    lambda e: e.relu(),
    lambda s0: s0.sum(),
    lambda s0: s0.softmax(0),
    lambda s0: s0.max(0),
    lambda x, s0: s0 + x,
    lambda s0: s0 * 2,
    lambda x: torch.count_nonzero(x),
    lambda x: x.view(2, 2, 6).permute(1, 0, 2).reshape(4, 6),
    lambda xt: xt.reshape(24),
    lambda xt: xt.reshape(3, 8) + 1,
    lambda xs: xs.reshape(24),
    lambda xs: xs.flatten(),
    lambda xe: xe + 1,
    lambda xe: xe.reshape(-1),
    lambda x: x[1],
    lambda x: x[-1],
    lambda x: x[:, 1:4],
    lambda x: x[::2],
    lambda x: x[1:, ::3],
    lambda x: x.unsqueeze(1) * x.unsqueeze(0),
    lambda x: x.flip(0),
    lambda x: x.flip((0, 1)),
    lambda x: x.roll(1, 0),
    lambda x: x.roll((1, -2), (0, 1)),
    lambda x: x.roll(3),
    lambda x: x.repeat(2, 3),
    lambda x: x.repeat(2, 1, 1),
    lambda x: x.diagonal(),
    lambda y: y.diagonal(1, 2, 3),
    lambda x: x.unfold(1, 3, 2),
    lambda x: x.tril(),
    lambda x: x.triu(1),
    lambda x: x.tril(-1),
    lambda x, xt, xs: torch.cat([x, xt, xs], 0),
    lambda x: torch.cat([x, torch.ones(4, 2)], 1),
    lambda x, xi: torch.cat([x, xi[:1].float()[0][:0]], 1),
    lambda x, xt: torch.stack([x, xt], 2),
    lambda x, xt: torch.stack([x, xt]),
    lambda x: x.split(2, 1),
    lambda x: x.chunk(3, 1),
    lambda x: x.unbind(1),
    lambda x: F.pad(x, (1, 2)),
    lambda x: F.pad(x, (-1, 2, 1, -1), value=3.0),
    lambda b: F.pad(b, (1, 1), value=True),
    lambda x: F.pad(x, (1, 1), mode="constant", value=float("-inf")),
    lambda x: torch.slice_scatter(x, x[:2] * 2, 0, 1, 3),
    lambda x: torch.slice_scatter(x, x[:, :3], 1, 0, 6, 2),
    lambda x, w: torch.select_scatter(x, w, 0, 2),
    lambda x: x.as_strided((3, 3), (2, 1), 1) + 0,
    lambda x: x.t().as_strided((3,), (7,)) * 2,
    lambda y: y.movedim(1, 3).contiguous(),
    lambda y: y.contiguous(memory_format=torch.channels_last) * 2,
    lambda y: y.to(memory_format=torch.channels_last),
    lambda x: x.expand(3, 4, 6),
    lambda: torch.zeros(3, 4).expand(2, 3, 4) + 1,
    lambda: torch.zeros(()),
    lambda: torch.full((2, 3), 7),
    lambda x: torch.ones_like(x),
    lambda: torch.arange(10),
    lambda: torch.arange(2, 20, 3),
    lambda: torch.arange(5.0),
    lambda: torch.arange(0, 1, 0.25),
    lambda: torch.eye(3, 5),
    lambda: torch.eye(4),
    lambda: torch.zeros(2).expand(4, 2),
    lambda: torch.full((), 3.5).expand(4),
    lambda: torch.scalar_tensor(3),
    lambda x: x.new_zeros(3),
    lambda: torch.empty(0),
    lambda: torch.linspace(0, 1, 5),
    lambda x: x[torch.arange(2)],
    lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    lambda x: x[torch.arange(4), x.argmax(1)],
    lambda x: x.index_select(1, torch.arange(3) * 2),
    lambda x: x[torch.arange(-2, 2)],
    lambda y: y[:, torch.arange(2), :, torch.arange(2)],
    lambda y: y[:, :, torch.arange(2)[:, None], torch.arange(3)],
    lambda y: y[torch.arange(2)[:, None], :, torch.arange(3)],
    lambda x, xi: F.embedding(xi, x),
    lambda x: F.embedding(torch.arange(3), x),
    lambda x, xi: x[xi],
    lambda x: x[0:1],
    lambda x: x.gather(1, torch.arange(6).expand(4, 6)),
    lambda x: x.cumsum(1),
    lambda x: x.sort(1),
    lambda x: x.topk(2, 1),
    lambda x, b: torch.where(b, x, 0.0),
    lambda x, b: x.masked_fill(b, float("-inf")),
    lambda x: x.clone(),
    lambda x: x.t().clone(),
    lambda xt: xt.contiguous(),
    lambda xe: xe.clone(),
    lambda x: x.to(torch.float64),
    lambda x: x.to(torch.int32),
    lambda x: x.half(),
    lambda xi: xi.half(),
    lambda b: b.float(),
    lambda x: x.bool(),
    lambda x: x.nan_to_num(),
    lambda x, xi: x + xi[:1, :1],
    lambda xi: xi + 1.5,
    lambda xi: xi / 2,
    lambda xi: xi // 2,
    lambda xi: xi % 3,
    lambda b: b + b,
    lambda x, b: b * x,
    lambda b: b & b,
    lambda b: ~b,
    lambda xi: ~xi,
    lambda xi: xi**2,
    lambda x: x**2,
    lambda x: x**0.5,
    lambda x: x ** (-1),
    lambda x: x**3,
    lambda x: 2**x,
    lambda x: x.pow(1.7),
    lambda b: -b.int(),
    lambda x: x.half() + 1e-08,
    lambda x, xi: x.half() * xi[:1, :1],
    lambda x: (x > 0) & (x < 1),
    lambda xi: xi == 2,
    lambda x: x.half() > 0.1,
    lambda x: F.gelu(x),
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: F.silu(x),
    lambda x: F.mish(x),
    lambda x: F.softplus(x),
    lambda x: F.elu(x),
    lambda x: F.leaky_relu(x),
    lambda x: F.hardtanh(x),
    lambda x: F.relu6(x),
    lambda x: F.glu(x, 1),
    lambda x: F.logsigmoid(x),
    lambda x: F.dropout(x, 0.5, False),
    lambda x: x.clamp(-1, 1),
    lambda x, w: x.clamp(min=w),
    lambda x, xt: torch.lerp(x, xt, 0.3),
    lambda x, xt, xs: torch.addcmul(x, xt, xs, value=2),
    lambda w: torch.outer(w, w),
    lambda x, xt: x @ xt.t(),
    lambda x: torch.einsum("ij,kj->ik", x, x),
    lambda x, xt: F.mse_loss(x, xt),
    lambda x, xi: F.cross_entropy(x, xi[:2].flatten()[:4]),
    lambda y: F.scaled_dot_product_attention(y, y, y),
    lambda y: F.scaled_dot_product_attention(y, y, y, is_causal=True),
    lambda y: F.interpolate(y, scale_factor=2.0),
    lambda y: F.max_pool2d(y, 2),
    lambda y: F.avg_pool2d(y, 2),
    lambda y: F.conv2d(y, torch.ones(2, 3, 2, 2)),
    lambda s0: F.pixel_shuffle(torch.ones(1, 4, 2, 2) * s0, 2),
    lambda x: x.sum(1, dtype=torch.float64),
    lambda x: torch.complex(x, x),
    lambda x: x.bfloat16().mean(0),
    lambda x, xt: torch.atan2(x, xt),
    lambda x: x.sign() * x.abs().sqrt(),
    lambda x, xt: torch.maximum(x, xt),
    lambda x: x.isnan() | x.isinf(),
    lambda x: x.logit(0.001),
    lambda ye: torch.baddbmm(ye[:, :, :8], ye, ye.transpose(1, 2)),
    lambda x, w: torch.addmm(w, x, x.t() @ x),
    lambda x: x.view(torch.int32),
    lambda x: torch.nn.functional.normalize(x),
    lambda x: x.frac(),
    lambda w, w3: torch.meshgrid(w, w3, indexing="ij"),
    lambda: torch.tril(torch.ones(4, 4, dtype=torch.bool)),
    lambda x, w: torch.broadcast_tensors(w, x),
    lambda x: x.rot90(),
    lambda x: x.squeeze(0),
    lambda x: x[None].squeeze(),
    lambda x: x.t().unflatten(0, (2, 3)),
    lambda x, xt: torch.block_diag(x, xt),
    lambda w, w3: torch.cartesian_prod(w, w3),
    lambda x, w: torch.heaviside(x, w),
    lambda x: x.trace(),
    lambda x: x.count_nonzero(1),
    lambda x, xt: x.index_add(0, torch.arange(2), xt[:2]),
    lambda x, xi: x.scatter(1, xi[:, :2].clamp(0, 3)[:3], 1.0),
    lambda x, w: x.index_put((torch.arange(2),), w),
    lambda x: x.repeat_interleave(2, 1),
    lambda x: x.squeeze().t(),
    lambda x: torch.hstack([x, x]),
]


def lowered(function: Callable[..., Any], mode: str) -> tuple[Program, list[torch.Tensor]]:
    args = [
        TENSORS[name].clone() if name in ("e", "s0") else TENSORS[name]
        for name in inspect.signature(function).parameters
    ]
    gm = make_fx(function, tracing_mode=mode)(*args)
    program = lower(gm, TABLE, {})
    assert problems(program) == []
    return program, args


def assert_same(got: Any, expected: Any) -> None:
    if not isinstance(expected, torch.Tensor):
        assert got == expected
        return
    assert got.dtype == expected.dtype and got.shape == expected.shape
    torch.testing.assert_close(got, expected, equal_nan=True)
    if expected.numel():
        for size, real, wanted in zip(expected.shape, got.stride(), expected.stride(), strict=True):
            assert size == 1 or real == wanted, (got.stride(), expected.stride())


def label(function: Callable[..., Any]) -> str:
    line = inspect.getsource(function).strip().rstrip(",")
    return re.sub(r"^lambda[^:]*: ", "", line)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("function", CASES, ids=label)
def test_equals_eager(function: Callable[..., Any], mode: str) -> None:
    program, args = lowered(function, mode)
    expected = function(*args)
    listed = expected if isinstance(expected, tuple | list) else [expected]
    got = interpret(program, args)
    assert len(got) == len(listed)
    for one, other in zip(got, listed, strict=True):
        assert_same(one, other)


NATIVE: list[Callable[..., Any]] = [
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x, w: F.layer_norm(x, (6,), w, w),
    lambda y, w3: F.group_norm(y, 1, w3, w3),
    lambda x: torch.var_mean(x, 1),
    lambda x: x.max(1),
    lambda x: F.pad(x, (1, 2)),
    lambda x, xt: torch.cat([x, xt], 1),
    lambda x: x.roll(1, 0).flip(1).unfold(1, 3, 2),
    lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    lambda x: x[torch.arange(-2, 2)],
    lambda y: y.contiguous(memory_format=torch.channels_last),
    lambda x: F.gelu(x) + F.silu(x),
    lambda x: torch.count_nonzero(x, 1),
    lambda y: F.pixel_shuffle(y.reshape(2, 12, 5, 1)[:, :8], 2),
]


@pytest.mark.parametrize("function", NATIVE, ids=label)
def test_needs_no_extern(function: Callable[..., Any]) -> None:
    program, _ = lowered(function, "fake")
    assert not [step for step in program.steps if isinstance(step, Extern)]


def test_views_cost_nothing() -> None:
    program, _ = lowered(lambda x: x.view(2, 2, 6).permute(1, 0, 2)[:, 1:].unsqueeze(0), "fake")
    assert program.steps == ()
    assert len(program.outputs) == 1


def test_a_view_of_an_input_shares_its_memory() -> None:
    program, args = lowered(lambda x: x.t()[1:3], "fake")
    (got,) = interpret(program, args)
    assert got.data_ptr() == args[0].t()[1:3].data_ptr()


def test_a_checked_index_raises_as_eager_does() -> None:
    def gathered(x: torch.Tensor, xi: torch.Tensor) -> torch.Tensor:
        return x[xi]

    program, args = lowered(gathered, "fake")
    assert isinstance(program.steps[-1], Nest)
    with pytest.raises(IndexError, match=r"index 1.* is out of bounds for dimension 0 with size 4"):
        interpret(program, [args[0], args[1] + 100])


def test_provenance_follows_the_node() -> None:
    gm = make_fx(lambda x: x.exp() + 1, tracing_mode="fake")(TENSORS["x"])
    for node in gm.graph.nodes:
        node.meta["eqsat_rules"] = ("rules/a.yaml:3 some-rule",)
    program = lower(gm, TABLE, {})
    steps = [step for step in program.steps if isinstance(step, Nest)]
    assert [step.origins for step in steps] == [("exp",), ("add",)]
    assert all(step.rules == ("rules/a.yaml:3 some-rule",) for step in steps)


def test_outputs_may_be_sizes_and_none() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, x.shape[0], None

    program, args = lowered(f, "symbolic")
    got = interpret(program, args)
    assert got[1:] == [4, None]


def test_lowered_ops_name_their_class() -> None:
    found = lowered_ops(TABLE)
    assert found["add"] == found["cast"] == found["cat"] == "pointwise"
    assert found["view"] == "view" and found["full"] == "creation"
    assert found["sum"] == found["softmax"] == "reduction"
    assert found["embedding"] == "indexed" and found["index_put"] == "scatter"
    assert "mm" not in found
