"""Every shim in the table against the op it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eqsat.codegen import shims
from eqsat.codegen.compile import compile_program
from eqsat.codegen.externs import c_double, find_route
from eqsat.engine.dtypes import word_of
from eqsat.lowering.loops import Buffer, Extern, View

aten = torch.ops.aten


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def attention(flash: Any = aten._scaled_dot_product_flash_attention_for_cpu.default) -> Any:
    q, k, v = t(2, 3, 16, 8), t(2, 3, 16, 8), t(2, 3, 16, 8)
    out, lse = flash(q, k, v)
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return back, (t(2, 3, 16, 8), q, k, v, out, lse, 0.0, False), {"scale": 0.25}


def pool_backward() -> Any:
    x = t(1, 2, 6, 6)
    y, indices = aten.max_pool2d_with_indices.default(x, [2, 2])
    args = (torch.ones_like(y), x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
    return aten.max_pool2d_with_indices_backward.default, args, {}


CONV = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
CASES = [
    (aten.mm.default, (t(3, 4), t(4, 5)), {}),
    (aten.mm.default, (t(3, 4), t(5, 4).T), {}),
    (aten.mm.default, (t(3, 4, dtype=torch.bfloat16), t(4, 5, dtype=torch.bfloat16)), {}),
    (aten.mm.default, (torch.arange(6).view(2, 3), torch.arange(6).view(3, 2)), {}),
    (aten.bmm.default, (t(2, 3, 4), t(2, 4, 5)), {}),
    (aten.addmm.default, (t(5), t(3, 4), t(4, 5)), {"alpha": 0.5, "beta": 2}),
    (aten.baddbmm.default, (t(2, 3, 5), t(2, 3, 4), t(2, 4, 5)), {}),
    (aten.convolution.default, (t(1, 2, 5, 5), t(3, 2, 3, 3), t(3), *CONV), {}),
    (aten.convolution.default, (t(1, 2, 5, 5), t(3, 2, 3, 3), None, *CONV), {}),
    (
        aten.convolution_backward.default,
        (t(1, 3, 5, 5), t(1, 2, 5, 5), t(3, 2, 3, 3), [3], *CONV, [True, True, True]),
        {},
    ),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, (t(2, 3, 16, 8),) * 3, {}),
    (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (t(2, 3, 16, 8), t(2, 3, 16, 8), t(2, 3, 16, 8), 0.0, True),
        {"attn_mask": None, "scale": 0.5},
    ),
    (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (t(2, 3, 16, 8), t(2, 3, 16, 8), t(2, 3, 16, 8)),
        {"attn_mask": t(16, 16)},
    ),
    attention(),
    (aten.max_pool2d_with_indices.default, (t(1, 2, 6, 6), [2, 2]), {}),
    pool_backward(),
    (aten.avg_pool2d.default, (t(1, 2, 6, 6), [2, 2]), {}),
    (aten.avg_pool2d.default, (t(1, 2, 6, 6), [3, 3], [1, 1], [1, 1], True, False, 5), {}),
    (
        aten.avg_pool2d_backward.default,
        (t(1, 2, 3, 3), t(1, 2, 6, 6), [2, 2], [2, 2], [0, 0], False, True, None),
        {},
    ),
    (aten._adaptive_avg_pool2d.default, (t(1, 2, 6, 6), [2, 3]), {}),
    (aten.sort.default, (t(4, 7), 1, True), {}),
    (aten.topk.default, (t(4, 7), 3), {}),
    (aten.linear.default, (t(3, 4), t(5, 4), t(5)), {}),
    (aten.linear.default, (t(2, 3, 4), t(5, 4), t(5)), {}),
    (aten.linear.default, (t(2, 1, 3, 4), t(5, 4)), {}),
    (aten.matmul.default, (t(2, 3, 4), t(4, 5)), {}),
    (aten.matmul.default, (t(2, 3, 4, 5), t(2, 3, 5, 6)), {}),
]


def as_program(make: Any, target: Any, args: Any, kwargs: Any, results: Any) -> Any:
    """The program that makes this one call, and the tensors to call it with."""
    buffers: list[Buffer] = []
    tensors: list[torch.Tensor] = []

    def lower(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        name = f"in{len(buffers)}"
        shape, stride = tuple(value.shape), tuple(value.stride())
        buffers.append(Buffer(name, word_of(value.dtype), shape, stride, "input"))
        tensors.append(value)
        return View(name, shape, stride)

    lowered = tuple(map(lower, args)), {name: lower(value) for name, value in kwargs.items()}
    inputs = [buffer.name for buffer in buffers]
    outs = [
        Buffer(f"out{i}", word_of(r.dtype), tuple(r.shape), tuple(r.stride()), "extern")
        for i, r in enumerate(results)
    ]
    single = len(target._schema.returns) == 1
    step = Extern("call", target, *lowered, tuple(out.name for out in outs), single)
    program = make.program(inputs, [*buffers, *outs], [step], [make.view(out) for out in outs])
    return program, tensors


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_shim_equals_the_op(make: Any, table: Any, case: Any) -> None:
    target, args, kwargs = case
    result = target(*args, **kwargs)
    results = (result,) if isinstance(result, torch.Tensor) else result
    program, tensors = as_program(make, target, args, kwargs, results)
    graph = compile_program(program, table)
    assert graph.externs[0].path.startswith("aoti_torch_cpu_"), "ran through Python"
    for _ in range(2):
        for ours, theirs in zip(graph(list(tensors)), results, strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_results_nobody_reads(make: Any, table: Any) -> None:
    x, y = make.buffer("x", 4, 7, role="input"), make.buffer("y", 4, 7, role="extern")
    step = Extern("sort", aten.sort.default, (make.view(x),), {}, ("y", None), single=False)
    graph = compile_program(make.program(["x"], [x, y], [step], [make.view(y)]), table)
    data = torch.randn(4, 7)
    assert torch.equal(graph([data])[0], data.sort().values)


def test_what_has_no_route(make: Any) -> None:
    x, y = make.buffer("x", 4, 4, role="input"), make.buffer("y", 4, 4, role="extern")
    buffers = {"x": x, "y": y}
    view = make.view(x)

    def route(target: Any, *args: Any, **flags: Any) -> Any:
        return find_route(Extern("e", target, args, {}, ("y",), **flags), buffers)

    assert route(aten.mm.default, view, view) is not None
    assert route(aten.mm.default, view, view, mutates=("x",)) is None
    assert route(aten.relu.default, view) is None
    assert route(torch.relu, view) is None
    assert route(aten.addmm.default, view, view) is None
    assert route(aten.addmm.default, view, view, view, 1j) is None


def test_a_missing_symbol_means_python(make: Any, table: Any, monkeypatch: Any) -> None:
    gone = shims.Shim("there_is_no_such_function", "TT", out=True)
    monkeypatch.setattr(shims, "SHIMS", {"aten::mm": gone})
    x = torch.randn(3, 3)
    program, tensors = as_program(make, aten.mm.default, (x, x), {}, (x @ x,))
    graph = compile_program(program, table)
    assert graph.externs[0].path == "python"
    assert torch.equal(graph(tensors)[0], x @ x)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-310, 3.0, float("inf"), float("-inf")])
def test_c_doubles_are_exact(value: float) -> None:
    text = c_double(value)
    if "inf" in text:
        assert text.startswith("-") == (value < 0)
    else:
        assert float.fromhex(text).hex() == value.hex()
