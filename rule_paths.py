"""The rules that a command line names: built-in ones and those of files and folders.

Takes paths; gives rule books.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .engine.books import load_pack, merge_books
from .engine.load import builtin_book, builtin_folder, load_book
from .engine.ops import OpTable
from .engine.rule import RuleBook
from .packs import RulePack


def load_path(path: str) -> RuleBook:
    """The rules of one path; a user's files may use the built-in ops. Raises RuleErrors."""
    base = builtin_book()
    if Path(path).resolve() == builtin_folder():
        return base
    if builtin_folder() in Path(path).resolve().parents:
        book = load_book([path], OpTable(base.ops))
    else:
        book = load_pack(RulePack(path).name, [path], OpTable(base.ops))
    return replace(book, ops=merge_books(base, book).ops)


def load_all(paths: Sequence[str]) -> RuleBook:
    """One book of the built-in rules and those of `paths`. Raises RuleErrors."""
    return merge_books(builtin_book(), *(load_path(path) for path in paths))
