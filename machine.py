"""The target of the machine that eqsat runs on.

Takes a device type; gives the `Target` that `eqsat calibrate` wrote for this machine, or the
built-in one that is nearest. The file lies in the cache folder, one per processor and number of
threads; a file that cannot be read costs one warning with the place, never the compile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from . import notices
from .codegen.build import processor
from .codegen.cache import cache_dir, digest
from .engine.source import RuleErrors
from .engine.target import Target, load_target, read_target

# Built-in targets of GPUs, by a part of the name that the driver gives; any other is generic.
GPUS = {"H200": "h200"}


def calibration_path(device: str) -> Path:
    """Where the calibration of this machine lies, whether there is one or not."""
    if device == "cuda":
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    else:
        name = f"{processor()} {torch.get_num_threads()}"
    return cache_dir() / "targets" / f"{device}-{digest(name)[:12]}.yaml"


def machine_target(device: str, warn: Callable[[str], None]) -> Target:
    """What to expect of a device of this machine: what was measured, else a built-in target."""
    return calibrated_target(device, warn) or load_target(builtin_name(device))


def builtin_name(device: str) -> str:
    """The built-in target for a device type of this machine."""
    if device == "cuda" and torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        return next((target for part, target in GPUS.items() if part in name), device)
    return device


def calibrated_target(device: str, warn: Callable[[str], None]) -> Target | None:
    """What was measured on this machine; None, after a warning where there is a file, if it
    cannot be used."""
    path = calibration_path(device)
    problem, target = "", None
    if path.exists():
        try:
            target = read_target(path)
        except RuleErrors as errors:
            problem = str(errors)
        else:
            if target.device != device:
                problem = f"{path}: this is a target for '{target.device}', not for '{device}'"
                target = None
    if problem:
        problem = (
            f"the calibration of this machine is not used:\n{problem}\n"
            "Run `eqsat calibrate` again, or `eqsat calibrate --remove`."
        )
    notices.tell(("calibration", str(path)), problem, warn)
    return target
