"""Constants to try for the attributes of a rule.

Takes what is known of an example (ranks, shapes, numbers that the rule mentions); gives
values worth trying: ordinary ones, the edges, and those that the rule speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import torch

from .expr import Expr
from .op import Op, Param

_INTS = (0, 1, 2, -1, 3, -2, 4, 5)
_FLOATS = (1.0, 0.5, 2.0, 0.0, -1.5, 1e-5, 3.0, -0.0, math.inf, -math.inf, math.nan, 100.0)


_SHAPES = ((2, 3), (6,), (3, 2), (1, 6), (2, 1, 3), ())


def constant_pool(
    kind: str, mentioned: Sequence[Any], sizes: Mapping[str, Any], random: Random
) -> list[Any]:
    """Values for a `const` of that kind ("any", "int", "float", "bool")."""
    if kind == "bool":
        return [False, True]
    whole = [v for v in mentioned if isinstance(v, int)]
    ints = [*_INTS, *(v + step for v in whole for step in (-1, 0, 1))]
    ints += [size for size in sizes.values() if isinstance(size, int)]
    floats = [*_FLOATS, *(float(v) for v in mentioned)]
    floats += [v * random.uniform(0.5, 2.0) for v in floats if math.isfinite(v)]
    if kind == "int":
        return ints
    return floats if kind == "float" else [*floats, *ints]


def dims_pool(metas: Iterable[torch.Tensor], random: Random) -> list[Any]:
    """Dims, permutations and shapes that fit one of the tensors, or some shape where none is."""
    pool: list[Any] = []
    alone = [torch.empty(random.choice(_SHAPES), device="meta")]
    for meta in list(metas) or alone:
        rank, shape = meta.dim(), tuple(meta.shape)
        order = list(range(rank))
        random.shuffle(order)
        some = sorted(random.sample(range(rank), random.randint(0, rank)))
        other = random.sample(order, rank)
        pool += [tuple(order), tuple(other), tuple(reversed(range(rank))), tuple(range(rank))]
        pool += [tuple(some), shape, tuple(reversed(shape))]
        pool += [(meta.numel(),), (1, *shape), _merged(shape, random), (2, *shape)]
        pool += [
            tuple(random.choice((0, 1)) for _ in shape),
            tuple(random.choice((1, 2)) for _ in shape),
        ]
        pool += [tuple(random.choice((0, 1, 2)) for _ in range(2 * random.randint(0, rank)))]
    return pool


def _merged(shape: tuple[int, ...], random: Random) -> tuple[int, ...]:
    """The shape with two neighbouring dims made one."""
    if len(shape) < 2:
        return (*shape, 1)
    place = random.randrange(len(shape) - 1)
    return (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])


def how_pool(
    op: Op, placed: Mapping[int, Expr], metas: Mapping[str, torch.Tensor], random: Random
) -> dict[str, Any]:
    """Values for every parameter of `op` that the pattern does not name."""
    rank = max((meta.dim() for meta in metas.values()), default=0)
    return {
        param.name: _attribute(param, max(rank - 2, 1), random)
        for place, param in enumerate(op.params)
        if place not in placed
    }


def _attribute(param: Param, dims: int, random: Random) -> Any:
    match param.name:
        case "stride":
            return random.choice(((1,) * dims, (2,) * dims, (*(1,) * (dims - 1), 2)))
        case "padding":
            return random.choice(((0,) * dims, (1,) * dims, (*(0,) * (dims - 1), 1)))
        case "dilation":
            return random.choice(((1,) * dims, (1,) * dims, (2,) * dims))
        case "output_padding":
            return (0,) * dims
        case "groups":
            return random.choice((1, 1, 2))
        case "transposed":
            return random.choice((False, True))
    if isinstance(param.default, bool):
        return random.choice((param.default, not param.default))
    return param.default
