"""Eager with other rounding: every float op is off by about as much as another right
implementation of it could be.

Runs under this mode show which results depend on rounding, and by how much (Monte Carlo
arithmetic). Results that are exact stay as they are, and so does what only moves or selects.
Eager has two loops for most pointwise ops, one for single elements and one for vectors, which
differ in the sign of zeros, say: every other run takes the one, the rest the other.

Noise is never larger than what eager is off by itself:

- one or two units in the last place of a result, or of the largest element that is summed up;
- the difference between the op in float32 and in float64 on numbers near to those given, which
  is what its formula loses (`1 + erf(x)` for small results, `digamma` beside its root);
- where a product is added within the op, a rounding of the product: eager rounds once on
  machines that multiply and add in one instruction, twice on others;
- a result that is no larger than its own noise may be an exact 0;
- which of two equal zeros is the extreme of a row depends on how eager walks it, and so does
  whether the mean of var_mean is nan or infinite;
- the sign of a nan that arithmetic gives means nothing (IEEE 754, 6.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_ULPS = 2.0
_HALVES = (torch.float16, torch.bfloat16)
# They round nothing, or as their dtype says.
_NAMES = """_to_copy abs alias amax amin as_strided_scatter cat clamp clamp_max clamp_min clone copy
constant_pad_nd copysign cummax cummin detach diagonal_scatter embedding empty empty_like
empty_strided eye fill flip fmax fmin full full_like gather heaviside hardtanh index
index_fill index_select kthvalue leaky_relu lift_fresh masked_fill masked_scatter max
max_pool2d_with_indices maximum median min minimum nan_to_num neg new_empty
new_empty_strided new_full new_ones new_zeros nextafter one_hot ones ones_like
reflection_pad1d reflection_pad2d relu repeat replication_pad1d replication_pad2d roll rot90
_adaptive_max_pool1d adaptive_max_pool2d scalar_tensor scatter select_backward
select_scatter sgn sign slice_backward slice_scatter sort stack take threshold topk tril triu
unfold_backward upsample_nearest1d upsample_nearest2d where zero zeros zeros_like
arange linspace ceil floor round trunc positive hardshrink pixel_shuffle pixel_unshuffle
channel_shuffle _local_scalar_dense aminmax bucketize """
EXACT = frozenset(_NAMES.split())
# Pointwise without torch's tag.
_MAPS = """elu_backward hardtanh_backward leaky_relu_backward mish_backward softplus_backward
log_sigmoid_backward hardswish_backward hardsigmoid_backward softshrink_backward
hardshrink_backward fmod remainder"""
MAPS = frozenset(_MAPS.split())
# They add a product to an operand, the first one or the one named here.
PRODUCTS = {"addcmul": 0, "addcdiv": 0, "lerp": 0, "add": 0, "sub": 0, "rsub": 1}
# Exact, but what they make of a nan is a nan without a sign.
_ORDERS = """clamp clamp_max clamp_min cummax cummin fmax fmin hardtanh heaviside leaky_relu
max_pool2d_with_indices maximum median minimum relu threshold ceil floor round trunc hardshrink
_adaptive_max_pool1d adaptive_max_pool2d """
# Extremes of rows. Where the place of one is told, too, eager takes the first of two zeros; a
# compiler that sees nobody read the place may take the other, as amax does.
EXTREMES = frozenset(["amax", "amin", "aminmax", "max", "min"])
# Means and variances that eager updates with each element.
RUNNING = frozenset(["var", "var_mean", "std", "std_mean"])
UNSIGNED = EXTREMES | frozenset(_ORDERS.split())
# They end in the logarithm of a sum that is 1 or larger, whose rounding no input shows.
LOGARITHMS = frozenset(("_log_softmax", "logsumexp", "logaddexp", "logaddexp2"))


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode; runs of the same seed are alike."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)
        self._vectors = seed % 2 == 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if _is_pointwise(func) and not _draws(func):
            result = self._by_other_loop(func, args, kwargs)
        else:
            result = self._run(func, args, kwargs)
        leaves = pytree.tree_leaves(result)
        if _name(func) in EXTREMES:
            self._sign_ties(func, args, kwargs, leaves)
        if _rounds(func) or _name(func) in UNSIGNED:
            self._sign_nans(leaves)
        return result

    def _by_other_loop(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The values that the other loop gives, in the layout that eager gives."""
        # a memory format says where results lie, which what is laid out anew has no use for
        before = _copied((args, {k: v for k, v in kwargs.items() if k != "memory_format"}))
        result = func(*args, **kwargs)
        if not _is_float(result) or not result.numel():
            return result
        laid_out = _arranged(before, result.shape, self._vectors)
        other = self._run(func, *laid_out).reshape(-1)[: result.numel()]
        _write(result, other.reshape(result.shape))
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not _rounds(func):
            return func(*args, **kwargs)
        before = _copied((args, kwargs))
        result = func(*args, **kwargs)
        if not any(map(_is_float, pytree.tree_leaves(result))):
            return result
        other = self._disturbed(func, before)
        if other is None:
            return result
        for here, there in zip(pytree.tree_leaves(result), other, strict=True):
            if _is_float(here) and here.numel() and _is_float(there):
                _write(here, self._vanishing(here, there).to(here.dtype))
        return result

    def _vanishing(self, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """`there`, the noisy form of `here`: what is within its own noise of zero may be zero."""
        if here.shape != there.shape:
            return there
        apart = (here - there.to(here.dtype)).abs()
        draw = torch.rand(there.shape, generator=self._generator)
        within = (apart > 0) & (here.abs() <= 2 * apart)
        return torch.where(within & (draw < 0.3), 0.0, there)

    def _sign_nans(self, leaves: Sequence[Any]) -> None:
        for here in filter(_is_float, leaves):
            if here.isnan().any():
                draw = torch.rand(here.shape, generator=self._generator)
                _write(here, torch.where(here.isnan() & (draw < 0.5), -here, here))

    def _sign_ties(self, func: Any, args: Any, kwargs: Any, leaves: Sequence[Any]) -> None:
        """Extremes of rows that hold zeros of both signs get either."""
        x, *rest = args
        if not _is_float(x):
            return
        both: list[torch.Tensor] | None = None
        for negative in (False, True):
            marks = ((x == 0) & (x.signbit() == negative)).to(x.dtype)
            sides = (pytree.tree_leaves(func(sign * marks, *rest, **kwargs)) for sign in (1, -1))
            some = [(low != 0) | (high != 0) for low, high in zip(*sides, strict=True)]
            both = some if both is None else [a & b for a, b in zip(both, some, strict=True)]
        for here, tied in zip(leaves, both or (), strict=True):
            draw = torch.rand(here.shape, generator=self._generator)
            if _is_float(here):
                here.copy_(torch.where(tied & (here == 0) & (draw < 0.5), -here, here))

    def _disturbed(self, func: Any, given: Any) -> list[Any] | None:
        """What the op could give instead; None where it is exact."""
        backwards = _name(func) in RUNNING and self._vectors
        given = _backwards(given) if backwards else given
        wide = _call(func, given, torch.float64)
        narrow = _call(func, given, torch.float32)
        if narrow is None:
            return None
        if wide is not None and all(_agree(*pair) for pair in zip(wide, narrow, strict=True)):
            return narrow if backwards else None
        pointwise = _is_pointwise(func)
        shaken = given if pointwise else pytree.tree_map(self._shake_all, given)
        results = _call(func, shaken, torch.float32)
        if results is None:
            return None
        if _name(func) in LOGARITHMS:
            return [self._shake_from(self._shake(here), 1.0) for here in results]
        if not pointwise:
            return [self._sign_zeros(self._shake(here)) for here in results]
        nothing = [None] * len(results)
        return [
            self._shake_unless(here, sure, loss, product)
            for here, sure, loss, product in zip(
                results,
                narrow if wide is None else wide,
                _losses(func, self._near(given)) or nothing,
                _products(func, given, results) or nothing,
                strict=True,
            )
        ]

    def _near(self, given: Any) -> Any:
        """Numbers for which the formula of a pointwise op loses as much as for those given: what
        is next to them, or 1% off where there is one operand, with which nothing can cancel."""
        floats = [value for value in pytree.tree_leaves(given) if _is_float(value)]
        if len(floats) != 1:
            return pytree.tree_map(self._shake, given)
        draw = 2 * torch.rand(floats[0].shape, generator=self._generator) - 1
        return pytree.tree_map(lambda v: v * (1 + 0.01 * draw) if v is floats[0] else v, given)

    def _off_by(self, here: Any, loss: Any) -> Any:
        """`loss` is that of float32."""
        if loss is None or here.shape != loss.shape:
            return here
        draw = torch.rand(here.shape, generator=self._generator, dtype=here.dtype)
        share = torch.finfo(here.dtype).eps / torch.finfo(torch.float32).eps
        return here + (2 * draw - 1) * (loss * share).to(here.dtype)

    def _sign_zeros(self, value: Any) -> Any:
        """Zeros of either sign: which it is depends on the formula that is taken."""
        if not _is_float(value):
            return value
        draw = torch.rand(value.shape, generator=self._generator)
        return torch.where((value == 0) & (draw < 0.5), -value, value)

    def _shake_unless(self, here: Any, sure: Any, loss: Any, product: Any) -> Any:
        """Off by a few units, by `loss` and by `product`; elements that are exact as they are
        by the latter alone."""
        if not _is_float(here):
            return here
        shaken = self._off_by(self._shake(here), loss)
        if sure.dtype == torch.float64 and here.dtype != torch.float64:
            shaken = torch.where(sure == here.double(), here, shaken)
        return self._off_by(shaken, product)

    def _shake_all(self, value: Any) -> Any:
        """Off by as much as the largest element is, as sums and what is made of them are."""
        shaken = self._shake(value)
        if not _is_float(value) or not value.numel():
            return shaken
        return self._shake_from(shaken, shaken.abs().nan_to_num(0, 0).max())

    def _shake_from(self, value: Any, size: Any) -> Any:
        """Off by as much as a number of this size is."""
        if not _is_float(value):
            return value
        draw = torch.rand(value.shape, generator=self._generator, dtype=value.dtype)
        return value + (draw - 0.5) * torch.finfo(value.dtype).eps * size

    def _shake(self, value: Any) -> Any:
        """Off by one or two units in the last place (of float32 for the half types)."""
        if not _is_float(value):
            return value
        wide = value.float() if value.dtype in _HALVES else value
        unit = torch.finfo(wide.dtype).eps * _ULPS
        draw = torch.rand(wide.shape, generator=self._generator, dtype=wide.dtype)
        return wide * (1 + (draw - 0.5).sign() * (0.25 + draw / 4) * unit)


def _arranged(given: Any, shape: torch.Size, vectors: bool) -> Any:
    """Arguments of a pointwise op as vectors that are dense and long, or far from dense."""

    def arrange(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or (shape and not value.dim()):
            return value  # one without dims decides dtypes otherwise than one with
        flat = value.expand(shape).reshape(-1)
        if vectors:
            return torch.cat([flat, flat[:1].expand(128)])
        return torch.stack([flat, flat], 1)[:, 0]

    return pytree.tree_map(arrange, given)


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or _name(func) in MAPS


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removeprefix("aten::").removesuffix("_")


def _rounds(func: Any) -> bool:
    if _name(func) in EXACT or _draws(func):
        return False
    aliases = [entry.alias_info for entry in func._schema.returns]
    return not any(alias is not None and not alias.is_write for alias in aliases)


def _is_float(value: Any) -> bool:
    """A tensor of floats in memory: the zeros of autograd that have none crash torch.equal."""
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and not value._is_zerotensor()
    )


def _copied(given: Any) -> Any:
    copied: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copied:
            copied[id(value)] = value.clone()
        return copied[id(value)]

    return pytree.tree_map(copy, given)


def _call(func: Any, given: Any, least: torch.dtype) -> list[Any] | None:
    """The results with float arguments in `least` or wider; None where the op refuses."""

    def widen(value: Any) -> Any:
        if _is_float(value) and value.dtype.itemsize < least.itemsize:
            return value.to(least)
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return value if value.itemsize >= least.itemsize else least
        return value.clone() if isinstance(value, torch.Tensor) else value

    args, kwargs = pytree.tree_map(widen, given)
    try:
        found: list[Any] = pytree.tree_leaves(func(*args, **kwargs))
    except (RuntimeError, NotImplementedError):
        return None
    return found


def _losses(func: Any, given: Any) -> list[Any] | None:
    """How far apart the results are in float32 and in float64 on the same float32 numbers;
    None where the op refuses."""
    narrow = pytree.tree_map(lambda v: v.float() if _is_float(v) else v, given)
    low, high = (_call(func, narrow, dtype) for dtype in (torch.float32, torch.float64))
    if low is None or high is None:
        return None
    return [
        (b - a.double()).abs().nan_to_num(0, 0, 0) if _is_float(a) else a
        for a, b in zip(low, high, strict=True)
    ]


def _products(func: Any, given: Any, results: Sequence[Any]) -> list[Any] | None:
    """By how much the rounding of an inner product to float32 changes results."""
    args, kwargs = given
    scaled = _name(func) not in ("add", "sub", "rsub") or kwargs.get("alpha", 1) != 1
    if _name(func) not in PRODUCTS or not scaled:
        return None
    other = args[PRODUCTS[_name(func)]]
    half = torch.finfo(torch.float32).eps / 2
    return [(here - other).abs().nan_to_num(0, 0, 0) * half for here in results]


def _backwards(given: Any) -> Any:
    """The arguments of a reduction, its operand from the end to the beginning."""
    (x, *rest), kwargs = given
    dims = rest[0] if rest and rest[0] else tuple(range(x.dim()))
    return (x.flip(dims), *rest), kwargs


def _agree(wide: Any, narrow: Any) -> bool:
    if not _is_float(narrow):
        return True
    if wide.dtype == narrow.dtype:  # float64 itself: nothing wider says
        return False
    return torch.equal(wide.nan_to_num(), narrow.double().nan_to_num())


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    if target.shape == value.shape:
        target.copy_(value)
