"""Memory for temporaries: shared by graphs, taken from calls whose results die, given back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from eqsat.codegen.arenas import ARENAS, Arenas
from eqsat.codegen.compile import CompileOptions, compile_program
from eqsat.lowering.loops import Extern, Program

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_block_comes_back_to_its_graph() -> None:
    arenas = Arenas()
    first, second = arenas.take(0, 100), arenas.take(0, 50)
    assert first.data_ptr() % 64 == 0 and first.data_ptr() != second.data_ptr()
    arenas.give(first)
    arenas.give(second)
    assert arenas.take(first.data_ptr(), 80) is first
    assert arenas.take(first.data_ptr(), 50) is second
    assert arenas.take(0, 10).numel() == 10


def test_a_block_that_is_too_small_makes_room() -> None:
    arenas = Arenas()
    arenas.give(arenas.take(0, 64))
    larger = arenas.take(0, 4096)
    assert larger.numel() == 4096 and arenas.idle_bytes() == 0


def test_the_last_user_takes_the_memory_along() -> None:
    arenas = Arenas()
    arenas.join()
    arenas.join()
    arenas.give(arenas.take(0, 64))
    arenas.quit()
    assert arenas.idle_bytes() == 64
    arenas.quit()
    assert arenas.idle_bytes() == 0


def chain(make: Any, size: int) -> Program:
    x, t = make.buffer("x", size, size, role="input"), make.buffer("t", size, size)
    u, out = make.buffer("u", size, size), make.buffer("out", size, size, role="output")
    steps = [
        make.nest("add", t, x, 1.0),
        Extern("u", aten.mm.default, (make.view(t), make.view(t)), {}, ("u",)),
        make.nest("mul", out, u, t),
    ]
    return make.program(["x"], [x, t, u, out], steps, [make.view(out)])


def expected(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) @ (x + 1) * (x + 1)


def test_graphs_and_threads_share_memory(make: Any, table: Any) -> None:
    gc.collect()
    before = ARENAS.idle_bytes()
    graphs = {n: compile_program(chain(make, n), table) for n in (3, 40, 8)}
    inputs = {n: torch.randn(n, n) for n in graphs}
    wrong: list[int] = []

    def run() -> None:
        for _ in range(30):
            for n, graph in graphs.items():
                (got,) = graph([inputs[n]])
                if not torch.allclose(got, expected(inputs[n]), atol=1e-4):
                    wrong.append(n)

    run()
    assert ARENAS.idle_bytes() <= max(before, 2 * 40 * 40 * 4 + 128)
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("shims", [False, True])
def test_results_of_calls_are_written_over(make: Any, table: Any, tight: bool, shims: bool) -> None:
    """`two` may lie where `one` did, which a call allocated, and `three` there again; the call
    that reads it, and those who run it in Python, find it."""
    shape = (1, 8, 128, 128)
    x, w = make.buffer("x", *shape, role="input"), make.buffer("w", 8, 8, 1, 1, role="input")
    one = make.buffer("one", *shape)
    two, three = make.buffer("two", *shape), make.buffer("three", *shape)
    out = make.buffer("out", *shape)
    convolution = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def call(name: str, read: Any) -> Extern:
        args = (make.view(read), make.view(w), *convolution)
        return Extern(name, aten.convolution.default, args, {}, (name,))

    steps = [
        call("one", x),
        make.nest("mul", two, one, 2.0),
        make.nest("add", three, two, x),
        call("out", three),
    ]
    program = make.program(["x", "w"], [x, w, one, two, three, out], steps, [make.view(out)])
    graph = compile_program(program, table, CompileOptions(tight=tight, shims=shims))
    values, weight = torch.randn(shape), torch.randn(8, 8, 1, 1)
    conv = torch.nn.functional.conv2d
    right = conv(conv(values, weight) * 2 + values, weight)
    for _ in range(3):
        (got,) = graph([values, weight])
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-3)
    taken = graph._blueprint.taken
    assert len(taken) == (2 if shims else 1 if tight else 0)
    assert sum(slot.role == "temp" for slot in graph._blueprint.slots) == (
        0 if shims else 0 if tight else 2
    )


def test_training_frees_what_it_saved_as_it_goes() -> None:
    """A step needs no more than eager's, which lets go of each saved tensor after its use."""
    from benchmarks.memory import changes_of, highest  # noqa: PLC0415 - the checkout's folder

    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))
    compiled = torch.compile(model, backend="eqsat")
    x = torch.randn(4096, 64)
    peaks = {}
    for name, function in (("eager", model), ("ours", compiled)):
        for _ in range(2):
            function(x).sum().backward()
        forward, loss = changes_of(lambda function=function: function(x).sum())
        assert isinstance(loss, torch.Tensor)
        backward, _ = changes_of(loss.backward)
        peaks[name] = sum(forward) + highest(backward)
        del loss
    assert peaks["ours"] + ARENAS.idle_bytes() <= 1.01 * peaks["eager"]
