"""Rules over custom ops that write into their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eqsat.engine.functional import functional_form, mutable_form
from eqsat.reports import recording

RULES = """
- op: norm_out
  doc: Writes the norm of x into out.
  aten: [eqsat_test.norm_out.default]
  args: out, x, w

- op: norm_round_out
  doc: Writes the rounded norm of x into out.
  aten: [eqsat_test.norm_round_out.default]
  args: out, x, w

- op: stats_out
  doc: Writes mean and spread of x, gives the largest element.
  aten: [eqsat_test.stats_out.default]
  args: mean, spread, x, scale=1.0

- op: range_out
  doc: Writes the smallest and the largest element of x.
  aten: [eqsat_test.range_out.default]
  args: low, high, x

- rule: norm-round-from-norm
  doc: The norm and the rounding are one kernel.
  vars:
    out: float[..., n]
    x: float[..., n]
    w: float[n]
  match: round(norm_out(out, x, w))
  when:
    - same_dtype(out, x)
  make: norm_round_out(empty_like(x), x, w)
  numerics: exact

- rule: stats-negated
  doc: The mean of a negated tensor.
  vars:
    a: float[1]
    b: float[1]
    x: float[n]
  match: neg(stats_out(a, b, x)[1])
  make: stats_out(a, b, neg(x))[1]
  numerics: reassociate
"""


@pytest.fixture(scope="module")
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("eqsat_test", "DEF") as made:
        made.define("norm_out(Tensor(a!) out, Tensor x, Tensor w) -> ()")
        made.define("norm_round_out(Tensor(a!) out, Tensor x, Tensor w) -> ()")
        made.define(
            "stats_out(Tensor(a!) mean, Tensor(b!) spread, Tensor x, float scale=1.0) -> Tensor"
        )
        made.define("range_out(Tensor(a!) low, Tensor(b!) high, Tensor x) -> ()")
        made.impl("range_out", write_range, "CompositeExplicitAutograd")
        made.impl("norm_out", write_norm, "CompositeExplicitAutograd")
        made.impl("norm_round_out", write_rounded, "CompositeExplicitAutograd")
        made.impl("stats_out", write_stats, "CompositeExplicitAutograd")
        yield made


def write_norm(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6))


def write_rounded(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> None:
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6).round())


def write_stats(
    mean: torch.Tensor, spread: torch.Tensor, x: torch.Tensor, scale: float = 1.0
) -> torch.Tensor:
    mean.copy_(x.mean() * scale)
    spread.copy_(x.std() * scale)
    return x.amax().reshape(1)


def write_range(low: torch.Tensor, high: torch.Tensor, x: torch.Tensor) -> None:
    low.copy_(x.amin())
    high.copy_(x.amax())


def spread(x: torch.Tensor) -> Any:
    """Two equal `empty` become one node, yet each result is memory of its own."""
    low, high = x.new_empty(1), x.new_empty(1)
    torch.ops.eqsat_test.range_out(low, high, torch.cat([x, x.neg().neg()]))
    return high - low, low, high


def into_fresh(x: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    torch.ops.eqsat_test.norm_out(out, x, w)
    return out.round() + 1


def into_input(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
    torch.ops.eqsat_test.norm_out(out, x, w)
    return out.round() * 2


def into_row(x: torch.Tensor, w: torch.Tensor) -> Any:
    """A view of its base is written: the call stays as it is."""
    base = torch.ones(2, *x.shape)
    torch.ops.eqsat_test.norm_out(base[1], x, w)
    return base.round()


def twice(x: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    torch.ops.eqsat_test.norm_out(out, x, w)
    first = out + 1
    torch.ops.eqsat_test.norm_out(out, first, w)
    return first, out


def stats(x: torch.Tensor) -> Any:
    mean, spread = x.new_empty(1), x.new_ones(1)
    top = torch.ops.eqsat_test.stats_out(mean, spread, x, scale=2.0)
    other = torch.ops.eqsat_test.stats_out(spread.clone(), mean.clone(), x)
    return mean, spread * 2, top, other


def negated_mean(x: torch.Tensor) -> Any:
    mean, spread = x.new_empty(1), x.new_empty(1)
    torch.ops.eqsat_test.stats_out(mean, spread, x)
    return -mean, spread


CASES = [
    (into_fresh, ("x", "w"), "norm-round-from-norm"),
    (into_input, ("x", "x", "w"), ""),
    (into_row, ("x", "w"), ""),
    (twice, ("x", "w"), ""),
    (stats, ("w",), ""),
    (negated_mean, ("w",), "stats-negated"),
    (spread, ("w",), ""),
]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("fn", "given", "fires"), CASES, ids=lambda case: getattr(case, "__name__", "")
)
def test_results_and_firings(
    library: torch.library.Library,
    tmp_path: Path,
    fn: Callable[..., Any],
    given: tuple[str, ...],
    fires: str,
    declared: bool,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(RULES)
    shapes = {"x": (4, 6), "w": (6,)}
    values = [torch.randn(shapes[name]) * 3 for name in given]
    expected_inputs = [value.clone() for value in values]
    expected = fn(*expected_inputs)
    torch._dynamo.reset()
    options = {"strict": True, "rules": [str(path)] if declared else []}
    with recording() as reports:
        found = torch.compile(fn, backend="eqsat", options=options)(*values)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(values, expected_inputs)
    fired = {
        firing.rule.split(":")[-1]
        for report in reports
        for stage in report.stages
        for firing in stage.firings
    }
    if declared and fires:
        assert fires in fired


def test_forms_know_their_origin(library: torch.library.Library) -> None:
    mutable = torch.ops.eqsat_test.stats_out.default
    form = functional_form(mutable)
    assert form is not None and mutable_form(form) is mutable
    assert not form._schema.is_mutable
    mean, spread, x = torch.zeros(1), torch.zeros(1), torch.randn(5)
    top, new_mean, new_spread = form(mean, spread, x)
    torch.testing.assert_close(
        (top, new_mean, new_spread), (x.amax().reshape(1), x.mean().reshape(1), x.std().reshape(1))
    )
    assert mean == 0 and spread == 0


def test_an_op_may_be_defined_anew() -> None:
    """As happens when a cell of a notebook runs twice."""
    found = []
    for factor in (2.0, 3.0, 4.0):
        with torch.library._scoped_library("eqsat_test_anew", "DEF") as made:
            made.define("scale_out(Tensor(a!) out, Tensor x) -> ()")

            def write(out: torch.Tensor, x: torch.Tensor, factor: float = factor) -> None:
                out.copy_(x * factor)

            made.impl("scale_out", write, "CompositeExplicitAutograd")
            form = functional_form(torch.ops.eqsat_test_anew.scale_out.default)
            assert form is not None
            found.append(form(torch.zeros(2), torch.ones(2)))
    torch.testing.assert_close(torch.stack(found)[:, 0], torch.tensor([2.0, 3.0, 4.0]))
