"""What rules of other compilers are here: the data of `docs/coverage_of_rule_sets.md`.

Takes `rules/rule_sets/SET/*.yaml`, which `rules/rule_sets/README.md` describes, and
`rules/rule_sets/fired.json`; gives frozen dataclasses. Nothing here is read in a compile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .document import Scalar
from .files import RULES
from .naming import Named, entries_of, meant
from .rule import RuleBook
from .settings import Settings, read_settings
from .source import did_you_mean

FOLDER = RULES / "rule_sets"
FIRED = FOLDER / "fired.json"
_FILE = ("about", "source", "entries")
_ANSWERS = ("rules", "design", "reason")
_TEXTS = ("name", "design", "reason", "program", "test", "numerics", "target")


@dataclass(frozen=True)
class Program:
    """Python that shows a claim: `text` defines `program` with example inputs as
    `eqsat new --from` takes them. `weights` are the inputs that are parameters. Every op of
    `graph` stands that often in the rewritten graphs, which lower to `nests` loop nests (-1: not
    said). `trains`: the gradients of all float inputs are computed too."""

    text: str
    numerics: str
    target: str
    weights: tuple[str, ...]
    graph: Mapping[str, int]
    nests: int
    trains: bool


@dataclass(frozen=True)
class Entry:
    """One name of a rule set and what we have for it: `rules` (names or globs of ours), `design`
    (why no rule is needed) or `reason` (why it is not here). `program` or `test` shows it."""

    name: str
    rules: tuple[str, ...]
    design: str
    reason: str
    program: Program | None
    test: str
    where: str


@dataclass(frozen=True)
class Part:
    """One file of a set: `source` says where its names are from."""

    title: str
    about: str
    source: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class RuleSet:
    name: str
    parts: tuple[Part, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for part in self.parts for entry in part.entries)


@dataclass(frozen=True)
class Uses:
    """Which rules fired in which models: `counted` are the rules that were looked at (trace rules
    are not), `fired` maps those that did to the models, in the order of `models`."""

    models: tuple[str, ...]
    counted: tuple[str, ...]
    fired: Mapping[str, tuple[str, ...]]

    @property
    def never(self) -> tuple[str, ...]:
        return tuple(name for name in self.counted if name not in self.fired)


def load_rule_sets(folder: Path = FOLDER) -> tuple[RuleSet, ...]:
    """Every set, in alphabetical order; a folder is a set and a file a part of it.

    Raises RuleErrors with the mistakes of the first file that has some.
    """
    found = []
    for path in sorted(folder.iterdir()):
        files = sorted(path.glob("*.yaml"))
        if files:
            found.append(RuleSet(path.name, tuple(map(_read_part, files))))
    return tuple(found)


def load_uses(path: Path = FIRED) -> Uses:
    """What `python -m benchmarks.rule_sets --models` found."""
    data = json.loads(path.read_text(encoding="utf-8"))
    fired = {name: tuple(models) for name, models in data["fired"].items()}
    return Uses(tuple(data["models"]), tuple(data["counted"]), fired)


def base_name(rule: str) -> str:
    """The name as it is written, for all members of a family and both directions."""
    return rule.split("/")[0]


def rules_of(globs: Iterable[str], book: RuleBook) -> tuple[str, ...]:
    """The rules that names and globs mean, as they are written."""
    everything = entries_of(book)
    found = (name for glob in globs for name in sorted(meant(everything, glob)))
    return tuple(dict.fromkeys(map(base_name, found)))


def tested_by(entry: Entry) -> tuple[str, ...]:
    """What shows the claim of an entry: "program", a test, both or nothing."""
    program = ("program",) if entry.program is not None else ()
    return (*program, entry.test) if entry.test else program


def models_of(entry: Entry, book: RuleBook, uses: Uses) -> tuple[str, ...]:
    """The models in which a rule of an entry fires."""
    names = rules_of(entry.rules, book)
    found = {model for name in names for model in uses.fired.get(name, ())}
    return tuple(model for model in uses.models if model in found)


def problems(sets: Iterable[RuleSet], book: RuleBook) -> Iterator[str]:
    """What is wrong with the data beside the rules that there are: rules that do not exist, names
    that stand twice, claims that nothing shows."""
    everything = entries_of(book)
    for one in sets:
        seen: dict[str, str] = {}
        for entry in one.entries:
            if entry.name in seen:
                yield f"{entry.where}: '{entry.name}' already stands at {seen[entry.name]}"
            seen[entry.name] = entry.where
            yield from _unknown(entry, everything)
            if not entry.reason and entry.program is None and not entry.test:
                yield f"{entry.where}: nothing shows '{entry.name}': add a program or a test"


def _unknown(entry: Entry, everything: Sequence[Named]) -> Iterator[str]:
    for name in entry.rules:
        if not meant(everything, name):
            close = did_you_mean(name, [base_name(one.name) for one in everything])
            hint = f" (did you mean '{close}'?)" if close else ""
            yield f"{entry.where}: no rule is called '{name}'{hint}"


def _read_part(path: Path) -> Part:
    settings = read_settings(path)
    settings.only(_FILE, "a part of a rule set")
    settings.need(("about", "entries"), "a part of a rule set")
    entries = tuple(_read_entry(one) for one in settings.maps("entries"))
    part = Part(path.stem, settings.text("about"), settings.text("source"), entries)
    settings.finish()
    return part


def _read_entry(settings: Settings) -> Entry:
    known = (*_ANSWERS, *_TEXTS, *(field.name for field in fields(Program) if field.name != "text"))
    settings.only(tuple(dict.fromkeys(("name", *known))), "an entry")
    settings.need(("name",), "an entry")
    span = settings.node.span
    answers = [name for name in _ANSWERS if name in settings.values]
    if len(answers) != 1:
        settings.error(span, "E113", "an entry has one of 'rules', 'design' and 'reason'")
    texts = {name: " ".join(settings.text(name).split()) for name in _TEXTS if name != "program"}
    return Entry(
        texts["name"],
        _words(settings, "rules"),
        texts["design"],
        texts["reason"],
        _read_program(settings) if "program" in settings.values else None,
        texts["test"],
        f"{span.path}:{span.line}",
    )


def _read_program(settings: Settings) -> Program:
    counts = settings.map("graph")
    return Program(
        settings.text("program"),
        settings.text("numerics", "default"),
        settings.text("target", "cpu"),
        _words(settings, "weights"),
        {name: _count(counts, name) for name in counts.values},
        _count(settings, "nests") if "nests" in settings.values else -1,
        settings.flag("trains"),
    )


def _words(settings: Settings, name: str) -> tuple[str, ...]:
    return tuple(word.text for word in settings.words(name))


def _count(settings: Settings, name: str) -> int:
    value: Any = settings.values[name]
    if isinstance(value, Scalar) and value.text.isdecimal():
        return int(value.text)
    settings.error(value.span, "E113", f"'{name}' is a whole number, 0 or more")
    return 0
