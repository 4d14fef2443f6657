"""Kernels that read and write through index tensors: values, order, errors, whole graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eqsat.codegen import compile as compiling
from eqsat.codegen.cpp import emit_nest
from eqsat.codegen.launch import CtypesRunner
from eqsat.lowering.index import Gathered, Index
from eqsat.lowering.loops import Scalar
from eqsat.lowering.simplify import simplify_nest

from .drafts import Draft, check, compile_texts, random, scalar_table

aten = torch.ops.aten


def at(scalar: Scalar, size: int) -> Index:
    return Index(((Gathered(scalar, size), 1),))


def picks(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(7))


def along_rows(mode: str, dtype: torch.dtype, width: int) -> Draft:
    """Whole rows collide; the columns are free."""
    d = Draft()
    d.tensor("ids", picks(4, 37)), d.tensor("o", random(4, width, dtype=dtype, seed=1))
    d.tensor("g", random(37, width, dtype=dtype))
    i, j = d.over(37, width)
    d.store("o", at(d.load("ids", i), 4), j, value=d.load("g", i, j), mode=mode)
    return d


def along_columns(mode: str) -> Draft:
    """Points of one row collide; the rows are free."""
    d = Draft()
    d.tensor("ids", picks(6, 30, 70)), d.tensor("g", random(30, 70))
    d.tensor("o", random(30, 6, seed=1))
    i, j = d.over(30, 70)
    d.store("o", i, at(d.load("ids", i, j), 6), value=d.load("g", i, j), mode=mode)
    return d


def everywhere(mode: str) -> Draft:
    """All points collide. The source lies across, so its axes tempt to run the other way."""
    d = Draft()
    d.tensor("ids", picks(5, 40, 30)), d.tensor("g", random(30, 40)), d.tensor("o", random(5, 1))
    i, j = d.over(40, 30)
    d.store("o", at(d.load("ids", i, j), 5), 0, value=d.load("g", j, i), mode=mode)
    return d


def two_free_dims() -> Draft:
    """Two free axes that simplify to one."""
    d = Draft()
    d.tensor("ids", picks(3, 50)), d.tensor("g", random(50, 6, 8)), d.tensor("o", random(3, 6, 8))
    i, j, k = d.over(50, 6, 8)
    row = at(d.load("ids", i), 3)
    d.store("o", row, j, k, value=d.load("g", i, j, k), mode="add")
    return d


def one_number() -> Draft:
    """A number added at every point, also where no index depends on it."""
    d = Draft()
    d.tensor("ids", picks(3, 5)), d.tensor("o", random(3))
    i, _ = d.over(5, 4)
    d.store("o", at(d.load("ids", i), 3), value=d.const(1.0), mode="add")
    return d


def of_sums() -> Draft:
    """Sums of rows, put where an index says."""
    d = Draft(tolerance=1e-5)
    d.tensor("ids", picks(3, 20)), d.tensor("x", random(20, 33)), d.tensor("o", random(3))
    i, j = d.over(20, 33, reduce=1)
    d.store("o", at(d.load("ids", i), 3), value=d.reduce("sum", d.load("x", i, j)))
    return d


MODES = ("set", "add", "mul", "max", "min")
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
DRAFTS: dict[str, Callable[[], Draft]] = {
    **{
        f"rows_{mode}_{str(dtype).removeprefix('torch.')}": lambda mode=mode, dtype=dtype: (
            along_rows(mode, dtype, 19)
        )
        for mode in MODES
        for dtype in KINDS
    },
    **{f"columns_{mode}": lambda mode=mode: along_columns(mode) for mode in MODES},
    **{f"everywhere_{mode}": lambda mode=mode: everywhere(mode) for mode in ("set", "add")},
    "shared_columns": lambda: along_rows("add", torch.float32, 700),
    "two_free_dims": two_free_dims,
    "one_number": one_number,
    "of_sums": of_sums,
}


@pytest.fixture(scope="module")
def built() -> Any:
    drafts = {name: make() for name, make in DRAFTS.items()}
    for draft in drafts.values():
        nest = simplify_nest(draft.nest, draft.buffers)
        draft.axes, draft.raxes, draft.stores = nest.axes, nest.raxes, list(nest.stores)
    texts = {n: emit_nest(d.nest, d.buffers, scalar_table()) for n, d in drafts.items()}
    return drafts, texts, compile_texts(texts)


@pytest.mark.parametrize("name", DRAFTS)
def test_kernel_agrees_with_the_interpreter(name: str, built: Any) -> None:
    drafts, texts, kernels = built
    check(drafts[name], texts[name], kernels[name])


def loops(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith(("for", "#p"))]


def test_free_columns_are_vectorised(built: Any) -> None:
    found = loops(built[1]["two_free_dims"].text)
    assert found[-2] == "#pragma omp simd"
    assert "< 48" in found[-1]


def test_colliding_points_are_not(built: Any) -> None:
    assert not any("omp" in line for line in loops(built[1]["everywhere_add"].text))
    assert not any("simd" in line for line in loops(built[1]["columns_set"].text))


def test_the_largest_stays_as_eager_has_it() -> None:
    """nan wins, and of two zeros the one that was there."""
    source = torch.tensor([[-0.0, 0.0, float("nan"), 1.0, 1.0]])
    old = torch.tensor([[0.0, -0.0, 1.0, float("nan"), 0.5]])
    place = torch.arange(5)[None]
    for kind in ("amax", "amin"):
        reduce = lambda x, s, kind=kind: x.scatter_reduce(1, place, s, kind)  # noqa: E731
        got, wanted = compiled(reduce)(old, source), reduce(old, source)
        torch.testing.assert_close(got, wanted, equal_nan=True)
        assert torch.equal(got.signbit()[:, :2], wanted.signbit()[:, :2])


# ---- whole graphs ----


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="eqsat", fullgraph=True, **options)


def several(x: torch.Tensor, i: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask = x > 0.5
    return (
        F.layer_norm(F.embedding(i, x), (x.shape[1],)),
        x[i].softmax(-1),
        x.gather(0, i[:, None].expand(-1, x.shape[1])),
        x.index_put((i,), src.sin(), accumulate=True),
        x.index_put((i,), src),
        x.scatter_add(0, i[:, None].expand(-1, x.shape[1]), src),
        x.scatter_reduce(0, i[:, None].expand(-1, x.shape[1]), src, "amax"),
        x.index_add(0, i, src * 2),
        x.index_fill(0, i[:1], 3.0),
        x.index_put((mask,), torch.tensor(0.0)),
        F.one_hot(i, 11),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_equal_eager(dynamic: bool) -> None:
    run = compiled(several, dynamic=dynamic)
    for rows, count, width in ((11, 30, 24), (7, 5, 33)):
        x, src = torch.randn(rows, width), torch.randn(count, width)
        i = torch.randint(0, rows, (count,))
        for got, wanted in zip(run(x, i, src), several(x, i, src), strict=True):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("runner", ["native", "ctypes"])
def test_an_index_out_of_range(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises what eager raises, leaves nothing behind, and the next call is fine."""
    if runner == "ctypes":
        monkeypatch.setattr(compiling, "find_runner", CtypesRunner)

    def f(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (x * 2)[i, j].sin() + x.index_select(0, i).sum() + F.embedding(j, x).sum()

    run, x = compiled(f), torch.randn(5, 6)
    good, bad = torch.tensor([0, 4, 1]), torch.tensor([0, 1, 77])
    for i, j in ((good, good), (bad, good), (good, bad), (good, good), (-good, good)):
        try:
            wanted: Any = f(x, i, j)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)) as got:
                run(x, i, j)
            assert str(got.value) == str(error)
        else:
            torch.testing.assert_close(run(x, i, j), wanted)


