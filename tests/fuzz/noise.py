"""Eager with other rounding: every float op is off by about as much as another right
implementation of it could be.

Runs under this mode show which results depend on rounding, and by how much (Monte Carlo
arithmetic). Results that are exact stay as they are, and so does what only moves or selects.
Eager has two loops for most pointwise ops, one for single elements and one for vectors, which
differ in the sign of zeros, say: every other run takes the one, the rest the other.
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
            return self._by_other_loop(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _by_other_loop(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The values that the other loop gives, in the layout that eager gives."""
        before = _copied((args, kwargs))
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
                _write(here, there.to(here.dtype))
        return result

    def _disturbed(self, func: Any, given: Any) -> list[Any] | None:
        """What the op could give instead; None where it is exact."""
        wide = _call(func, given, torch.float64)
        narrow = _call(func, given, torch.float32)
        if narrow is None:
            return None
        if wide is not None and all(_agree(*pair) for pair in zip(wide, narrow, strict=True)):
            return None
        pointwise = _is_pointwise(func)
        shaken = given if pointwise else pytree.tree_map(self._shake_all, given)
        results = _call(func, shaken, torch.float32)
        if results is None:
            return None
        if _name(func) in LOGARITHMS:
            return [self._shake_from(self._shake(here), 1.0) for here in results]
        if not pointwise:
            return [self._sign_zeros(self._shake(here)) for here in results]
        exact = narrow if wide is None else wide
        return [self._shake_unless(here, sure) for here, sure in zip(results, exact, strict=True)]

    def _sign_zeros(self, value: Any) -> Any:
        """Zeros of either sign: which it is depends on the formula that is taken."""
        if not _is_float(value):
            return value
        draw = torch.rand(value.shape, generator=self._generator)
        return torch.where((value == 0) & (draw < 0.5), -value, value)

    def _shake_unless(self, here: Any, sure: Any) -> Any:
        """Elements that are exact as they are stay so."""
        if not _is_float(here):
            return here
        shaken = self._shake(here)
        if sure.dtype == torch.float64 and here.dtype != torch.float64:
            return torch.where(sure == here.double(), here, shaken)
        return shaken

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


def _agree(wide: Any, narrow: Any) -> bool:
    if not _is_float(narrow):
        return True
    if wide.dtype == narrow.dtype:  # float64 itself: nothing wider says
        return False
    return torch.equal(wide.nan_to_num(), narrow.double().nan_to_num())


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    if target.shape == value.shape:
        target.copy_(value)
