"""Rule books of packs: read under a name of their own, and joined with the built-in ones.

Takes paths and books; gives books, or raises RuleErrors. Rules and fusion rules get the pack's
name in front, so two packs may both have a `silu-split`. Ops and scalar ops do not: each means
one thing in the whole process, whatever pack it comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from .expr import Span
from .load import load_book
from .naming import full_name
from .ops import OpTable
from .rule import OpEntry, RuleBook, ScalarEntry
from .source import Problems, RuleErrors, fail

Entry = TypeVar("Entry", OpEntry, ScalarEntry)


def load_pack(name: str, paths: Sequence[str | Path], table: OpTable) -> RuleBook:
    """The rules of files and folders, called `name:rule`; `table` says which ops there are.

    Raises RuleErrors with all mistakes; a folder without rule files is one (E115).
    """
    for path in paths:
        refuse_empty(Path(path))
    book = load_book(paths, table)
    book = replace(
        book,
        rules=tuple(replace(rule, name=full_name(name, rule.name)) for rule in book.rules),
        fuse=tuple(replace(pair, name=full_name(name, pair.name)) for pair in book.fuse),
        decompose=tuple(
            replace(entry, name=full_name(name, entry.name)) for entry in book.decompose
        ),
    )
    return replace(book, hash=content_hash(book))


def content_hash(book: RuleBook) -> str:
    """A hash of what the entries say, wherever their files are: names, stages and texts."""
    parts = [
        *(f"rule {rule.name} {rule.folder} {rule.stage}\0{rule.text}" for rule in book.rules),
        *(f"{pair.kind} {pair.name}\0{pair.text}" for pair in book.fuse),
        *(f"scalar {entry.name}\0{entry.text}" for entry in book.scalars),
        *(f"op {entry.name}\0{entry.text}" for entry in book.ops),
        *(f"decompose {entry.name}\0{entry.text}" for entry in book.decompose),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def places_of(book: RuleBook) -> str:
    """A hash of where the entries stand, which messages and reports show."""
    groups = (book.rules, book.fuse, book.scalars, book.ops, book.decompose)
    spans = (entry.span for entries in groups for entry in entries)
    places = "\0".join(f"{span.path}:{span.line}" for span in spans)
    return hashlib.sha256(places.encode()).hexdigest()


def merge_books(*books: RuleBook) -> RuleBook:
    """One book of several, in order; an entry that two of them have counts once.

    Ops and scalar ops are the same when their texts are. Raises RuleErrors (E607) where two
    books have different entries of one kind and name, or two ops claim one ATen overload or
    torch function.
    """
    problems = Problems()
    taken: dict[tuple[str, str], tuple[Span, object]] = {}
    for book in books:
        for kind, name, span, same in _claims(book):
            other, what = taken.setdefault((kind, name), (span, same))
            if what != same:
                hint = f"in {other}" if kind in _PER_PACK else f"in {other}; {_ONCE}"
                problems.error(span, "E607", f"the {kind} '{name}' is already defined", hint)
    if problems.failed:
        raise RuleErrors(problems.sorted("error"))
    digest = hashlib.sha256("\0".join(book.hash for book in books).encode())
    return RuleBook(
        tuple({rule.name: rule for book in books for rule in book.rules}.values()),
        tuple({pair.name: pair for book in books for pair in book.fuse}.values()),
        tuple(_first(entry for book in books for entry in book.scalars)),
        tuple(_first(entry for book in books for entry in book.ops)),
        tuple({entry.name: entry for book in books for entry in book.decompose}.values()),
        digest.hexdigest(),
        tuple(warning for book in books for warning in book.warnings),
    )


_PER_PACK = ("rule", "fuse", "decompose")  # kinds whose names have the pack in front
_ONCE = "it has one meaning for all rules, so give yours a name of its own"


def _claims(book: RuleBook) -> Iterator[tuple[str, str, Span, object]]:
    """Kind, name and place of what a book defines, and what another claim has to equal to be
    the same."""
    for rule in book.rules:
        yield "rule", rule.name, rule.span, rule.span
    for pair in book.fuse:
        yield "fuse", pair.name, pair.span, pair.span
    for entry in book.decompose:
        yield "decompose", entry.name, entry.span, entry.span
    for scalar in book.scalars:
        yield "scalar", scalar.name, scalar.span, scalar.text
    for op in book.ops:
        yield "op", op.name, op.span, op.text
        for overload in op.aten:
            yield "ATen overload", overload, op.span, op.text
        for function in op.torch:
            yield "torch function", function, op.span, op.text


def _first(entries: Iterator[Entry]) -> Iterator[Entry]:
    """The first entry of each name."""
    seen: set[str] = set()
    for entry in entries:
        if entry.name not in seen:
            seen.add(entry.name)
            yield entry


def refuse_empty(path: Path) -> None:
    """Raises RuleErrors (E108, E115) for a folder that cannot be read or holds no rule files."""
    try:
        empty = path.is_dir() and not any(path.rglob("*.yaml"))
        other = next(path.rglob("*.yml"), None) if empty else None
    except OSError as error:
        raise fail(Span(str(path), 1, 1), "E108", f"this cannot be read: {error}") from None
    if empty:
        hint = f"rename '{other.name}' to .yaml" if other is not None else None
        raise fail(Span(str(path), 1, 1), "E115", "this folder holds no rule files (*.yaml)", hint)
