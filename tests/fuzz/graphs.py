"""Random programs through eqsat, each held against eager.

    python -m eqsat.tests.fuzz.graphs [--count 5000] [--seed 0] [--jobs 2] [--out FOLDER]
    python -m eqsat.tests.fuzz.graphs --run PROGRAM.py

A program that differs is cut to few statements and written to the folder as a script, which
the second form runs. The exit code is 1 where any differs.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eqsat.engine.workers import Lost, run_all

from .generate import generate
from .oracle import Verdict, judge
from .programs import Program, read_program
from .shrink import shrink

BATCH = 250  # programs per set of processes: what a long run piles up goes with them
SECONDS = 240.0  # that a program may take, shrinking included
_SHRINKING = 120.0


@dataclass(frozen=True)
class Finding:
    """What became of the program of `seed`; `program` is the shrunk one, where it fails."""

    seed: int
    kind: str
    text: str = ""
    program: Program | None = None


def examine(seed: int) -> Finding:
    """Judge the program of a seed, and shrink it where it fails."""
    _quiet()
    return examine_program(seed, generate(seed))


def examine_program(seed: int, program: Program) -> Finding:
    verdict = judge(program)
    if not verdict.fails:
        return Finding(seed, verdict.kind, str(verdict))
    smaller = shrink(program, functools.partial(fails_alike, verdict), _SHRINKING)
    return Finding(seed, verdict.kind, str(judge(smaller)), smaller)


def fails_alike(verdict: Verdict, program: Program) -> bool:
    """Whether the program differs in what `verdict` complains of, too."""
    try:
        other = judge(program)
    except Exception:  # it is no program any more
        return False
    return other.fails and bool(other.signature() & verdict.signature())


def examine_all(seeds: Sequence[int], jobs: int) -> Iterator[Finding]:
    """Findings in the order of the seeds; a process that crashes or hangs is one, too."""
    for start in range(0, len(seeds), BATCH):
        batch = seeds[start : start + BATCH]
        for seed, found in zip(batch, run_all(examine, batch, jobs, SECONDS), strict=True):
            if isinstance(found, Lost):
                text = f"{found.reason}\n{found.program}"
                yield Finding(seed, "lost", text, generate(seed))
            else:
                yield found


def write(finding: Finding, folder: Path) -> Path:
    """The failing program as a script; says what it is about."""
    assert finding.program is not None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"program_{finding.seed}.py"
    about = "".join(f"# {line}\n" for line in (f"Seed {finding.seed}", *finding.text.splitlines()))
    run = "\n\nif __name__ == '__main__':\n    from eqsat.tests.fuzz.graphs import main\n\n"
    path.write_text(f"{about}{finding.program.source()}{run}    main(['--run', __file__])\n")
    return path


def _quiet() -> None:
    """Dynamo's own warnings about sizes and recompiles are no news here."""
    warnings.simplefilter("ignore")
    for name in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _run_file(path: Path) -> int:
    verdict = judge(read_program(path.read_text()))
    print(verdict)
    return int(verdict.fails)


def _run_many(options: argparse.Namespace) -> int:
    seeds = range(options.seed, options.seed + options.count)
    kinds: Counter[str] = Counter()
    start = time.monotonic()
    for finding in examine_all(seeds, options.jobs):
        kinds[finding.kind] += 1
        if finding.program is not None:
            path = write(finding, options.out)
            print(f"seed {finding.seed}: {finding.text}\n{path}", flush=True)
        elif finding.kind == "torch" and options.verbose:
            print(f"seed {finding.seed}: {finding.text}", flush=True)
    minutes = (time.monotonic() - start) / 60
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    rate = options.count / max(minutes, 1e-9)
    print(f"seeds {seeds.start} to {seeds.stop - 1}: {told}; {rate:.0f} programs a minute")
    return int(bool(kinds["differs"] or kinds["lost"]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="random programs, held against eager")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "eqsat-fuzz")
    parser.add_argument("--run", type=Path, help="judge one program instead")
    parser.add_argument("--verbose", action="store_true", help="tell what torch's capture changes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    return _run_file(options.run) if options.run else _run_many(options)


if __name__ == "__main__":
    sys.exit(main())
