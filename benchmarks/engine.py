"""What the rule stages cost on whole models: nodes, seconds, memory, share of the cold compile,
and how close to the optimum their choices are.

    python -m benchmarks.engine [MODEL ...] [--markdown]

Every model is compiled in a fresh process with empty caches. Times are CPU seconds, as other
work on the machine must not count: those of a stage are the compiling thread's, those of the
cold compile the process's and its compilers'. The optimum is that of pieces of the `post_grad`
graphs of a second compile, which looks at the forward pass; pieces that the integer program does
not solve in time are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# Pieces per graph, nodes of each, and seconds for the integer program of each.
_PIECES, _LENGTH, _SECONDS = 8, 40, 3.0
PHASES = ("encode", "patterns", "saturate", "extract", "decode")
_STATUS = Path("/proc/self/status")
_HEADINGS = (
    *("model", "stage", "nodes", "e-nodes"),
    *(f"{phase} s" for phase in PHASES),
    *("memory MB", "of the cold compile", "cost / optimum"),
)


def resident(what: str) -> int:
    """KiB of memory: `VmRSS` is now, `VmHWM` the most since `forget_peak`."""
    (line,) = [one for one in _STATUS.read_text().splitlines() if one.startswith(what)]
    return int(line.split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@contextmanager
def instead_of_stages(replace: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
    """Inside, rule stages run what `replace` makes of them."""
    import eqsat.backend as backend  # noqa: PLC0415 - the parent process does without torch

    original = backend.run_stage
    backend.run_stage = replace(original)
    try:
        yield
    finally:
        backend.run_stage = original


@contextmanager
def metered() -> Iterator[list[dict[str, Any]]]:
    """Collects what every rule stage inside costs."""
    rows: list[dict[str, Any]] = []

    def measured(run_stage: Callable[..., Any]) -> Callable[..., Any]:
        def measure(*args: Any) -> Any:
            forget_peak()
            before, started = resident("VmRSS"), time.thread_time()
            result = run_stage(*args)
            seconds, report = time.thread_time() - started, result.report
            rows.append(
                {
                    "stage": report.stage,
                    "status": report.status,
                    "nodes": report.nodes_before,
                    "egraph": report.egraph_nodes,
                    "cpu": dict(report.cpu_times),
                    "seconds": seconds,
                    "memory": max(0, resident("VmHWM") - before) / 1024,
                }
            )
            return result

        return measure

    with instead_of_stages(measured):
        yield rows


@contextmanager
def collected() -> Iterator[list[tuple[Any, ...]]]:
    """Collects what every rule stage inside is given."""
    given: list[tuple[Any, ...]] = []

    def kept(run_stage: Callable[..., Any]) -> Callable[..., Any]:
        def keep(*args: Any) -> Any:
            given.append(args)
            return run_stage(*args)

        return keep

    with instead_of_stages(kept):
        yield given


def quality(given: Sequence[tuple[Any, ...]]) -> list[float]:
    """Chosen cost by least cost, for pieces spread over the `post_grad` graphs."""
    from eqsat.engine.extract import extract  # noqa: PLC0415 - see `metered`

    from .optimum import optimum  # noqa: PLC0415
    from .pieces import problems_of  # noqa: PLC0415

    found = []
    for graph, stage, *how in given:
        if stage == "post_grad":
            for problem in itertools.islice(problems_of(graph, stage, how, _LENGTH), _PIECES):
                try:
                    best = optimum(problem, _SECONDS)
                except ValueError:  # none was found in the time
                    continue
                if best.proven:
                    found.append(extract(problem).cost / best.cost)
    return found


def compile_once(name: str) -> dict[str, Any]:
    """Compiles one model in this process; a training step where it is trained."""
    import torch  # noqa: PLC0415 - see `metered`

    from .graphs import TRAINED, build  # noqa: PLC0415

    model, inputs = build(name)
    training = name in TRAINED
    compiled = torch.compile(model, backend="eqsat")
    with torch.set_grad_enabled(training):
        model(**inputs)  # kernels of the libraries are loaded
        with metered() as rows:
            started = _cpu_seconds()
            result = compiled(**inputs)
            if training:
                result.float().square().mean().backward()
            seconds = _cpu_seconds() - started
        torch._dynamo.reset()
        with collected() as given:
            compiled(**inputs)
    return {"model": name, "seconds": seconds, "stages": rows, "quality": quality(given)}


def _cpu_seconds() -> float:
    """Of this process and of the compilers that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def compile_fresh(name: str) -> dict[str, Any]:
    """`compile_once` in a fresh process with empty caches. Raises RuntimeError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.engine", "--here", name],
            env=os.environ | {"EQSAT_CACHE_DIR": folder, "EQSAT_STRICT": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{result.stderr[-4000:]}")
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return report


def rows_of(found: dict[str, Any]) -> Iterator[list[str]]:
    """A table row for each stage that had something to do, and one for all of them."""
    name = found["model"]
    for stage in found["stages"]:
        if stage["status"] != "skipped":
            times = [f"{stage['cpu'].get(phase, 0.0):.2f}" for phase in PHASES]
            sizes = [str(stage["nodes"]), str(stage["egraph"])]
            yield [name, stage["stage"], *sizes, *times, f"{stage['memory']:.0f}", "", ""]
            name = ""
    used = sum(stage["seconds"] for stage in found["stages"])
    share = f"{used:.2f} of {found['seconds']:.1f} s, {100 * used / found['seconds']:.0f}%"
    factors = found["quality"]
    close = ""
    if factors:
        optimal = sum(factor == 1 for factor in factors)
        close = f"{optimal} of {len(factors)} pieces optimal, worst {max(factors):.3f}"
    yield [name, "all", *[""] * (len(_HEADINGS) - 4), share, close]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/engine.md")
    parser.add_argument("--here", metavar="MODEL", help="one model in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(compile_once(arguments.here)))
        return
    from .graphs import GRAPHS  # noqa: PLC0415 - see `metered`

    found = (row for name in arguments.models or GRAPHS for row in rows_of(compile_fresh(name)))
    if arguments.markdown:
        for row in itertools.chain((_HEADINGS, ["---"] * len(_HEADINGS)), found):
            print(f"| {' | '.join(row)} |", flush=True)
        return
    table = Table(title="rule stages: CPU seconds by phase")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for row in found:
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