def test_nothing_leaks_where_it_raises() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x.exp() @ x.t())[i]

    run, x = compiled(f), torch.randn(8, 8)
    run(x, torch.tensor([1]))
    counts = []
    for _ in range(3):
        for _ in range(20):
            with pytest.raises(IndexError):
                run(x, torch.tensor([8]))
        gc.collect()
        counts.append(sum(type(item) is torch.Tensor for item in gc.get_objects()))
    assert counts[-1] <= counts[0]


def test_a_result_that_nobody_needs_still_raises() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i][:2] + 1  # the bad index is none of those that are kept

    run, x = compiled(f), torch.randn(5, 6)
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 5"):
        run(x, torch.tensor([0, 1, 9]))


def test_gradients() -> None:
    def f(w: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        found = F.embedding(i, w, padding_idx=1) * x[i]
        picked = x.gather(1, i[:4, None].expand(4, 3)).sum()
        return found.sin().sum() + picked + x.index_select(0, i).tanh().sum()

    made = lambda: [torch.randn(9, 12, requires_grad=True) for _ in "wx"]  # noqa: E731
    i = torch.tensor([3, 1, 3, 0, 8, 1, 3])
    first = made()
    second = [value.detach().clone().requires_grad_() for value in first]
    f(*first, i).backward()
    compiled(f)(*second, i).backward()
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(other.grad, one.grad)


def test_a_cache_is_written_in_place() -> None:
    def f(cache: torch.Tensor, k: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(2, place, k)
        cache[:, :, 0:1] = k * 2
        return cache.sum((0, 1))

    run = compiled(f)
    cache, k, place = torch.randn(2, 3, 16, 8), torch.randn(2, 3, 1, 8), torch.tensor([5])
    other = cache.clone()
    with torch.no_grad():
        torch.testing.assert_close(run(cache, k, place), f(other, k, place))
        assert torch.equal(cache, other)
        with pytest.raises(IndexError):
            run(cache, k, torch.tensor([16]))
    assert torch.equal(cache, other)


def test_duplicates_of_the_last_dim_keep_their_order() -> None:
    x, src = torch.zeros(64, 8), torch.randn(64, 512)
    index = torch.randint(0, 8, (64, 512))
    f = lambda x, i, src: (x.scatter(1, i, src), x.scatter_add(1, i, src))  # noqa: E731
    for got, wanted in zip(compiled(f)(x, index, src), f(x, index, src), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
