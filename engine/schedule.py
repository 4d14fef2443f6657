"""The order in which rule sets run, read from `rules/schedule.yaml`.

Takes the YAML file; gives a `Schedule`: for every stage its phases in order (folders of rules,
iterations, budgets), and for every folder the stage its rules belong to unless they say
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parent.parent / "rules"
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

    Raises ValueError naming the file and the entry where something does not fit.
    """
    return _load(path or RULES / "schedule.yaml")


@lru_cache(maxsize=8)
def _load(path: Path) -> Schedule:
    data = yaml.safe_load(path.read_text())
    folders = {str(key): str(value) for key, value in data["folders"].items()}
    for folder, stage in folders.items():
        if stage not in STAGES:
            raise ValueError(f"{path}: folder {folder!r} names an unknown stage {stage!r}")
    stages = {}
    for stage, entries in data["stages"].items():
        if stage not in STAGES:
            raise ValueError(f"{path}: unknown stage {stage!r}")
        stages[stage] = tuple(_phase(path, entry) for entry in entries)
    return Schedule(folders, stages, str(data.get("default", "post_grad")))


def _phase(path: Path, entry: Mapping[str, Any]) -> Phase:
    known = {"phase", "folders", "iterations", "matches", "growth", "least", "others"}
    unknown = sorted(set(entry) - known)
    if unknown or "phase" not in entry:
        problem = f"unknown fields {unknown}" if unknown else "no name"
        raise ValueError(f"{path}: phase {entry.get('phase', '?')!r}: {problem}")
    fields = {key: value for key, value in entry.items() if key not in ("phase", "folders")}
    return Phase(str(entry["phase"]), tuple(map(str, entry.get("folders", ()))), **fields)
