"""Whole graphs through the C entry, by the extension and by ctypes."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest
import sympy
import torch

from eqsat.codegen import compile as compiling
from eqsat.codegen import launch as launching
from eqsat.codegen import shims
from eqsat.codegen.compile import CompileOptions, compile_program
from eqsat.codegen.launch import CtypesRunner, NativeRunner, find_runner
from eqsat.codegen.symbols import UnboundSymbol
from eqsat.lowering.loops import Extern, SizeValue, View

aten = torch.ops.aten


@pytest.fixture(params=["native", "ctypes"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, table: Any) -> Any:
    if request.param == "ctypes":
        monkeypatch.setattr(compiling, "find_runner", CtypesRunner)
    else:
        assert isinstance(find_runner(), NativeRunner)

    def run(program: Any, **options: Any) -> Any:
        return compile_program(program, table, CompileOptions(**options))

    return run


def chain(make: Any) -> Any:
    """(x + w) @ w.T - x, and two aliases of x."""
    x, w = make.buffer("x", 6, 6, role="input"), make.buffer("w", 6, 6, role="input")
    t, u, v = make.buffer("t", 6, 6), make.buffer("u", 6, 6, role="extern"), make.buffer("v", 6, 6)
    steps = [
        make.nest("add", t, x, w),
        Extern("mm", aten.mm.default, (make.view(t), View("w", (6, 6), (1, 6))), {}, ("u",)),
        make.nest("sub", v, u, x),
    ]
    outputs = [make.view(v), View("x", (6, 6), (1, 6)), make.view(x), 7, None]
    return make.program(["x", "w"], [x, w, t, u, v], steps, outputs)


@pytest.mark.parametrize("direct", [True, False])
def test_kernels_externs_and_aliases(build: Any, make: Any, direct: bool) -> None:
    graph = build(chain(make), shims=direct)
    assert vars(graph)["_boxed_call"]
    assert graph.externs[0].path == ("aoti_torch_cpu_mm_out" if direct else "python")
    for _ in range(3):
        x, w = torch.randn(6, 6), torch.randn(6, 6)
        inputs = [x, w]
        result = graph(inputs)
        assert inputs == []
        torch.testing.assert_close(result[0], (x + w) @ w.T - x, rtol=0, atol=1e-5)
        assert result[1].data_ptr() == x.data_ptr() and result[1].stride() == (1, 6)
        assert result[2] is x and result[3:] == [7, None]


def test_outputs_are_fresh_and_inputs_are_let_go(build: Any, make: Any) -> None:
    graph = build(chain(make))
    x, w = torch.randn(6, 6), torch.randn(6, 6)
    first = graph([x, w])[0]
    kept = first.clone()
    graph([x + 1, w])
    assert torch.equal(first, kept)
    gone = weakref.ref(w)
    del w
    gc.collect()
    assert gone() is None


def test_misaligned_inputs_and_parameters(build: Any, make: Any) -> None:
    graph = build(chain(make))
    memory = torch.randn(37)
    x = memory[1:].view(6, 6)
    w = torch.nn.Parameter(torch.randn(6, 6))
    with torch.enable_grad():
        result = graph([x, w])[0]
        assert torch.is_grad_enabled() and not result.requires_grad
    torch.testing.assert_close(result, ((x + w) @ w.T - x).detach(), rtol=0, atol=1e-5)


def test_dynamic_sizes_from_symbols_and_shapes(build: Any, make: Any) -> None:
    s0, s1 = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
    x = make.buffer("x", 2 * s0 + 1, s1, role="input")
    y = make.buffer("y", 2 * s0 + 1, s1)
    z = make.buffer("z", s1, s1)
    flipped = View("y", (s1, 2 * s0 + 1), (1, s1))
    steps = [
        make.nest("add", y, x, x),
        Extern("mm", aten.mm.default, (flipped, make.view(y)), {}, ("z",)),
    ]
    outputs = [make.view(z), SizeValue(s0 * s1 // 2), make.view(y)]
    graph = build(make.program([SizeValue(s1), "x"], [x, y, z], steps, outputs))
    for rows, columns in [(3, 4), (5, 2), (3, 4), *((2 * n + 1, n) for n in range(1, 12))]:
        data = torch.randn(rows, columns)
        result = graph([columns, data])
        torch.testing.assert_close(result[0], (2 * data).T @ (2 * data))
        assert result[1] == (rows - 1) // 2 * columns // 2
        assert torch.equal(result[2], 2 * data)


def test_unbound_symbol_is_refused(build: Any, make: Any) -> None:
    u0 = sympy.Symbol("u0", integer=True)
    x = make.buffer("x", 3, role="input")
    with pytest.raises(UnboundSymbol, match="u0"):
        build(make.program(["x"], [x], [], [SizeValue(u0), make.view(x)]))


def test_two_outputs_over_one_buffer(build: Any, make: Any) -> None:
    x, y = make.buffer("x", 4, 3, role="input"), make.buffer("y", 4, 3)
    outputs = [make.view(y), View("y", (3,), (1,), 3)]
    graph = build(make.program(["x"], [x, y], [make.nest("mul", y, x, 2.0)], outputs))
    data = torch.randn(4, 3)
    whole, row = graph([data])
    assert torch.equal(row, data[1] * 2)
    assert row.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_errors_of_externs_reach_the_user(build: Any, make: Any) -> None:
    x = make.buffer("x", 4, 3, role="input")
    i = make.buffer("i", 2, role="input", dtype="i64")
    y = make.buffer("y", 2, 3, role="extern")
    step = Extern("take", aten.embedding.default, (make.view(x), make.view(i)), {}, ("y",))
    graph = build(make.program(["x", "i"], [x, i, y], [step], [make.view(y)]))
    data = torch.randn(4, 3)
    assert torch.equal(graph([data, torch.tensor([3, 0])])[0], data[[3, 0]])
    with pytest.raises(IndexError, match="out of range"):
        graph([data, torch.tensor([3, 9])])
    assert torch.equal(graph([data, torch.tensor([1, 1])])[0], data[[1, 1]])


def test_a_failing_shim_raises_what_eager_raises(build: Any, make: Any, capfd: Any) -> None:
    x = make.buffer("x", 2, 3, role="input")
    y = make.buffer("y", 2, 2, role="extern")
    step = Extern("mm", aten.mm.default, (make.view(x), make.view(x)), {}, ("y",))
    graph = build(make.program(["x"], [x, y], [step], [make.view(y)]))
    data = torch.randn(2, 3)
    with pytest.raises(RuntimeError) as ours:
        graph([data])
    with pytest.raises(RuntimeError) as eager:
        torch.mm(data, data)
    assert str(ours.value) == str(eager.value)


def test_wrong_inputs(build: Any, make: Any) -> None:
    graph = build(chain(make))
    with pytest.raises(TypeError, match="one list of 2"):
        graph([torch.randn(6, 6)])
    with pytest.raises(TypeError, match="expected a tensor"):
        graph([torch.randn(6, 6), 3])


def test_results_in_another_layout_or_in_the_arena(build: Any, make: Any) -> None:
    x, t = make.buffer("x", 3, 4, role="input"), make.buffer("t", 3, 4)
    moved = make.buffer("moved", 3, 4, role="extern", stride=(1, 3))
    alias = make.buffer("alias", 3, 4, role="extern")
    again, last = make.buffer("again", 3, 4), make.buffer("last", 3, 4)
    steps = [
        make.nest("add", t, x, 1.0),
        Extern("moved", aten.neg.default, (make.view(t),), {}, ("moved",)),
        Extern("alias", aten.alias.default, (make.view(t),), {}, ("alias",)),
        make.nest("mul", again, x, 5.0),
        make.nest("add", last, again, alias),
    ]
    outputs = [make.view(moved), make.view(alias), make.view(last)]
    graph = build(make.program(["x"], [x, t, moved, alias, again, last], steps, outputs))
    data = torch.randn(3, 4)
    for _ in range(2):
        negated, plus_one, total = graph([data])
        assert negated.stride() == (1, 3) and torch.equal(negated, -(data + 1))
        assert torch.equal(plus_one, data + 1)
        assert torch.equal(total, data * 5.0 + (data + 1))


def test_mutation_of_an_input_and_constants(build: Any, make: Any) -> None:
    x, k = make.buffer("x", 3, role="input"), make.buffer("k", 3, role="constant")
    y = make.buffer("y", 3)
    copy = Extern(
        "copy", aten.copy_.default, (make.view(x), make.view(y)), {}, (None,), mutates=("x",)
    )
    constants = {"k": torch.tensor([1.0, 2.0, 3.0])}
    program = make.program(
        ["x"], [x, k, y], [make.nest("add", y, x, k), copy], [make.view(k)], constants
    )
    graph = build(program)
    data = torch.zeros(3)
    version = data._version
    assert torch.equal(graph([data])[0], constants["k"])
    graph([data])
    assert data.tolist() == [2.0, 4.0, 6.0] and data._version == version + 2


def test_number_results_and_empty_tensors(build: Any, make: Any) -> None:
    x, y = make.buffer("x", 0, 4, role="input"), make.buffer("y", 4, 4, role="extern")
    steps = [
        Extern("count", aten.sym_size.int, (make.view(x), 0), {}, (None,)),
        Extern("mm", aten.mm.default, (View("x", (4, 0), (1, 4)), make.view(x)), {}, ("y",)),
    ]
    graph = build(make.program(["x"], [x, y], steps, [make.view(y), make.view(x)]))
    assert torch.equal(graph([torch.empty(0, 4)])[0], torch.zeros(4, 4))


def test_threads_and_reentrant_calls(build: Any, make: Any) -> None:
    inner = build(chain(make))
    w = torch.randn(6, 6)

    def twice(value: torch.Tensor) -> torch.Tensor:
        return graph([value, w])[0] if value[0, 0] > 100 else inner([value, w])[0]

    x, v = make.buffer("x", 6, 6, role="input"), make.buffer("v", 6, 6, role="extern")
    other, y = make.buffer("w", 6, 6, role="input"), make.buffer("y", 6, 6)
    steps = [make.nest("sub", y, x, 200.0), Extern("twice", twice, (make.view(y),), {}, ("v",))]
    graph = build(make.program(["x", "w"], [x, other, v, y], steps, [make.view(v), make.view(y)]))
    failures: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for turn in range(100):
            x = torch.randn(6, 6, generator=generator) + (400 if turn % 2 else 0)
            last, first = graph([x, w])
            inside = x - 200 if turn % 2 == 0 else x - 400
            expected = (inside + w) @ w.T - inside
            if not torch.allclose(last, expected, rtol=1e-4, atol=1e-2):
                failures.append("wrong result")
            if not torch.equal(first, x - 200):
                failures.append("another call wrote into this one's output")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_results_of_shims_are_freed_and_shared(build: Any, make: Any) -> None:
    x, w = make.buffer("x", 1, 2, 5, 5, role="input"), make.buffer("w", 3, 2, 3, 3, role="input")
    y = make.buffer("y", 1, 3, 3, 3, role="extern")
    pooled = make.buffer("pooled", 1, 3, 1, 1, role="extern")
    z = make.buffer("z", 1, 3, 3, 3)
    conv = (make.view(x), make.view(w), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    steps = [
        Extern("conv", aten.convolution.default, conv, {}, ("y",)),
        Extern("pool", aten._adaptive_avg_pool2d.default, (make.view(y), [1, 1]), {}, ("pooled",)),
        Extern("odd", torch.neg, (make.view(y),), {}, ("n",)),
        make.nest("add", z, y, y),
    ]
    n = make.buffer("n", 1, 3, 3, 3, role="extern")
    outputs = [make.view(pooled), make.view(z), View("y", (3,), (9,)), make.view(n)]
    graph = build(make.program(["x", "w"], [x, w, y, pooled, z, n], steps, outputs))
    assert [info.path != "python" for info in graph.externs] == [True, True, False]
    data, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    expected = torch.conv2d(data, weight)
    for _ in range(3):
        mean, double, corner, negative = graph([data, weight])
        torch.testing.assert_close(mean, expected.mean((2, 3), keepdim=True))
        torch.testing.assert_close(double, expected * 2)
        torch.testing.assert_close(corner, expected[0, :, 0, 0])
        torch.testing.assert_close(negative, -expected)


@pytest.mark.parametrize("wrap", [True, False])
def test_nothing_outlives_a_call(make: Any, table: Any, monkeypatch: Any, wrap: bool) -> None:
    x, y = make.buffer("x", 1, 8, 8, role="input"), make.buffer("y", 1, 4, 4, role="extern")
    n, z = make.buffer("n", 1, 4, 4, role="extern"), make.buffer("z", 1, 8, 8)
    steps = [
        Extern("pool", aten._adaptive_avg_pool2d.default, (make.view(x), [4, 4]), {}, ("y",)),
        Extern("neg", torch.neg, (make.view(y),), {}, ("n",)),
        make.nest("add", z, x, 1.0),
    ]
    outputs = [make.view(n), View("y", (16,), (1,)), make.view(z), View("z", (64,), (1,))]
    launching.find_runner.cache_clear()
    if not wrap:
        monkeypatch.setattr(launching, "_wrap_address", lambda: 0)
    graph = compile_program(make.program(["x"], [x, y, n, z], steps, outputs), table)
    launching.find_runner.cache_clear()
    results = graph([torch.randn(1, 8, 8)])
    for result in results:
        # The tensor is known to `results`, `result` and the argument of getrefcount only.
        assert sys.getrefcount(result) == 3
    known = [weakref.ref(result) for result in results]
    del result, results
    assert [ref() for ref in known] == [None] * 4


def test_effect_tokens_are_none(build: Any, make: Any) -> None:
    token, x = make.buffer("token", 0, role="input"), make.buffer("x", 3, role="input")
    after, y = make.buffer("after", 0, role="extern"), make.buffer("y", 3, role="extern")

    def effect(before: Any, value: torch.Tensor) -> Any:
        return before, value + 1

    args = (make.view(token), make.view(x))
    step = Extern("effect", effect, args, {}, ("after", "y"), single=False, ordered=True)
    outputs = [make.view(after), make.view(y)]
    graph = build(make.program(["token", "x"], [token, x, after, y], [step], outputs))
    result = graph([None, torch.zeros(3)])
    assert result[0] is None and torch.equal(result[1], torch.ones(3))


@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)])
def test_inference_mode_comes_and_goes(build: Any, make: Any, order: tuple[bool, ...]) -> None:
    x, w = make.buffer("x", 1, 2, 5, 5, role="input"), make.buffer("w", 3, 2, 3, 3, role="input")
    t = make.buffer("t", 1, 2, 5, 5)
    y, z = make.buffer("y", 1, 3, 3, 3, role="extern"), make.buffer("z", 1, 3, 3, 3, role="extern")
    conv = (make.view(t), make.view(w), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    steps = [
        make.nest("add", t, x, 1.0),
        Extern("double", torch.Tensor.mul_, (make.view(t), 2), {}, (None,), mutates=("t",)),
        Extern("conv", aten.convolution.default, conv, {}, ("y",)),
        Extern("relu", aten.relu.default, (make.view(y),), {}, ("z",)),
    ]
    graph = build(make.program(["x", "w"], [x, w, t, y, z], steps, [make.view(z)]))
    data, weight = torch.randn(1, 2, 5, 5), torch.nn.Parameter(torch.randn(3, 2, 3, 3))
    for inference in order:
        with torch.inference_mode(inference):
            result = graph([data, weight])[0]
            expected = torch.conv2d((data + 1) * 2, weight).relu()
            assert torch.equal(result, expected) and result.is_inference() == inference


@pytest.mark.parametrize("lasting", [True, False])
def test_large_inputs_are_let_go_after_their_last_use(build: Any, make: Any, lasting: bool) -> None:
    x, y = make.buffer("x", 1 << 18, role="input"), make.buffer("y", 1 << 18)
    z = make.buffer("z", 1 << 18)
    seen: list[bool] = []
    steps = [
        make.nest("add", y, x, 1.0),
        Extern("look", lambda: seen.append(gone() is None), (), {}, (None,), ordered=True),
        make.nest("add", z, y, 1.0),
    ]
    program = make.program(["x"], [x, y, z], steps, [make.view(z)])
    graph = build(program, lasting=frozenset({"x"} if lasting else ()))
    data = torch.zeros(1 << 18)
    gone = weakref.ref(data)
    inputs = [data]
    del data
    assert graph(inputs)[0].sum() == 2 << 18
    assert seen == [not lasting]


def test_without_any_shim(make: Any, table: Any, monkeypatch: Any) -> None:
    for module in (compiling, launching, shims):
        monkeypatch.setattr(module, "ready", lambda: False)
    monkeypatch.setattr(compiling, "find_runner", CtypesRunner)
    graph = compile_program(chain(make), table)
    x, w = torch.randn(6, 6), torch.randn(6, 6)
    for _ in range(2):
        torch.testing.assert_close(graph([x, w])[0], (x + w) @ w.T - x, rtol=0, atol=1e-5)


def test_zeros_without_memory_are_given_some() -> None:
    """As autograd makes them for ops that are flat."""
    x = torch.randn(4, requires_grad=True)
    torch.compile(lambda x: torch.sgn(x), backend="eqsat")(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.zeros(4))


def test_strides_do_not_reach_into_other_memory() -> None:
    """Temporaries lie side by side in one arena; each has the bounds that it has in eager."""

    def function(x: torch.Tensor) -> torch.Tensor:
        places = torch.max(x, 1, keepdim=True)[1]
        return places.as_strided((2, 2), (1, 1))

    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.compile(function, backend="eqsat")(torch.randn(1, 1, 1))
