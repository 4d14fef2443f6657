"""C++ kernels against the loop IR interpreter; all nests are compiled in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sympy
import torch

from eqsat.codegen.cpp import KernelText, emit_nest
from eqsat.engine.rule import ScalarEntry
from eqsat.lowering.index import ZERO, Axis, Gathered, Index, as_index, floor_div, remainder
from eqsat.lowering.loops import Builder, Nest, Scalar, Store
from eqsat.tests.codegen.drafts import (
    INF,
    NAN,
    WORDS,
    Draft,
    call,
    check,
    compile_texts,
    random,
    scalar_table,
)

CASES: dict[str, Callable[[], Draft]] = {}


def case(make: Callable[[], Draft]) -> Callable[[], Draft]:
    CASES[make.__name__] = make
    return make


def gelu(d: Draft, x: Scalar) -> Scalar:
    inner = d.make("erf", d.make("mul", x, d.const(0.5**0.5)))
    return d.make("mul", d.make("mul", x, d.const(0.5)), d.make("add", d.const(1.0), inner))


@case
def bias_gelu() -> Draft:
    d = Draft(tolerance=1e-6)
    d.tensor("x", random(37, 53)), d.tensor("b", random(53)), d.tensor("o", torch.empty(37, 53))
    i, j = d.over(37, 53)
    value = gelu(d, d.make("add", d.load("x", i, j), d.load("b", j)))
    d.store("o", i, j, value=value)
    return d


@case
def large_flat_pointwise() -> Draft:
    d = Draft()
    d.tensor("x", random(100003)), d.tensor("o", torch.empty(100003))
    (i,) = d.over(100003)
    d.store("o", i, value=d.make("mul", d.load("x", i), d.const(-0.0)))
    return d


@case
def bf16_rounds_each_step() -> Draft:
    d = Draft()
    x = random(64, 33, dtype=torch.bfloat16)
    x[0, :4] = torch.tensor([NAN, INF, -INF, -0.0])
    d.tensor("x", x), d.tensor("o", torch.empty_like(x))
    i, j = d.over(64, 33)
    wide = d.builder.cast(d.load("x", i, j), "f32")
    square = d.builder.cast(d.make("mul", wide, wide), "bf16")
    total = d.make("add", d.builder.cast(square, "f32"), wide)
    d.store("o", i, j, value=d.builder.cast(total, "bf16"))
    return d


@case
def f16_denormals_and_overflow() -> Draft:
    d = Draft()
    x = torch.tensor([6e-8, 3e-8, 2.9e-8, 65504.0, 65519.0, 65520.0, -1e-9, NAN, INF, 6.1e-5])
    d.tensor("x", x), d.tensor("o", torch.empty(10, dtype=torch.float16))
    (i,) = d.over(10)
    d.store("o", i, value=d.builder.cast(d.load("x", i), "f16"))
    return d


def softmax(d: Draft, x: Scalar) -> Scalar:
    shifted = d.make("sub", x, d.reduce("max", x))
    power = d.make("exp", shifted)
    return d.make("div", power, d.reduce("sum", power))


@case
def softmax_rows() -> Draft:
    d = Draft(tolerance=1e-6)
    x = random(33, 130)
    x[3, 7], x[4, 9], x[5] = NAN, INF, -INF
    d.tensor("x", x), d.tensor("o", torch.empty_like(x))
    i, k = d.over(33, 130, reduce=1)
    d.store("o", i, k, value=softmax(d, d.load("x", i, k)))
    return d


@case
def softmax_one_long_row() -> Draft:
    d = Draft(tolerance=1e-6)
    d.tensor("x", random(1, 90001)), d.tensor("o", torch.empty(1, 90001))
    i, k = d.over(1, 90001, reduce=1)
    d.store("o", i, k, value=softmax(d, d.load("x", i, k)))
    return d


@case
def softmax_columns() -> Draft:
    d = Draft(tolerance=1e-6)
    x = random(5, 23, 77)
    x[1, 2, 3] = NAN
    d.tensor("x", x), d.tensor("o", torch.empty_like(x))
    i, j, k = d.over(5, 77, 23, reduce=1)
    d.store("o", i, k, j, value=softmax(d, d.load("x", i, k, j)))
    return d


@case
def softmax_in_place() -> Draft:
    d = Draft(tolerance=1e-6)
    d.tensor("x", random(7, 300))
    i, k = d.over(7, 300, reduce=1)
    d.store("x", i, k, value=softmax(d, d.load("x", i, k)))
    return d


@case
def softmax_symbolic() -> Draft:
    d = Draft(tolerance=1e-6, symbols={"rows": 19, "width": 45})
    n, m = (sympy.Symbol(name, integer=True, positive=True) for name in ("rows", "width"))
    d.tensor("x", random(19, 45), (n, m), (m, 1))
    d.tensor("o", torch.empty(19, 45), (n, m), (m, 1))
    i, k = d.over(n, m, reduce=1)
    d.store("o", i, k, value=softmax(d, d.load("x", i, k)))
    return d


def layer_norm(d: Draft, rows: int, width: int, dtype: torch.dtype) -> None:
    d.tensor("x", random(rows, width, dtype=dtype)), d.tensor("w", random(width))
    d.tensor("o", torch.empty(rows, width, dtype=dtype))
    d.tensor("mean", torch.empty(rows)), d.tensor("rstd", torch.empty(rows))
    i, k = d.over(rows, width, reduce=1)
    x = d.builder.cast(d.load("x", i, k), "f32")
    count = d.const(float(width))
    mean = d.make("div", d.reduce("sum", x), count)
    centred = d.make("sub", x, mean)
    variance = d.make("div", d.reduce("sum", d.make("mul", centred, centred)), count)
    rstd = d.make("rsqrt", d.make("add", variance, d.const(1e-5)))
    value = d.make("mul", d.make("mul", centred, rstd), d.load("w", k))
    d.store("mean", i, value=mean), d.store("rstd", i, value=rstd)
    d.store("o", i, k, value=d.builder.cast(value, WORDS[dtype]))


@case
def layer_norm_f32() -> Draft:
    d = Draft(tolerance=2e-6)
    layer_norm(d, 41, 96, torch.float32)
    return d


@case
def layer_norm_bf16() -> Draft:
    d = Draft(tolerance=1e-2)
    layer_norm(d, 9, 768, torch.bfloat16)
    return d


def reduction(
    kind: str, x: torch.Tensor, over: str, dtype: str | None = None, tolerance: float = 0.0
) -> Draft:
    """`over`: one letter per dim of x, "k" for reduced."""
    d = Draft(tolerance=tolerance)
    d.tensor("x", x)
    kept = [size for size, letter in zip(x.shape, over, strict=True) if letter != "k"]
    gone = [size for size, letter in zip(x.shape, over, strict=True) if letter == "k"]
    axes = d.over(*kept, *gone, reduce=len(gone))
    parallel, reduced = iter(axes[: len(kept)]), iter(axes[len(kept) :])
    index = [next(reduced) if letter == "k" else next(parallel) for letter in over]
    value = d.reduce(kind, d.load("x", *index), dtype)
    types = {word: dtype for dtype, word in WORDS.items()}
    d.tensor("o", torch.empty(kept, dtype=types[value.dtype]))
    d.store("o", *d.axes, value=value)
    return d


def with_nans(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1)
    flat[5], flat[flat.numel() // 2], flat[-1] = NAN, NAN, INF
    return x


REDUCTIONS: dict[str, Callable[[], Draft]] = {
    "sum_rows": lambda: reduction("sum", random(20, 511), "pk", tolerance=1e-5),
    "sum_all": lambda: reduction("sum", random(301, 200), "kk", tolerance=1e-4),
    "sum_columns": lambda: reduction("sum", random(999, 70), "kp", tolerance=1e-5),
    "sum_wide_columns": lambda: reduction("sum", random(300, 1600), "kp", tolerance=1e-5),
    "sum_middle": lambda: reduction("sum", random(6, 9, 40), "pkp", tolerance=1e-5),
    "sum_outer_and_inner": lambda: reduction("sum", random(5, 6, 7), "kpk", tolerance=1e-5),
    "sum_i64": lambda: reduction("sum", random(9, 4000, dtype=torch.int64), "pk"),
    "sum_f64": lambda: reduction("sum", random(3, 9000, dtype=torch.float64), "pk", None, 1e-12),
    "prod": lambda: reduction("prod", 1 + random(8, 30) / 10, "pk", tolerance=1e-5),
    "max_nan": lambda: reduction("max", with_nans(random(8, 60)), "pk"),
    "min_nan_columns": lambda: reduction("min", with_nans(random(40, 60)), "kp"),
    "max_nan_all": lambda: reduction("max", with_nans(random(400, 300)), "kk"),
    "max_i8": lambda: reduction("max", random(8, 60, dtype=torch.int8), "pk"),
    "min_bool": lambda: reduction("min", random(8, 3, dtype=torch.bool), "pk"),
    "any": lambda: reduction("any", random(50, 4, dtype=torch.bool), "pk"),
    "all_columns": lambda: reduction("all", random(3, 50, dtype=torch.bool), "kp"),
    "argmax": lambda: reduction("argmax", random(30, 70).round(), "pk", "i64"),
    "argmax_nan": lambda: reduction("argmax", with_nans(random(9, 70)), "pk", "i64"),
    "argmin_columns": lambda: reduction("argmin", with_nans(random(70, 30).round()), "kp", "i64"),
    "argmax_all": lambda: reduction("argmax", random(500, 300).round(), "kk", "i64"),
    "argmax_infinite": lambda: reduction("argmax", torch.full((3, 5), -INF), "pk", "i64"),
    "argmin_i32": lambda: reduction("argmin", random(6, 50, dtype=torch.int32), "pk", "i64"),
    "sum_empty": lambda: reduction("sum", torch.empty(4, 0), "pk"),
    "sum_of_nothing": lambda: reduction("sum", torch.empty(0, 4), "pk"),
}
CASES.update(REDUCTIONS)


@case
def transposed_copy() -> Draft:
    d = Draft()
    d.tensor("x", random(150, 70)), d.tensor("y", random(70, 150))
    d.tensor("o", torch.empty(70, 150))
    i, j = d.over(70, 150)
    d.store("o", i, j, value=d.make("add", d.load("x", j, i), d.load("y", i, j)))
    return d


@case
def transposed_half_copy_batched() -> Draft:
    d = Draft()
    d.tensor("x", random(3, 65, 64, dtype=torch.float16))
    d.tensor("o", torch.empty(3, 64, 65, dtype=torch.float16))
    b, i, j = d.over(3, 64, 65)
    d.store("o", b, i, j, value=d.load("x", b, j, i))
    return d


@case
def embedding() -> Draft:
    d = Draft()
    d.tensor("w", random(11, 40)), d.tensor("ids", torch.tensor([3, 0, 10, -1, 3]))
    d.tensor("o", torch.empty(5, 40))
    i, j = d.over(5, 40)
    row = d.load("ids", i)
    negative = d.make("lt", row, d.const(0, "i64"), dtype="bool")
    wrapped = d.make(
        "where", negative, d.make("add", row, d.const(11, "i64"), dtype="i64"), row, dtype="i64"
    )
    place = Index(((Gathered(wrapped, 11), 1),))
    d.store("o", i, j, value=d.load("w", place, j))
    return d


@case
def index_add_collides() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("ids", torch.randint(0, 4, (300,), generator=torch.Generator().manual_seed(1)))
    d.tensor("g", random(300, 260)), d.tensor("o", torch.zeros(4, 260))
    i, j = d.over(300, 260)
    place = Index(((Gathered(d.load("ids", i), 4), 1),))
    d.store("o", place, j, value=d.load("g", i, j), mode="add")
    return d


@case
def scatter_add_last_dim() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("ids", torch.randint(0, 6, (40, 900), generator=torch.Generator().manual_seed(2)))
    d.tensor("g", random(40, 900)), d.tensor("o", torch.zeros(40, 6))
    i, j = d.over(40, 900)
    place = Index(((Gathered(d.load("ids", i, j), 6), 1),))
    d.store("o", i, place, value=d.load("g", i, j), mode="add")
    return d


@case
def padded_load() -> Draft:
    d = Draft()
    d.tensor("x", random(4, 30)), d.tensor("o", torch.empty(4, 36))
    i, j = d.over(4, 36)
    at = as_index(j) - 3
    low = d.make("ge", d.position(at), d.const(0, "i64"), dtype="bool")
    high = d.make("lt", d.position(at), d.const(30, "i64"), dtype="bool")
    mask = d.make("logical_and", low, high, dtype="bool")
    d.store("o", i, j, value=d.masked("x", mask, d.const(-INF), i, at))
    return d


@case
def max_pool() -> Draft:
    d = Draft()
    d.tensor("x", random(3, 20, 40)), d.tensor("o", torch.empty(3, 10, 20))
    c, h, w, p, q = d.over(3, 10, 20, 3, 3, reduce=2)
    y, x = as_index(h) * 2 + p - 1, as_index(w) * 2 + q - 1
    mask = d.const(True, "bool")
    for at, size in ((y, 20), (x, 40)):
        low = d.make("ge", d.position(at), d.const(0, "i64"), dtype="bool")
        high = d.make("lt", d.position(at), d.const(size, "i64"), dtype="bool")
        both = d.make("logical_and", low, high, dtype="bool")
        mask = d.make("logical_and", mask, both, dtype="bool")
    d.store("o", c, h, w, value=d.reduce("max", d.masked("x", mask, d.const(-INF), c, y, x)))
    return d


@case
def view_through_quotients() -> Draft:
    d = Draft()
    d.tensor("x", random(6, 35)), d.tensor("o", torch.empty(10, 21))
    i, j = d.over(10, 21)
    flat = as_index(i) * 21 + j
    d.store("o", i, j, value=d.load("x", floor_div(flat, 35), remainder(flat, 35)))
    return d


@case
def symbolic_view() -> Draft:
    d = Draft(symbols={"n": 13})
    n = sympy.Symbol("n", integer=True, positive=True)
    d.tensor("x", random(13, 6), (n, 6), (6, 1)), d.tensor("o", torch.empty(78), (6 * n,), (1,))
    (i,) = d.over(6 * n)
    d.store("o", i, value=d.load("x", floor_div(as_index(i), 6), remainder(as_index(i), 6)))
    return d


@case
def thousand_scalars() -> Draft:
    d = Draft(tolerance=1e-4)
    d.tensor("x", random(70)), d.tensor("o", torch.empty(70))
    (i,) = d.over(70)
    x = value = d.load("x", i)
    for step in range(500):
        value = d.make("add", d.make("mul", value, d.const(0.5)), x if step % 2 else d.const(1.0))
    d.store("o", i, value=value)
    return d


@case
def no_axes_at_all() -> Draft:
    d = Draft()
    d.tensor("x", random(3)), d.tensor("o", torch.empty(()))
    d.over()
    d.store("o", value=d.load("x", Index((), 2)))
    return d


@case
def reads_what_it_overwrites() -> Draft:
    d = Draft(tolerance=1e-5)
    d.tensor("m", random(12)), d.tensor("x", random(12, 50)), d.tensor("o", torch.empty(12, 50))
    i, k = d.over(12, 50, reduce=1)
    x, old = d.load("x", i, k), d.load("m", i)
    d.store("o", i, k, value=d.make("sub", x, old))
    d.store("m", i, value=d.make("add", old, d.reduce("sum", x)))
    return d


@pytest.fixture(scope="module")
def table() -> Mapping[str, ScalarEntry]:
    return scalar_table()


@dataclass(frozen=True)
class Built:
    draft: Draft
    text: KernelText
    kernel: Any


@pytest.fixture(scope="module")
def built(table: Mapping[str, ScalarEntry]) -> dict[str, Built]:
    drafts = {name: make() for name, make in CASES.items()}
    texts = {name: emit_nest(d.nest, d.buffers, table) for name, d in drafts.items()}
    kernels = compile_texts(texts)
    return {name: Built(drafts[name], texts[name], kernels[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_the_interpreter(name: str, built: dict[str, Built]) -> None:
    check(built[name].draft, built[name].text, built[name].kernel)


def test_equal_nests_give_equal_text(table: Mapping[str, ScalarEntry]) -> None:
    first = layer_norm_f32()
    second = Draft()
    renames = {"x": "later", "w": "scale", "o": "out", "mean": "m", "rstd": "r"}
    axes = {axis: Axis(f"z{axis.name}", axis.size) for axis in (*first.axes, *first.raxes)}
    layer_norm(second, 41, 96, torch.float32)
    renamed = _renamed(second.nest, renames, axes)
    buffers = {renames[n]: replace(b, name=renames[n]) for n, b in second.buffers.items()}
    one, two = emit_nest(first.nest, first.buffers, table), emit_nest(renamed, buffers, table)
    assert one.text == two.text
    assert two.args == tuple(renames[name] for name in one.args)


def _renamed(nest: Nest, names: dict[str, str], axes: dict[Axis, Axis]) -> Nest:
    builder, memo = Builder(), dict[int, Scalar]()

    def index(parts: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(
            sum((as_index(axes[a]) * size for a, size in p.terms), Index((), p.const))
            for p in parts
        )

    def scalar(old: Scalar) -> Scalar:
        if id(old) not in memo:
            memo[id(old)] = builder.make(
                old.op,
                tuple(map(scalar, old.args)),
                old.dtype,
                buffer=names.get(old.buffer or ""),
                index=index(old.index),
                value=old.value,
            )
        return memo[id(old)]

    stores = [Store(names[s.buffer], index(s.index), scalar(s.value), s.mode) for s in nest.stores]
    axis = axes.__getitem__
    return Nest("n", tuple(map(axis, nest.axes)), tuple(map(axis, nest.raxes)), tuple(stores))


def test_a_long_sum_keeps_its_digits(table: Mapping[str, ScalarEntry]) -> None:
    x = torch.rand(300_000, generator=torch.Generator().manual_seed(4))
    draft = reduction("sum", x, "k")
    text = emit_nest(draft.nest, draft.buffers, table)
    call(compile_texts({"sum": text})["sum"], text, draft.tensors)
    exact = x.double().sum().item()
    assert abs(draft.tensors["o"].item() - exact) < 1e-6 * exact


def test_small_nests_start_no_threads(table: Mapping[str, ScalarEntry]) -> None:
    small, large = bias_gelu(), large_flat_pointwise()
    small.axes = (Axis("p0", 5), Axis("p1", 7))
    i, j = small.axes
    small.stores = [Store("o", (as_index(i), as_index(j)), small.load("x", i, j))]
    assert "parallel" not in emit_nest(small.nest, small.buffers, table).text
    assert "parallel" in emit_nest(large.nest, large.buffers, table).text


def test_size_one_axes_need_no_loop(table: Mapping[str, ScalarEntry]) -> None:
    d = Draft()
    d.tensor("x", random(1, 9)), d.tensor("o", torch.empty(1, 9))
    i, j = d.over(1, 9)
    d.store("o", i, j, value=d.load("x", i, j))
    text = emit_nest(d.nest, d.buffers, table).text
    assert text.count("for (") == 1
    assert as_index(i) == ZERO
