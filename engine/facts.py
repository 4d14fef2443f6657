"""The functions a condition or an attribute may call: facts about tensors.

Takes a `Facts` world and evaluated arguments; gives numbers, tuples, dtypes, or True, False
and `Truth`. Functions on shapes and dims alone live in `shapes.py`; `PREDICATES` holds both.
Each speaks of the value (or the place in the graph), never of the op that made it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .dtypes import HALF
from .shapes import SHAPE_FUNCTIONS, broadcast
from .symbolic import Answer, all_of, compare, plain, product
from .world import EvaluateError, Facts, Truth, is_number


@dataclass(frozen=True)
class Predicate:
    """`function(world, *args)`; `about_graph` where the answer depends on the place in a
    graph, not on the value (the rule checker takes such conditions as true). `signature` is
    what rules write: `size(x, dim)`."""

    name: str
    signature: str
    doc: str
    function: Callable[..., Any]
    about_graph: bool = False
    least: int = 0
    most: int | None = None

    def __call__(self, world: Facts, *args: Any) -> Any:
        if len(args) < self.least or (self.most is not None and len(args) > self.most):
            raise EvaluateError(f"{self.name} takes {self.least} arguments, not {len(args)}")
        try:
            return self.function(world, *args)
        except (TypeError, ValueError, IndexError) as error:
            raise EvaluateError(f"{self.name}: {error}") from error


def tensor_meta(world: Facts, handle: Any) -> torch.Tensor:
    """The (fake) tensor behind `handle`. Raises EvaluateError for anything else."""
    meta = world.meta(handle)
    if not isinstance(meta, torch.Tensor):
        raise EvaluateError(f"{meta!r} is not a tensor")
    return meta


def dtype(world: Facts, x: Any) -> torch.dtype:
    """The dtype of tensor `x`; a dtype is its own dtype."""
    return x if isinstance(x, torch.dtype) else tensor_meta(world, x).dtype


def rank(world: Facts, x: Any) -> int:
    """The number of dims of `x`."""
    return tensor_meta(world, x).dim()


def shape(world: Facts, x: Any) -> tuple[Any, ...]:
    """The sizes of `x`, outermost first."""
    return tuple(map(plain, tensor_meta(world, x).shape))


def size(world: Facts, x: Any, dim: int) -> Any:
    """The size of one dim of `x`; negative dims count from the end."""
    sizes = shape(world, x)
    if not -len(sizes) <= dim < len(sizes):
        raise EvaluateError(f"dim {dim} of a tensor of rank {len(sizes)}")
    return sizes[dim]


def lengths(world: Facts, xs: Any, dim: int) -> tuple[Any, ...]:
    """The size of one dim of each tensor of the list `xs`."""
    return tuple(size(world, x, dim) for x in xs)


def numel(world: Facts, x: Any) -> Any:
    """The number of elements of `x`."""
    return product(shape(world, x))


def strides(world: Facts, x: Any) -> tuple[Any, ...]:
    """The strides of `x` in elements."""
    return tuple(tensor_meta(world, x).stride())


def contiguous(world: Facts, x: Any) -> Answer:
    """Whether `x` is row-major without gaps; dims of size 1 may have any stride."""
    step: Any = 1
    answers: list[Answer] = []
    for length, stride in zip(reversed(shape(world, x)), reversed(strides(world, x)), strict=True):
        if compare("==", length, 1) is not True:
            answers.append(compare("==", stride, step))
        step = step * length
    return all_of(*answers)


def device(world: Facts, x: Any) -> str:
    """The device type of `x`: "cpu", "cuda", ..."""
    return tensor_meta(world, x).device.type


def placed(world: Facts, x: Any) -> torch.device:
    """The device of `x` as an argument for a new tensor."""
    return tensor_meta(world, x).device


def same_shape(world: Facts, *xs: Any) -> Answer:
    """Whether all have the same sizes."""
    first, *rest = (shape(world, x) for x in xs)
    return all_of(*(compare("==", first, other) for other in rest))


def same_dtype(world: Facts, *xs: Any) -> bool:
    """Whether all (tensors, lists of tensors) have the same dtype."""
    return len({dtype(world, one) for x in xs for one in (x if isinstance(x, list) else [x])}) == 1


def same_device(world: Facts, *xs: Any) -> bool:
    """Whether all live on the same device."""
    return len({tensor_meta(world, x).device for x in xs}) == 1


def broadcastable(world: Facts, *xs: Any) -> bool:
    """Whether the shapes broadcast together, statically known."""
    return broadcast(*(shape(world, x) for x in xs)) is not None


def broadcasts_to(world: Facts, x: Any, sizes: tuple[Any, ...]) -> Answer:
    """Whether `x` broadcast with `sizes` has exactly `sizes`."""
    joint = broadcast(shape(world, x), sizes)
    return False if joint is None else compare("==", joint, sizes)


def promoted(world: Facts, *xs: Any) -> torch.dtype:
    """The dtype that torch's promotion gives to the arguments (tensors, numbers, dtypes)."""
    if any(isinstance(x, torch.dtype) for x in xs):
        kinds = [x if isinstance(x, torch.dtype) else dtype(world, x) for x in xs]
        result = kinds[0]
        for kind in kinds[1:]:
            result = torch.promote_types(result, kind)
        return result
    metas = [x if is_number(x) else _prototype(tensor_meta(world, x)) for x in xs]
    joint = metas[0]
    for other in metas[1:]:
        joint = torch.empty((), dtype=torch.result_type(joint, other))
    return joint.dtype if isinstance(joint, torch.Tensor) else torch.tensor(joint).dtype


