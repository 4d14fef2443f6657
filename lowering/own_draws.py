"""Random ops whose numbers are made in nests, where they are used.

Takes FX nodes; gives fresh buffers. An element is a function of a seed, the number of the draw in
the graph and the element's position: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC'11), so neither fusion nor threads change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..engine.dtypes import dtype_of, word_of
from .draws import dropped
from .externs import VALUES, as_argument, leaves, meta_of, operand
from .guards import Refusal
from .index import as_index
from .loops import Buffer, Scalar, Store, View, varies
from .promotion import FLOATS, INTS, opmath
from .samples import WIDEST, Source, between, coin, exponential, normal, uniform, whole
from .seeds import (
    RECORDED,
    REPEATED,
    fresh_seed,
    opened_seed,
    sealed_state,
    shared_seed,
)
from .values import Indices, Stored, Value, axes_for, shape_of
from .views import broadcast_index
from .work import Declined, Work, supported

# Whole numbers up to these are told apart by each floating dtype.
_WHOLE = {"f16": 1 << 11, "bf16": 1 << 8, "f32": 1 << 24, "f64": 1 << 53}


@dataclass(frozen=True)
class Draw:
    """One random op: metadata of its result, its arguments by name, its seed and its number
    among the draws with that."""

    work: Work
    node: fx.Node
    op: Any
    out: Any
    given: Mapping[str, Any]
    seed: Buffer | None = None
    number: int = 0

    def argument(self, name: str, default: Any = None) -> Any:
        value = self.given.get(name)
        return default if value is None else as_argument(self.work, value)

    def plain(self, name: str, default: float | None = None) -> float:
        """A plain number. Raises Declined for anything else."""
        value = self.argument(name, default)
        if not isinstance(value, int | float):
            raise Declined
        return value

    def fill(self, meta: torch.Tensor, sample: Callable[[Source], Scalar]) -> Stored:
        """A fresh buffer like `meta` of samples."""
        assert self.seed is not None
        work, seed, number, shape = self.work, self.seed, self.number, shape_of(meta)

        def element(index: Indices) -> Scalar:
            return sample(Source(work.builder, seed, number, shape, index))

        return work.pointwise(self.node, meta, element)


def own_draw(work: Work, node: fx.Node) -> Any:
    """The value of a random op; None for other nodes, and where only the op itself will do."""
    draw = _draw(work, node)
    if draw is None or not _fits(draw):
        return None
    before = len(work.steps), work.draws, dict(work.seeds), set(work.buffers)
    work.device = str(_tensors(draw.out)[0].device)
    try:
        return _made(draw)
    except Declined:
        work.undo(before[0])
        work.draws, work.seeds = before[1], before[2]
        for name in work.buffers.keys() - before[3]:
            del work.buffers[name]
        return None


def _draw(work: Work, node: fx.Node) -> Draw | None:
    """What a node draws, be it in a checkpoint or not; None where it draws nothing."""
    if node.op != "call_function":
        return None
    op: Any = node.target
    args, out = node.args, node.meta.get("val")
    if op is RECORDED:
        both = meta_of(node)
        op, args, out = args[0], args[1:], both[1] if both and len(both) > 1 else None
    elif op is REPEATED:
        op, args, out = args[1], args[2:], meta_of(node)
    if op not in SAMPLED:
        return None
    names = [argument.name for argument in op._schema.arguments]
    return Draw(work, node, op, out, {**dict(zip(names, args, strict=False)), **node.kwargs})


def _fits(draw: Draw) -> bool:
    """Whether nests can make all of the results, on the one device that there is."""
    given = [value.meta.get("val") for value in draw.given.values() if isinstance(value, fx.Node)]
    tensors = [*_tensors(draw.out), *_tensors(given)]
    devices = {str(tensor.device) for tensor in tensors}
    again = draw.node.target in (RECORDED, REPEATED)  # their states are the CPU's
    return (
        bool(_tensors(draw.out))
        and all(map(supported, tensors))
        and (devices == {"cpu"} or (len(devices) == 1 and not again))
        and draw.given.get("generator") is None
    )


def _made(draw: Draw) -> Any:
    """Raises Declined where only the op itself will do."""
    work, node = draw.work, draw.node
    sampled = SAMPLED[draw.op]
    if node.target is RECORDED:
        seed = fresh_seed(work, node)
        return [sealed_state(work, node, seed), sampled(replace(draw, seed=seed))]
    if node.target is REPEATED:
        assert isinstance(node.args[0], fx.Node)
        return sampled(replace(draw, seed=opened_seed(work, node, node.args[0])))
    seed, number = shared_seed(work, node)
    return sampled(replace(draw, seed=seed, number=number))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _uniform(draw: Draw) -> Stored:
    dtype = word_of(draw.out.dtype)
    return draw.fill(draw.out, lambda source: uniform(source, dtype))


def _between(draw: Draw) -> Stored:
    low, high = draw.plain("from", 0.0), draw.plain("to", 1.0)
    dtype = word_of(draw.out.dtype)
    largest = torch.finfo(draw.out.dtype).max
    if not -largest <= low <= high <= largest or high - low > largest:
        raise Declined
    return draw.fill(draw.out, lambda source: between(source, low, high, dtype))


def _normal(draw: Draw) -> Stored:
    mean, deviation = draw.argument("mean", 0.0), draw.argument("std", 1.0)
    dtype = word_of(draw.out.dtype)
    if isinstance(deviation, VALUES):
        _refuse(draw, deviation, low=0.0)
    elif not draw.plain("std", 1.0) >= 0:
        raise Declined
    wide, builder = opmath(dtype), draw.work.builder

    def sample(source: Source) -> Scalar:
        scale, shift = (_element(draw, part, source, wide) for part in (deviation, mean))
        product = builder.make("mul", (normal(source, dtype), scale), wide)
        return builder.make("add", (product, shift), wide)

    return draw.fill(draw.out, sample)


def _standard(draw: Draw) -> Stored:
    dtype = word_of(draw.out.dtype)
    return draw.fill(draw.out, lambda source: normal(source, dtype))


def _element(draw: Draw, value: Any, source: Source, dtype: str) -> Scalar:
    """An operand, a number or a tensor, for the element of `source`."""
    builder = draw.work.builder
    if isinstance(value, VALUES):
        loaded = draw.work.load(value, broadcast_index(source.index, value.shape))
        return builder.cast(loaded, dtype)
    if not isinstance(value, int | float):
        raise Declined
    return builder.const(float(value), dtype)


def _exponential(draw: Draw) -> Stored:
    rate, dtype = draw.plain("lambd", 1.0), word_of(draw.out.dtype)
    if not 0 < rate < float("inf"):
        raise Declined
    return draw.fill(draw.out, lambda source: exponential(source, rate, dtype))


def _coins(draw: Draw) -> Stored:
    chance = draw.plain("p", 0.5)
    if not 0 <= chance <= 1:
        raise Declined
    return draw.fill(draw.out, lambda source: coin(source, chance))


def _each_coin(draw: Draw) -> Stored:
    """Probabilities in a tensor: `p`, else the operand itself."""
    chances, builder = draw.argument("p", draw.argument("self")), draw.work.builder
    if not isinstance(chances, VALUES) or chances.dtype not in FLOATS:
        raise Declined
    _refuse(draw, chances, low=0.0, high=1.0)
    dtype = opmath(chances.dtype)

    def sample(source: Source) -> Scalar:
        chance = _element(draw, chances, source, dtype)
        return builder.make("lt", (uniform(source, dtype), chance), "bool")

    return draw.fill(draw.out, sample)


def _whole(draw: Draw) -> Stored:
    low, high = draw.argument("low", 0), draw.argument("high", draw.argument("to"))
    if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low <= WIDEST:
        raise Declined
    dtype = word_of(draw.out.dtype)
    if not all(_holds(dtype, value) for value in (low, high - 1)):
        raise Declined
    return draw.fill(draw.out, lambda source: whole(source, low, high))


def _holds(dtype: str, value: int) -> bool:
    """Whether a dtype has this whole number, and all that are closer to 0."""
    if dtype in FLOATS:
        return abs(value) <= _WHOLE[dtype]
    if dtype not in INTS:
        return value in (0, 1)
    info = torch.iinfo(dtype_of(dtype))
    return info.min <= value <= info.max


def _dropout(draw: Draw) -> list[Value]:
    """x * mask * (1 / (1 - p)), and the mask."""
    x, rate = draw.argument("input"), draw.plain("p")
    if not isinstance(x, VALUES) or x.dtype not in FLOATS or not 0 <= rate <= 1:
        raise Declined
    if draw.given.get("train") is False:
        raise Declined
    result, mask = draw.out
    kept = draw.fill(mask, lambda source: coin(source, 1.0 - rate))
    return [dropped(draw.work, draw.node, result, x, kept, 1.0 - rate), kept]


def _refuse(draw: Draw, value: Value, low: float, high: float | None = None) -> None:
    """Let the op itself raise what eager raises where a parameter is outside of its range. On
    devices that would have to be waited for, nobody looks."""
    work, node, builder = draw.work, draw.node, draw.work.builder
    if work.device != "cpu" or 0 in value.shape:
        return
    axes = axes_for(value.shape)
    scalar = work.load(value, tuple(map(as_index, axes)))
    holds = builder.make("ge", (scalar, builder.const(low, value.dtype)), "bool")
    if high is not None:
        below = builder.make("le", (scalar, builder.const(high, value.dtype)), "bool")
        holds = builder.make("logical_and", (holds, below), "bool")
    axes = tuple(axis for axis in axes if axis in varies(scalar))  # not those of an expand
    if axes:
        holds = builder.make("reduce", (holds,), "bool", value="all")
    flag = work.buffer(f"{node.name}_in_range", "bool", ())
    work.nest(node, (), axes, [Store(flag.name, (), holds)])
    work.extern(
        node,
        target=Refusal(draw.op),
        args=([View(flag.name, (), ())], [], {n: _given(draw, v) for n, v in draw.given.items()}),
        kwargs={},
        outs=(),
        mutates=(flag.name,),
        ordered=True,
    )


def _given(draw: Draw, arg: Any) -> Any:
    if isinstance(arg, fx.Node):
        return operand(draw.work, arg, draw.work.env[arg])
    return as_argument(draw.work, arg)


aten = torch.ops.aten
SAMPLED: Mapping[Any, Callable[[Draw], Any]] = {
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.uniform.default: _between,
    aten.randn.default: _standard,
    aten.randn_like.default: _standard,
    aten.normal_functional.default: _normal,
    aten.normal.float_float: _normal,
    aten.normal.Tensor_float: _normal,
    aten.normal.float_Tensor: _normal,
    aten.normal.Tensor_Tensor: _normal,
    aten.exponential.default: _exponential,
    aten.bernoulli.p: _coins,
    aten.bernoulli.default: _each_coin,
    aten.bernoulli.Tensor: _each_coin,
    aten.randint.default: _whole,
    aten.randint.low: _whole,
    aten.randint_like.default: _whole,
    aten.randint_like.low_dtype: _whole,
    aten.random.to: _whole,
    aten.native_dropout.default: _dropout,
}
