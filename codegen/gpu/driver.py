"""Machine code on a GPU, through the CUDA driver.

Takes `Binary`s; gives addresses: of the kernels, of the driver functions that launch them, and of
the context that they live in. A module that is loaded stays for the life of the process.
"""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache
from typing import Any

import torch

from .build import Binary, Target

LAUNCH = "cuLaunchKernel"
PUSH, POP = "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"
_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PLENTY = 48 << 10  # bytes of shared memory that need no asking for

_LOADED: dict[tuple[int, bytes], int] = {}
_LOCK = threading.Lock()


class DriverError(RuntimeError):
    """A call of the driver failed."""


def target_of(device: int) -> Target:
    """What to compile for on CUDA device number `device`."""
    major, minor = torch.cuda.get_device_capability(device)
    return Target("cuda", major * 10 + minor)


def context_of(device: int) -> int:
    """The context that torch uses on a device."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(handle), device)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    return context.value or 0


def address(symbol: str) -> int:
    """Where a function of the driver is; 0 where there is no driver."""
    library = _library()
    function = getattr(library, symbol, None) if library is not None else None
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def load(binary: Binary, device: int) -> int:
    """The address of a kernel on a device. Raises DriverError."""
    key = (device, binary.code)
    with _LOCK:
        if key not in _LOADED:
            _LOADED[key] = _load(binary, device)
        return _LOADED[key]


def _load(binary: Binary, device: int) -> int:
    module, function, popped = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    _call(PUSH, ctypes.c_void_p(context_of(device)))
    try:
        _call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(binary.code))
        name = ctypes.c_char_p(binary.name.encode())
        _call("cuModuleGetFunction", ctypes.byref(function), module, name)
        if binary.shared > _PLENTY:
            _call("cuFuncSetAttribute", function, _SHARED, binary.shared)
    finally:
        _call(POP, ctypes.byref(popped))
    return function.value or 0


def _call(symbol: str, *arguments: Any) -> None:
    library = _library()
    if library is None:
        raise DriverError("there is no CUDA driver")
    code = getattr(library, symbol)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{symbol}: {(text.value or b'unknown error').decode()} ({code})")


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    library.cuInit(0)
    return library
