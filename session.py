"""What stays the same over the graphs of one compile: rules, ops, scalars, target.

Takes settings; gives a frozen `Session`. User rule files are read afresh each time (edit,
`torch._dynamo.reset()`, run); a file with errors is left out with one warning that prints
them all, so a typo never costs the user the run. With `strict` it raises RuleErrors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from .config import Settings
from .engine.load import builtin_book, load_book, merge_books
from .engine.mixed import mixed_norms
from .engine.ops import OpTable
from .engine.profile import select
from .engine.rule import OpEntry, RuleBook, ScalarEntry
from .engine.source import RuleErrors
from .engine.target import Target, load_target
from .engine.trace import decomposition_table
from .lowering.lower import lowered_ops


@dataclass(frozen=True)
class Session:
    settings: Settings
    book: RuleBook
    table: OpTable
    scalars: Mapping[str, ScalarEntry]
    decompositions: Mapping[Any, Callable[..., Any]]
    target: Target
    lowered: Mapping[str, str]


def open_session(settings: Settings, warn: Callable[[str], None]) -> Session:
    """Rules for these settings: the built-in ones, packages' (entry point group
    `eqsat_rules`), then the user's."""
    book = builtin_book()
    for path in (*_package_rules(), *settings.rules):
        try:
            book = merge_books(book, load_book([path], OpTable(book.ops)))
        except RuleErrors as errors:
            if settings.strict:
                raise
            warn(f"rules of {path} are left out:\n{errors}")
    chosen = select(book, settings.numerics, settings.disable)
    table = _table(chosen.ops)
    return Session(
        settings,
        chosen,
        table,
        {entry.name: entry for entry in chosen.scalars},
        {**mixed_norms(), **decomposition_table(chosen, table)},
        load_target("cpu"),
        lowered_ops(table),
    )


@functools.lru_cache(maxsize=4)
def _table(entries: tuple[OpEntry, ...]) -> OpTable:
    return OpTable(entries)


def _package_rules() -> tuple[str, ...]:
    return tuple(str(point.load()) for point in entry_points(group="eqsat_rules"))
