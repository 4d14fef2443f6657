"""The target of the machine that eqsat runs on.

Takes a device type; gives the `Target` that `eqsat calibrate` wrote for this machine, or the
built-in one. The file lies in the cache folder, one per processor and number of threads; a file
that cannot be read costs one warning with the place, never the compile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from . import notices
from .codegen.build import processor
from .codegen.cache import cache_dir, digest
from .engine.source import RuleErrors
from .engine.target import Target, read_target


def calibration_path(device: str) -> Path:
    """Where the calibration of this machine lies, whether there is one or not."""
    if device == "cuda":
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    else:
        name = f"{processor()} {torch.get_num_threads()}"
    return cache_dir() / "targets" / f"{device}-{digest(name)[:12]}.yaml"


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
