"""`make demo`: a real sentence-embedding model, compiled by eqsat on the CPU.

Embeds real sentences with all-MiniLM-L6-v2 under eager, Inductor and eqsat; checks that the
three agree, and prints which rules fired, which kernels came out, and how long each took.
Exits with status 1 when eqsat's cosine similarities differ from eager's by more than 1e-5.
"""

from __future__ import annotations

import itertools
import sys

import torch
from rich.console import Console
from rich.table import Table

import eqsat
from eqsat.explanation import print_reports
from eqsat.reports import recording

from .cold import compile_seconds
from .sentences import SENTENCES, Embedder, load_model, tokenize
from .timing import interleave

TOLERANCE = 1e-5


def main() -> int:
    console = Console()
    count = len(SENTENCES)
    console.print(f"[bold]eqsat {eqsat.__version__}[/]: all-MiniLM-L6-v2 on {count} sentences")
    model = Embedder(load_model()).eval()
    inputs = tokenize(SENTENCES)
    with torch.no_grad():
        expected = model(**inputs)
        with recording() as reports:
            ours = torch.compile(model, backend="eqsat")
            embedded = ours(**inputs)
        inductor = torch.compile(model, backend="inductor")
        inductor(**inputs)
        difference = (embedded @ embedded.T - expected @ expected.T).abs().max().item()
        print_reports(reports, console)
        _print_neighbours(console, embedded)
        times = interleave(
            {
                "eager": lambda: model(**inputs),
                "inductor": lambda: inductor(**inputs),
                "eqsat": lambda: ours(**inputs),
            }
        )
    _print_times(console, times)
    verdict = "equal eager's" if difference <= TOLERANCE else "DIFFER from eager's"
    console.print(
        f"cosine similarities {verdict}: largest difference {difference:.1e} (limit {TOLERANCE:g})"
    )
    return 0 if difference <= TOLERANCE else 1


def _print_neighbours(console: Console, embedded: torch.Tensor) -> None:
    """The closest pairs of sentences, to see that the embeddings mean something."""
    table = Table(title="closest sentences")
    for heading in ("cosine", "sentence", "sentence"):
        table.add_column(heading)
    similar = embedded @ embedded.T
    pairs = itertools.combinations(range(len(SENTENCES)), 2)
    best = sorted(pairs, key=lambda pair: -similar[pair].item())[:3]
    for first, second in best:
        score = f"{similar[first, second].item():.3f}"
        table.add_row(score, SENTENCES[first], SENTENCES[second])
    console.print(table)


def _print_times(console: Console, times: dict[str, float]) -> None:
    """Run time interleaved in this process, cold compile time in fresh ones (median of 3)."""
    table = Table(title="time, as ratios to eager (run) and Inductor (compile)")
    for heading in ("", "run", "run / eager", "cold compile", "compile / Inductor"):
        table.add_column(heading, justify="right")
    cold: dict[str, list[float]] = {"inductor": [], "eqsat": []}
    for _ in range(3):
        for backend, seconds in cold.items():
            seconds.append(compile_seconds("minilm", backend))
    medians = {name: sorted(values)[1] for name, values in cold.items()}
    for name, seconds in times.items():
        row = [name, f"{seconds * 1e3:.2f} ms", f"{seconds / times['eager']:.2f}"]
        if name in medians:
            ratio = medians[name] / medians["inductor"]
            row += [f"{medians[name]:.1f} s", f"{ratio:.2f}"]
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
