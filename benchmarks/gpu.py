"""Run time on a GPU: eager, TorchInductor and eqsat, each model in a process of its own.

    python -m benchmarks.gpu [MODEL ...] [--training] [--modes default,reduce-overhead]

A call is timed with the host: several calls, then a wait for the GPU; backends take turns, and
the median counts. The first call of each is its compile time, caches empty. Results are checked
before anything is timed: the error against float32 may not be larger than eager's by half.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from eqsat.codegen.cache import fresh_cache
from eqsat.reports import recording

from .gpu_models import MODELS, build
from .timing import interleave

CALLS = 10  # per round
BACKENDS = ("inductor", "eqsat")
Call = Callable[[], Any]


def measure(name: str, training: bool, modes: Sequence[str]) -> dict[str, Any]:
    """One model: seconds per call of each backend, seconds of first calls, and kernels.

    Raises AssertionError where results are less exact than eager's.
    """
    module, inputs = build(name)
    calls = {"eager": _call(module, inputs, training)}
    exact = _exact(module, inputs, training)
    allowed = 1.5 * _error(calls["eager"](), exact) + 1e-4
    first: dict[str, float] = {}
    kernels: dict[str, Any] = {}
    for mode in modes:
        for backend in BACKENDS:
            torch._dynamo.reset()
            key = backend if mode == "default" else f"{backend}, {mode}"
            how = {} if mode == "default" else {"mode": mode}
            call = _call(torch.compile(module, backend=backend, **how), inputs, training)
            start = time.perf_counter()
            with recording() as reports:
                result = call()
            torch.cuda.synchronize()
            first[key] = time.perf_counter() - start
            found = _error(result, exact)
            assert found <= allowed, f"{name}, {key}: error {found:.3g}, allowed {allowed:.3g}"
            calls[key] = call
            if backend == "eqsat":
                graphs = [report for report in reports if report.kind != "capture"]
                kernels[key] = {
                    "kernels": sum(kernel.uses for one in graphs for kernel in one.kernels),
                    "externs": sum(len(one.externs) for one in graphs),
                    "python": sum(e.path == "python" for one in graphs for e in one.externs),
                    "fallback": [one.fallback for one in reports if one.fallback],
                }
    times = interleave({key: _repeated(call) for key, call in calls.items()}, seconds=4.0)
    seconds = {key: value / CALLS for key, value in times.items()}
    return {"model": name, "seconds": seconds, "first": first, "made": kernels}


def _call(module: Callable[..., Any], inputs: Sequence[torch.Tensor], training: bool) -> Call:
    if training:
        return lambda: _step(module, inputs)
    return torch.inference_mode(False)(torch.no_grad()(lambda: module(*inputs)))


def _step(module: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients of all parameters."""
    loss = module(*inputs).float().square().mean()
    owner = getattr(module, "_orig_mod", module)
    return list(torch.autograd.grad(loss, [p for p in owner.parameters() if p.requires_grad]))


def _exact(module: nn.Module, inputs: Sequence[torch.Tensor], training: bool) -> Any:
    wide = copy.deepcopy(module).float()
    args = [x.float() if x.is_floating_point() else x for x in inputs]
    return _call(wide, args, training)()


def _error(result: Any, exact: Any) -> float:
    """Relative error in the norm, the largest over all results."""
    results = result if isinstance(result, list) else [result]
    exacts = exact if isinstance(exact, list) else [exact]
    pairs = zip(results, exacts, strict=True)
    return max(float((a.float() - b).norm() / (b.norm() + 1e-30)) for a, b in pairs)


def _repeated(call: Call) -> Call:
    def run() -> None:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()

    return run


def _in_process(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "eqsat.benchmarks.gpu", "--one", name]
    command += ["--modes", arguments.modes] + ["--training"] * arguments.training
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        done = subprocess.run(
            ["env", *(f"{key}={value}" for key, value in environment.items()), *command],
            capture_output=True,
            text=True,
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"model": name, "failed": f"{done.stderr[-2000:]}\nexit code {done.returncode}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _row(found: dict[str, Any]) -> list[str]:
    if "failed" in found:
        return [found["model"], "failed: " + found["failed"].strip().splitlines()[-1][:90]]
    seconds = found["seconds"]
    row = [found["model"], f"{seconds['eager'] * 1e3:.3f} ms"]
    row += [f"{seconds[key] / seconds['eager']:.2f}" for key in seconds if key != "eager"]
    made = found["made"]["eqsat"]
    row.append(f"{made['kernels']} + {made['externs']} ({made['python']})")
    row.append(f"{found['first']['eqsat']:.1f} s")
    return [*row, f"{found['first']['eqsat'] / found['first']['inductor']:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--modes", default="default")
    parser.add_argument("--one")
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    if arguments.one:
        with fresh_cache():
            print(json.dumps(measure(arguments.one, arguments.training, modes)))
        return
    table = Table(title="run time against eager; first call against Inductor")
    keys = [b if mode == "default" else f"{b}, {mode}" for mode in modes for b in BACKENDS]
    for heading in ("model", "eager", *keys, "kernels + externs (python)", "first", "/ inductor"):
        table.add_column(heading)
    for name in arguments.models:
        found = _in_process(name, arguments)
        print(json.dumps(found), file=sys.stderr, flush=True)
        table.add_row(*_row(found))
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
