"""Views, and whatever moves elements without computing."""

from __future__ import annotations

import torch

from ..draw import Draw, NoFit
from .table import kind


@kind(8)
def reshape(d: Draw) -> str:
    x = d.any(dims=1)
    forms = [f"{x}.reshape(-1)", f"{x}.flatten(0, 1)", f"{x}.reshape({d.size(x, 0)}, -1)"]
    if d[x].dim() >= 2:
        forms += [f"{x}.flatten(-2)", f"{x}.reshape(-1, {d.size(x, -1)})", f"{x}.view(-1)"]
        pair = f"{d.size(x, -1)}, {d.size(x, 0)}"
        forms += [f"{x}.reshape({pair}, -1)"]
    for factor in (2, 3, 4):
        if d[x].shape[-1] % factor == 0:
            forms += [f"{x}.unflatten(-1, ({factor}, -1))", f"{x}.unflatten(-1, (-1, {factor}))"]
    return f"{d.new()} = {d.choice(*forms)}"


@kind(9)
def transpose(d: Draw) -> str:
    x = d.any(dims=2)
    rank = d[x].dim()
    order = d.rng.sample(range(rank), rank)
    return f"{d.new()} = {x}." + d.choice(
        f"transpose({d.dim(x)}, {d.dim(x)})",
        "mT",
        f"permute({', '.join(map(str, order))})",
        f"movedim({d.dim(x)}, {d.dim(x)})",
        f"swapaxes({d.dim(x)}, {d.dim(x)})",
    )


@kind(6)
def expand(d: Draw) -> str:
    x = d.any()
    if d.chance(0.4):
        y = d.pick(lambda y: y.dim() >= 1)
        return f"{d.new()} = {x}." + d.choice(f"expand_as({y})", f"broadcast_to({d.shape(y)})")
    lead = ", ".join(["2"] + ["-1"] * d[x].dim())
    return f"{d.new()} = {x}.expand({lead})"


@kind(7)
def unsqueeze(d: Draw) -> str:
    x = d.any()
    rank = d[x].dim()
    ones = [k for k in range(rank) if d[x].shape[k] == 1]
    if ones and d.chance(0.5):
        return f"{d.new()} = {x}.{d.choice('squeeze()', f'squeeze({d.rng.choice(ones)})')}"
    return f"{d.new()} = {x}.unsqueeze({d.rng.randrange(-rank - 1, rank + 1)})"


@kind(12)
def slice_of(d: Draw) -> str:
    x = d.any(dims=1)
    parts = [":"] * d.rng.randrange(d[x].dim())
    last = d.choice("1:", ":-1", "::2", "1::2", "1:3", "-2:", ":2", "::3", "0", "-1", "2:2", "None")
    parts.append(last)
    if d.chance(0.2) and len(parts) < d[x].dim():
        parts.append(d.choice("...", "1:", "0"))
    return f"{d.new()} = {x}[{', '.join(parts)}]"


@kind(5)
def narrow(d: Draw) -> str:
    x = d.any(dims=1)
    dim = d.dim(x)
    length = d[x].shape[dim]
    if not length:
        raise NoFit
    start = d.rng.randrange(length)
    many = d.rng.randrange(length - start + 1)
    return f"{d.new()} = {x}." + d.choice(
        f"select({dim}, {start})",
        f"narrow({dim}, {start}, {many})",
        f"select({dim}, -1)",
        f"unbind({dim})[{start}]",
    )


