"""`docs/coverage_of_rule_sets.md`: the rules of other compilers and papers, and ours for them.

    python -m benchmarks.rule_sets             writes the page from rules/rule_sets
    python -m benchmarks.rule_sets --models    compiles the models anew first

Takes the data of `rules/rule_sets`; gives Markdown that is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from functorch.compile import make_boxed_func

from eqsat import backend
from eqsat.backend import AtenGraph
from eqsat.config import config
from eqsat.engine.load import builtin_book
from eqsat.engine.rule import RuleBook
from eqsat.engine.rule_sets import (
    FIRED,
    Entry,
    Part,
    RuleSet,
    Uses,
    base_name,
    load_rule_sets,
    load_uses,
    models_of,
    rules_of,
    tested_by,
)
from eqsat.engine.stage import StageResult
from eqsat.fired_command import add_reports, count_uses
from eqsat.reports import CompileReport, recording

from .rule_effects import capture

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage_of_rule_sets.md"
_PROFILES = ("default", "fast")
_SHOWN = 4  # models in a row
_HEAD = """# Rules of others, and ours

Written by `python -m benchmarks.rule_sets` from `rules/rule_sets`, whose
[README](../rules/rule_sets/README.md) says how an entry is written; a test keeps it current.
`eqsat rules --coverage` prints the same.

- **Our rules** meet the idea in any spelling, so one of ours often stands at many names.
- **By**: *program* is compiled by a test: results are those of eager, the rules fire, and the
  rewritten graph is what the entry says. A link is the test that shows it.
- **Fires on**: of the models {models}, compiled in the profiles `default` and `fast`, for inference
  where the name does not say otherwise.
- Where there is no rule, a sentence says what does it instead (*design*), or why it is not here
  (*no*).
"""


def describe() -> str:
    """The page."""
    book, uses, sets = builtin_book(), load_uses(), load_rule_sets()
    models = ", ".join(f"`{name}`" for name in uses.models)
    lines = [_HEAD.replace("{models}", models), *_summary(sets)]
    for one in sets:
        lines.append(f"\n## {one.name}\n")
        for part in one.parts:
            lines += _part(part, book, uses)
    lines += _silent(uses)
    return "\n".join(lines) + "\n"


def _summary(sets: Sequence[RuleSet]) -> Iterator[str]:
    yield "| set | names | with rules | by design | not here |"
    yield "|---|---|---|---|---|"
    for one in sets:
        counts = [
            sum(bool(getattr(entry, field)) for entry in one.entries)
            for field in ("rules", "design", "reason")
        ]
        yield f"| [{one.name}](#{one.name}) | {len(one.entries)} | {' | '.join(map(str, counts))} |"


def _part(part: Part, book: RuleBook, uses: Uses) -> Iterator[str]:
    source = f" Source: {part.source}" if part.source else ""
    yield f"### {part.title.replace('_', ' ')}\n\n{part.about}{source}\n"
    yield "| name | our rules | by | fires on |"
    yield "|---|---|---|---|"
    for entry in part.entries:
        row = (_cell(entry.name), _answer(entry, book), _shown(entry), _where(entry, book, uses))
        yield f"| {' | '.join(row)} |"
    yield ""


def _answer(entry: Entry, book: RuleBook) -> str:
    if entry.rules:
        return ", ".join(f"`{name}`" for name in rules_of(entry.rules, book))
    return f"*design*: {_cell(entry.design)}" if entry.design else f"*no*: {_cell(entry.reason)}"


def _shown(entry: Entry) -> str:
    return ", ".join(text if text == "program" else f"`{text}`" for text in tested_by(entry))


def _where(entry: Entry, book: RuleBook, uses: Uses) -> str:
    models = models_of(entry, book, uses)
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    return ", ".join(models[:_SHOWN]) + more


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _silent(uses: Uses) -> Iterator[str]:
    yield f"## Rules that fire in none of these models\n\n{len(uses.never)} of {len(uses.counted)}"
    yield "rules, each of which a test fires on a program of its own:\n"
    yield ", ".join(f"`{name}`" for name in uses.never)


def run_models() -> Uses:
    """Compiles all models and architectures in both profiles; those of `TRAINED` as a training
    step. Raises ProgramError where a model fails, or what failed in an architecture."""
    from .architectures import ARCHITECTURES  # noqa: PLC0415 - transformers is an extra

    found: dict[str, dict[str, None]] = {}
    names: tuple[str, ...] = ()
    for profile in _PROFILES:
        with config.patch(numerics=profile), patch.object(backend, "compile_rewritten", _as_it_is):
            uses, names = count_uses(())
        by_name = {use.rule: use for use in uses}
        for name in ARCHITECTURES:
            with recording() as reports:
                capture(name, numerics=profile)
            add_reports(by_name, name, reports)
        for use in uses:
            if use.fired:
                found.setdefault(base_name(use.rule), {}).update(dict.fromkeys(use.programs))
    counted = dict.fromkeys(
        base_name(rule.name) for rule in builtin_book().rules if rule.stage != "trace"
    )
    names = (*names, *ARCHITECTURES)
    fired = {
        name: tuple(model for model in names if model in found[name])
        for name in counted
        if name in found
    }
    return Uses(names, tuple(counted), fired)


def _as_it_is(graph: AtenGraph, stage: StageResult, report: CompileReport) -> Any:
    """The rewritten graph to be run as it is: which rules fire does not depend on C++."""
    return make_boxed_func(stage.gm.forward)


def save(uses: Uses) -> None:
    """Writes what `load_uses` reads, a rule a line."""
    data = {
        "models": list(uses.models),
        "fired": {name: list(models) for name, models in sorted(uses.fired.items())},
        "counted": sorted(uses.counted),
    }
    FIRED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/coverage_of_rule_sets.md.")
    parser.add_argument("--models", action="store_true", help="compile the models anew first")
    if parser.parse_args().models:
        save(run_models())
    PAGE.write_text(describe(), encoding="utf-8")


if __name__ == "__main__":
    main()
