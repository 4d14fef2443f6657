"""Runs a compiled graph's C entry: through the extension in launch.c, or through ctypes.

Takes an `Instance` and the list of graph inputs; gives the list of outputs. The extension
is compiled once and cached; where that is not possible the ctypes path does the same, a few
microseconds slower per call.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import logging
import sysconfig
from array import array
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .build import BuildError, CompilerMissing, build_extension
from .instance import (
    MADE_OUTPUT,
    STATIC_OUTPUT,
    Instance,
    address_of,
    delete_handle,
)
from .shims import LAUNCH, address, ready

log = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_name("launch.c")
_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"  # THPVariable_Wrap(const at::TensorBase &)
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class NativeRunner:
    """Calls entries through the C extension."""

    def __init__(self, extension: Any) -> None:
        self.run = extension.run
        self._launch = extension.Launch

    def prepare(self, instance: Instance) -> Any:
        """What `run(prepared, instance, inputs)` takes first."""
        codes, values = instance.output_codes()
        return self._launch(
            ctypes.addressof(instance.context),
            instance.blueprint.entry,
            instance.tensors,
            array("q", instance.blueprint.inputs).tobytes(),
            array("q", codes).tobytes(),
            values,
            array("q", instance.passing()).tobytes(),
        )


class CtypesRunner:
    """Calls entries through ctypes; the same as NativeRunner, in Python."""

    def prepare(self, instance: Instance) -> Any:
        return _Prepared(instance)

    def run(self, prepared: Any, instance: Instance, inputs: list[Any]) -> list[Any]:
        """Run the graph on `inputs`, which is emptied."""
        result: list[Any] = prepared.run(instance, inputs)
        return result


class _Prepared:
    def __init__(self, instance: Instance) -> None:
        self._entry = _ENTRY(instance.blueprint.entry)
        self._fresh = () if ready() else instance.fresh()
        self._codes, self._values = instance.output_codes()
        self._passing = instance.passing()
        self._instance: Instance | None = None
        self._error: BaseException | None = None
        self._callback = _CALLBACK(self._step)
        instance.context.python = ctypes.cast(self._callback, ctypes.c_void_p)

    def run(self, instance: Instance, inputs: list[Any]) -> list[Any]:
        self._instance = instance
        try:
            with torch.no_grad():
                self._place(instance, inputs)
                failed = self._entry(ctypes.addressof(instance.context))
                if failed < 0 and self._error is None:
                    raise RuntimeError(f"eqsat: a kernel could not be launched (CUDA {-failed})")
                if failed:
                    raise self._error or MemoryError()
                return [self._output(instance, i) for i in range(len(self._codes))]
        finally:
            self._instance = self._error = None
            for slot in self._passing:
                instance.tensors[slot] = None
                handle = instance.owned[slot]
                instance.owned[slot] = None
                if handle:
                    delete_handle(handle)

    def _place(self, instance: Instance, inputs: list[Any]) -> None:
        slots = instance.blueprint.inputs
        if type(inputs) is not list or len(inputs) != len(slots):
            raise TypeError(f"eqsat: expected one list of {len(slots)} graph inputs")
        fresh = [
            (slot, torch.empty_strided(shape, stride, dtype=dtype, device=device))
            for slot, (shape, stride, dtype, device) in self._fresh
        ]
        for slot, value in [*zip(slots, inputs, strict=True), *fresh]:
            if slot < 0 or value is None:  # a number, or an effect token
                continue
            if not isinstance(value, torch.Tensor):
                kind = type(value).__name__
                raise TypeError(f"eqsat: expected a tensor as graph input, got {kind}")
            instance.tensors[slot] = value
            instance.pointers[slot] = address_of(value)
        inputs.clear()

    def _step(self, context: int, number: int) -> int:
        try:
            assert self._instance is not None
            self._instance.run_step(number)
        except BaseException as error:
            self._error = error
            return 1
        return 0

    def _output(self, instance: Instance, position: int) -> Any:
        code = self._codes[position]
        if code == STATIC_OUTPUT:
            return self._values[position]
        if code == MADE_OUTPUT:
            return instance.make_output(position)
        return instance.base(code)


Runner = NativeRunner | CtypesRunner


@lru_cache(maxsize=1)
def find_runner() -> Runner:
    """The extension where it can be built, else ctypes."""
    extension = _load_extension()
    return CtypesRunner() if extension is None else NativeRunner(extension)


def _load_extension() -> Any:
    include = Path(sysconfig.get_path("include"))
    stealing = getattr(torch._C._aoti, "alloc_tensors_by_stealing_from_void_ptrs", None)
    if not (include / "Python.h").exists() or not all(map(address, LAUNCH)) or stealing is None:
        log.debug("no Python.h or no AOTI shim: calls go through ctypes")
        return None
    try:
        library = build_extension(_SOURCE, ["-O2", "-fPIC", f"-I{include}"])
        loader = importlib.machinery.ExtensionFileLoader("eqsat_launch", str(library))
        spec = importlib.util.spec_from_loader("eqsat_launch", loader)
        assert spec is not None
        extension = importlib.util.module_from_spec(spec)
        loader.exec_module(extension)
    except (BuildError, CompilerMissing, OSError, ImportError) as error:
        log.debug("launch.c cannot be used, calls go through ctypes: %s", error)
        return None
    base = torch._C.TensorBase
    addresses = map(address, LAUNCH)
    extension.configure(base, stealing, _handle_offset(), _wrap_address(), *addresses)
    return extension


def _handle_offset() -> int:
    """Where a Python tensor object holds its at::Tensor; -1 if that is not certain.

    A handle is a copy of the at::Tensor, so both hold the same address of the tensor's
    implementation: look for it in the object, in tensors of several kinds.
    """
    capsule_of = getattr(torch._C._aoti, "unsafe_alloc_void_ptr_from_tensor", None)
    if capsule_of is None or not ready():
        return -1
    samples = [
        torch.empty(3),
        torch.empty(4, 4)[1:],
        torch.nn.Parameter(torch.empty(2)),
        torch.empty(2, dtype=torch.int64),
    ]
    places = {_place_of_handle(sample, capsule_of(sample)) for sample in samples}
    return places.pop() if len(places) == 1 else -1


def _wrap_address() -> int:
    """torch's own function from an at::Tensor to its Python object; 0 if it is not exported
    or does not do what is expected of it."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_python.so"
    try:
        function = getattr(ctypes.CDLL(str(path)), _WRAP)
    except (OSError, AttributeError):
        return 0
    sample = torch.empty(3)
    handle = _handle_of(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(sample))
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    found = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address)(handle)
    delete_handle(handle)
    return address if found is sample else 0


def _handle_of(capsule: Any) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handle: int = pointer(capsule, None)
    return handle


def _place_of_handle(tensor: torch.Tensor, capsule: Any) -> int:
    handle = _handle_of(capsule)
    wanted = ctypes.c_void_p.from_address(handle).value
    delete_handle(handle)
    word = ctypes.sizeof(ctypes.c_void_p)
    words = range(0, type(tensor).__basicsize__ - word + 1, word)
    places = [at for at in words if ctypes.c_void_p.from_address(id(tensor) + at).value == wanted]
    return places[0] if len(places) == 1 else -1
