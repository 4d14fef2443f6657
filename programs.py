"""Programs that a command line names, and running them.

Takes `SCRIPT.py` or `module:function`; runs the script, or compiles and calls the function
with `backend="eqsat"`.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class ProgramError(Exception):
    """A program that does not exist or fails; the text says which and why."""


def run_program(program: str) -> None:
    """Run it. Raises ProgramError where there is no such program, or it fails."""
    try:
        _find(program)()
    except ProgramError:
        raise
    except SystemExit as stop:  # a script that ends itself
        if stop.code not in (None, 0):
            raise ProgramError(f"{program} ended with status {stop.code}") from stop
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{program} failed: {type(error).__name__}: {error}"
        raise ProgramError(f"{text} ({place.filename}:{place.lineno})") from error


def _find(program: str) -> Callable[[], Any]:
    if program.endswith(".py"):
        path = Path(program)
        if not path.is_file():
            raise ProgramError(f"no such file: {program}")
        sys.path.insert(0, str(path.resolve().parent))
        return lambda: runpy.run_path(program, run_name="__main__")
    module_name, separator, function_name = program.partition(":")
    if not separator:
        raise ProgramError(f"expected SCRIPT.py or module:function, got {program!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ProgramError(f"cannot load {program}: {error}") from error
    compiled: Callable[[], Any] = torch.compile(function, backend="eqsat")
    return compiled
