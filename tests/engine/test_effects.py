"""Calls that have effects, or bodies of their own, keep their number, order and results."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from eqsat.reports import recording

aten = torch.ops.aten
LOG = []


@torch.library.custom_op("eqsat_effects::note", mutates_args=())
def note(x: torch.Tensor, tag: int) -> torch.Tensor:
    LOG.append(tag)
    return x + tag


@note.register_fake
def _(x, tag):
    return torch.empty_like(x)


@torch.library.custom_op("eqsat_effects::bump", mutates_args=("x",))
def bump(x: torch.Tensor, by: float) -> None:
    LOG.append(by)
    x.add_(by)


@bump.register_fake
def _(x, by):
    return None


def both(function, *inputs):
    """Results of eager and eqsat on equal inputs and the same random stream, with what was
    written into the inputs and the effects in order."""
    torch._dynamo.reset()
    found = []
    options = {"strict": True}
    with recording() as reports:
        for run in (function, torch.compile(function, backend="eqsat", options=options)):
            LOG.clear()
            torch.manual_seed(0)
            given = [value.clone() for value in inputs]
            out = run(*given)
            found.append(([*(out if isinstance(out, tuple) else (out,)), *given], list(LOG)))
    (theirs, first), (ours, second) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert sorted(second) == sorted(first)  # a pure op may run earlier, but not less often
    assert [report.fallback for report in reports if report.fallback] == []
    return reports


X, Y = torch.randn(4, 6), torch.randn(4, 6)


def test_equal_random_calls_are_not_one():
    def function(x):
        return torch.rand_like(x) - torch.rand_like(x), nn.functional.dropout(x * 1.0, 0.5)

    both(function, X)


def test_writes_between_reads():
    def function(x, y):
        before = (x + y) * 2.0
        x.add_(1.0)
        between = (x + y) * 2.0
        y[1:3].copy_(between[1:3])
        return before, between, (x + y) * 2.0

    both(function, X, Y)


def test_custom_ops_run_as_often_as_eager_runs_them():
    def function(x, y):
        a = torch.ops.eqsat_effects.note(x * 2.0, 3)
        torch.ops.eqsat_effects.bump(y, 0.5)
        b = torch.ops.eqsat_effects.note(y - -x, 4)
        torch.ops.eqsat_effects.bump(y, 0.5)
        return a + b, y * 2.0

    both(function, X, Y)
    assert [tag for tag in LOG if tag != 0.5] == [3, 4] and len(LOG) == 4


def test_branches_and_loops():
    def function(x, y):
        picked = torch.cond(x.sum() > 0, lambda x: x * 2.0 + 1.0, lambda x: x - -x, (x,))
        opposite = torch.cond(x.sum() > 0, lambda x: x - -x, lambda x: x * 2.0 + 1.0, (x,))
        return picked + y, opposite + y

    both(function, X, Y)
    both(function, -X, Y)


def test_while_loops_and_scans():
    def loop(x):
        def body(i, x):
            return i + 1, x * 0.5 + 1.0

        count, result = torch._higher_order_ops.while_loop(
            lambda i, x: i < 3, body, (torch.tensor(0), x)
        )
        return count, result - -x

    def scan(x, y):
        def combine(carry, row):
            new = carry * 0.5 + row
            return new, new * 2.0

        last, rows = torch._higher_order_ops.scan(combine, x[0], y)
        return last - -x[0], rows

    both(loop, X)
    both(scan, X, Y)


def test_checkpoints():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.GELU())

    torch._dynamo.reset()
    results = []
    for run in (
        lambda x: checkpoint(model, x, use_reentrant=False),
        torch.compile(lambda x: checkpoint(model, x, use_reentrant=False), backend="eqsat"),
    ):
        torch.manual_seed(0)
        model.zero_grad()
        out = run(X)
        out.square().sum().backward()
        results.append([out.detach(), model[0].weight.grad.clone()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_flex_attention():
    from torch.nn.attention.flex_attention import flex_attention  # noqa: PLC0415 - not everywhere

    def function(q, k, v):
        out = flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * 2.0 + (i - j))
        return out - -q

    both(function, *(torch.randn(1, 2, 16, 16) for _ in range(3)))


@pytest.fixture
def group():
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_collectives(group):
    from torch.distributed import _functional_collectives as collectives  # noqa: PLC0415

    def function(x, y):
        a = collectives.all_reduce(x * 2.0, "sum", [0])
        b = collectives.all_reduce(x * 2.0, "sum", [0])
        return a - -b, collectives.all_gather_tensor(y + 0, 0, [0])

    reports = both(function, X, Y)
    reduced = [e for r in reports for e in r.externs if "all_reduce" in e.target]
    assert len(reduced) == 2