@kind(3)
def windows(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = {x}.unfold({d.dim(x)}, {d.choice('2', '3', '1')}, {d.choice('1', '2')})"


@kind(5)
def moved(d: Draw) -> str:
    x = d.any(dims=1)
    dim, shift = d.dim(x), d.choice("1", "-1", "2", "5")
    dims = str(tuple(range(d[x].dim())))
    return f"{d.new()} = " + d.choice(
        f"torch.flip({x}, ({dim},))",
        f"torch.flip({x}, {dims})",
        f"torch.roll({x}, {shift}, {dim})",
        f"torch.roll({x}, {shift})",
        f"torch.rot90({x})",
    )


@kind(8)
def cat(d: Draw) -> str:
    x = d.any(dims=1)
    dim, rank = d.dim(x), d[x].dim()

    def fits(y: torch.Tensor) -> bool:
        if y.dim() != rank or (y.dtype != d[x].dtype and d.chance(0.8)):
            return False
        return all(k == dim % rank or y.shape[k] == d[x].shape[k] for k in range(rank))

    parts = [x, *(d.pick(fits, recent=False) for _ in range(d.rng.randrange(1, 3)))]
    d.rng.shuffle(parts)
    return f"{d.new()} = torch.cat([{', '.join(parts)}], {dim})"


@kind(5)
def stack(d: Draw) -> str:
    x = d.any()
    alike = [y for y in d.order if d[y].shape == d[x].shape]
    parts = [x, *(d.rng.choice(alike) for _ in range(d.rng.randrange(1, 3)))]
    name, more = d.choice("stack", "hstack", "vstack"), ""
    if name == "stack":
        more = f", {d.rng.randrange(-d[x].dim() - 1, d[x].dim() + 1)}"
    return f"{d.new()} = torch.{name}([{', '.join(parts)}]{more})"


@kind(6)
def split(d: Draw) -> str:
    x = d.any(dims=1)
    dim = d.dim(x)
    length = d[x].shape[dim]
    if d.dynamic or length < 2:
        return f"{d.new()} = torch.chunk({x}, 2, {dim})[{d.choice('0', '-1')}]"
    first = d.rng.randrange(1, length)
    call = d.choice(
        f"torch.split({x}, [{first}, {length - first}], {dim})",
        f"torch.chunk({x}, 2, {dim})",
        f"torch.tensor_split({x}, 2, {dim})",
    )
    return f"{d.new()}, {d.new()} = {call}"


@kind(6)
def pad(d: Draw) -> str:
    x = d.any(dims=1)
    forms = [f"(1, 2), value={d.number()}", "(0, 1)", "(-1, 1)", "(2, -1), value=0.5"]
    if d[x].dim() >= 2:
        forms += ["(1, 0, 0, 1)", "(0, 1, -1, 2), value=-1"]
        forms += ["(1, 1), mode='replicate'", "(1, 1), mode='circular'", "(1, 0), mode='reflect'"]
    return f"{d.new()} = F.pad({x}, {d.choice(*forms)})"


@kind(4)
def repeated(d: Draw) -> str:
    x = d.any()
    ones = ", ".join(["2", *["1"] * max(d[x].dim() - 1, 0)])
    return f"{d.new()} = {x}." + d.choice(
        f"repeat({ones})", f"repeat(2, {ones})", "tile((2,))", "repeat_interleave(2)"
    )


@kind(3)
def repeated_elements(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = {x}.repeat_interleave({d.choice('2', '3')}, {d.dim(x)})"


@kind(5)
def diagonal(d: Draw) -> str:
    x = d.any(dims=2)
    offset = d.choice("0", "1", "-1", "0")
    return f"{d.new()} = {x}." + d.choice(
        f"tril({offset})", f"triu({offset})", f"diagonal({offset})", "diagonal(0, -2, -1)"
    )


@kind(2)
def diagonal_from(d: Draw) -> str:
    x = d.any(dims=1)
    return f"{d.new()} = {d.choice('torch.diag_embed', 'torch.diag')}({x})"


@kind(4)
def copied(d: Draw) -> str:
    x = d.any()
    return f"{d.new()} = {x}." + d.choice(
        "contiguous()", "clone()", "clone(memory_format=torch.contiguous_format)", "view_as({})"
    ).format(x)


@kind(2)
def other_memory(d: Draw) -> str:
    x = d.pick(lambda x: x.dim() == 4)
    return f"{d.new()} = {x}." + d.choice(
        "contiguous(memory_format=torch.channels_last)",
        "to(torch.float64, memory_format=torch.channels_last)",
        "clone(memory_format=torch.channels_last)",
    )


@kind(2)
def same_bits(d: Draw) -> str:
    """Of a copy: the compiler keeps no memory that two results see in two dtypes."""
    x = d.pick(lambda x: x.dtype.itemsize in (2, 4, 8) and not x.requires_grad)
    whole = {2: "torch.int16", 4: "torch.int32", 8: "torch.int64"}[d[x].dtype.itemsize]
    if not d[x].is_floating_point():
        raise NoFit  # the bits of a whole number may be a float of any size
    return f"{d.new()} = {x}.detach().clone().view({whole})"


@kind(2)
def as_strided(d: Draw) -> str:
    x = d.pick(lambda x: x.is_contiguous() and x.numel() >= 6)
    form = d.choice("(2, 3), (1, 2)", "(2, 2), (3, 1), 1", "(3,), (2,)", "(2, 2), (1, 1)")
    return f"{d.new()} = {x}.as_strided({form})"


@kind(2)
def meshgrid(d: Draw) -> str:
    x, y = d.pick(lambda x: x.dim() == 1), d.pick(lambda x: x.dim() == 1)
    if d[x].dtype != d[y].dtype:
        raise NoFit
    return f"{d.new()}, {d.new()} = torch.meshgrid({x}, {y}, indexing='ij')"


@kind(2)
def shuffled(d: Draw) -> str:
    x = d.float(dims=4, most=4)
    return f"{d.new()} = " + d.choice(
        f"F.pixel_unshuffle({x}, 2)", f"F.pixel_shuffle({x}, 2)", f"F.channel_shuffle({x}, 2)"
    )
