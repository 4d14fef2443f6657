"""Loads rule files: folders and files to a `RuleBook`.

Takes paths; gives the book, or raises one `RuleErrors` with every mistake in every file. A book
that was read once is kept on disk under the hash of its text, so that a second process is quick.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from .calls import check_calls
from .document import Entry, read_entries
from .expr import Span
from .fields import KINDS, Fields
from .kinds import grows
from .lint import check_rule, check_rules
from .meaning import check_meanings
from .ops import OpTable
from .profile import select
from .rule import FuseRule, OpEntry, RuleBook, ScalarEntry
from .rule_entries import Draft, read_rule
from .schedule import load_schedule
from .scope import check_scope
from .shelf import Shelf, without_collection
from .source import Problems, RuleErrors, suggestion
from .table_entries import read_fuse, read_op, read_scalar

__all__ = ["RULES", "builtin_book", "builtin_folder", "load_book", "merge_books", "select"]

RULES = Path(__file__).resolve().parent.parent / "rules"
# Data under rules/ that is not made of entries.
_OTHER = ("schedule.yaml", "targets")
_TABLES = ("ops", "scalar")


def load_book(paths: Sequence[str | Path], table: OpTable | None = None) -> RuleBook:
    """Reads rule files, and folders with all that is below them, in alphabetical order.

    `table` says which ops there are; without it, the built-in ones and those of the files.
    Raises RuleErrors with all mistakes.
    """
    with without_collection():
        return _load(list(_files(paths)), table)


@lru_cache(maxsize=1)
def builtin_book() -> RuleBook:
    """The rules that come with eqsat. Raises RuleErrors where one is wrong."""
    return load_book([RULES])


def builtin_folder() -> Path:
    """Where the built-in rules are."""
    return RULES


def merge_books(*books: RuleBook) -> RuleBook:
    """One book of several, as if it had been read at once; what is in two books at the same
    place in the same file counts once.

    Raises RuleErrors (E607) where two books have different entries of one kind and name.
    """
    problems = Problems()
    names: dict[tuple[str, str], Span] = {}
    for book in books:
        for kind, name, span in _named(book):
            _claim(names, kind, name, span, problems)
    if problems.failed:
        raise RuleErrors(problems.sorted("error"))
    digest = hashlib.sha256("\0".join(book.hash for book in books).encode())
    return RuleBook(
        tuple({rule.name: rule for book in books for rule in book.rules}.values()),
        tuple({pair.name: pair for book in books for pair in book.fuse}.values()),
        tuple({entry.name: entry for book in books for entry in book.scalars}.values()),
        tuple({entry.name: entry for book in books for entry in book.ops}.values()),
        digest.hexdigest(),
        tuple(warning for book in books for warning in book.warnings),
    )


@dataclass(frozen=True)
class _File:
    """A rule file: `shown` is its path in messages, `folder` what its rules belong to."""

    shown: str
    folder: str
    text: str


@dataclass
class _Reading:
    """What has been read so far."""

    problems: Problems = field(default_factory=Problems)
    drafts: list[Draft] = field(default_factory=list)
    fuse: list[FuseRule] = field(default_factory=list)
    scalars: list[ScalarEntry] = field(default_factory=list)
    ops: list[OpEntry] = field(default_factory=list)
    names: dict[tuple[str, str], Span] = field(default_factory=dict)


def _load(files: Sequence[_File], table: OpTable | None) -> RuleBook:
    shelf = Shelf(_digest(files), _surroundings(table))
    kept = shelf.take()
    if kept is not None:
        return kept
    book = _read_book(files, None if table is None else table.entries)
    shelf.keep(book)
    return book


def _files(paths: Iterable[str | Path]) -> Iterator[_File]:
    for given in paths:
        root = Path(given)
        if not root.exists():
            span = Span(str(given), 1, 1)
            problems = Problems()
            problems.error(span, "E108", "there is no such file or folder")
            raise RuleErrors(problems.sorted("error"))
        for path in sorted(root.rglob("*.yaml")) if root.is_dir() else (root,):
            inner = path.relative_to(root) if path != root else Path(path.name)
            if path == root or inner.parts[0] not in _OTHER:
                yield _file(path, inner)


def _file(path: Path, inner: Path) -> _File:
    """Built-in files are shown from `rules/` on, so that messages are the same everywhere."""
    shown = str(path)
    full = path.resolve()
    if RULES in full.parents:
        inner = full.relative_to(RULES)
        shown = f"rules/{inner.as_posix()}"
    folder = inner.parts[0] if len(inner.parts) > 1 else path.stem
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        problems = Problems()
        problems.error(Span(shown, 1, 1), "E108", f"this file cannot be read: {error}")
        raise RuleErrors(problems.sorted("error")) from None
    return _File(shown, folder, text)


def _digest(files: Iterable[_File]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.shown}\0{file.text}\0".encode())
    return digest.hexdigest()


def _surroundings(table: OpTable | None) -> str:
    """A hash of what else decides how a file is read: the ops there are, and the stages."""
    if table is None:
        return _builtin_digest()
    texts = "\0".join(entry.text for entry in table.entries)
    return hashlib.sha256(f"{texts}\0{_schedule()}".encode()).hexdigest()


@lru_cache(maxsize=1)
def _builtin_digest() -> str:
    texts = _digest(_table_files())
    return hashlib.sha256(f"{texts}\0{_schedule()}".encode()).hexdigest()


@lru_cache(maxsize=1)
def _schedule() -> str:
    return (RULES / "schedule.yaml").read_text(encoding="utf-8")


def _table_files() -> Iterator[_File]:
    return _files([RULES / folder for folder in _TABLES])


def _holds_tables(files: Iterable[_File]) -> bool:
    return {file.shown for file in _table_files()} <= {file.shown for file in files}


@lru_cache(maxsize=1)
def _builtin_tables() -> tuple[tuple[OpEntry, ...], tuple[ScalarEntry, ...]]:
    """The built-in ops and scalar ops, which other files may use."""
    reading = _Reading()
    _read_files(_table_files(), reading)
    return tuple(reading.ops), tuple(reading.scalars)


def _read_book(files: Sequence[_File], ops: Sequence[OpEntry] | None) -> RuleBook:
    reading = _Reading()
    _read_files(files, reading)
    builtin_ops, builtin_scalars = ((), ()) if _holds_tables(files) else _builtin_tables()
    by_name = {op.name: op for op in (*(builtin_ops if ops is None else ops), *reading.ops)}
    scalars = {entry.name: entry for entry in (*builtin_scalars, *reading.scalars)}
    table = OpTable(tuple(by_name.values()))
    check_meanings(reading.ops, reading.scalars, scalars, table, reading.problems)
    _check(reading, table)
    if reading.problems.failed:
        raise RuleErrors(reading.problems.sorted("error"))
    return RuleBook(
        tuple(replace(draft.rule, grows=grows(draft.rule)) for draft in reading.drafts),
        tuple(reading.fuse),
        tuple(reading.scalars),
        tuple(reading.ops),
        _digest(files),
        reading.problems.sorted("warning"),
    )


def _read_files(files: Iterable[_File], reading: _Reading) -> None:
    for file in files:
        for entry in read_entries(file.shown, file.text, reading.problems):
            _read_entry(entry, file, reading)


def _read_entry(entry: Entry, file: _File, reading: _Reading) -> None:
    key = entry.fields.pairs[0][0]
    kind = key.text
    if kind not in KINDS:
        hint = suggestion(kind, KINDS) or f"one of: {', '.join(KINDS)}"
        message = f"an entry starts with its kind, not with '{kind}'"
        reading.problems.error(key.span, "E305", message, hint)
        return
    fields = Fields(entry, kind, reading.problems)
    name = fields.scalar(kind)
    if name is not None:
        _claim(reading.names, kind, name.text, name.span, reading.problems)
    if kind == "rule":
        stage = load_schedule().stage_of(file.folder)
        reading.drafts.extend(read_rule(fields, file.folder, stage))
    elif kind == "scalar":
        scalar = read_scalar(fields)
        reading.scalars.extend([scalar] if scalar is not None else [])
    elif kind == "op":
        op = read_op(fields)
        reading.ops.extend([op] if op is not None else [])
    else:
        pair = read_fuse(fields)
        reading.fuse.extend([pair] if pair is not None else [])


def _claim(
    names: dict[tuple[str, str], Span], kind: str, name: str, span: Span, problems: Problems
) -> None:
    group = "fuse" if kind in ("fuse", "forbid", "prefer") else kind
    taken = names.setdefault((group, name), span)
    if taken != span:
        problems.error(span, "E607", f"the {kind} '{name}' is already defined", f"in {taken}")


def _named(book: RuleBook) -> Iterator[tuple[str, str, Span]]:
    for rule in book.rules:
        yield "rule", rule.name, rule.span
    for pair in book.fuse:
        yield "fuse", pair.name, pair.span
    for scalar in book.scalars:
        yield "scalar", scalar.name, scalar.span
    for op in book.ops:
        yield "op", op.name, op.span


def _check(reading: _Reading, table: OpTable) -> None:
    problems = reading.problems
    sound: list[Draft] = []
    for draft in reading.drafts:
        before = problems.errors
        if draft.sound:
            check_scope(draft, problems)
            check_calls(draft, table, problems)
        if draft.sound and problems.errors == before:
            check_rule(draft, table, problems)
            sound.append(draft)
    check_rules(sound, problems)
