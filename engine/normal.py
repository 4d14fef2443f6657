"""One spelling for the attributes of an op, however they were written.

Takes canonical argument lists (one entry per parameter) and a way to look at metadata; gives
the list in normal form: dims count from the front and are sorted where their order means
nothing, -1 sizes are resolved, slice bounds lie inside the tensor, numbers have the kind that
the result has. Equal calls then have equal attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .shapes import axis, default_dtype, resolved
from .symbolic import compare, plain, same, smallest
from .world import EvaluateError, is_number

if TYPE_CHECKING:
    from .op import Op

Meta = Callable[[Any], Any]
Arguments = list[Any]

# An empty list of dims means "all" to most reductions, and "none" to these.
_EMPTY_IS_NONE = frozenset({"any", "all"})
# The result has one dim more than the tensors, and `dim` counts in the result.
_DIM_OF_RESULT = frozenset({"stack"})


def normalise(op: Op, args: Arguments, meta: Meta) -> Arguments:
    """`args` in normal form; raises EvaluateError where they cannot be right."""
    for place, param in enumerate(op.params):
        value = args[place]
        if param.kind == "tensors":
            args[place] = _as_list(value)
        elif isinstance(value, list):
            args[place] = tuple(value)
        elif (param.kind == "dims" or param.listed) and isinstance(value, (int, torch.SymInt)):
            args[place] = (value,)
    if op.entry is None:
        return args
    for place, param in enumerate(op.params):
        if param.kind in ("dim", "dims") and args[place] is not None:
            args[place] = _dims(op, args, place, meta)
    special = _SPECIAL.get(op.name)
    return special(args, meta) if special is not None else args


def as_one_number(op: Op, place: int, value: Any, rank: int) -> Any:
    """`value`, or the one number that says the same where a rule binds one: a list of one dim,
    all dims of a vector, parts of one size."""
    param = op.params[place]
    if param.kind == "dims" and value is None and param.reduces and rank == 1:
        return 0
    if not isinstance(value, tuple) or not value:
        return value
    if param.kind == "dims" or param.listed:
        return value[0] if len(value) == 1 else value
    if op.name == "split" and param.name == "split_size":
        first, *rest = value
        even = all(same(part, first) for part in rest[:-1])
        return first if even and (not rest or compare("<=", rest[-1], first) is True) else value
    return value


def _as_list(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _dims(op: Op, args: Arguments, place: int, meta: Meta) -> Any:
    param, value = op.params[place], args[place]
    rank = _rank(args[0], meta) + (op.name in _DIM_OF_RESULT)
    if param.kind == "dim" and not isinstance(value, tuple):
        return axis(rank, value)
    dims = tuple(axis(rank, dim) for dim in value)
    if not param.reduces:
        return dims
    dims = tuple(sorted(dims))
    if op.name in _EMPTY_IS_NONE and not dims:
        return dims
    return None if len(dims) in (0, rank) or rank == 0 else dims


def _rank(value: Any, meta: Meta) -> int:
    if isinstance(value, list):
        return max((_rank(item, meta) for item in value if item is not None), default=0)
    return _tensor(value, meta).dim()


def _tensor(handle: Any, meta: Meta) -> torch.Tensor:
    value = meta(handle)
    if not isinstance(value, torch.Tensor):
        raise EvaluateError(f"{value!r} stands where a tensor is needed")
    return value


def _view(args: Arguments, meta: Meta) -> Arguments:
    args[1] = resolved(tuple(_tensor(args[0], meta).shape), args[1])
    return args


def _expand(args: Arguments, meta: Meta) -> Arguments:
    shape = tuple(_tensor(args[0], meta).shape)
    fresh = len(args[1]) - len(shape)
    args[1] = tuple(
        shape[place - fresh] if place >= fresh and same(length, -1) else length
        for place, length in enumerate(args[1])
    )
    return args


def _slice(args: Arguments, meta: Meta) -> Arguments:
    length = _tensor(args[0], meta).shape[args[1]]
    start = _bound(0 if args[2] is None else args[2], length)
    end = length if args[3] is None else _bound(args[3], length)
    if compare("<", end, start) is True:
        end = start
    args[2], args[3] = start, end
    return args


def _bound(place: Any, length: Any) -> Any:
    """A slice bound moved into 0 .. length."""
    if compare("<", place, 0) is True:
        place = place + length
        if compare("<", place, 0) is True:
            return 0
    if compare("<=", place, length) is True:
        return place
    return length if compare(">=", place, length) is True else smallest(place, length)


def _select(args: Arguments, meta: Meta) -> Arguments:
    if compare("<", args[2], 0) is True:
        args[2] = args[2] + _tensor(args[0], meta).shape[args[1]]
    return args


def _full(args: Arguments, meta: Meta) -> Arguments:
    size, value, dtype, device = args
    dtype = default_dtype(dtype, value)
    if isinstance(value, (bool, int, float)):
        value = _as_kind(value, dtype)
    return [size, value, dtype, torch.device(device) if isinstance(device, str) else device]


def _as_kind(value: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return float(value)
    return value if dtype.is_complex else int(value)


def _pad(args: Arguments, meta: Meta) -> Arguments:
    dtype = _tensor(args[0], meta).dtype
    if isinstance(args[2], (bool, int, float)):
        args[2] = _as_kind(args[2], dtype)
    return args


def _flip(args: Arguments, meta: Meta) -> Arguments:
    args[1] = tuple(sorted(args[1]))
    return args


def _split(args: Arguments, meta: Meta) -> Arguments:
    """A size for all parts is spelled out where the length is a plain number."""
    length = plain(_tensor(args[0], meta).shape[args[2]])
    part = args[1]
    if isinstance(part, int) and isinstance(length, int) and part > 0:
        whole, rest = divmod(length, part)
        args[1] = (part,) * whole + ((rest,) if rest or not whole else ())
    return args


def _correction(place: int) -> Callable[[Arguments, Meta], Arguments]:
    """The `correction` of var and std: None is 1, and whole numbers are ints."""

    def apply(args: Arguments, meta: Meta) -> Arguments:
        value = 1 if args[place] is None else args[place]
        args[place] = int(value) if is_number(value) and value == int(value) else value
        return args

    return apply


def _batch_norm(args: Arguments, meta: Meta) -> Arguments:
    args[5] = 0.1  # momentum, which inference does not read
    return args


def _convolution(args: Arguments, meta: Meta) -> Arguments:
    """One number for all spatial dims is spelled out."""
    spatial = _tensor(args[0], meta).dim() - 2
    for place in (3, 4, 5, 7):  # stride, padding, dilation, output_padding
        value = args[place]
        if isinstance(value, tuple) and len(value) == 1:
            args[place] = value * spatial
    return args


def _transpose(args: Arguments, meta: Meta) -> Arguments:
    return [args[0], *sorted(args[1:])]


def _roll(args: Arguments, meta: Meta) -> Arguments:
    shifts, dims = args[1], args[2]
    args[1] = shifts if isinstance(shifts, tuple) else (shifts,)
    args[2] = () if dims is None else dims
    return args


_SPECIAL: Mapping[str, Callable[[Arguments, Meta], Arguments]] = {
    "view": _view,
    "torch.reshape": _view,
    "Tensor.view": _view,
    "expand": _expand,
    "Tensor.expand": _expand,
    "slice": _slice,
    "select": _select,
    "slice_scatter": lambda args, meta: _scatter(args, meta, _slice),
    "select_scatter": lambda args, meta: _scatter(args, meta, _select),
    "full": _full,
    "constant_pad_nd": _pad,
    "flip": _flip,
    "split": _split,
    "var": _correction(2),
    "std": _correction(2),
    "var_mean": _correction(2),
    "std_mean": _correction(2),
    "roll": _roll,
    "convolution": _convolution,
    "torch.transpose": _transpose,
    "_native_batch_norm_legit_no_training": _batch_norm,
}


def _scatter(
    args: Arguments, meta: Meta, plain: Callable[[Arguments, Meta], Arguments]
) -> Arguments:
    """The bounds of (x, source, dim, ...) are those of the plain op on (x, dim, ...)."""
    x, source, *rest = args
    return [x, source, *plain([x, *rest], meta)[1:]]
