"""Whether a call may write its result into a part of a larger buffer.

Takes an extern in its out-form (`lowering/in_place_parts.py`); says whether ATen multiplies
into that view as fast as into memory of its own. ATen hands views with rows of unit stride to
BLAS as they are, with the distance of the rows as leading dimension; what BLAS does not take it
computes aside and copies (`addmm_impl_cpu_` and `bmm_out_or_baddbmm_` in ATen/native).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..lowering.index import Size, row_major
from ..lowering.loops import Buffer, Extern, View
from ..lowering.ranges import at_most
from .externs import Route, find_route
from .gemm import pick_route

aten = torch.ops.aten
_MATRICES = (aten.mm.default, aten.addmm.default)


def fits_in_view(extern: Extern, buffers: Mapping[str, Buffer], *, measure: bool) -> bool:
    """Whether the product is as fast there. With `measure` the faster of two libraries runs a
    product that has memory of its own; oneDNN would need that."""
    route = find_route(extern, buffers)
    if route is None or not route.outs:
        return False
    (out,) = route.outs
    buffer = buffers[out.buffer]
    if buffer.device != "cpu" or buffer.dtype not in ("f32", "f64") or not _for_blas(route, out):
        return False
    if not measure:
        return True
    with unset_fake_temporarily():  # AOTAutograd compiles under its fake mode
        return pick_route(route, buffers)[0] is route


def _for_blas(route: Route, out: View) -> bool:
    if route.target in _MATRICES:
        rows, columns = out.stride
        return columns == 1 and at_most(out.shape[1], rows)
    return route.target is aten.bmm.default and _is_dense(out)


def _is_dense(view: View) -> bool:
    return _strides(view) == _strides(replace(view, stride=row_major(view.shape)))


def _strides(view: View) -> tuple[Size, ...]:
    pairs = zip(view.shape, view.stride, strict=True)
    return tuple(stride for size, stride in pairs if size != 1)
