"""Measures the numbers of a target file on this machine.

Takes a device type; gives a `Target`. Each number is the best of several runs, spread over the
whole time, as other work on a machine only ever adds time. What
cannot be measured from here (`tile`, `view`, `memory`) is that of the built-in target. Takes
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .codegen.compile import compile_program
from .engine.load import builtin_book
from .engine.ops import OpTable
from .engine.target import SECTIONS, Target, load_target
from .lowering.fuse import fuse
from .lowering.lower import lower
from .lowering.simplify import simplify
from .machine import builtin_name

Run = Callable[[], Any]
Clock = Callable[[Run, int], float]

PASSES = 3
RUNS = 4
SPAN = 0.002  # seconds that one timing should take at least
POWERS = {"cpu": (18, 28), "cuda": (20, 32)}  # bytes of a vector, to find the size of a cache
CHAIN = 64  # operations on one element, so that arithmetic counts and traffic does not
CALLS = 32  # in one graph, so that the start of the graph does not count
EDGE = {"cpu": 512, "cuda": 8192}  # of the matrices
PARALLEL = 1 << 15  # elements of the smallest kernel that is split over threads
SMALL = 8  # edge of matrices whose product takes no time
LEAST = 1e-9


def calibrate(device: str) -> Target:
    """The target of the machine: `device` is "cpu" or "cuda". Raises RuntimeError where there
    is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    with torch.no_grad():
        meter = _Meter(device)
        for _ in range(PASSES):
            found = {**meter.memory(), **meter.arithmetic(), **meter.calls()}
    base = load_target(builtin_name(device))
    return replace(base, name=device, device=device, **found)


def target_text(target: Target, doc: str) -> str:
    """A target file. What shapes kernels is not measured: it stays that of the built-in target."""
    lines = [f"doc: {doc}"]
    for field in [field for field in fields(Target) if field.name not in SECTIONS]:
        value = getattr(target, field.name)
        if isinstance(value, Mapping):
            value = "{" + ", ".join(f"{k}: {v:.3e}" for k, v in value.items()) + "}"
        elif isinstance(value, float):
            value = str(int(value)) if field.name in ("units", "tile") else f"{value:.3e}"
        lines.append(f"{field.name}: {value}")
    return "\n".join(lines) + "\n"


