"""The commands about rule files: `eqsat check` and `eqsat rules`.

Each takes paths and prints; gives an exit status: 0 fine, 1 something failed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from .engine.check import check_rule
from .engine.load import builtin_book, builtin_folder, load_book, merge_books
from .engine.ops import OpTable
from .engine.rule import RuleBook
from .engine.schema import write_schemas
from .engine.source import RuleErrors


def check_paths(paths: Sequence[str], only: Sequence[str], examples: int, seed: int) -> int:
    """Load the rules of `paths` and test each by hypothesis; prints what is wrong."""
    console = Console()
    try:
        loaded = [(path, _load(path)) for path in paths]
    except RuleErrors as errors:
        _print_plain(console, str(errors))
        return 1
    for _, book in loaded:
        for warning in book.warnings:
            _print_plain(console, str(warning))
    checked = [
        (rule, table)
        for _, book in loaded
        for table in [OpTable(book.ops)]
        for rule in book.rules
        if not only or any(fnmatch.fnmatch(rule.name, pattern) for pattern in only)
    ]
    failures = 0
    for rule, table in track(checked, "checking rules", console=console, transient=True):
        result = check_rule(rule, table, seed=seed, examples=examples)
        for text in (*result.failures, *result.warnings):
            _print_plain(console, f"{rule.where} {rule.name}: {text}")
        failures += not result.ok
    console.print(f"{len(checked)} rules checked, {failures} wrong")
    return 1 if failures else 0


def list_rules(paths: Sequence[str]) -> int:
    """Print a table of the built-in rules and those of `paths`."""
    try:
        books = [builtin_book(), *(_load(path) for path in paths)]
    except RuleErrors as errors:
        _print_plain(Console(), str(errors))
        return 1
    table = Table(title="rules")
    for heading in ("rule", "stage", "numerics", "where", "what it does"):
        table.add_column(heading, overflow="fold")
    for book in books:
        for rule in book.rules:
            table.add_row(rule.name, rule.stage, rule.numerics.float_class, rule.where, rule.doc)
        for pair in book.fuse:
            table.add_row(pair.name, pair.kind, "", pair.where, pair.doc)
    Console().print(table)
    return 0


def update_schemas() -> int:
    """Write the editor schemas that belong to the field tables of the loader."""
    folder = builtin_folder() / "schema"
    write_schemas(folder)
    Console().print(f"schemas written to {folder}")
    return 0


def _load(path: str) -> RuleBook:
    """The rules of one path; a user's files may use the built-in ops."""
    base = builtin_book()
    if Path(path).resolve() == builtin_folder():
        return base
    book = load_book([path], OpTable(base.ops))
    return replace(book, ops=merge_books(base, book).ops)


def _print_plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
