"""`docs/opdb.md` and the summary behind it, from the outcomes that `benchmarks.opdb` wrote.

Takes outcomes as JSON; gives a `Summary`, which `benchmarks/opdb_summary.json` holds with a line
per op, and a page that says the same on every machine.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "opdb.md"
SUMMARY = Path(__file__).with_name("opdb_summary.json")
KINDS = ("generated", "mixed", "view", "extern", "none")
_COMPILERS = ("eqsat", "inductor")
_HEAD = """# torch's op database

Written by `python -m benchmarks.opdb --page`; the figures are in `benchmarks/opdb_summary.json`.

`python -m benchmarks.opdb --inductor 1` runs samples of torch's own op database forward on the
CPU, with static shapes: eager, eqsat in strict mode (where a fallback to the unoptimised graph is
an error), and Inductor (told to draw random numbers as eager does) on the same samples. What is
compared: structure, dtype, shape, strides and values, and that an error of eager is an error. A
value passes within the tolerance of its dtype, or where it is as near to the result in float64 as
twice eager's distance.
"""
_WORDS = """
What became of a sample's ATen graph. **generated**: code alone that eqsat wrote. **mixed**: such
code and calls of ATen ops. **view**: no code at all. **extern**: calls of ATen ops alone.
**none**: Dynamo left the op to Python.
"""


@dataclass(frozen=True)
class Cell:
    """One op and dtype. `lowered` counts samples by KINDS; `inductor` is how many samples
    Inductor passes, None where it was not run."""

    samples: int
    passed: int
    lowered: tuple[int, ...]
    inductor: int | None

    @property
    def word(self) -> str:
        """The kind of all its samples, or the kinds there are."""
        return "/".join(kind for kind, n in zip(KINDS, self.lowered, strict=True) if n)


@dataclass(frozen=True)
class Failure:
    """A sample that failed under one compiler."""

    op: str
    dtype: str
    number: int
    backend: str
    kind: str
    message: str

    @property
    def sample(self) -> tuple[str, str, int]:
        return self.op, self.dtype, self.number


@dataclass(frozen=True)
class Summary:
    """The whole sweep: a cell per op and dtype, and what failed. `torch` is its version."""

    torch: str
    ops: dict[str, dict[str, Cell]]
    failures: tuple[Failure, ...]

    def cells(self) -> list[Cell]:
        return [cell for row in self.ops.values() for cell in row.values()]

    def of(self, backend: str) -> list[Failure]:
        return [failure for failure in self.failures if failure.backend == backend]

    def only_ours(self) -> list[Failure]:
        """What eqsat fails and Inductor, which was run on it, passes."""
        theirs = {failure.sample for failure in self.of("inductor")}
        return [
            failure
            for failure in self.of("eqsat")
            if failure.sample not in theirs
            and self.ops[failure.op][failure.dtype].inductor is not None
        ]

    def headline(self) -> Iterator[str]:
        cells = self.cells()
        both = [cell for cell in cells if cell.inductor is not None]
        yield _passed("eqsat", cells, lambda cell: cell.passed)
        if both:
            yield _passed("eqsat, where Inductor was run too", both, lambda cell: cell.passed)
            yield _passed("Inductor", both, lambda cell: cell.inductor or 0)
        yield f"samples that Inductor passes and eqsat fails: {len(self.only_ours())}"


def _passed(title: str, cells: Sequence[Cell], count: Callable[[Cell], int]) -> str:
    total, passed = sum(cell.samples for cell in cells), sum(map(count, cells))
    return f"{title}: {passed} of {total} samples pass ({_percent(passed, total)})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def read_outcomes(path: Path) -> list[dict[str, Any]]:
    """The lines of a run; none where it has not begun."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summarise(outcomes: Sequence[dict[str, Any]], torch_version: str) -> Summary:
    """Ops and dtypes without samples are left out."""
    ran = [one for one in outcomes if one["samples"]]
    passed = {
        (one["op"], one["dtype"], one["backend"]): one["samples"] - len(one["failures"])
        for one in ran
    }
    ops: dict[str, dict[str, Cell]] = collections.defaultdict(dict)
    for one in sorted(ran, key=lambda one: (one["op"], one["dtype"])):
        if one["backend"] == "eqsat":
            key = one["op"], one["dtype"]
            lowered = tuple(one["lowered"].get(kind, 0) for kind in KINDS)
            inductor = passed.get((*key, "inductor"))
            cell = Cell(one["samples"], passed[(*key, "eqsat")], lowered, inductor)
            ops[one["op"]][one["dtype"]] = cell
    failures = sorted(
        (
            Failure(one["op"], one["dtype"], number, one["backend"], kind, _first_line(message))
            for one in ran
            for number, kind, message in one["failures"]
        ),
        key=lambda failure: (failure.backend, *failure.sample),
    )
    return Summary(torch_version, dict(ops), tuple(failures))


def _first_line(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0][:160] if lines else ""


def write_summary(summary: Summary) -> None:
    """One line per op and per failure."""
    rows = ",\n".join(
        f"  {json.dumps(name)}: "
        + json.dumps({dtype: list(vars(cell).values()) for dtype, cell in row.items()})
        for name, row in summary.ops.items()
    )
    failures = ",\n".join(f"  {json.dumps(list(vars(one).values()))}" for one in summary.failures)
    text = f'{{\n "torch": "{summary.torch}",\n "ops": {{\n{rows}\n }},\n'
    text += f' "failures": [\n{failures}\n ]\n}}\n'
    SUMMARY.write_text(text, encoding="utf-8")


