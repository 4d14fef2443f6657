"""Loads rule files: folders and files to a `RuleBook`.

Takes paths; gives the book, or raises one `RuleErrors` with every mistake in every file. A book
that was read once is kept on disk under the hash of its text, so that a second process is quick.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from .beside import check_rules
from .borrowed import read_decompose
from .calls import called, check_calls
from .document import Entry, Unread, read_entries
from .expr import Span
from .fields import KINDS, Fields
from .files import RULES, RuleFile, read_files
from .kinds import grows
from .lint import check_rule
from .meaning import check_meanings
from .ops import OpTable
from .profile import select
from .rule import DecomposeEntry, FuseRule, OpEntry, Rule, RuleBook, ScalarEntry
from .rule_entries import Draft, read_rule
from .schedule import load_schedule
from .schema import FILES
from .scope import check_scope
from .shelf import Shelf, without_collection
from .source import Diagnostic, Problems, RuleErrors, did_you_mean, suggestion
from .table_entries import read_fuse, read_op, read_scalar

__all__ = ["RULES", "builtin_book", "builtin_folder", "load_book", "select"]

_TABLES = ("ops", "scalar")


def load_book(paths: Sequence[str | Path], table: OpTable | None = None) -> RuleBook:
    """Reads rule files, and folders with all that is below them, in alphabetical order.

    `table` says which ops there are; without it, the built-in ones and those of the files.
    Raises RuleErrors with all mistakes.
    """
    problems = Problems()
    with without_collection():
        return _load(read_files(paths, problems), table, problems)


def diagnose(paths: Sequence[str | Path], beside: RuleBook) -> tuple[Diagnostic, ...]:
    """All errors and warnings in rule files and folders, by file, line and column; also what
    is wrong between their rules and those of `beside` (the same files in `beside` aside)."""
    reading = _Reading()
    files = read_files(paths, reading.problems)
    shown = {file.shown for file in files}
    _read_all(files, None, [r for r in beside.rules if r.span.path not in shown], reading)
    found = (*reading.problems.sorted("error"), *reading.problems.sorted("warning"))
    return tuple(sorted(found, key=lambda diagnostic: diagnostic.span))


@lru_cache(maxsize=1)
def builtin_book() -> RuleBook:
    """The rules that come with eqsat. Raises RuleErrors where one is wrong."""
    return load_book([RULES])


def builtin_folder() -> Path:
    """Where the built-in rules are."""
    return RULES


@dataclass
class _Reading:
    """What has been read so far."""

    problems: Problems = field(default_factory=Problems)
    drafts: list[Draft] = field(default_factory=list)
    fuse: list[FuseRule] = field(default_factory=list)
    scalars: list[ScalarEntry] = field(default_factory=list)
    ops: list[OpEntry] = field(default_factory=list)
    decompose: list[DecomposeEntry] = field(default_factory=list)
    names: dict[tuple[str, str], Span] = field(default_factory=dict)
    # Entries of ops and scalar ops that have mistakes, by name.
    lost_ops: dict[str, OpEntry | None] = field(default_factory=dict)
    lost_scalars: dict[str, ScalarEntry | None] = field(default_factory=dict)


def _load(files: Sequence[RuleFile], table: OpTable | None, problems: Problems) -> RuleBook:
    shelf = Shelf(_digest(files), _surroundings(table))
    kept = shelf.take() if not problems.found else None
    if kept is not None:
        return kept
    book = _read_book(files, None if table is None else table.entries, problems)
    shelf.keep(book)
    return book


def _digest(files: Iterable[RuleFile]) -> str:
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


def _table_files() -> list[RuleFile]:
    return read_files([RULES / folder for folder in _TABLES], Problems())


def _holds_tables(files: Iterable[RuleFile]) -> bool:
    return {file.shown for file in _table_files()} <= {file.shown for file in files}


@lru_cache(maxsize=1)
def _builtin_tables() -> tuple[tuple[OpEntry, ...], tuple[ScalarEntry, ...]]:
    """The built-in ops and scalar ops, which other files may use."""
    reading = _Reading()
    _read_files(_table_files(), reading)
    return tuple(reading.ops), tuple(reading.scalars)


def _read_book(
    files: Sequence[RuleFile], ops: Sequence[OpEntry] | None, problems: Problems
) -> RuleBook:
    reading = _Reading(problems)
    _read_all(files, ops, (), reading)
    if reading.problems.failed:
        raise RuleErrors(reading.problems.sorted("error"))
    return RuleBook(
        tuple(replace(draft.rule, grows=grows(draft.rule)) for draft in reading.drafts),
        tuple(reading.fuse),
        tuple(reading.scalars),
        tuple(reading.ops),
        tuple(reading.decompose),
        _digest(files),
        reading.problems.sorted("warning"),
    )


def _read_all(
    files: Sequence[RuleFile],
    ops: Sequence[OpEntry] | None,
    beside: Sequence[Rule],
    reading: _Reading,
) -> None:
    _read_files(files, reading)
    builtin_ops, builtin_scalars = ((), ()) if _holds_tables(files) else _builtin_tables()
    by_name = {op.name: op for op in (*(builtin_ops if ops is None else ops), *reading.ops)}
    scalars = {entry.name: entry for entry in (*builtin_scalars, *reading.scalars)}
    table = OpTable(tuple(by_name.values()))
    endless = check_meanings(
        (*reading.ops, *filter(None, reading.lost_ops.values())),
        (*reading.scalars, *filter(None, reading.lost_scalars.values())),
        scalars,
        table,
        {*reading.lost_ops, *reading.lost_scalars},
        reading.problems,
    )
    reading.lost_ops.update(dict.fromkeys(endless))
    _check(reading, table, beside)


def _read_files(files: Iterable[RuleFile], reading: _Reading) -> None:
    for file in files:
        for entry in read_entries(file.shown, file.text, reading.problems):
            if isinstance(entry, Unread):
                reading.lost_ops[entry.name] = None
                reading.lost_scalars[entry.name] = None
            else:
                _read_entry(entry, file, reading)


def _read_entry(entry: Entry, file: RuleFile, reading: _Reading) -> None:
    key = entry.fields.pairs[0][0]
    kind = key.text
    if kind not in KINDS:
        hint = suggestion(kind, KINDS) or f"one of: {', '.join(KINDS)}"
        message = f"an entry starts with its kind, not with '{kind}'"
        reading.problems.error(key.span, "E305", message, hint)
        meant = did_you_mean(kind, KINDS)
        if meant is None:
            return
        kind = meant
    fields = Fields(entry, kind, reading.problems)
    name = fields.scalar(kind)
    if name is not None:
        _claim(reading.names, kind, name.text, name.span, reading.problems)
    if kind == "rule":
        stage = load_schedule().stage_of(file.folder)
        reading.drafts.extend(read_rule(fields, file.folder, stage))
    elif kind == "scalar":
        scalar = read_scalar(fields)
        if fields.sound:
            reading.scalars.append(scalar)
        else:
            reading.lost_scalars[scalar.name] = scalar
    elif kind == "op":
        op = read_op(fields)
        if fields.sound:
            reading.ops.append(op)
        else:
            reading.lost_ops[op.name] = op
    elif kind == "decompose":
        borrowed = read_decompose(fields, file.folder)
        reading.decompose.extend([borrowed] if borrowed is not None else [])
    else:
        pair = read_fuse(fields)
        reading.fuse.extend([pair] if pair is not None else [])


def _claim(
    names: dict[tuple[str, str], Span], kind: str, name: str, span: Span, problems: Problems
) -> None:
    group = "fuse" if kind in FILES["fusion"] else kind
    taken = names.setdefault((group, name), span)
    if taken != span:
        problems.error(span, "E607", f"the {kind} '{name}' is already defined", f"in {taken}")


def _check(reading: _Reading, table: OpTable, beside: Sequence[Rule]) -> None:
    problems = reading.problems
    sound: list[Draft] = []
    for draft in reading.drafts:
        before = problems.errors
        check_scope(draft, problems)
        check_calls(draft, table, problems, reading.lost_ops)
        whole = reading.lost_ops.keys().isdisjoint(called(draft.rule))
        if whole and not draft.broken and problems.errors == before:
            check_rule(draft, table, problems)
            sound.append(draft)
    check_rules([draft.rule for draft in sound], beside, table, problems)
