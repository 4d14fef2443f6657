"""Nearest and linear resizing by a fractional factor, as ATen's CPU kernels do it.

Takes a graph before AOTAutograd; gives it with calls of `interpolate` and its kin that hand on
corrected factors.

In 2-d, and in 3-d with channels last and more than three of them, these kernels do not ask for
the factor where a side stays as long as it is or becomes twice as long: they copy, or repeat
each element once (`nearest_idx` in ATen/native/UpSample.h). A side of 3 by 1.3 stays 3 long and
is copied; the formula for other lengths, the only one that torch's decompositions know, gives
elements 0, 0, 1. Linear kernels of all dims copy a side that stays as long as it is. The ops
are opened by the decompositions before any rule could see them, so the factor that the kernels
act on, 1 or 2, is put in before. Gradients follow the forward pass; eager's 1-d and 3-d backward
kernels of "nearest" take the short cut where their forward kernels do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_or_false


def with_eager_scales(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm` itself where it upsamples nothing, else a copy that does it as eager does."""
    if not any(_replacement(node) for node in gm.graph.nodes):
        return gm
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.target = _replacement(node) or node.target
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _replacement(node: fx.Node) -> Callable[..., Any] | None:
    return _REPLACEMENTS.get(node.target) if node.op == "call_function" else None


def interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """`F.interpolate` with the factors that eager acts on."""
    if not recompute_scale_factor:
        scale_factor = eager_scales(input, scale_factor, _ratios(input, mode))
    result: torch.Tensor = F.interpolate(
        input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )
    return result


def upsample(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> torch.Tensor:
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: torch.Tensor, size: Any = None, scale_factor: Any = None
) -> torch.Tensor:
    return interpolate(input, size, scale_factor)


def eager_scales(x: torch.Tensor, factors: Any, ratios: Sequence[int]) -> Any:
    """`factors` (one, or one per side of `x`; None for none) with the new length by the old one
    for those sides where that is one of `ratios`."""
    if factors is None or not ratios:
        return factors
    sides = x.shape[2:]
    each = factors if isinstance(factors, Sequence) else [factors] * len(sides)
    if len(each) != len(sides):
        return factors  # an error, which torch reports
    return [_eager_scale(size, factor, ratios) for size, factor in zip(sides, each, strict=True)]


def _ratios(x: torch.Tensor, mode: str) -> tuple[int, ...]:
    """The ratios of lengths for which the kernel for `x` asks for no factor."""
    if x.device.type != "cpu":
        return ()
    if mode in ("linear", "bilinear", "trilinear"):
        return (1,)
    if mode != "nearest" or x.dim() not in (4, 5):
        return ()
    if x.dim() == 4:
        return (1, 2)
    channels_last = x.is_contiguous(memory_format=torch.channels_last_3d)
    return (1, 2) if channels_last and guard_or_false(x.shape[1] > 3) else ()


def _eager_scale(size: Any, factor: Any, ratios: Sequence[int]) -> Any:
    if isinstance(factor, int | float) and (factor in ratios or not 1 < factor < 3):
        return factor  # says the same, or gives another length
    length = torch.sym_int(size * factor)  # type: ignore[no-untyped-call]
    found = (float(ratio) for ratio in ratios if guard_or_false(length == ratio * size))
    return next(found, factor)


_REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    F.interpolate: interpolate,
    F.upsample: upsample,
    F.upsample_nearest: upsample_nearest,
}
