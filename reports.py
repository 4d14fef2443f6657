"""What happened in a compile: one `CompileReport` per graph, for `explain` and the logs.

The backend fills a report while it compiles; `recording()` collects the reports of every
graph that is compiled inside its `with` block.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_numbers = itertools.count()
_listeners: list[list[CompileReport]] = []
_watchers: list[Callable[[StageInput], None]] = []


@dataclass
class CompileReport:
    """One graph: `kind` is "inference", "forward" or "backward" ("capture" for the stages
    before AOTAutograd). `seconds` maps step names to wall time. Graphs of equal `key` had equal
    rules, settings, target and versions (`Session.key`)."""

    kind: str
    graph: int = field(default_factory=lambda: next(_numbers))
    stages: list[Any] = field(default_factory=list)  # engine StageReports, in running order
    fusion: Any = None  # lowering FusionReport
    kernels: list[Any] = field(default_factory=list)
    externs: list[Any] = field(default_factory=list)
    folded: dict[str, Any] = field(default_factory=dict)
    contest: dict[str, Any] = field(default_factory=dict)  # with cost="measured": the times
    seconds: dict[str, float] = field(default_factory=dict)
    fallback: str = ""  # why the graph runs unoptimised; empty where it does not
    source: str = ""
    key: str = ""


@contextlib.contextmanager
def recording() -> Iterator[list[CompileReport]]:
    """Collect the reports of the compiles inside the block, in order."""
    reports: list[CompileReport] = []
    _listeners.append(reports)
    try:
        yield reports
    finally:
        # Not by `remove`: two blocks may have collected equal lists, both empty.
        _listeners[:] = [one for one in _listeners if one is not reports]


@dataclass(frozen=True)
class StageInput:
    """What a stage is about to rewrite: a graph, and all that decides what becomes of it."""

    report: CompileReport
    stage: str
    gm: Any  # torch.fx.GraphModule
    options: Any  # engine StageOptions
    book: Any  # engine RuleBook
    table: Any  # engine OpTable


@contextlib.contextmanager
def watching(watcher: Callable[[StageInput], None]) -> Iterator[None]:
    """Call `watcher` before each stage of the compiles inside the block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def tell_watchers(stage: StageInput) -> None:
    """Show a stage to every open `watching`."""
    for watcher in _watchers:
        watcher(stage)


def open_report(kind: str) -> CompileReport:
    """A fresh report, known to every open `recording`."""
    report = CompileReport(kind)
    for listener in _listeners:
        listener.append(report)
    return report
