"""Sums, norms, softmax, scans, pools, losses."""

from __future__ import annotations

import torch

from ..draw import INTS, Draw, NoFit
from .table import kind


def _dims(d: Draw, x: str, several: bool = True) -> str:
    """The text of a `dim` argument with keepdim, maybe of several dims."""
    rank = d[x].dim()
    dim = str(d.dim(x))
    if several and rank >= 2 and d.chance(0.3):
        picked = d.rng.sample(range(rank), d.rng.randrange(2, rank + 1))
        dim = str(tuple(picked))
    return f"{dim}, keepdim={d.choice('True', 'False')}"


@kind(14)
def total(d: Draw) -> str:
    x = d.any()
    name = d.choice("sum", "sum", "mean", "nansum") if d[x].is_floating_point() else "sum"
    if not d[x].dim() or d.chance(0.2):
        return f"{d.new()} = {x}.{name}()"
    more = f", dtype={d.choice('torch.float64', 'torch.float32')}" if d.chance(0.15) else ""
    return f"{d.new()} = {x}.{name}({_dims(d, x)}{more})"


@kind(7)
def extreme(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = torch.{d.choice('amax', 'amin')}({x}, {_dims(d, x)})"


@kind(5)
def extreme_with_place(d: Draw) -> str:
    x = d.any(dims=1)
    text = f"torch.{d.choice('max', 'min')}({x}, {_dims(d, x, several=False)})"
    return f"{d.new()}, {d.new()} = {text}"


@kind(3)
def extreme_of_all(d: Draw) -> str:
    x = d.any()
    return f"{d.new()} = {x}.{d.choice('max()', 'min()', 'argmax()', 'argmin()')}"


@kind(5)
def place_of_extreme(d: Draw) -> str:
    x = d.any(dims=1)
    name = d.choice("argmax", "argmin")
    return f"{d.new()} = torch.{name}({x}, {_dims(d, x, several=False)})"


@kind(5)
def truth(d: Draw) -> str:
    x = d.boolean() if d.chance(0.6) else d.any()
    name = d.choice("any", "all")
    if not d[x].dim() or d.chance(0.2):
        return f"{d.new()} = {x}.{name}()"
    return f"{d.new()} = {x}.{name}({_dims(d, x, several=False)})"


@kind(3)
def count(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = torch.count_nonzero({x}, {d.dim(x)})"


@kind(3)
def product(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = torch.prod({x}, {_dims(d, x, several=False)})"


@kind(6)
def variance(d: Draw) -> str:
    x = d.float(dims=1)
    more = f"dim={_dims(d, x)}, correction={d.choice('0', '1')}"
    if d.chance(0.25):
        return f"{d.new()}, {d.new()} = torch.{d.choice('var_mean', 'std_mean')}({x}, {more})"
    return f"{d.new()} = torch.{d.choice('var', 'std')}({x}, {more})"


@kind(5)
def vector_norm(d: Draw) -> str:
    x = d.float(dims=1)
    order = d.choice("2", "1", "float('inf')", "3", "0", "0.5", "-1")
    return f"{d.new()} = torch.linalg.vector_norm({x}, {order}, {_dims(d, x)})"


@kind(3)
def logsumexp(d: Draw) -> str:
    x = d.float(dims=1)
    return f"{d.new()} = torch.logsumexp({x}, {_dims(d, x)})"


@kind(8)
def softmax(d: Draw) -> str:
    x = d.float(dims=1)
    name = d.choice("softmax", "softmax", "log_softmax", "softmin")
    more = f", dtype={d.choice('torch.float32', 'torch.float64')}" if d.chance(0.15) else ""
    return f"{d.new()} = F.{name}({x}, {d.dim(x)}{more})"


@kind(8)
def layer_norm(d: Draw) -> str:
    x = d.float(dims=1)
    last = d.size(x, -1)
    name = d.choice("layer_norm", "layer_norm", "rms_norm")
    weights = [w for w in d.order if d[w].dtype == d[x].dtype and d[w].shape == d[x].shape[-1:]]
    if weights and d.chance(0.6):
        bias = f", {d.rng.choice(weights)}" if name == "layer_norm" and d.chance(0.7) else ""
        return f"{d.new()} = F.{name}({x}, ({last},), {d.rng.choice(weights)}{bias})"
    return f"{d.new()} = F.{name}({x}, ({last},))"


@kind(3)
def other_norms(d: Draw) -> str:
    x = d.float(dims=2, most=4)
    channels = d[x].shape[1]
    groups = d.rng.choice([g for g in (1, 2, 3) if channels % g == 0])
    calls = [f"F.group_norm({x}, {groups})", f"F.normalize({x}, dim={d.dim(x)})"]
    if d[x].dim() >= 3:
        calls.append(f"F.instance_norm({x})")
    return f"{d.new()} = {d.choice(*calls)}"


@kind(3)
def batch_norm(d: Draw) -> str:
    x = d.float(dims=2, most=4)
    mean = d.pick(lambda m: m.dtype == d[x].dtype and m.shape == d[x].shape[1:2])
    if d.chance(0.5):
        return f"{d.new()} = F.batch_norm({x}, {mean}, {mean}.abs() + 0.5)"
    running = f"{mean}.detach().clone(), torch.ones_like({mean}).detach()"
    return f"{d.new()} = F.batch_norm({x}, {running}, training=True)"


@kind(6)
def scan(d: Draw) -> str:
    x = d.any(dims=1)
    name = d.choice("cumsum", "cumsum", "cumprod", "logcumsumexp")
    if name == "logcumsumexp":
        x = d.float(dims=1)
    return f"{d.new()} = torch.{name}({x}, {d.dim(x)})"


@kind(3)
def scan_of_extreme(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()}, {d.new()} = torch.{d.choice('cummax', 'cummin')}({x}, {d.dim(x)})"


@kind(4)
def ordered(d: Draw) -> str:
    x = d.any(dims=1)
    dim = d.dim(x)
    many = d.rng.randrange(1, max(d[x].shape[dim], 1) + 1)
    call = d.choice(
        f"torch.sort({x}, {dim}, stable=True)",
        f"torch.sort({x}, stable=True, dim={dim}, descending=True)",
        f"torch.topk({x}, {many}, {dim})",
        f"torch.kthvalue({x}, {many}, {dim})",
        f"torch.median({x}, {dim})",
    )
    if "sort" not in call and not _all_differ(d[x], dim):
        raise NoFit  # which of equal ones is found is not defined
    return f"{d.new()}, {d.new()} = {call}"


def _all_differ(x: torch.Tensor, dim: int) -> bool:
    ordered = x.detach().sort(dim).values
    return bool((ordered.diff(dim=dim) != 0).all()) and not bool(x.isnan().any())


@kind(2)
def both_extremes(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()}, {d.new()} = torch.aminmax({x}, dim={d.dim(x)})"


@kind(5)
def pool(d: Draw) -> str:
    x = d.float(dims=3, most=4)
    flat = d[x].dim() == 3
    n = "1d" if flat else "2d"
    return f"{d.new()} = " + d.choice(
        f"F.max_pool{n}({x}, 2)",
        f"F.max_pool{n}({x}, 3, stride=1, padding=1)",
        f"F.avg_pool{n}({x}, 2)",
        f"F.avg_pool{n}({x}, 3, stride=2, padding=1, count_include_pad=False)",
        f"F.adaptive_avg_pool{n}({x}, 2)",
        f"F.adaptive_max_pool{n}({x}, 1)",
        f"F.interpolate({x}, scale_factor=2, mode='nearest')",
        f"F.interpolate({x}, scale_factor=2, mode='{'linear' if flat else 'bilinear'}')",
    )


@kind(4)
def loss(d: Draw) -> str:
    x = d.float(dims=1)
    y = d.pick(lambda y: y.dtype == d[x].dtype and y.shape == d[x].shape)
    how = d.choice("mean", "sum", "none")
    return f"{d.new()} = " + d.choice(
        f"F.mse_loss({x}, {y}, reduction='{how}')",
        f"F.l1_loss({x}, {y}, reduction='{how}')",
        f"F.smooth_l1_loss({x}, {y}, reduction='{how}')",
        f"F.huber_loss({x}, {y}, reduction='{how}', delta=0.7)",
        f"F.binary_cross_entropy_with_logits({x}, {y}.sigmoid(), reduction='{how}')",
        f"F.kl_div({x}, {y}.softmax(-1), reduction='{how}')",
        f"F.soft_margin_loss({x}, {y}.sign(), reduction='{how}')",
        f"F.cosine_similarity({x}, {y}, dim={d.dim(x)})",
    )


@kind(3)
def cross_entropy(d: Draw) -> str:
    x = d.float(dims=2, most=2)
    target = d.pick(lambda t: t.dtype in INTS and t.shape == d[x].shape[:1])
    how = d.choice("'mean'", "'sum'", "'none'")
    name = d.choice(f"F.cross_entropy({x}, {{}}, reduction={how})", f"F.nll_loss({x}, {{}})")
    labels = f"{target}.long().abs() % {d.size(x, 1)}"
    return f"{d.new()} = {name.format(labels)}"


@kind(2)
def searched(d: Draw) -> str:
    x = d.float(wide=True)
    return f"{d.new()} = torch.bucketize({x}, torch.arange(-2, 3, dtype={d[x].dtype}))"
