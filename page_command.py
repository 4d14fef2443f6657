"""`eqsat explain PROGRAM --html FILE`: the whole story as one page for a browser.

Takes a program; compiles it while every stage is looked at once more from inside; writes a
self-contained page: graphs before and after, the forms of every e-class with their costs, the
rules behind every node, kernels with their code, and what was not fused and why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch
from markupsafe import Markup
from rich.console import Console

from .engine.snapshot import Snapshot, take_snapshot
from .explanation import report_json
from .programs import ProgramError, run_program
from .reports import CompileReport, StageInput, recording, watching
from .terminal import complain, print_plain


@dataclass
class _Camera:
    """Takes a snapshot of every stage, by the number of its graph."""

    taken: dict[int, list[Snapshot]] = field(default_factory=dict)

    def __call__(self, seen: StageInput) -> None:
        shot = take_snapshot(seen.gm, seen.stage, seen.book, seen.table, seen.options)
        self.taken.setdefault(seen.report.graph, []).append(shot)


def write_page(program: str, path: str) -> int:
    """Run the program and write the page to `path`.

    Gives the exit status: 0, 1 where no graph was compiled, 2 where the program does not exist
    or the file cannot be written.
    """
    camera = _Camera()
    torch._dynamo.reset()
    try:
        with recording() as reports, watching(camera):
            run_program(program)
    except ProgramError as error:
        return complain("explain", error)
    if not reports:
        print_plain(Console(stderr=True), f'{program} compiled nothing with backend="eqsat"')
        return 1
    try:
        Path(path).write_text(page(program, reports, camera.taken), encoding="utf-8")
    except OSError as error:
        return complain("explain", f"{path} cannot be written: {error.strerror}")
    print_plain(Console(), f"written to {path}")
    return 0


def page(program: str, reports: Sequence[CompileReport], shots: dict[int, list[Snapshot]]) -> str:
    """The text of the page."""
    data = [
        {**report_json(report, code=True), "snapshots": _plain(shots.get(report.graph, []))}
        for report in reports
    ]
    # In a script element only `<` could end the data.
    text = json.dumps(data, default=str).replace("<", "\\u003c")
    template = jinja2.Environment(autoescape=True).from_string(
        files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(program=program, data=Markup(text))


def _plain(shots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    return [shot.as_json() for shot in shots]
