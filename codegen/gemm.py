"""Which library multiplies matrices: ATen's own choice, or oneDNN called directly.

Takes the route of an mm or addmm with static sizes; gives the faster of two routes, as
measured on this machine. ATen's own stays unless oneDNN is clearly faster. Measurements are
kept on disk, so each shape is timed once per machine, number of threads and torch; those of a
machine too busy to measure are not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..engine.dtypes import dtype_of
from ..lowering.loops import Buffer, View
from .build import processor
from .cache import cache_dir, digest, write_atomic
from .externs import Route
from .shims import shim_for

SMALLEST_WORK = 1_000_000  # multiply-adds below which a call's fixed cost decides
CLEARLY_FASTER = 0.9
BUDGET_SECONDS = 0.04  # for timing one shape; at least ROUNDS calls of each are made anyway
LONGEST_SECONDS = 0.1  # where times scatter
SEEN_AGAIN = 1.1  # how close the two least times have to be
ROUNDS, MOST_ROUNDS = 3, 60
_DTYPES = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Pick:
    """The choice for one product; times are seconds per call."""

    m: int
    k: int
    n: int
    dtype: str
    aten: float
    onednn: float

    @property
    def measured(self) -> bool:
        """False where oneDNN does not fit or the machine was too busy."""
        return self.onednn < float("inf")

    @property
    def chosen(self) -> str:
        return "onednn" if self.onednn < CLEARLY_FASTER * self.aten else "aten"


def pick_route(route: Route, buffers: Mapping[str, Buffer]) -> tuple[Route, Pick | None]:
    """The route to use, and the measurement behind it (None where there was no choice)."""
    other = _onednn_route(route, buffers)
    if other is None:
        return route, None
    pick = _remembered(other, buffers)
    return (other if pick.chosen == "onednn" else route), pick


def _onednn_route(route: Route, buffers: Mapping[str, Buffer]) -> Route | None:
    """x @ w (+ bias) as `_linear_pointwise(x, w.T, bias)`, where that is the same thing."""
    target: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    aten = torch.ops.aten
    if target is None or route.target not in (aten.mm.default, aten.addmm.default):
        return None
    bias, x, weight = (None, *route.args) if len(route.args) == 2 else route.args[:3]
    if bias is not None and (len(bias.shape) != 1 or route.args[3:] != (1, 1)):
        return None
    sizes = (*x.shape, *x.stride, *weight.shape, *weight.stride, *(bias.stride if bias else ()))
    if not all(isinstance(size, int) for size in sizes) or 0 in sizes:
        return None
    shim = shim_for(target.default)
    if shim is None or buffers[x.buffer].dtype not in _DTYPES or buffers[x.buffer].device != "cpu":
        return None
    if x.shape[0] * x.shape[1] * weight.shape[1] < SMALLEST_WORK:
        return None
    turned = View(weight.buffer, weight.shape[::-1], weight.stride[::-1], weight.offset)
    return Route(target.default, shim, (x, turned, bias, "none", [], ""))


def _remembered(other: Route, buffers: Mapping[str, Buffer]) -> Pick:
    views = [value for value in other.args[:3] if value is not None]
    layout = [(list(view.shape), list(view.stride), buffers[view.buffer].dtype) for view in views]
    state = (2, torch.__version__, torch.get_num_threads(), torch.get_float32_matmul_precision())
    key = digest(repr(layout), repr(state), processor())[:40]
    path = cache_dir() / "gemm" / f"{key}.json"
    try:
        return Pick(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        pick, lasting = _measure(other, buffers)
    if lasting:
        write_atomic(path, json.dumps(asdict(pick)).encode())
    return pick


def _measure(other: Route, buffers: Mapping[str, Buffer]) -> tuple[Pick, bool]:
    """The times, and whether they are worth keeping: a busy machine is asked again later."""
    x, turned, bias = other.args[:3]
    dtype = buffers[x.buffer].dtype
    sizes = (x.shape[0], x.shape[1], turned.shape[0])
    with torch.no_grad():
        left, right = _sample(x, dtype), _sample(turned, dtype)
        added = None if bias is None else _sample(bias, dtype)
        out = torch.empty(sizes[0], sizes[2], dtype=left.dtype)

        def aten() -> torch.Tensor:
            if added is None:
                return torch.mm(left, right.t(), out=out)
            return torch.addmm(added, left, right.t(), out=out)

        def onednn() -> torch.Tensor:
            result: torch.Tensor = other.target(left, right, added, *other.args[3:])
            return result

        try:
            alike = torch.allclose(onednn(), aten(), rtol=2e-2, atol=2e-2 * sizes[1] ** 0.5)
        except RuntimeError:  # this build of oneDNN does not take such a layout
            alike = False
        times = _time(aten, onednn) if alike else (0.0, float("inf"))
    return Pick(*sizes, dtype, *(times or (0.0, float("inf")))), times is not None


def _sample(view: View, dtype: str) -> torch.Tensor:
    """Random values from a generator of its own: the user's stream must not move."""
    empty = torch.empty_strided(view.shape, view.stride, dtype=dtype_of(dtype))
    return empty.normal_(generator=torch.Generator().manual_seed(0))


def _time(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float] | None:
    """Least seconds of each, taken in turns: noise only ever adds time. None where the least
    was not seen again within the budget, as on a busy machine."""
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    for turn in range(MOST_ROUNDS):
        spent = time.perf_counter() - start
        settled = turn >= ROUNDS and all(map(_settled, times))
        if spent > (BUDGET_SECONDS if settled else LONGEST_SECONDS) and turn >= ROUNDS:
            break
        for place, function in enumerate((first, second)):
            before = time.perf_counter()
            function()
            times[place].append(time.perf_counter() - before)
    return (min(times[0]), min(times[1])) if all(map(_settled, times)) else None


def _settled(times: list[float]) -> bool:
    least, next_to_it = sorted(times)[:2]
    return next_to_it <= SEEN_AGAIN * least
