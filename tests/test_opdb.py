"""The sweep over torch's op database: what it calls a failure, what it says became generated
code, and that its page is current."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from eqsat.benchmarks.opdb_compare import Mismatch, compare
from eqsat.benchmarks.opdb_measure import Outcome, Sample, measure
from eqsat.benchmarks.opdb_page import PAGE, Summary, describe, read_summary, summarise


def sample(number: int, op: Callable[..., Any], *tensors: torch.Tensor) -> Sample:
    _, spec = pytree.tree_flatten((tensors, {}))
    places = tuple(range(len(tensors)))
    return Sample("float32", number, op, tensors, (None,) * len(tensors), places, spec)


def test_samples_of_one_function_are_told_apart() -> None:
    x = torch.randn(3, 4)
    calls: list[Callable[..., Any]] = [
        lambda x: x.exp() + 1,
        lambda x: x.t()[1:],
        torch.linalg.inv_ex,
        lambda x: torch.linalg.inv_ex(x + 1),
    ]
    tensors = [x, x, torch.eye(3), torch.eye(3)]
    samples = [sample(k, op, y) for k, (op, y) in enumerate(zip(calls, tensors, strict=True))]
    samples.append(sample(4, lambda: torch.ones(3)))
    (outcome,) = measure("several", samples, "eqsat")
    assert (outcome.samples, outcome.failures) == (5, [])
    assert outcome.lowered == {"generated": 2, "view": 1, "extern": 1, "mixed": 1}


def _lost(x: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling():
        return x + 1
    raise ValueError("only in eager")


def _other(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.compiler.is_compiling() else x + 2


def _refused(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("always")


def test_each_failing_sample_is_found_and_named() -> None:
    x = torch.randn(3)
    calls = [torch.exp, _lost, _other, _refused, torch.sin]
    samples = [sample(k, op, x) for k, op in enumerate(calls)]
    (outcome,) = measure("several", samples, "eqsat")
    assert [(number, kind) for number, kind, _ in outcome.failures] == [
        (2, "value"),
        (1, "missing error"),
    ]


@pytest.mark.parametrize(
    ("kind", "want", "got"),
    [
        ("structure", (torch.ones(2),), [torch.ones(2)]),
        ("dtype", torch.ones(2), torch.ones(2, dtype=torch.float64)),
        ("shape", torch.ones(2), torch.ones(1, 2)),
        ("strides", torch.ones(2, 3), torch.ones(3, 2).t()),
        ("value", torch.ones(2), torch.tensor([1.0, 1.1])),
        ("value", 3, 3.0),
    ],
)
def test_what_differs_is_named(kind: str, want: Any, got: Any) -> None:
    with pytest.raises(Mismatch) as caught:
        compare(want, got, lambda: want, values=True)
    assert caught.value.kind == kind


def test_a_value_nearer_to_the_truth_than_eagers_passes() -> None:
    want, truth = torch.tensor([1.01]), torch.tensor([1.0], dtype=torch.float64)
    compare(want, torch.tensor([0.99]), lambda: truth, values=True)
    with pytest.raises(Mismatch):
        compare(want, torch.tensor([0.97]), lambda: truth, values=True)


def outcome(op: str, backend: str, failures: list[Any], **lowered: int) -> dict[str, Any]:
    return vars(Outcome(op, "float32", backend, 4, failures, lowered))


def swept() -> Summary:
    return summarise(
        [
            outcome("abs", "eqsat", [], generated=4),
            outcome("abs", "inductor", [(1, "value", "off")]),
            outcome("sum", "eqsat", [(0, "value", "off\nby 1"), (2, "dtype", "int64")], mixed=4),
            outcome("sum", "inductor", [(2, "dtype", "int64")]),
            outcome("inv", "eqsat", [(3, "crash", "exit status -11")], extern=3),
        ],
        "2.0",
    )


def test_the_summary_tells_what_only_eqsat_fails() -> None:
    summary = swept()
    assert [failure.sample for failure in summary.only_ours()] == [("sum", "float32", 0)]
    assert list(summary.headline()) == [
        "eqsat: 9 of 12 samples pass (75.00 %)",
        "eqsat, where Inductor was run too: 6 of 8 samples pass (75.00 %)",
        "Inductor: 6 of 8 samples pass (75.00 %)",
        "samples that Inductor passes and eqsat fails: 1",
    ]


def test_the_page_lists_failures_and_shares() -> None:
    page = describe(swept())
    assert "| `sum` | 4/4 | 2/4 mixed | 3/4 |" in page
    assert "| `inv` | 0/4 | 3/4 extern |  |" in page
    assert "| `inv` | float32 | 3 | crash | exit status -11 | not run |" in page
    assert "| `sum` | float32 | 0 | value | off | passes |" in page
    assert "| `sum` | float32 | 2 | dtype | int64 | fails |" in page
    assert "| value | 1 | 1 |" in page
    assert "per op and dtype at most 4 samples, spread" in page.replace("\n", " ")


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe(read_summary())
