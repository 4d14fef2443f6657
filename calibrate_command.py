"""`eqsat calibrate`: the numbers of the cost model, measured on this machine.

Takes where to write; prints what was measured beside what compiles use now; gives an exit status.
Later compiles use the file until `eqsat calibrate --remove`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .calibration import calibrate, target_text
from .codegen.cache import write_atomic
from .engine.target import Target, load_target
from .machine import builtin_name, calibrated_target, calibration_path
from .terminal import complain, print_plain


def calibrate_machine(device: str, file: str | None, *, remove: bool = False) -> int:
    """Measure `device` ("cpu" or "cuda") and write a target file: `file`, or that which later
    compiles use. `remove` deletes the latter instead."""
    console = Console()
    path = calibration_path(device)
    if remove:
        there = path.exists()
        path.unlink(missing_ok=True)
        print_plain(console, f"removed {path}" if there else f"there is no {path}")
        return 0
    used = calibrated_target(device, lambda text: print(text, file=sys.stderr))
    built_in = load_target(builtin_name(device))
    name = path if used is not None else f"rules/targets/{built_in.name}.yaml"
    try:
        found = calibrate(device)
    except RuntimeError as error:
        return complain("calibrate", error)
    console.print(_table(used or built_in, found))
    print_plain(console, f"now: {name}")
    chosen = path if file is None else Path(file)
    text = target_text(found, f"Measured by `eqsat calibrate` on this machine ({device}).")
    try:
        write_atomic(chosen, text.encode())
    except OSError as error:
        return complain("calibrate", f"cannot write {chosen}: {error.strerror}")
    print_plain(console, f"written: {chosen}")
    if file is None:
        print_plain(console, "Compiles from now on use it; `eqsat calibrate --remove` undoes this.")
    return 0


def _table(used: Target, found: Target) -> Table:
    table = Table("number", "now", "measured", box=None, pad_edge=False)
    left, right = _numbers(used), _numbers(found)
    for name, value in right.items():
        now = f"{left[name]:.3g}" if name in left else ""
        table.add_row(name, now, f"{value:.3g}")
    return table


def _numbers(target: Target) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for field in fields(Target):
        value = getattr(target, field.name)
        if isinstance(value, Mapping):
            numbers |= {f"{field.name} {dtype}": rate for dtype, rate in value.items()}
        elif isinstance(value, int | float):
            numbers[field.name] = value
    return numbers
