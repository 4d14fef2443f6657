"""Matrix products, convolutions, attention."""

from __future__ import annotations

from ..draw import Draw, NoFit
from .table import kind


@kind(10)
def matmul(d: Draw) -> str:
    x = d.float(dims=1)
    y = d.pick(lambda y: y.dtype == d[x].dtype and y.dim() >= 1)
    forms = [f"{x} @ {y}", f"{x} @ {y}.mT", f"{x}.mT @ {y}", f"torch.matmul({y}, {x}.mT)"]
    for form in d.rng.sample(forms, len(forms)):
        if _runs(d, form):
            return f"{d.new()} = {form}"
    raise NoFit


@kind(6)
def linear(d: Draw) -> str:
    x = d.float(dims=1)
    dtype, size = d[x].dtype, d[x].shape[-1]
    w = d.pick(lambda w: w.dtype == dtype and w.dim() == 2 and w.shape[1] == size)
    rows = d[w].shape[0]
    biases = [b for b in d.order if d[b].dtype == dtype and d[b].shape == (rows,)]
    bias = f", {d.rng.choice(biases)}" if biases and d.chance(0.7) else ""
    return f"{d.new()} = F.linear({x}, {w}{bias})"


@kind(4)
def added_product(d: Draw) -> str:
    x = d.float(dims=2, most=3)
    dtype, rank = d[x].dtype, d[x].dim()
    y = d.pick(lambda y: y.dtype == dtype and y.dim() == rank)
    name = "addmm" if rank == 2 else "baddbmm"
    for bias in d.rng.sample(d.order, len(d.order)):
        text = f"torch.{name}({bias}, {x}, {y}.mT, beta={d.choice('1', '0.5', '0')}, alpha=2)"
        if d[bias].dtype == dtype and _runs(d, text):
            return f"{d.new()} = {text}"
    raise NoFit


@kind(3)
def product_of_vectors(d: Draw) -> str:
    x = d.float(dims=1, most=1)
    y = d.pick(lambda y: y.dtype == d[x].dtype and y.dim() == 1)
    if d[x].shape == d[y].shape and d.chance(0.5):
        return f"{d.new()} = {d.choice('torch.dot', 'torch.inner')}({x}, {y})"
    return f"{d.new()} = torch.outer({x}, {y})"


@kind(4)
def einsum(d: Draw) -> str:
    x = d.float(dims=2, most=3)
    y = d.pick(lambda y: y.dtype == d[x].dtype and 1 <= y.dim() <= 3)
    forms = ["ij,kj->ik", "ij,ij->i", "ij,kj->", "bij,bkj->bik", "bij,kj->bik", "ij,j->i"]
    for form in d.rng.sample(forms, len(forms)):
        text = f"torch.einsum('{form}', {x}, {y})"
        if _runs(d, text):
            return f"{d.new()} = {text}"
    raise NoFit


@kind(4)
def convolution(d: Draw) -> str:
    x = d.float(dims=3, most=4)
    rank = d[x].dim()
    w = d.pick(lambda w: w.dtype == d[x].dtype and w.dim() == rank)
    name = "conv1d" if rank == 3 else "conv2d"
    if d.chance(0.3):
        return f"{d.new()} = F.conv_transpose{name[-2:]}({x}, {w}, stride=2)"
    more = d.choice("padding=1", "stride=2, padding=2", "padding='same'", "dilation=2, padding=3")
    return f"{d.new()} = F.{name}({x}, {w}, {more})"


@kind(3)
def attention(d: Draw) -> str:
    q = d.float(dims=3, most=4)
    alike = [k for k in d.order if d[k].dtype == d[q].dtype and d[k].shape == d[q].shape]
    k, v = d.rng.choice(alike), d.rng.choice(alike)
    more = d.choice("", ", is_causal=True", ", scale=0.3")
    return f"{d.new()} = F.scaled_dot_product_attention({q}, {k}, {v}{more})"


def _runs(d: Draw, text: str) -> bool:
    try:
        eval(text, dict(d.envs[0]))
    except (RuntimeError, IndexError):
        return False
    return True
