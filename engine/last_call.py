"""Keeps the last call of torch in a file, as a program, so that it outlives the process.

Takes an open file; while the mode is on, every ATen call is written to it before it runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .program import input_text


class LastCall(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode; the file then holds a program of the latest call alone."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._descriptor = file.fileno()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            text = call_text(func, args, kwargs)
        except (RuntimeError, NotImplementedError):  # a tensor without values
            text = ""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)
        return func(*args, **kwargs)


def read_text(file: IO[bytes]) -> str:
    """All that a file holds, wherever it was read or written last."""
    length = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), length, 0).decode(errors="replace")


def call_text(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """One call of an op, with its tensors, as a program. Raises RuntimeError for tensors that
    have no values."""
    given = [_text(arg) for arg in args]
    given += [f"{name}={_text(value)}" for name, value in kwargs.items()]
    inner = ",\n    ".join(given)
    head = "import torch\nfrom torch import inf, nan"
    return f"{head}\ntorch.ops.{func}(\n    {inner},\n)"


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return input_text(value, None)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value.type) if isinstance(value, torch.device) else repr(value)
