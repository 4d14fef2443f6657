"""The commands about rule files: `eqsat check` and `eqsat rules`.

Each takes paths and prints; gives an exit status: 0 fine, 1 something failed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from .engine.check import check_rule
from .engine.load import builtin_book, builtin_folder, load_book, merge_books
from .engine.ops import OpTable
from .engine.rule import Rule, RuleBook
from .engine.source import RuleErrors


def check_paths(paths: Sequence[str], only: Sequence[str], examples: int, seed: int) -> int:
    """Load the rules of `paths` and test each by hypothesis; prints what is wrong."""
    console = Console()
    try:
        books = [_load(path) for path in paths]
    except RuleErrors as errors:
        console.print(str(errors), markup=False, highlight=False)
        return 1
    failures = 0
    rules = list(_chosen(books, only))
    for rule in track(rules, "checking rules", console=console, transient=True):
        table = OpTable(next(book.ops for own, book in _owners(books) if own is rule))
        result = check_rule(rule, table, seed=seed, examples=examples)
        for text in (*result.failures, *result.warnings):
            console.print(f"{rule.where} {rule.name}: {text}", markup=False, highlight=False)
        failures += not result.ok
    console.print(f"{len(rules)} rules checked, {failures} wrong")
    return 1 if failures else 0


def list_rules(paths: Sequence[str]) -> int:
    """Print a table of the built-in rules and those of `paths`."""
    try:
        books = [builtin_book(), *(_load(path) for path in paths)]
    except RuleErrors as errors:
        Console().print(str(errors), markup=False, highlight=False)
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


def _load(path: str) -> RuleBook:
    """The rules of one path; a user's files may use the built-in ops."""
    if Path(path).resolve() == builtin_folder():
        return builtin_book()
    base = builtin_book()
    book = load_book([path], OpTable(base.ops))
    return RuleBook(book.rules, book.fuse, book.scalars, merge_books(base, book).ops, book.hash)


def _owners(books: Sequence[RuleBook]) -> Iterator[tuple[Rule, RuleBook]]:
    for book in books:
        for rule in book.rules:
            yield rule, book


def _chosen(books: Sequence[RuleBook], only: Sequence[str]) -> Iterator[Rule]:
    for rule, _ in _owners(books):
        if not only or any(fnmatch.fnmatch(rule.name, pattern) for pattern in only):
            yield rule