def _prototype(meta: torch.Tensor) -> torch.Tensor:
    return torch.empty((1,) * min(meta.dim(), 1), dtype=meta.dtype)


def is_floating(world: Facts, x: Any) -> bool:
    """Whether the dtype of `x` (or the dtype `x`, or the number `x`) is a float."""
    return isinstance(x, float) if is_number(x) else dtype(world, x).is_floating_point


def is_integral(world: Facts, x: Any) -> bool:
    """Whether the dtype of `x` (or the dtype, or the number) is an integer; not for bool."""
    if is_number(x):
        return isinstance(x, (int, torch.SymInt)) and not isinstance(x, bool)
    kind = dtype(world, x)
    return not (kind.is_floating_point or kind.is_complex or kind is torch.bool)


def is_half(world: Facts, x: Any) -> bool:
    """Whether the dtype is f16 or bf16."""
    return dtype(world, x) in HALF


def bits(world: Facts, x: Any) -> int:
    """The width of one element, in bits."""
    return dtype(world, x).itemsize * 8


def lossless(world: Facts, x: Any, y: Any) -> bool:
    """Whether every value of dtype `x` survives a cast to dtype `y` and back."""
    source, target = dtype(world, x), dtype(world, y)
    if source == target:
        return True
    if target is torch.bool or (source.is_floating_point and not target.is_floating_point):
        return False
    if source is torch.bool:
        return True
    if source.is_floating_point:
        a, b = torch.finfo(source), torch.finfo(target)
        return a.eps >= b.eps and a.max <= b.max and a.tiny * a.eps >= b.tiny * b.eps
    low, high = torch.iinfo(source).min, torch.iinfo(source).max
    if target.is_floating_point:
        whole = 2 / torch.finfo(target).eps
        return max(-low, high) <= min(whole, torch.finfo(target).max)
    return low >= torch.iinfo(target).min and high <= torch.iinfo(target).max


def rounded(world: Facts, value: Any, x: Any) -> Any:
    """The number `value` as dtype `x` would hold it."""
    return torch.tensor(value, dtype=dtype(world, x)).item()


def largest_value(world: Facts, x: Any) -> Any:
    """The largest finite value of the dtype."""
    kind = dtype(world, x)
    return torch.finfo(kind).max if kind.is_floating_point else torch.iinfo(kind).max


def finite(world: Facts, value: Any) -> bool:
    """Whether a constant number is neither infinite nor nan."""
    return isinstance(value, (int, torch.SymInt)) or math.isfinite(value)


def negative_zero(world: Facts, value: Any) -> bool:
    """Whether a constant number is -0.0."""
    return isinstance(value, float) and value == 0 and math.copysign(1.0, value) < 0


