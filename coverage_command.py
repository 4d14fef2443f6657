"""`eqsat rules --coverage`: which rules of other compilers are here, and which of ours fire in no
model of the list.

Takes the data of `rules/rule_sets`; gives tables or JSON. `docs/coverage_of_rule_sets.md` tells
the same.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from .engine.load import builtin_book
from .engine.rule import RuleBook
from .engine.rule_sets import (
    Entry,
    RuleSet,
    Uses,
    load_rule_sets,
    load_uses,
    models_of,
    rules_of,
    tested_by,
)
from .engine.source import RuleErrors
from .terminal import print_json, print_plain


def print_coverage(*, json_output: bool) -> int:
    """Print every set, and the rules that fired in no model. Gives 1 where the data is wrong."""
    try:
        book, uses, sets = builtin_book(), load_uses(), load_rule_sets()
    except RuleErrors as errors:
        print_plain(Console(), str(errors))
        return 1
    if json_output:
        print_json(
            {
                "sets": [_as_json(one, book, uses) for one in sets],
                "models": uses.models,
                "never_fired": uses.never,
            }
        )
        return 0
    console = Console()
    for one in sets:
        console.print(_table(one, book, uses))
    count = f"{len(uses.never)} of {len(uses.counted)} rules"
    print_plain(console, f"never fired in {', '.join(uses.models)}: {count}")
    print_plain(console, f"  {', '.join(uses.never)}")
    return 0


def _table(one: RuleSet, book: RuleBook, uses: Uses) -> Table:
    covered = sum(not entry.reason for entry in one.entries)
    table = Table("name", "here", "shown by", "fires on")
    table.title = f"{one.name}: {covered} of {len(one.entries)} names"
    for column in table.columns:
        column.overflow = "fold"
    for entry in one.entries:
        cells = _answer(entry, book), "\n".join(tested_by(entry))
        models = ", ".join(models_of(entry, book, uses))
        table.add_row(*map(_plain, (entry.name, *cells, models)))
    return table


def _answer(entry: Entry, book: RuleBook) -> str:
    if entry.rules:
        return ", ".join(rules_of(entry.rules, book))
    return f"by design: {entry.design}" if entry.design else f"no: {entry.reason}"


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def _as_json(one: RuleSet, book: RuleBook, uses: Uses) -> dict[str, Any]:
    return {
        "name": one.name,
        "entries": [
            {
                **asdict(entry),
                "rules": rules_of(entry.rules, book),
                "tested_by": tested_by(entry),
                "models": models_of(entry, book, uses),
            }
            for entry in one.entries
        ],
    }
