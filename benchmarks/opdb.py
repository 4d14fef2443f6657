"""Every op of torch's own op database: eager against eqsat on the CPU.

    python -m benchmarks.opdb [OP ...] [--dtypes float32,int64] [--shard 1/8] [--out FILE.jsonl]

Takes names or globs of ops; writes one JSON line per op and dtype, and goes on where an older
run of the same file stopped. `--inductor` runs the same samples by Inductor too. Samples are
compiled several to a function; a function that fails is cut in half until the sample is found.
A worker process takes ops one by one, so that a crash costs one op and is reported.
`--summary FILE` writes what `benchmarks.coverage` reads. Needs the `opdb` extra.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import functools
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from eqsat.reports import CompileReport, recording

DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
# Of torch.testing, with room for another order of sums.
TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (1e-3, 1e-3),
}
SEED = 0
_DOUBLE = {torch.float32: torch.float64, torch.bfloat16: torch.float64}


@dataclass(frozen=True)
class Sample:
    """One call of an op: its tensors apart from the rest, which is fixed."""

    op: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[Any, ...]  # None where a tensor goes
    places: tuple[int, ...]  # of the tensors among the leaves
    spec: pytree.TreeSpec

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*args, **kwargs)

    def fresh(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in self.tensors]

    def fresh_double(self) -> list[torch.Tensor]:
        return [tensor.to(_DOUBLE.get(tensor.dtype, tensor.dtype)) for tensor in self.tensors]


@dataclass
class Outcome:
    """What became of the samples of one op and dtype. `failures` holds (sample, kind, message);
    `externs` counts calls of ATen ops, `kernels` fused kernels, over all functions compiled."""

    op: str
    dtype: str
    backend: str = "eqsat"
    samples: int = 0
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    kernels: int = 0
    externs: dict[str, int] = field(default_factory=dict)
    graphs: int = 0

    @property
    def lowering(self) -> str:
        """How the op ran: "kernel", "view" (no code), "extern", "mixed" or "none" (no graph)."""
        if not self.graphs:
            return "none"
        if self.externs:
            return "mixed" if self.kernels else "extern"
        return "kernel" if self.kernels else "view"

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "lowering": self.lowering}


class Mismatch(Exception):
    """A result is not eager's; `kind` says in what."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def name_of(op: Any) -> str:
    return str(op.full_name)


