"""`eqsat rules fired`: how often each rule is of use in a list of programs.

Takes programs (`SCRIPT.py`, `module:function`, or names of `benchmarks/models.py` in a
checkout); compiles them and gives per rule how often its left side was found, how often it
fired, and how much of that is in the code that runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .config import config
from .engine.rule import RuleBook
from .engine.source import RuleErrors
from .programs import ProgramError, run_program
from .reports import CompileReport, recording
from .session import open_session
from .terminal import complain, print_json, print_plain

_NO_MODELS = "there are no models to run by themselves here"
_MODELS = Path(__file__).resolve().parent / "benchmarks" / "models.py"


@dataclass
class Use:
    """Of one rule over all programs: places where its left side was found (`matched`), where
    it fired, and firings that are in the result; `programs` are those where it fired."""

    rule: str
    where: str
    matched: int = 0
    fired: int = 0
    kept: int = 0
    programs: list[str] = field(default_factory=list)


def count_firings(programs: Sequence[str], *, never: bool, json_output: bool) -> int:
    """Run the programs and print what each rule did. `never` prints only the rules that fired
    nowhere. Gives 0, 1 where a program failed, 2 where there is none."""
    names = programs or tuple(_models())
    if not names:
        return complain("rules", f"{_NO_MODELS}; name programs: SCRIPT.py or module:function")
    try:
        book = open_session(config.snapshot(), _warn).book
        uses, ran = count_uses(names)
    except RuleErrors as errors:
        print_plain(Console(), str(errors))
        return 1
    _print(book, uses, ran, never, json_output)
    return 0 if ran == tuple(names) else 1


def count_uses(programs: Sequence[str]) -> tuple[list[Use], tuple[str, ...]]:
    """Runs programs (all models, where none is named) with the settings there are. Gives what
    each rule did, and the programs that did not fail. Raises RuleErrors."""
    models = _models() if not programs or any(_is_name(name) for name in programs) else {}
    names = list(programs) or list(models)
    book = open_session(config.snapshot(), _warn).book
    uses = {r.name: Use(r.name, r.where) for r in book.rules if r.stage != "trace"}
    ran: list[str] = []
    for place, name in enumerate(names, 1):
        _warn(f"{place} of {len(names)}: {name}")
        try:
            add_reports(uses, name, _record(name, models))
            ran.append(name)
        except ProgramError as error:
            complain("rules", error)
    return list(uses.values()), tuple(ran)


def add_reports(uses: Mapping[str, Use], program: str, reports: Sequence[CompileReport]) -> None:
    """Counts what the stages of a program's compiles say."""
    for report in reports:
        for stage in report.stages:
            for name, count in stage.missed.items():
                if name in uses:
                    uses[name].matched += count
            for fired in stage.firings:
                use = uses.get(fired.rule)
                if use is None:
                    continue
                use.matched += fired.count
                use.fired += fired.count
                use.kept += fired.kept
                if program not in use.programs:
                    use.programs.append(program)


def _is_name(program: str) -> bool:
    return not program.endswith(".py") and ":" not in program


def _models() -> Mapping[str, Any]:
    """The project's own list of models; empty where eqsat is installed without it."""
    if not _MODELS.is_file():
        return {}
    sys.path.insert(0, str(_MODELS.parent.parent))
    try:
        module = importlib.import_module("benchmarks.models")
    except ImportError as error:  # transformers is an extra
        _warn(f"the models of {_MODELS.parent.name}/ cannot be loaded: {error}")
        return {}
    models: Mapping[str, Any] = module.MODELS
    return models


def _record(name: str, models: Mapping[str, Any]) -> list[CompileReport]:
    """The reports of one program or model. Raises ProgramError."""
    torch._dynamo.reset()
    with recording() as reports:
        if name not in models:
            run_program(name)
            return reports
        try:
            torch.manual_seed(0)
            model, inputs = models[name]()
            with torch.no_grad():
                compiled: Any = torch.compile(model.eval(), backend="eqsat")
                compiled(**inputs)
        except Exception as error:
            raise ProgramError(f"{name} failed: {type(error).__name__}: {error}") from error
    return reports


def _print(
    book: RuleBook, uses: list[Use], programs: Sequence[str], never: bool, json_output: bool
) -> None:
    idle = [use for use in uses if not use.fired]
    busy = sorted(
        (use for use in uses if use.fired), key=lambda use: (-use.kept, -use.fired, use.rule)
    )
    if json_output:
        fired = [] if never else [asdict(use) for use in busy]
        silent = [asdict(use) for use in idle]
        print_json({"programs": list(programs), "fired": fired, "never_fired": silent})
        return
    console = Console()
    if not never:
        table = Table("rule", "matched", "fired", "kept", "programs", box=None, pad_edge=False)
        for use in busy:
            counts = map(str, (use.matched, use.fired, use.kept))
            table.add_row(use.rule, *counts, ", ".join(use.programs))
        console.print(table)
    print_plain(console, f"never fired in {', '.join(programs)}: {len(idle)} of {len(uses)} rules")
    for use in idle:
        near = f", matched {use.matched} times but for a condition" if use.matched else ""
        print_plain(console, f"  {use.rule} ({use.where}){near}")
    traced = sum(rule.stage == "trace" for rule in book.rules)
    print_plain(console, f"{traced} trace rules are applied by AOTAutograd and not counted")


def _warn(text: str) -> None:
    print_plain(Console(stderr=True), text)
