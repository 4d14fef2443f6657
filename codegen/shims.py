"""The part of torch's C interface (AOTI shim) that generated code may call.

Takes nothing; gives, per ATen op, the C function that runs it and the C types it was
compiled with, and the address of each function in the torch that is running. A function
whose schema or symbol is not there is simply not used: the op then runs through Python.
Ops that can fail on the values in their operands (index, embedding, ...) are left out on
purpose, as the shim prints to stderr before it reports an error.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .gpu import driver

# One letter per parameter: what the C function expects there.
#   T tensor   t optional tensor   I int list   J optional int list
#   i int   j optional int   b bool   B bool list   d double   e optional double
#   s string   r optional string   S list of optional numbers (only the empty one is used)
CODES: Mapping[str, str] = {
    "Tensor": "T",
    "Optional[Tensor]": "t",
    "List[int]": "I",
    "Optional[List[int]]": "J",
    "int": "i",
    "Optional[int]": "j",
    "bool": "b",
    "List[bool]": "B",
    "float": "d",
    "number": "d",
    "Optional[float]": "e",
    "str": "s",
    "Optional[str]": "r",
    "List[Optional[number]]": "S",
}


@dataclass(frozen=True)
class Shim:
    """`codes` follows the op's schema. With `out` the results are written into tensors passed
    first; otherwise the function gives new tensors through trailing pointers."""

    symbol: str
    codes: str
    out: bool = False


# Without "aoti_torch_cpu_" or "aoti_torch_cuda_".
SHIMS: Mapping[str, Shim] = {
    "aten::mm": Shim("mm_out", "TT", out=True),
    "aten::bmm": Shim("bmm_out", "TT", out=True),
    "aten::addmm": Shim("addmm_out", "TTTdd", out=True),
    "aten::baddbmm": Shim("baddbmm_out", "TTTdd", out=True),
    "aten::convolution": Shim("convolution", "TTtIIIbIi"),
    "aten::convolution_backward": Shim("convolution_backward", "TTTJIIIbIiB"),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Shim(
        "_scaled_dot_product_flash_attention_for_cpu", "TTTdbte"
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Shim(
        "_scaled_dot_product_flash_attention_for_cpu_backward", "TTTTTTdbte"
    ),
    "aten::max_pool2d_with_indices": Shim("max_pool2d_with_indices", "TIIIIb"),
    "aten::max_pool2d_with_indices_backward": Shim("max_pool2d_with_indices_backward", "TTIIIIbT"),
    "aten::avg_pool2d": Shim("avg_pool2d", "TIIIbbj"),
    "aten::avg_pool2d_backward": Shim("avg_pool2d_backward", "TTIIIbbj"),
    "aten::_adaptive_avg_pool2d": Shim("_adaptive_avg_pool2d", "TI"),
    "aten::sort": Shim("sort", "Tib"),
    "aten::topk": Shim("topk", "Tiibb"),
    "aten::_scaled_dot_product_flash_attention": Shim(
        "_scaled_dot_product_flash_attention", "TTTdbbe"
    ),
    "aten::_scaled_dot_product_efficient_attention": Shim(
        "_scaled_dot_product_efficient_attention", "TTTtbdbe"
    ),
    "aten::_scaled_dot_product_cudnn_attention": Shim(
        "_scaled_dot_product_cudnn_attention", "TTTtbdbbe"
    ),
    "mkldnn::_linear_pointwise": Shim("_linear_pointwise", "TTtsSr"),
}

# In the order of the enum in entry_runtime.h; shims of a graph's own ops follow.
BASE = (
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_empty_strided",
    "aoti_torch_copy_",
)
# Needed by launch.c besides some of BASE.
LAUNCH = (
    "aoti_torch_get_data_ptr",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_grad_mode_is_enabled",
    "aoti_torch_grad_mode_set_enabled",
)
_DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}


def shim_for(target: Any, kind: str = "cpu") -> Shim | None:
    """The shim that runs `target`, an OpOverload, on a device of this kind, if this torch has it
    with these types."""
    if not isinstance(target, torch._ops.OpOverload) or target._overloadname != "default":
        return None
    found = SHIMS.get(target._schema.name)
    if found is None or not ready():
        return None
    shim = replace(found, symbol=f"aoti_torch_{kind}_{found.symbol}")
    codes = "".join(CODES.get(str(a.type), "?") for a in target._schema.arguments)
    return shim if codes == shim.codes and address(shim.symbol) else None


@lru_cache(maxsize=1)
def ready() -> bool:
    """Whether entries can make tensors at all. Device 0 must be the CPU (entry_runtime.h)."""
    if not all(map(address, BASE)) or not address("aoti_torch_device_type_cpu"):
        return False
    return bool(_library("torch_cpu").aoti_torch_device_type_cpu() == 0)


@lru_cache(maxsize=256)
def address(symbol: str) -> int:
    """Where `symbol` is in memory; 0 if neither this torch nor the CUDA driver exports it."""
    for name in ("torch_cpu", "torch_cuda"):
        function = getattr(_library(name), symbol, None) if _library(name) is not None else None
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return driver.address(symbol) if symbol.startswith("cu") else 0


@lru_cache(maxsize=64)
def dtype_code(dtype: torch.dtype) -> int:
    """The shim's number for `dtype`; -1 if it has none (such tensors go through Python)."""
    name = _DTYPE_NAMES.get(dtype)
    function = address(f"aoti_torch_dtype_{name}") if name and ready() else 0
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(function)()) if function else -1


@lru_cache(maxsize=2)
def _library(name: str) -> Any:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = Path(torch.__file__).parent / "lib" / f"lib{name}.{suffix}"
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None
