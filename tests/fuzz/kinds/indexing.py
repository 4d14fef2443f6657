"""Reads and writes at places that tensors give."""

from __future__ import annotations

import torch

from ..draw import INTS, Draw, NoFit
from .table import kind


def _places(d: Draw, size: str, dims: int | None = None) -> str:
    """The text of an index tensor whose entries are from 0 to below `size`."""
    wanted = (1, 2) if dims is None else (dims,)  # one without dims is read while tracing
    i = d.pick(lambda x: x.dtype in INTS and x.dim() in wanted)
    return f"{i}.long().abs() % {size}"


def _along(d: Draw, x: str) -> tuple[int, str]:
    dim = d.dim(x)
    if not d[x].shape[dim]:
        raise NoFit
    return dim, d.size(x, dim)


@kind(5)
def gather(d: Draw) -> str:
    x = d.any(dims=1)
    dim, size = _along(d, x)
    name = d.choice("gather", "gather", "take_along_dim")
    alike = d.pick(lambda i: i.dtype in INTS and i.dim() == d[x].dim())
    index = f"{alike}.long().abs() % {size}"
    if name == "gather":
        return f"{d.new()} = torch.gather({x}, {dim}, {index})"
    return f"{d.new()} = torch.take_along_dim({x}, {index}, {dim})"


@kind(5)
def index_select(d: Draw) -> str:
    x = d.any(dims=1)
    dim, size = _along(d, x)
    return f"{d.new()} = torch.index_select({x}, {dim}, {_places(d, size, 1)})"


@kind(4)
def embedding(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() == 2 and x.is_floating_point() and x.shape[0] > 0)
    more = d.choice("", "", ", padding_idx=0")
    return f"{d.new()} = F.embedding({_places(d, d.size(x, 0))}, {x}{more})"


@kind(8)
def advanced(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() >= 1 and x.numel() > 0)
    first = _places(d, d.size(x, 0))
    if d[x].dim() == 1 or d.chance(0.4):
        return f"{d.new()} = {x}[{first}]"
    second = _places(d, d.size(x, 1))
    return f"{d.new()} = " + d.choice(
        f"{x}[:, {second}]", f"{x}[{first}, {second}]", f"{x}[{first}, 1:]", f"{x}[{first}, None]"
    )


@kind(2)
def take(d: Draw) -> str:
    x = d.pick(lambda x: x.numel() > 0)
    return f"{d.new()} = torch.take({x}, {_places(d, f'{x}.numel()')})"


@kind(2)
def index_out_of_range(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() >= 1 and x.numel() > 0)
    return f"{d.new()} = {x}[{_places(d, d.size(x, 0))} - {d.size(x, 0)}]"


@kind(5)
def scatter_add(d: Draw) -> str:
    x = d.any(dims=1)
    dim, size = _along(d, x)
    source = d.pick(lambda s: s.dtype == d[x].dtype and s.dim() == d[x].dim())
    i = d.pick(lambda i: i.dtype in INTS and i.dim() == d[x].dim())
    index, how = f"{i}.long().abs() % {size}", d.choice("sum", "amax", "amin", "mean", "prod")
    return f"{d.new()} = " + d.choice(
        f"torch.scatter_add({x}, {dim}, {index}, {source})",
        f"torch.scatter({x}, {dim}, {index}, {d.choice('1', '0.5')})",
        f"torch.scatter_reduce({x}, {dim}, {index}, {source}, '{how}')",
    )


@kind(3)
def index_add(d: Draw) -> str:
    x = d.any(dims=1)
    dim, size = _along(d, x)
    source = d.pick(lambda s: s.dtype == d[x].dtype and s.dim() == d[x].dim())
    index = _places(d, size, 1)
    return f"{d.new()} = torch.index_add({x}, {dim}, {index}, {source}, alpha={d.choice('1', '2')})"


@kind(2)
def index_fill(d: Draw) -> str:
    x = d.any(dims=1)
    dim, size = _along(d, x)
    return f"{d.new()} = torch.index_fill({x}, {dim}, {_places(d, size, 1)}, {d.choice('0', '2')})"


@kind(4)
def index_put(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() >= 1 and x.numel() > 0)
    index = _places(d, d.size(x, 0))
    value = d.pick(lambda v: v.dtype == d[x].dtype)
    return f"{d.new()} = torch.index_put({x}, ({index},), {value}, accumulate=True)"


@kind(3)
def put_one_value(d: Draw) -> str:
    """All writes are alike, so their order does not matter."""
    x, new = d.pick(lambda x: x.dim() >= 1 and x.numel() > 0), d.new()
    place = _places(d, d.size(x, 0))
    return f"{new} = {x}.clone()\n{new}[{place}] = {d.choice('1', '0.5', '-2')}"


@kind(2)
def masked_put(d: Draw) -> str:
    mask, new = d.boolean(), d.new()
    x = d.pick(lambda x: x.shape == d[mask].shape and not x.requires_grad)
    return f"{new} = {x}.clone()\n{new}[{mask}] = {d.choice('1', '0', '2.5')}"


@kind(2)
def masked_scatter(d: Draw) -> str:
    mask = d.boolean()
    x = d.pick(lambda x: x.shape == d[mask].shape)
    source = d.pick(lambda s: s.dtype == d[x].dtype and s.numel() >= d[x].numel())
    return f"{d.new()} = {x}.masked_scatter({mask}, {source})"


@kind(2)
def one_hot(d: Draw) -> str:
    i = d.integer()
    return f"{d.new()} = F.one_hot({i}.long().abs() % 5, 5)"


@kind(2)
def slice_put(d: Draw) -> str:
    x = d.any(dims=1)
    dim = d.dim(x)
    part = f"torch.ones_like({x}.select({dim}, 0))"
    return f"{d.new()} = " + d.choice(
        f"torch.select_scatter({x}, {part}, {dim}, 0)",
        f"torch.slice_scatter({x}, {x}.narrow({dim}, 0, 1) * 2, {dim}, 0, 1)",
    )


@kind(1)
def histogram(d: Draw) -> str:
    x = d.pick(lambda x: x.dtype == torch.float32)
    return f"{d.new()} = torch.histc({x}.detach(), 4, -2, 2)"
