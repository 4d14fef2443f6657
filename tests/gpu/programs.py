"""Programs that a GPU runs, with their inputs: one per family of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Program = tuple[Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, device="cuda") > 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 100, shape, device="cuda").to(dtype)
    return torch.randn(shape, device="cuda").to(dtype)


def places(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device="cuda")


@program
def pointwise() -> Program:
    return lambda x, y: (x.sin() * y + 1).sigmoid() - x, (draw(1000, 37), draw(37))


@program
def halves() -> Program:
    half = torch.bfloat16
    return lambda x, y: F.gelu(x) * y + x.tanh(), (draw(300, 77, dtype=half), draw(77, dtype=half))


@program
def doubles() -> Program:
    wide = torch.float64
    return lambda x: (x.exp() + 0.1).log() / 3, (draw(129, 5, dtype=wide),)


@program
def integers() -> Program:
    return lambda x, y: (x // 7 * y) % 5 + (x << 2), (
        draw(50, 3, dtype=torch.int64),
        draw(3, dtype=torch.int64),
    )


@program
def transposed() -> Program:
    return lambda x, y: (x.t() + y).contiguous(), (draw(513, 300), draw(300, 513))


@program
def channels_last() -> Program:
    x = draw(2, 16, 20, 20).to(memory_format=torch.channels_last)
    return lambda x: (x.relu() + 1).contiguous(), (x,)


@program
def softmax_rows() -> Program:
    return lambda x: x.softmax(-1), (draw(300, 1000),)


@program
def softmax_long_rows() -> Program:
    return lambda x: x.softmax(-1), (draw(7, 70001),)


@program
def log_softmax_halves() -> Program:
    return lambda x: x.log_softmax(-1), (draw(65, 3000, dtype=torch.float16),)


@program
def softmax_columns() -> Program:
    return lambda x: x.softmax(0), (draw(300, 100),)


@program
def layer_norm() -> Program:
    return lambda x, w, b: F.layer_norm(x, (768,), w, b), (draw(4, 100, 768), draw(768), draw(768))


@program
def rms_norm() -> Program:
    half = torch.bfloat16
    return lambda x, w: F.rms_norm(x, (1024,), w), (
        draw(70, 1024, dtype=half),
        draw(1024, dtype=half),
    )


@program
def batch_norm() -> Program:
    return lambda x, m, v: F.batch_norm(x, m, v, training=True), (
        draw(8, 12, 9, 9),
        draw(12),
        draw(12).abs(),
    )


@program
def whole_sum() -> Program:
    return lambda x: (x * x).sum(), (draw(1000, 1003),)


@program
def column_sums() -> Program:
    return lambda x: (x.sum(0), x.amax(0), x.mean(0)), (draw(5000, 70),)


@program
def extremes() -> Program:
    x = draw(77, 300)
    x[3, 5], x[4] = float("nan"), float("-inf")
    return lambda x: (x.max(1), x.argmin(1), x.amin(0), x.argmax()), (x,)


@program
def truths() -> Program:
    return lambda x: (x.any(1), x.all(0), (x > 0).sum()), (draw(40, 70, dtype=torch.bool),)


@program
def products() -> Program:
    return lambda x: (1 + 0.01 * x).prod(1), (draw(40, 333),)


@program
def variances() -> Program:
    return lambda x: (x.var(1), x.std(0), torch.var_mean(x)), (draw(100, 300) + 1000,)


@program
def running() -> Program:
    return lambda x: (x.cumsum(1), x.cummax(1), x.logcumsumexp(1), x.cumsum(0)), (draw(33, 3000),)


@program
def embedding() -> Program:
    return lambda i, w: F.embedding(i, w) * 2, (places(100, 4, 7), draw(100, 65))


@program
def gathered() -> Program:
    return lambda x, i: (x.gather(1, i), x[i[:, 0]]), (draw(40, 40), places(40, 40, 6))


@program
def scattered() -> Program:
    return lambda x, i, y: (x.scatter_add(1, i, y), x.index_add(0, i[:, 0], y)), (
        draw(40, 6),
        places(6, 40, 6),
        draw(40, 6),
    )


@program
def put() -> Program:
    return lambda x, i, y: x.index_put((i,), y, accumulate=True), (
        draw(40, 6),
        places(40, 90),
        draw(90, 6),
    )


@program
def joined() -> Program:
    return lambda x, y: torch.cat([x + 1, y * 2], 1).relu(), (draw(30, 20), draw(30, 33))


@program
def padded() -> Program:
    return lambda x: (F.pad(x, (2, 3), value=1.5), F.pad(x, (2, 2), mode="reflect")), (
        draw(3, 4, 20),
    )


@program
def rolled() -> Program:
    return lambda x: x.roll(3, 1).flip(0).triu() + 1, (draw(60, 60),)


@program
def pooled() -> Program:
    return lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)), (
        draw(2, 5, 17, 17),
    )


@program
def resized() -> Program:
    return lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (draw(2, 3, 11, 11),)


@program
def perceptron() -> Program:
    return lambda x, w, b, v: F.gelu(x @ w + b) @ v, (
        draw(64, 100),
        draw(100, 300),
        draw(300),
        draw(300, 50),
    )


@program
def attention() -> Program:
    half = torch.float16
    q = [draw(2, 4, 128, 64, dtype=half) for _ in range(3)]
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2, tuple(q)


@program
def convolution() -> Program:
    return lambda x, w, b: F.conv2d(x, w, b, padding=1).relu() + 1, (
        draw(2, 8, 30, 30),
        draw(16, 8, 3, 3),
        draw(16),
    )


@program
def cross_entropy() -> Program:
    return lambda x, i: F.cross_entropy(x, i), (draw(50, 1000), places(1000, 50))


@program
def written_in_place() -> Program:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        return x.sum(1)

    return f, (draw(50, 60), draw(60))


@program
def not_aligned() -> Program:
    return lambda x, y: x * 2 + y, (draw(1001)[1:], draw(1000))


@program
def strided() -> Program:
    return lambda x: x[::2, 1::3] * 2 + 1, (draw(100, 100),)


@program
def nothing() -> Program:
    return lambda x: (x + 1, x.sum(0)), (draw(0, 5),)


@program
def one_element() -> Program:
    return lambda x: x * 2 + 1, (draw(),)


@program
def number_on_the_host() -> Program:
    return lambda x, s: x * s + s, (draw(33), torch.tensor(2.5))
