"""Writes in place: of results, of views of them, and of inputs."""

from __future__ import annotations

import torch

from ..draw import Draw
from .table import kind


def _target(d: Draw) -> str:
    """Any tensor, inputs and views among them; a leaf that takes part in autograd refuses."""
    return d.pick(lambda x: x.dtype != torch.bool, recent=d.chance(0.6))


def _operand(d: Draw, x: str) -> str:
    if d.chance(0.3):
        return d.choice("2", "0.5", "-1", "1")
    return d.pick(lambda y: y.dtype == d[x].dtype and _meets(y, d[x]), recent=False)


def _meets(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dim() <= other.dim() and all(
        a in (1, b) for a, b in zip(one.shape[::-1], other.shape[::-1], strict=False)
    )


@kind(8)
def in_place(d: Draw) -> str:
    x = _target(d)
    return f"{x}.{d.choice('add_', 'mul_', 'sub_', 'copy_')}({_operand(d, x)})"


@kind(5)
def in_place_unary(d: Draw) -> str:
    x = _target(d)
    if not d[x].is_floating_point():
        return f"{x}.{d.choice('neg_()', 'abs_()', 'zero_()', 'fill_(3)', 'clamp_(-1, 2)')}"
    return f"{x}." + d.choice(
        "relu_()", "sin_()", "neg_()", "zero_()", "fill_(1.5)", "clamp_(-1, 1)", "sigmoid_()",
        "abs_()", "tanh_()", "exp_()", "clamp_(min=0)",
    )  # fmt: skip


@kind(7)
def write_to_part(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() >= 1 and x.dtype != torch.bool, recent=d.chance(0.6))
    part = d.choice("0", "-1", "1:", ":-1", "::2", "..., 0", "1:2", ":", "..., 1:")
    if d.chance(0.4):
        return f"{x}[{part}] = {d.choice('0', '1.5', '-2', f'{x}[{part}] * 2')}"
    operator = d.choice("+=", "*=", "-=", "=")
    return f"{x}[{part}] {operator} {d.partner(x, same_dtype=True)}[{part}]"


@kind(5)
def write_to_view(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() >= 1 and x.dtype != torch.bool, recent=d.chance(0.6))
    dim = d.dim(x)
    view = d.choice(
        f"transpose({dim}, 0)", "view(-1)", f"select({dim}, 0)", "T", "flatten()",
        f"unsqueeze({dim})", f"narrow({dim}, 0, 1)", "diagonal()", f"unfold({dim}, 1, 1)",
        "detach()", f"unbind({dim})[0]", f"chunk(2, {dim})[0]",
    )  # fmt: skip
    return f"{x}.{view}.{d.choice('mul_(2)', 'add_(1)', 'zero_()', 'fill_(2)', 'neg_()')}"


@kind(3)
def kept_view_then_write(d: Draw) -> str:
    x, new = d.pick(lambda x: x.dim() >= 1 and x.dtype != torch.bool), d.new()
    part = d.choice("0", "1:", "::2", "...")
    return f"{new} = {x}[{part}]\n{d.choice(x, new)}.{d.choice('mul_(2)', 'add_(1)')}"


@kind(3)
def swap_parts(d: Draw) -> str:
    """Reads and writes that overlap."""
    x = d.pick(lambda x: x.dim() >= 1 and x.shape[0] >= 2)
    return d.choice(
        f"{x}[1:] = {x}[:-1].clone()",
        f"{x}[:-1] += {x}[1:]",
        f"{x}.copy_({x}.flip(0))",
        f"{x}[0], {x}[1] = {x}[1].clone(), {x}[0].clone()",
    )


@kind(3)
def masked_in_place(d: Draw) -> str:
    mask = d.boolean()
    x = d.pick(lambda x: _meets(d[mask], x) and x.dtype != torch.bool)
    return f"{x}.masked_fill_({mask}, {d.choice('0', '1')})"


@kind(3)
def add_at_places(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() >= 1 and x.numel() > 0)
    i = d.pick(lambda i: i.dtype == torch.int64 and i.dim() == 1)
    source = d.pick(lambda s: s.dtype == d[x].dtype and s.dim() == d[x].dim())
    index = f"{i}.abs() % {d.size(x, 0)}"
    return d.choice(
        f"{x}.index_add_(0, {index}, {source})",
        f"{x}.index_put_(({index},), {source}, accumulate=True)",
        f"{x}.index_fill_(0, {index}, 1)",
    )


@kind(2)
def into_given(d: Draw) -> str:
    x, new = d.any(), d.new()
    y = d.pick(lambda y: y.shape == d[x].shape and y.dtype == d[x].dtype)
    return (
        f"{new} = torch.empty_like({x})\ntorch.{d.choice('add', 'mul', 'sub')}({x}, {y}, out={new})"
    )


@kind(2)
def running_statistics(d: Draw) -> str:
    """A batch norm that trains writes its means and variances."""
    x = d.float(dims=2, most=4)
    mean = d.pick(lambda m: m.dtype == d[x].dtype and m.shape == d[x].shape[1:2])
    spread = d.new()
    return (
        f"{spread} = torch.ones_like({mean}).detach()\n"
        f"{d.new()} = F.batch_norm({x}, {mean}, {spread}, training=True)"
    )


@kind(3)
def without_grad(d: Draw) -> str:
    x, new = d.float(), d.new()
    return f"with torch.no_grad():\n    {new} = {x} * {d.number()}"
