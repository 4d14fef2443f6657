"""What torch itself says of a program's outputs, which compilers build upon and its kernels do
not always keep: shapes, dtypes and strides.

Takes a program; gives a `Look` per output, from the metadata functions on the program as it
stands, and from the graph that AOTAutograd traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode

from .outcome import names_of, run_compiled
from .programs import Program


@dataclass(frozen=True)
class Look:
    """How a tensor is laid out."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]


Looks = list[list[Look | None]]  # for each output of each call; None for what is no tensor


def announced(program: Program) -> Looks:
    """What the metadata functions tell; nothing for a call where they do not know."""
    names = names_of(program.source())
    found: Looks = []
    for sizes in program.calls:
        mode = FakeTensorMode()
        inputs = [_fake(mode, value) for value in names["inputs"](*sizes)]
        try:
            with mode, torch.no_grad():
                results = names["f"](*inputs)
        except Exception:
            results = ()
        found.append([_look(value) for value in results])
    return found


def traced(program: Program) -> Looks:
    """What outputs look like where the layouts of the traced graph are kept to, op by op."""
    backend = aot_autograd(fw_compiler=_obedient, keep_inference_input_mutations=True)
    dynamic = True if program.settings.dynamic else None
    compiled = functools.partial(torch.compile, backend=backend, fullgraph=True, dynamic=dynamic)
    return [
        [
            None if not isinstance(seen.value, torch.Tensor) else _seen(seen.value, seen.stride)
            for seen in outcome.outputs
        ]
        for outcome in run_compiled(program, compiled)
    ]


def _obedient(gm: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Runs the graph, and lays its results out as it says."""
    values = [
        item.meta.get("val") if isinstance(item, fx.Node) else None
        for item in next(iter(reversed(gm.graph.nodes))).args[0]
    ]

    def run(*inputs: Any) -> list[Any]:
        return [laid_out(*pair) for pair in zip(gm(*inputs), values, strict=True)]

    return make_boxed_func(run)  # type: ignore[no-any-return]


def laid_out(result: Any, value: Any) -> Any:
    """`result` with the strides of the fake `value`, where these are plain numbers."""
    if not isinstance(result, torch.Tensor) or not isinstance(value, torch.Tensor):
        return result
    stride = value.stride()
    known = all(isinstance(number, int) for number in (*value.shape, *stride))
    if not known or value.shape != result.shape or stride == result.stride() or 0 in stride:
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype).copy_(result)


def _look(value: Any) -> Look | None:
    return _seen(value, value.stride()) if isinstance(value, torch.Tensor) else None


def _seen(value: torch.Tensor, stride: tuple[int, ...]) -> Look:
    return Look(tuple(value.shape), value.dtype, tuple(stride))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    return mode.from_tensor(value.detach()) if isinstance(value, torch.Tensor) else value
