"""`make bench`: run time and cold compile time of the model list, eager : Inductor : eqsat.

    python -m benchmarks.run [MODEL ...] [--no-compile-time]

Run times are interleaved in one process after results were checked against eager; compile
times are the median of three fresh processes each with empty caches. Prints ratios.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from rich.console import Console
from rich.table import Table

from eqsat.reports import recording

from .cold import compile_seconds
from .models import MODELS, build
from .timing import interleave


def measure(name: str, *, cold: bool) -> list[str]:
    """One table row. Raises AssertionError where eqsat's result is not eager's."""
    module, inputs = build(name)
    with torch.no_grad():
        torch._dynamo.reset()
        with recording() as reports:
            ours = torch.compile(module, backend="eqsat")
            torch.testing.assert_close(ours(**inputs), module(**inputs), rtol=1e-4, atol=1e-4)
        inductor = torch.compile(module, backend="inductor")
        inductor(**inputs)
        times = interleave(
            {
                "eager": lambda: module(**inputs),
                "inductor": lambda: inductor(**inputs),
                "eqsat": lambda: ours(**inputs),
            }
        )
    graphs = [report for report in reports if report.kind != "capture"]
    row = [
        name,
        f"{times['eager'] * 1e3:.2f} ms",
        f"{times['inductor'] / times['eager']:.2f}",
        f"{times['eqsat'] / times['eager']:.2f}",
        f"{times['eqsat'] / min(times['eager'], times['inductor']):.2f}",
        str(sum(len(report.kernels) for report in graphs)),
        str(sum(len(report.externs) for report in graphs)),
        f"{sum(stage.seconds for report in reports for stage in report.stages):.2f} s",
    ]
    return row + (_compile_columns(name) if cold else ["", ""])


def _compile_columns(name: str) -> list[str]:
    theirs, ours = [], []
    for _ in range(3):
        theirs.append(compile_seconds(name, "inductor"))
        ours.append(compile_seconds(name, "eqsat"))
    seconds = statistics.median(ours)
    return [f"{seconds:.1f} s", f"{seconds / statistics.median(theirs):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--no-compile-time", action="store_true")
    arguments = parser.parse_args()
    table = Table(title="run time against eager; cold compile time against Inductor")
    headings = ("model", "eager", "inductor/eager", "eqsat/eager", "eqsat/better", "kernels")
    for heading in (*headings, "externs", "rule stages", "cold compile", "/ inductor"):
        table.add_column(heading, justify="right")
    for name in arguments.models:
        table.add_row(*measure(name, cold=not arguments.no_compile_time))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
