"""`eqsat explain --diff`, `--against`, `--disable`: what differs between two runs.

Takes what `eqsat explain --json` prints, twice; gives the rules that fired, costs, kernels,
extern calls and fusion that differ, graph by graph in order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .config import OptionError, config
from .explanation import Explanation, record_program
from .programs import ProgramError
from .terminal import complain, print_json, print_plain

Graphs = Sequence[Mapping[str, Any]]
_LISTS = ("disable", "enable", "rules")


@dataclass(frozen=True)
class Change:
    """One thing that differs: in `graph` (counted from 0, in order of compiling), at `place`
    (a stage, "kernels", "externs", "fusion"), `what` is `before` in one run and `after` in
    the other; None where it is not there."""

    graph: int
    place: str
    what: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"  {self.place}: {self.what}: {_shown(self.before)} -> {_shown(self.after)}"


def compare_files(first: str, second: str, *, json_output: bool) -> int:
    """Print what differs between two files of `eqsat explain --json`.

    Gives the exit status: 0, or 2 where a file is no such thing.
    """
    try:
        runs = [_read(path) for path in (first, second)]
        return _print(difference(*runs), first, second, json_output)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{first} and {second} are not both from `eqsat explain --json`"
        return complain("explain", f"{problem}: {type(error).__name__}: {error}")


def compare_options(
    program: str, against: Sequence[str], disable: Sequence[str], *, json_output: bool
) -> int:
    """Run a program as it is, then with other options (`name=value`) or without rules, and
    print what differs. Gives the exit status: 0, or 2 for an unknown program or option."""
    try:
        changes = _changes(against, disable)
        with config.patch(**changes):  # a bad option is told before anything runs
            pass
        before = Explanation(tuple(record_program(program))).to_json()
        with config.patch(**changes):
            after = Explanation(tuple(record_program(program))).to_json()
    except (ProgramError, OptionError) as error:
        return complain("explain", error)
    if not before and not after:
        return complain("explain", f'{program} compiled nothing with backend="eqsat"')
    shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return _print(difference(before, after), "as it is", shown, json_output)


def difference(before: Graphs, after: Graphs) -> list[Change]:
    """What differs between two runs, in order of graphs. Raises KeyError or TypeError for
    what is no output of `eqsat explain --json`."""
    found: list[Change] = []
    if len(before) != len(after):
        found.append(Change(0, "graphs", "count", len(before), len(after)))
    for number, (one, two) in enumerate(zip(before, after, strict=False)):
        places = {**_facts(one), **_facts(two)}
        first, second = _facts(one), _facts(two)
        for place, what in places:
            values = first.get((place, what)), second.get((place, what))
            if values[0] != values[1]:
                found.append(Change(number, place, what, *values))
    return found


def _facts(graph: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """What a graph is compared by: (place, what) to a value."""
    found: dict[tuple[str, str], Any] = {
        ("graph", "kind"): graph["kind"],
        ("graph", "runs unoptimised"): graph["fallback"] or None,
    }
    for stage in graph["stages"]:
        place = stage["stage"]
        found[place, "status"] = stage["status"]
        found[place, "estimated us"] = round(stage["cost_after"] * 1e6, 3)
        found[place, "nodes"] = stage["nodes_after"]
        for fired in stage["firings"]:
            text = f"fired {fired['count']}, kept {fired['kept']}"
            found[place, f"rule {fired['rule']}"] = text
        for disabled in stage["disabled"]:
            found[place, f"rule {disabled['rule']} disabled"] = disabled["reason"]
    kernels = graph["kernels"]
    found["kernels", "count"] = len(kernels)
    found["kernels", "calls"] = sum(kernel["uses"] for kernel in kernels)
    for kernel, count in Counter(_nodes(kernel) for kernel in kernels).items():
        found["kernels", f"one over {kernel}"] = count
    for target, count in Counter(extern["target"] for extern in graph["externs"]).items():
        found["externs", target] = count
    if graph["fusion"] is not None:
        for end in ("before", "after"):
            found["fusion", f"loop nests {end}"] = graph["fusion"][end]
    return found


def _nodes(kernel: Mapping[str, Any]) -> str:
    return ", ".join(kernel["origins"])


def _changes(against: Sequence[str], disable: Sequence[str]) -> dict[str, Any]:
    """Options from `name=value` texts. Raises OptionError for what is none."""
    changes: dict[str, Any] = {}
    for text in against:
        name, separator, value = text.partition("=")
        if not separator:
            raise OptionError(f"--against takes name=value, not {text!r}")
        changes[name] = tuple(value.split(",")) if name in _LISTS else _value(value)
    if disable:
        changes["disable"] = (*changes.get("disable", ()), *disable)
    return changes


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def _read(path: str) -> Graphs:
    value = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(value, list):
        raise TypeError(f"{path} holds no list of graphs")
    return value


def _print(changes: Sequence[Change], first: str, second: str, json_output: bool) -> int:
    if json_output:
        print_json([asdict(change) for change in changes])
        return 0
    console = Console()
    print_plain(console, f"{first} -> {second}")
    if not changes:
        print_plain(console, "no difference")
    graph = -1
    for change in changes:
        if change.graph != graph:
            graph = change.graph
            print_plain(console, f"graph {graph}")
        print_plain(console, str(change))
    return 0


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