class _Meter:
    """Measurements on one device. Rates are per second, times in seconds."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.clock: Clock = _cuda_seconds if device == "cuda" else _cpu_seconds
        self.best: dict[object, float] = {}  # of the passes until now
        self.cached = 0.0  # bytes per second

    def seconds(self, what: object, run: Run) -> float:
        """Of one call: the best of all timings of `what`."""
        run()
        count = max(1, int(SPAN / max(self.clock(run, 1), LEAST)))
        found = min(self.clock(run, count) for _ in range(RUNS))
        self.best[what] = max(LEAST, min(found, self.best.get(what, found)))
        return self.best[what]

    def busy(self, what: object, run: Run) -> float:
        """Of one call on the device, what the host takes to start it apart."""
        if self.device == "cpu":
            return self.seconds(what, run)
        found = _graph_seconds(run)
        self.best[what] = min(found, self.best.get(what, found))
        return self.best[what]

    def memory(self) -> dict[str, float]:
        """Bandwidths, the size of the cache, and what rows that lie apart cost."""
        rates = {}
        start = self._start()
        for power in range(*POWERS[self.device]):
            size = 1 << power
            x = torch.empty(size // 8, device=self.device).normal_()
            y = torch.empty_like(x)
            taken = self.busy(size, partial(torch.add, x, 1, out=y)) - start
            rates[size] = 2 * x.nbytes / max(taken, LEAST)
        cached, beyond = max(rates.values()), rates[size]
        self.cached = cached
        middle = (cached * beyond) ** 0.5
        cache = max(size for size, rate in rates.items() if rate >= min(middle, cached))
        wide = torch.empty(4096, 4096, device=self.device).normal_()
        left, right = wide[:, :2048], wide[:, 2048:]
        out = torch.empty(4096, 2048, device=self.device)
        dense = [half.contiguous() for half in (left, right)]
        apart = self.seconds("apart", lambda: torch.mul(left, right, out=out))
        together = self.seconds("together", lambda: torch.mul(*dense, out=out))
        return {
            "bandwidth": beyond,
            "cache_bandwidth": cached,
            "cache": float(cache),
            "strided": max(0.01, apart / together - 1),
        }

    def _start(self) -> float:
        """Seconds that a kernel takes before it moves anything: on a GPU that hides a cache."""
        if self.device == "cpu":
            return 0.0
        x = torch.zeros(1, device=self.device)
        return self.busy("start", partial(torch.add, x, 1, out=torch.empty_like(x)))

    def arithmetic(self) -> dict[str, Any]:
        """Rates of products per dtype and of elementwise work; how many units there are."""
        edge = EDGE[self.device]
        flops = {}
        for word in ("f64", "f32", "bf16", "f16"):
            dtype = {"f64": torch.float64, "f32": torch.float32}.get(word)
            dtype = dtype or {"bf16": torch.bfloat16, "f16": torch.float16}[word]
            x = torch.empty(edge, edge, device=self.device).normal_().to(dtype)
            flops[word] = 2.0 * edge**3 / self.seconds(word, partial(torch.mm, x, x))
        if self.device == "cpu":
            x = torch.ones(128, 128, dtype=torch.int32)
            flops["any"] = 2.0 * 128**3 / self.seconds("any", lambda: torch.mm(x, x))
            units = float(torch.get_num_threads())
        else:
            flops["any"] = min(flops.values()) / 4  # integer products have no library there
            units = float(torch.cuda.get_device_properties(0).multi_processor_count)
        return {"flops": flops, "scalar_flops": self._scalar_rate(), "units": units}

    def _scalar_rate(self) -> float:
        if self.device == "cuda":
            code = "template <typename T> T chain(T x) { for (int i = 0; i < %d; ++i) x = x * x"
            make = torch.cuda.jiterator._create_jit_fn
            run = make(code % (CHAIN // 2) + " + T(0.5); return x; }")
            x = torch.empty(1 << 24, device="cuda").fill_(0.1)
            return CHAIN * x.numel() / self.seconds("scalar", lambda: run(x))
        x = torch.rand(1 << 16)
        run = _compiled(_chain, x)
        return CHAIN * x.numel() / self.seconds("scalar", lambda: run(x))

    def calls(self) -> dict[str, float]:
        """What a call into ATen and a generated kernel cost, and a reduction's share."""
        x = torch.eye(SMALL, device=self.device)
        if self.device == "cuda":
            extern = _graph_seconds(lambda: torch.mm(x, x))
            launch = _graph_seconds(lambda: torch.add(x, 1))
            return {"launch": launch, "extern": extern}
        small, large = (torch.rand(size) for size in (SMALL**2, PARALLEL))
        runs = [partial(_compiled(torch.neg, value), value) for value in (small, large)]
        launch = self.seconds("large", runs[1]) - self.seconds("small", runs[0])
        launch = max(LEAST * 10, launch - 2 * large.nbytes / self.cached)
        extern = max(LEAST * 10, self._chained(_products, x))
        kernels, sums = (self._chained(f, x) for f in (_products_and_kernels, _products_and_sums))
        share = min(1.0, max(0.05, (sums - kernels) / launch))
        return {"launch": launch, "extern": extern, "reduction": share}

    def _chained(self, function: Callable[..., Any], x: torch.Tensor) -> float:
        """Seconds per step of a chain, the start of the graph apart."""
        times = []
        for count in (1, 1 + CALLS):
            run = _compiled(partial(function, count=count), x)
            times.append(self.seconds((function, count), partial(run, x)))
        return (times[1] - times[0]) / CALLS


def _chain(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(CHAIN // 2):
        y = y * x + 0.5
    return y


def _products(x: torch.Tensor, count: int) -> torch.Tensor:
    y = x
    for _ in range(count):
        y = y @ x
    return y


def _products_and_kernels(x: torch.Tensor, count: int) -> torch.Tensor:
    y = x
    for _ in range(count):
        y = (y * 0.5) @ x
    return y


def _products_and_sums(x: torch.Tensor, count: int) -> torch.Tensor:
    y = x
    for _ in range(count):
        y = (y * y.sum(-1, keepdim=True)) @ x
    return y


def _compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[..., Any]:
    """A function compiled by our lowering and code generation, without rules."""
    book = builtin_book()
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    scalars = {entry.name: entry for entry in book.scalars}
    program, _ = fuse(lower(gm, OpTable(book.ops), scalars), book.fuse)
    compiled = compile_program(simplify(program), scalars)
    return lambda *values: compiled(list(values))


def _cpu_seconds(run: Run, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def _cuda_seconds(run: Run, count: int) -> float:
    make: Any = torch.cuda.Event
    start, end = (make(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / count


def _graph_seconds(run: Run) -> float:
    """Seconds that the GPU is busy with one of many small calls: a replayed CUDA graph."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    return min(_cuda_seconds(graph.replay, 4) for _ in range(RUNS)) / CALLS
