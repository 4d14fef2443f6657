"""Every op of torch's own op database on the CPU: eager against eqsat, and against Inductor.

    python -m benchmarks.opdb [OP ...] [--inductor SHARE] [--shard 1/8] [--out FILE.jsonl]
    python -m benchmarks.opdb --page FILE.jsonl ...

Takes names or globs of ops; writes one JSON line per op, dtype and compiler, and goes on where an
older run of the same file stopped. `--inductor` runs the same samples by Inductor too, for that
share of the ops, which are drawn with a fixed seed. A worker process takes ops one by one; one
that dies or hangs costs a sample and is reported. `--page` writes
`benchmarks/opdb_summary.json` and `docs/opdb.md`. Needs the `opdb` extra.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .opdb_measure import SEED, Outcome, measure
from .opdb_page import read_outcomes, summarise, write_page, write_summary
from .opdb_samples import find_ops, make_samples, open_to_tracing

DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
SECONDS = 600  # for one job


@dataclass(frozen=True)
class Job:
    """Samples of one op for one compiler: at most `most` per dtype, or the one with a number."""

    op: str
    dtypes: tuple[str, ...]
    backend: str
    most: int
    only: int | None = None

    def outcomes(self) -> list[Outcome]:
        samples = []
        for dtype in self.dtypes:
            try:
                made = make_samples(self.op, dtype, self.most)
            except Exception:  # of the database itself, on this machine
                continue
            samples += made if self.only is None else made[self.only : self.only + 1]
        return measure(self.op, samples, self.backend)


def work() -> None:
    """A worker: takes one job as JSON per line of its input, prints one JSON line per outcome
    and an empty one when the job is done."""
    open_to_tracing()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._inductor.config.fallback_random = True  # draws as eager does
    for line in sys.stdin:
        fields = json.loads(line)
        job = Job(**{**fields, "dtypes": tuple(fields["dtypes"])})
        for outcome in job.outcomes():
            print(json.dumps(vars(outcome)), flush=True)
        print(flush=True)


class WorkerDied(Exception):
    """The process ended, or was ended, in the middle of a job."""


class Worker:
    """A process that does jobs until one of them kills it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def measure(self, job: Job) -> list[dict[str, Any]]:
        """The outcomes. A job that kills the process is cut into single samples, of which those
        that do it again fail with "crash"."""
        try:
            return self._do(job)
        except WorkerDied as died:
            if job.only is not None:
                text = str(died)
                lost = Outcome(job.op, job.dtypes[0], job.backend, 1, [(job.only, "crash", text)])
                return [vars(lost)]
        parts = [
            Job(job.op, (dtype,), job.backend, job.most, number)
            for dtype in job.dtypes
            for number in range(job.most)
        ]
        return _joined([one for part in parts for one in self.measure(part)])

    def _do(self, job: Job) -> list[dict[str, Any]]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(vars(job)) + "\n")
        process.stdin.flush()
        found: list[dict[str, Any]] = []
        clock = threading.Timer(SECONDS, process.kill)
        clock.start()
        try:
            for line in process.stdout:
                if not line.strip():
                    return found
                if line.startswith("{"):
                    found.append(json.loads(line))
        finally:
            clock.cancel()
        self._process = None
        raise WorkerDied(f"exit status {process.wait()}")

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.opdb", "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def _joined(outcomes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One outcome per dtype, from those of single samples."""
    found: dict[str, dict[str, Any]] = {}
    for one in outcomes:
        into = found.setdefault(one["dtype"], {**one, "samples": 0, "failures": [], "lowered": {}})
        into["samples"] += one["samples"]
        into["failures"] += one["failures"]
        for word, count in one["lowered"].items():
            into["lowered"][word] = into["lowered"].get(word, 0) + count
    return list(found.values())


def find_jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Ours and, for the first ops of a shuffled list, Inductor's right behind it."""
    ops = find_ops(options.ops, options.dtypes.split(","))
    drawn = sorted(ops)
    random.Random(SEED).shuffle(drawn)
    both = frozenset(drawn[: round(options.inductor * len(drawn))])
    shard, shards = map(int, options.shard.split("/"))
    for op in drawn[shard - 1 :: shards]:
        for backend in ("eqsat", "inductor") if op in both else ("eqsat",):
            yield Job(op, ops[op], backend, options.samples)


def sweep(options: argparse.Namespace) -> None:
    """Appends the outcomes that the file lacks. An op whose samples the database cannot make
    gets an outcome without samples."""
    path = Path(options.out)
    seen = {(one["op"], one["backend"], one["dtype"]) for one in read_outcomes(path)}
    worker = Worker()
    with path.open("a", encoding="utf-8") as file:
        for job in find_jobs(options):
            left = tuple(one for one in job.dtypes if (job.op, job.backend, one) not in seen)
            if not left:
                continue
            found = worker.measure(Job(job.op, left, job.backend, job.most))
            made = {one["dtype"] for one in found}
            found += [vars(Outcome(job.op, one, job.backend)) for one in left if one not in made]
            file.writelines(json.dumps(one) + "\n" for one in found)
            file.flush()
    worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ops", nargs="*", help="names or globs; all without")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--shard", default="1/1", metavar="N/OF")
    parser.add_argument("--samples", type=int, default=4, help="most samples per op and dtype")
    parser.add_argument(
        "--inductor", type=float, default=0.0, metavar="SHARE", help="of the ops, by Inductor too"
    )
    parser.add_argument("--out", default="opdb.jsonl", metavar="FILE")
    parser.add_argument("--page", nargs="+", metavar="FILE", help="write the page of these runs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    if not options.page:
        sweep(options)
    files = options.page or [options.out]
    outcomes = [one for file in files for one in read_outcomes(Path(file))]
    summary = summarise(outcomes, torch.__version__.partition("+")[0])
    if options.page:
        write_summary(summary)
        write_page()
    for line in summary.headline():
        print(line)


if __name__ == "__main__":
    main()