def find_jobs(patterns: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """(op, dtype) for all ops that fit, where the op takes the dtype on the CPU."""
    return [
        (name_of(op), dtype)
        for op in op_db
        if not patterns or any(fnmatch.fnmatch(name_of(op), one) for one in patterns)
        for dtype in dtypes
        if getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]


def make_samples(op: Any, dtype: torch.dtype, most: int) -> list[Sample]:
    """At most `most` samples, spread over all that the database has."""
    torch.manual_seed(SEED)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    step = max(1, -(-len(found) // most))
    return [_sample(op.op, one) for one in found[::step]]


def _sample(call: Callable[..., Any], given: Any) -> Sample:
    leaves, spec = pytree.tree_flatten(((given.input, *given.args), given.kwargs))
    places = tuple(k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    tensors = tuple(leaves[place] for place in places)
    kept = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Sample(call, tensors, kept, places, spec)


def run_all(samples: Sequence[Sample], inputs: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
    return [sample(tensors) for sample, tensors in zip(samples, inputs, strict=True)]


class Comparison:
    """Runs samples under eager and one backend, and keeps count in an `Outcome`."""

    def __init__(self, outcome: Outcome, per_function: int) -> None:
        self._outcome = outcome
        self._size = per_function
        self._has_values = "empty" not in outcome.op  # memory that nothing was written to

    def run(self, samples: Sequence[Sample]) -> None:
        self._outcome.samples = len(samples)
        for start in range(0, len(samples), self._size):
            self._halve(samples[start : start + self._size], start)

    def _halve(self, samples: Sequence[Sample], start: int) -> None:
        try:
            self._compare(samples)
        except Exception as error:
            if len(samples) > 1:
                middle = len(samples) // 2
                self._halve(samples[:middle], start)
                self._halve(samples[middle:], start + middle)
                return
            kind = error.kind if isinstance(error, Mismatch) else "raises"
            message = f"{type(error).__name__}: {error}"
            self._outcome.failures.append((start, kind, message.strip()[:600]))

    def _compare(self, samples: Sequence[Sample]) -> None:
        inputs = [sample.fresh() for sample in samples]
        wanted, refusal = _attempt(lambda: run_all(samples, [s.fresh() for s in samples]))
        torch._dynamo.reset()
        options: Any = {"strict": True} if self._outcome.backend == "eqsat" else None
        compiled = torch.compile(
            lambda tensors: run_all(samples, tensors),
            backend=self._outcome.backend,
            dynamic=False,
            options=options,
        )
        with recording() as reports:
            try:
                found, raised = _attempt(lambda: compiled(inputs))
            finally:
                self._count(reports)
        if refusal is not None and raised is not None and len(samples) == 1:
            return  # both refuse
        if raised is not None:
            raise raised
        if refusal is not None:
            raise Mismatch("refuses", f"eager raises {type(refusal).__name__}: {refusal}")
        for sample, want, got in zip(samples, wanted, found, strict=True):
            compare(want, got, functools.partial(_in_double, sample), values=self._has_values)

    def _count(self, reports: Sequence[CompileReport]) -> None:
        for report in reports:
            if report.kind == "capture":
                continue
            self._outcome.graphs += 1
            self._outcome.kernels += len(report.kernels)
            for one in report.externs:
                counted = self._outcome.externs
                counted[one.target] = counted.get(one.target, 0) + 1


def _in_double(sample: Sample) -> Any:
    return sample(sample.fresh_double())


def _attempt(run: Callable[[], list[Any]]) -> tuple[list[Any], Exception | None]:
    torch.manual_seed(SEED)
    try:
        return run(), None
    except Exception as error:
        return [], error


def compare(want: Any, got: Any, truth: Callable[[], Any], *, values: bool) -> None:
    """Raises Mismatch where `got` differs in structure, dtype, shape or, with `values`, value.

    A value may differ from eager's by the tolerance of its dtype, or be as near to the result
    in float64 (`truth`) as twice eager's distance.
    """
    wanted, spec = pytree.tree_flatten(want)
    found, other = pytree.tree_flatten(got)
    if spec != other:
        raise Mismatch("structure", f"{other} for {spec}")
    for place, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if not isinstance(a, torch.Tensor):
            if type(a) is not type(b) or not _same_number(a, b):
                raise Mismatch("value", f"{b!r} for {a!r}")
            continue
        for kind in ("dtype", "shape", "layout", "device"):
            if getattr(a, kind) != getattr(b, kind):
                raise Mismatch(kind, f"{getattr(b, kind)} for {getattr(a, kind)}")
        if not values:
            continue
        try:
            _compare_values(a, b)
        except AssertionError as error:
            if not _near_truth(a, b, truth, place):
                raise Mismatch("value", str(error)) from error


def _same_number(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def _compare_values(a: torch.Tensor, b: torch.Tensor) -> None:
    rtol, atol = TOLERANCE.get(a.dtype, (1e-5, 1e-5) if a.dtype.is_complex else (0.0, 0.0))
    torch.testing.assert_close(b, a, rtol=rtol, atol=atol, equal_nan=True)


def _near_truth(a: torch.Tensor, b: torch.Tensor, truth: Callable[[], Any], place: int) -> bool:
    if a.dtype not in _DOUBLE or a.layout is not torch.strided:
        return False
    made, refusal = _attempt(lambda: pytree.tree_leaves(truth()))
    if refusal is not None or made[place].shape != a.shape:
        return False
    right = made[place].double()
    finite = right.isfinite() & a.isfinite() & b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return False
    eager, ours = ((x.double() - right)[finite].abs() for x in (a, b))
    return bool((ours <= 2 * eager.max() + 1e-12).all()) if finite.any() else True


def measure(name: str, dtype: str, options: argparse.Namespace) -> Iterator[Outcome]:
    """The outcomes of one op and dtype: ours, and Inductor's where asked for."""
    (op,) = (one for one in op_db if name_of(one) == name)
    samples = make_samples(op, getattr(torch, dtype), options.samples)
    for backend in ("eqsat", "inductor") if options.inductor else ("eqsat",):
        outcome = Outcome(name, dtype, backend)
        Comparison(outcome, options.per_function).run(samples)
        yield outcome


def _call_plainly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def work(options: argparse.Namespace) -> None:
    """A worker: takes `op dtype` per line of its input, prints one JSON line per outcome and an
    empty one when the op is done."""
    # The database saves and restores the state of random numbers, which Dynamo does not trace.
    vars(common_methods_invocations)["wrapper_set_seed"] = _call_plainly
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, dtype = line.split()
        try:
            for outcome in measure(name, dtype, options):
                print(json.dumps(outcome.as_json()), flush=True)
        except Exception as error:  # the database could not make samples
            lost = Outcome(name, dtype, failures=[(-1, "samples", str(error)[:600])])
            print(json.dumps(lost.as_json()), flush=True)
        print(flush=True)


class Worker:
    """A process that measures ops until one of them kills it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def measure(self, name: str, dtype: str) -> list[dict[str, Any]]:
        """The outcomes, or one whose failure is "crash"."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{name} {dtype}\n")
        process.stdin.flush()
        found: list[dict[str, Any]] = []
        for line in process.stdout:
            if not line.strip():
                return found
            if line.startswith("{"):
                found.append(json.loads(line))
        status = process.wait()
        self._process = None
        lost = Outcome(name, dtype, failures=[(-1, "crash", f"exit status {status}")])
        return [*found, lost.as_json()]

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        options = self._options
        command = [sys.executable, "-m", "benchmarks.opdb", "--worker"]
        command += ["--samples", str(options.samples), "--per-function", str(options.per_function)]
        command += ["--inductor"] if options.inductor else []
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def sweep(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All outcomes of the file, new ones appended as they are made."""
    path = Path(options.out)
    done = read_outcomes(path)
    seen = {(one["op"], one["dtype"]) for one in done}
    shard, shards = map(int, options.shard.split("/"))
    jobs = find_jobs(options.ops, options.dtypes.split(","))[shard - 1 :: shards]
    worker = Worker(options)
    with path.open("a", encoding="utf-8") as file:
        for name, dtype in jobs:
            if (name, dtype) in seen:
                continue
            for one in worker.measure(name, dtype):
                done.append(one)
                file.write(json.dumps(one) + "\n")
                file.flush()
    worker.close()
    return done


def read_outcomes(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tell(outcomes: Sequence[dict[str, Any]], console: Console) -> None:
    """Print pass rates and the failures by kind."""
    for backend in sorted({one["backend"] for one in outcomes}):
        ours = [one for one in outcomes if one["backend"] == backend]
        failures = [(one, *failure) for one in ours for failure in one["failures"]]
        total = sum(one["samples"] for one in ours)
        kinds = collections.Counter(kind for _, _, kind, _ in failures)
        how = collections.Counter(one["lowering"] for one in ours)
        whole = sum(not one["failures"] for one in ours)
        console.print(f"{backend}: {total - len(failures)} of {total} samples pass")
        console.print(f"  {whole} of {len(ours)} pairs of op and dtype pass whole")
        console.print(f"  failures {dict(kinds)}; lowering {dict(how)}")
        for one, number, kind, message in failures:
            first = message.splitlines()[0] if message else ""
            text = f"  {one['op']} {one['dtype']} #{number} {kind}: {first}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def summarise(outcomes: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Per op and dtype: how many samples ran, how many passed, and how the op was lowered."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for one in outcomes:
        if one["backend"] == "eqsat" and one["samples"]:
            row = {"samples": one["samples"], "passed": one["samples"] - len(one["failures"])}
            row["lowering"] = one["lowering"]
            found.setdefault(one["op"], {})[one["dtype"]] = row
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ops", nargs="*", help="names or globs; all without")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--shard", default="1/1", metavar="N/OF")
    parser.add_argument("--samples", type=int, default=20, help="most samples per op and dtype")
    parser.add_argument("--per-function", type=int, default=20, help="samples compiled together")
    parser.add_argument("--inductor", action="store_true", help="the same samples by Inductor")
    parser.add_argument("--out", default="opdb.jsonl", metavar="FILE")
    parser.add_argument("--summary", metavar="FILE", help="write the summary of all outcomes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    outcomes = sweep(options)
    tell(outcomes, Console())
    if options.summary:
        text = json.dumps(summarise(outcomes), indent=1)
        Path(options.summary).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
