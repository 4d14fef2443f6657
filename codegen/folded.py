"""Runs a graph whose expressions of parameters were folded, and keeps them true.

Takes the two halves that `lowering.fold` made; gives a boxed callable. Each call compares
the watched parameters with the last time: identity of memory, version counter, and a
fingerprint of the bytes, because `parameter.data.mul_()` changes neither of the first two.
The fingerprint covers small tensors whole and samples large ones.
"""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..engine.assumed import ParameterCheck, holds_for
from ..lowering.fold import Split
from .build import build_extension

# Parameter sets kept per graph: instances of one module class share compiled code.
_KEPT = 4


class FoldedGraph:
    """Boxed: takes the list of graph inputs, appends the folded tensors, runs `main`.

    While a `check` fails for the parameters at hand, `plain` runs instead: the graph before
    any rule, also boxed.
    """

    _boxed_call = True

    def __init__(
        self,
        split: Split,
        main: Callable[[list[Any]], list[Any]],
        checks: Sequence[ParameterCheck],
        plain: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._constants = split.constants
        self._sources = split.watched
        checked = {place for check in checks for _, place in check.inputs}
        self._watched = tuple(sorted({*split.watched, *checked}))
        self._main = main
        self._checks = tuple(checks)
        self._plain = plain
        self._known: OrderedDict[tuple[Any, ...], list[torch.Tensor] | None] = OrderedDict()
        self._fingerprint = Fingerprint(len(self._watched))

    def __call__(self, inputs: list[Any]) -> list[Any]:
        key = self._key([inputs[index] for index in self._watched])
        values = self._known[key] if key in self._known else self._refold(key, inputs)
        if values is None:
            return self._plain(inputs)
        inputs.extend(values)
        return self._main(inputs)

    def _key(self, parameters: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        pointers = [tensor.data_ptr() for tensor in parameters]
        try:
            versions = [tensor._version for tensor in parameters]
        except RuntimeError:  # inference tensors count no versions
            versions = [0 if tensor.is_inference() else tensor._version for tensor in parameters]
        return (*pointers, *versions, self._fingerprint(pointers, parameters))

    def _refold(
        self, key: tuple[Any, ...], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor] | None:
        values = None
        with torch.no_grad():
            if all(holds_for(check, inputs) for check in self._checks):
                parameters = [inputs[index] for index in self._sources]
                values = [value.detach() for value in self._constants(*parameters)]
        self._known[key] = values
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return values


class Fingerprint:
    """A 64-bit hash of the bytes of `count` tensors (those that are contiguous and on the CPU).
    Their sizes and strides are read once: Dynamo's guards keep them the same for every call."""

    def __init__(self, count: int) -> None:
        self._library = _library()
        self._pointers = (ctypes.c_void_p * count)()
        self._sizes: ctypes.Array[ctypes.c_int64] | None = None
        self._count = count
        self._library.eqsat_fingerprint.restype = ctypes.c_uint64

    def __call__(self, pointers: Sequence[int], tensors: Sequence[torch.Tensor]) -> int:
        self._pointers[:] = list(pointers)
        if self._sizes is None:
            self._sizes = (ctypes.c_int64 * self._count)(*map(_readable_bytes, tensors))
        return int(self._library.eqsat_fingerprint(self._pointers, self._sizes, self._count))


def _readable_bytes(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return 0
    return tensor.numel() * tensor.element_size()


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    source = Path(__file__).with_name("fingerprint.c")
    return ctypes.CDLL(str(build_extension(source, ["-O2", "-fPIC"])))
