"""Triton kernels on CPU tensors, through Triton's interpreter.

The interpreter lacks the functions of libdevice, and cuts float32 off where bfloat16 is asked for
rather than rounding it; torch stands in for both.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

if os.environ.get("TRITON_INTERPRET") != "1":  # as tests/conftest.py has it
    pytest.skip("kernels run on the GPU itself here", allow_module_level=True)

triton = pytest.importorskip("triton")

import numpy as np  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from eqsat.codegen.gpu.emit import HEADER, TritonText  # noqa: E402

_COUNT = itertools.count()


def _stand_in(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def call(*args: Any, **_: Any) -> Any:
        arrays = [torch.from_numpy(np.ascontiguousarray(arg.handle.data)) for arg in args]
        result = function(*torch.broadcast_tensors(*arrays)).numpy()
        whole = max(args, key=lambda arg: arg.handle.data.size)
        word = tl.int1 if result.dtype == np.bool_ else whole.dtype.scalar
        type_ = tl.block_type(word, whole.shape) if whole.type.is_block() else word
        return tl.core.tensor(interpreter.TensorHandle(result, word), type_)

    return call


_NAMES = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh"),
    *("acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "hypot", "copysign", "nextafter"),
    *("fmod", "trunc", "floor", "ceil", "isnan", "isinf", "signbit"),
)
FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _NAMES},
    "nearbyint": torch.round,
    "rint": torch.round,
}
for _name, _function in FUNCTIONS.items():
    setattr(libdevice, _name, _stand_in(_function))

_cast = interpreter.InterpreterBuilder.cast_impl


def _rounding_cast(self: Any, source: Any, type_: Any) -> Any:
    if source.dtype.scalar != tl.float32 or type_.scalar != tl.bfloat16:
        return _cast(self, source, type_)
    halves = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
    return interpreter.TensorHandle(halves.view(torch.uint16).numpy(), tl.bfloat16)


interpreter.InterpreterBuilder.cast_impl = _rounding_cast


def load(text: TritonText, folder: Path) -> Any:
    """The function of `text`, as a module of its own."""
    name = f"triton_kernel_{next(_COUNT)}"
    path = folder / f"{name}.py"
    path.write_text(HEADER + text.text.replace("@NAME@", "kernel"))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.kernel


def call(
    kernel: Any,
    text: TritonText,
    tensors: Mapping[str, torch.Tensor],
    symbols: Mapping[str, int] | None = None,
) -> None:
    """Runs a kernel on the memory of `tensors`."""
    sizes = symbols or {}
    programs = 1
    for size, block in text.grid:
        number = size if isinstance(size, int) else _value(size, sizes)
        programs *= -(-number // block)
    if programs:
        buffers = [tensors[name] for name in text.args]
        kernel[(programs,)](*buffers, *(sizes[name] for name in text.symbols))


def _value(size: sympy.Expr, sizes: Mapping[str, int]) -> int:
    return int(size.subs({symbol: sizes[symbol.name] for symbol in size.free_symbols}))
