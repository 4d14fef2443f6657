"""Functions on shapes, dims and permutations, callable from rules.

Takes tuples of sizes (ints or SymInts) and dims; gives the same. None of them guards on a
symbolic size: a size counts as 1 only where that is statically known.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .dtypes import dtype_of
from .symbolic import product, same
from .world import EvaluateError

Shape = tuple[Any, ...]


def axis(rank: int, dim: int) -> int:
    """`dim` counted from the front, for a tensor of that rank (rank 0 has the dim 0)."""
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise EvaluateError(f"dim {dim} of a tensor of rank {rank}")
    return dim % limit


def all_dims(rank: int) -> tuple[int, ...]:
    """Every dim of a tensor of that rank."""
    return tuple(range(rank))


def swapped(rank: int, dim0: int, dim1: int) -> tuple[int, ...]:
    """The permutation that exchanges two dims."""
    order = list(range(rank))
    if rank:
        a, b = axis(rank, dim0), axis(rank, dim1)
        order[a], order[b] = order[b], order[a]
    return tuple(order)


def reversed_dims(rank: int) -> tuple[int, ...]:
    """The permutation that turns the order of dims around."""
    return tuple(reversed(range(rank)))


def moved(rank: int, source: Any, destination: Any) -> tuple[int, ...]:
    """The permutation that moves dims `source` to the places `destination`."""
    sources = [axis(rank, dim) for dim in _as_tuple(source)]
    places = [axis(rank, dim) for dim in _as_tuple(destination)]
    taken = dict(zip(places, sources, strict=True))
    rest = iter(dim for dim in range(rank) if dim not in sources)
    return tuple(taken[place] if place in taken else next(rest) for place in range(rank))


def composed(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that does `first`, then `second`."""
    return tuple(first[dim] for dim in second)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    return tuple(order.index(dim) for dim in range(len(order)))


def unsqueezed(shape: Shape, dim: int) -> Shape:
    """`shape` with a size 1 put in at `dim`."""
    place = axis(len(shape) + 1, dim)
    return (*shape[:place], 1, *shape[place:])


def squeezed(shape: Shape, dims: Any = None) -> Shape:
    """`shape` without its dims of size 1 (only those among `dims` where given)."""
    chosen = range(len(shape)) if dims is None else [axis(len(shape), d) for d in _as_tuple(dims)]
    return tuple(
        length for dim, length in enumerate(shape) if dim not in chosen or not same(length, 1)
    )


def flattened(shape: Shape, start: int = 0, end: int = -1) -> Shape:
    """`shape` with the dims `start` to `end` (inclusive) made one."""
    if not shape:
        return (1,)
    first, last = axis(len(shape), start), axis(len(shape), end)
    return (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])


def unflattened(shape: Shape, dim: int, sizes: Shape) -> Shape:
    """`shape` with one dim opened into `sizes` (one of them may be -1)."""
    place = axis(len(shape), dim)
    return (*shape[:place], *resolved((shape[place],), sizes), *shape[place + 1 :])


def resolved(shape: Shape, sizes: Shape) -> Shape:
    """`sizes` with its -1 replaced, so that it holds as many elements as `shape`."""
    unknown = [place for place, length in enumerate(sizes) if same(length, -1)]
    if not unknown:
        return tuple(sizes)
    place = unknown[0]
    rest = product(length for length in sizes if not same(length, -1))
    if same(rest, 0):
        raise EvaluateError(f"cannot tell -1 in {sizes}: the other sizes hold no element")
    return (*sizes[:place], product(shape) // rest, *sizes[place + 1 :])


def replaced(shape: Shape, dim: int, length: Any) -> Shape:
    """`shape` with the size of one dim changed."""
    place = axis(len(shape), dim)
    return (*shape[:place], length, *shape[place + 1 :])


def along(rank: int, dim: int, length: Any) -> Shape:
    """The shape of a vector of that length laid along `dim`: ones elsewhere."""
    return replaced((1,) * rank, dim, length)


def without(shape: Shape, dims: Any) -> Shape:
    """`shape` (or a permutation) without the entries at `dims`."""
    dropped = {axis(len(shape), dim) for dim in _as_tuple(dims)}
    return tuple(length for place, length in enumerate(shape) if place not in dropped)


def head(shape: Shape, count: int) -> Shape:
    """The first `count` sizes (or tensors of a list); all but the last -count where negative."""
    return tuple(shape[:count])


def tail(shape: Shape, count: int) -> Shape:
    """The last `count` sizes, or tensors of a list."""
    return tuple(shape[len(shape) - count :])


def broadcast(*shapes: Shape) -> Shape | None:
    """The joint shape, or None where they are not statically known to broadcast."""
    rank = max(map(len, shapes), default=0)
    result: list[Any] = [1] * rank
    for shape in shapes:
        for place, length in enumerate(shape, rank - len(shape)):
            if same(result[place], 1):
                result[place] = length
            elif not (same(length, 1) or same(length, result[place])):
                return None
    return tuple(result)


def default_dtype(dtype: torch.dtype | None, value: Any = 0.0) -> torch.dtype:
    """`dtype`, or what a tensor made from the number `value` gets where it is None."""
    if dtype is not None:
        return dtype
    if isinstance(value, (bool, torch.SymBool)):
        return dtype_of("bool")
    return dtype_of("i64") if isinstance(value, (int, torch.SymInt)) else torch.get_default_dtype()


def either(value: Any, default: Any) -> Any:
    """`value`, or `default` where it is None."""
    return default if value is None else value


def pair(value: Any, count: int = 2) -> tuple[Any, ...]:
    """One number given for `count` dims, spelled out; a tuple stays."""
    return value if isinstance(value, tuple) else (value,) * count


def square_root(value: Any) -> float:
    """The square root of a number."""
    if isinstance(value, torch.SymInt):
        raise EvaluateError(f"the square root of {value} is not a constant")
    return math.sqrt(value)


def product_of(shape: Shape) -> Any:
    """The number of elements a shape holds."""
    return product(shape)


def total(values: Shape) -> Any:
    """The sum of some numbers: where a part of a split starts, as `total(head(sizes, 2))`."""
    return sum(values)


def _as_tuple(dims: Any) -> tuple[int, ...]:
    return dims if isinstance(dims, tuple) else (dims,)


SHAPE_FUNCTIONS = (
    *(axis, all_dims, swapped, reversed_dims, moved, composed, inverse),
    *(unsqueezed, squeezed, flattened, unflattened, resolved, replaced, along, without),
    *(head, tail, broadcast, default_dtype, either, pair, square_root, product_of, total),
)