def read_summary() -> Summary:
    read = json.loads(SUMMARY.read_text(encoding="utf-8"))
    ops = {
        name: {
            dtype: Cell(samples, passed, tuple(lowered), inductor)
            for dtype, (samples, passed, lowered, inductor) in row.items()
        }
        for name, row in read["ops"].items()
    }
    return Summary(read["torch"], ops, tuple(Failure(*one) for one in read["failures"]))


def write_page() -> None:
    PAGE.write_text(describe(read_summary()), encoding="utf-8")


def describe(summary: Summary) -> str:
    """The page."""
    parts = [
        _HEAD,
        *_results(summary),
        *_failure_kinds(summary),
        *_failing(summary),
        *_lowering(summary),
        *_per_op(summary),
    ]
    return "\n".join(parts) + "\n"


def _results(summary: Summary) -> Iterator[str]:
    pairs, run = len(summary.cells()), sum(one.inductor is not None for one in summary.cells())
    yield "## Results\n"
    yield f"torch {summary.torch}; {len(summary.ops)} ops, per op and dtype at most"
    yield f"{_most(summary)}, spread over all that the database has. Inductor was run on"
    yield f"{run} of {pairs} pairs of op and dtype: ops drawn with a fixed seed, and some"
    yield "that fail.\n"
    yield from (f"- {line}" for line in summary.headline())


def _most(summary: Summary) -> str:
    """How many samples of each dtype an op may have: "4 samples (2 of bool)"."""
    most: dict[str, int] = {}
    for row in summary.ops.values():
        for dtype, cell in row.items():
            most[dtype] = max(most.get(dtype, 0), cell.samples)
    usual = max(most.values(), default=0)
    fewer = [f"{number} of {dtype}" for dtype, number in sorted(most.items()) if number < usual]
    return f"{usual} samples" + (f" ({', '.join(fewer)})" if fewer else "")


def _failure_kinds(summary: Summary) -> Iterator[str]:
    yield "\n## Failures by kind\n"
    counts = {name: collections.Counter(f.kind for f in summary.of(name)) for name in _COMPILERS}
    yield f"| kind | {' | '.join(_COMPILERS)} |"
    yield "|---|---|---|"
    for kind in sorted(set().union(*counts.values())):
        yield f"| {kind} | {' | '.join(str(counts[name][kind]) for name in _COMPILERS)} |"


def _failing(summary: Summary) -> Iterator[str]:
    theirs = {failure.sample for failure in summary.of("inductor")}
    yield "\n## Samples that fail\n"
    if not summary.of("eqsat"):
        yield "None."
        return
    yield "| op | dtype | sample | kind | message | Inductor |"
    yield "|---|---|---|---|---|---|"
    for one in summary.of("eqsat"):
        ran = summary.ops[one.op][one.dtype].inductor is not None
        verdict = "fails" if one.sample in theirs else "passes" if ran else "not run"
        message = one.message.replace("|", "\\|")
        yield f"| `{one.op}` | {one.dtype} | {one.number} | {one.kind} | {message} | {verdict} |"


def _lowering(summary: Summary) -> Iterator[str]:
    """Samples of each dtype by what became of them."""
    by_dtype: dict[str, list[int]] = {}
    for row in summary.ops.values():
        for dtype, cell in row.items():
            counts = by_dtype.setdefault(dtype, [0] * len(KINDS))
            by_dtype[dtype] = [a + b for a, b in zip(counts, cell.lowered, strict=True)]
    yield "\n## What became of the samples"
    yield _WORDS
    yield f"| dtype | {' | '.join(KINDS)} |"
    yield f"|---{'|---' * len(KINDS)}|"
    for dtype, counts in sorted(by_dtype.items()):
        total = sum(counts)
        cells = (f"{count} ({_percent(count, total)})" for count in counts)
        yield f"| {dtype} | {' | '.join(cells)} |"


def _per_op(summary: Summary) -> Iterator[str]:
    dtypes = sorted({dtype for row in summary.ops.values() for dtype in row})
    yield "\n## Every op\n"
    yield "*Generated*: samples of all dtypes with generated code (mixed ones count), of those"
    yield "that ran. A dtype's column: samples that pass of those that ran.\n"
    yield f"| op | generated | {' | '.join(dtypes)} | Inductor |"
    yield f"|---|---{'|---' * len(dtypes)}|---|"
    for name, row in summary.ops.items():
        generated = sum(cell.lowered[0] + cell.lowered[1] for cell in row.values())
        total = sum(cell.samples for cell in row.values())
        cells = [_cell(row[dtype]) if dtype in row else "" for dtype in dtypes]
        theirs = [cell for cell in row.values() if cell.inductor is not None]
        passed = sum(cell.inductor or 0 for cell in theirs)
        inductor = f"{passed}/{sum(cell.samples for cell in theirs)}" if theirs else ""
        yield f"| `{name}` | {generated}/{total} | {' | '.join(cells)} | {inductor} |"


def _cell(cell: Cell) -> str:
    return f"{cell.passed}/{cell.samples} {cell.word}".strip()