def given(world: Facts, value: Any) -> bool:
    """Whether an optional argument is there (is not None)."""
    return value is not None


def is_weight(world: Facts, x: Any) -> Answer:
    """Whether `x` is a parameter or buffer, or a view, permute or cast of one."""
    return world.is_weight(x)


def is_frozen(world: Facts, x: Any) -> Answer:
    """Whether `x` depends on nothing but parameters that may be folded (inference)."""
    return world.is_frozen(x)


def is_input(world: Facts, x: Any) -> Answer:
    """Whether `x` is an input of the graph."""
    return world.is_input(x)


def before(world: Facts, x: Any, y: Any) -> Answer:
    """Whether parameter `x` comes before parameter `y` in the order of inputs. A value that
    is not a single parameter (or a view, permute or cast of one) has no place in the order."""
    first, second = world.position(x), world.position(y)
    if first is Truth.FREE or second is Truth.FREE:
        return Truth.FREE
    if isinstance(first, int) and isinstance(second, int):
        return first < second
    return False


def users(world: Facts, x: Any) -> int | Truth:
    """How many nodes of the graph read `x`."""
    return world.users(x)


def feeds_comparison(world: Facts, x: Any) -> Answer:
    """Whether a comparison, a rounding to whole numbers, `argmax` or `topk` reads `x`, at once
    or through ops that only move values: a small error there may change the result a lot."""
    return world.feeds_comparison(x)


_ABOUT_GRAPH = (is_weight, is_frozen, is_input, before, users, feeds_comparison)
_ABOUT_VALUES = (
    *(dtype, rank, shape, size, lengths, numel, strides, contiguous, device, placed),
    *(same_shape, same_dtype, same_device, broadcastable, broadcasts_to, promoted),
    *(is_floating, is_integral, is_half, bits, lossless, rounded, largest_value),
    *(finite, negative_zero, given),
)


def _predicate(function: Callable[..., Any], about_graph: bool = False, skip: int = 1) -> Predicate:
    """A function as a predicate; its first `skip` arguments are not for rules."""
    arguments = list(inspect.signature(function).parameters.values())[skip:]
    open_ended = any(a.kind is a.VAR_POSITIONAL for a in arguments)
    return Predicate(
        function.__name__,
        f"{function.__name__}({', '.join(map(_spelled, arguments))})",
        inspect.getdoc(function) or "",
        function,
        about_graph,
        sum(a.kind is not a.VAR_POSITIONAL and a.default is a.empty for a in arguments),
        None if open_ended else len(arguments),
    )


def _spelled(argument: inspect.Parameter) -> str:
    if argument.kind is argument.VAR_POSITIONAL:
        return f"*{argument.name}"
    given = argument.default
    return argument.name if given is argument.empty else f"{argument.name}={given!r}"


def _shape_predicate(function: Callable[..., Any]) -> Predicate:
    """A function on shapes, which needs no world."""

    def call(world: Facts, *args: Any) -> Any:
        return function(*args)

    predicate = _predicate(function, about_graph=False, skip=0)
    return replace(predicate, function=call)


PREDICATES: Mapping[str, Predicate] = {
    predicate.name: predicate
    for predicate in (
        *(_predicate(function, about_graph=True) for function in _ABOUT_GRAPH),
        *(_predicate(function) for function in _ABOUT_VALUES),
        *(_shape_predicate(function) for function in SHAPE_FUNCTIONS),
    )
}


def describe_predicates() -> list[tuple[str, str, str]]:
    """Every function that conditions and attributes may call, as rows for the documentation:
    name, signature, doc in one line. Those about the place in a graph come first, then facts
    about values, then functions on shapes, then those on numbers."""
    rows = [(p.name, p.signature, " ".join(p.doc.split())) for p in PREDICATES.values()]
    return [*rows, *((name, *texts) for name, texts in _ON_NUMBERS.items())]


_ON_NUMBERS: Mapping[str, tuple[str, str]] = {
    "min": ("min(*values)", "The least of some numbers, or of a tuple."),
    "max": ("max(*values)", "The largest of some numbers, or of a tuple."),
    "abs": ("abs(value)", "A number without its sign."),
    "len": ("len(values)", "How many entries a tuple or a list variable has."),
}
