"""The order in which rule sets run, read from `rules/schedule.yaml`.

Takes the YAML file; gives a `Schedule`: for every stage its phases in order (folders of rules,
iterations, budgets), and for every folder the stage its rules belong to unless they say
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

from .expr import Span
from .files import RULES
from .settings import Settings, read_settings
from .source import suggestion

STAGES = ("pre_grad", "trace", "joint", "post_grad")


@dataclass(frozen=True)
class Phase:
    """One step of a stage: the rules of `folders` run together until nothing changes.

    `iterations` bounds the rounds; `matches` the matches that one rule may use per round;
    `growth` the nodes that may be added, as a multiple of the graph's own (at least
    `least` nodes). `others` marks the phase that takes folders named nowhere.
    """

    name: str
    folders: tuple[str, ...]
    iterations: int = 6
    matches: int = 2000
    growth: float = 4.0
    least: int = 400
    others: bool = False


_PHASE = ("phase", *(field.name for field in fields(Phase) if field.name != "name"))


@dataclass(frozen=True)
class Schedule:
    folders: Mapping[str, str]
    stages: Mapping[str, tuple[Phase, ...]]
    default: str = "post_grad"

    def stage_of(self, folder: str) -> str:
        """The stage of a folder's rules; folders that the schedule does not name have
        `default`."""
        return self.folders.get(folder, self.default)

    def phases(self, stage: str) -> tuple[Phase, ...]:
        """The phases of a stage in order; a stage without an entry has none."""
        return self.stages.get(stage, ())


def load_schedule(path: Path | None = None) -> Schedule:
    """Reads a schedule; without `path` the built-in one.

    Raises RuleErrors with every mistake and its place.
    """
    return _load(path or RULES / "schedule.yaml")


@lru_cache(maxsize=8)
def _load(path: Path) -> Schedule:
    settings = read_settings(path)
    settings.only(("folders", "stages", "default"), "a schedule")
    settings.need(("folders", "stages"), "a schedule")
    folders = settings.map("folders")
    for name in folders.values:
        _check_stage(folders, folders.places[name], folders.text(name))
    default = settings.text("default", "post_grad")
    if "default" in settings.values:
        _check_stage(settings, settings.values["default"].span, default)
    stages = settings.map("stages")
    phases: dict[str, tuple[Phase, ...]] = {}
    for stage in stages.values:
        _check_stage(stages, stages.places[stage], stage)
        phases[stage] = tuple(_phase(entry) for entry in stages.maps(stage))
    settings.finish()
    return Schedule({name: folders.text(name) for name in folders.values}, phases, default)


def _check_stage(settings: Settings, span: Span, stage: str) -> None:
    if stage not in STAGES:
        hint = suggestion(stage, STAGES) or f"one of: {', '.join(STAGES)}"
        settings.error(span, "E114", f"'{stage}' is not a stage", hint)


def _phase(entry: Settings) -> Phase:
    entry.only(_PHASE, "a phase")
    entry.need(("phase",), "this phase")
    return Phase(
        entry.text("phase"),
        tuple(folder.text for folder in entry.words("folders")),
        int(entry.number("iterations", Phase.iterations, whole=True)),
        int(entry.number("matches", Phase.matches, whole=True)),
        entry.number("growth", Phase.growth),
        int(entry.number("least", Phase.least, whole=True)),
        entry.flag("others"),
    )
