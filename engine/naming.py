"""What entries of a rule book are called, and which ones a name or glob means.

Takes entries and patterns; gives names. `silu-split` is a built-in rule, `mine:silu-split` one of
the pack `mine`; a family's members are `name/relu`, a rule turned around `name/back`. With its
folder in front a name is `attention/name`; fusion rules stand in the folder `fusion`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from itertools import accumulate

from .rule import DecomposeEntry, FuseRule, Rule, RuleBook
from .source import did_you_mean

Named = Rule | FuseRule | DecomposeEntry


def full_name(pack: str, name: str) -> str:
    """The name of a pack's entry; built-in ones have no pack."""
    return f"{pack}:{name}" if pack else name


def entries_of(book: RuleBook) -> tuple[Named, ...]:
    """Everything in a book that can be switched off."""
    return (*book.rules, *book.fuse, *book.decompose)


def meant(entries: Iterable[Named], pattern: str) -> frozenset[str]:
    """The full names of the entries that `pattern` means: a name or a glob, which covers
    families and both directions.

    Without a pack it means built-in entries, and those of packs only where there is no such
    built-in one. A leading `*` stands for any pack too.
    """
    listed = list(entries)
    found = _matching(listed, pattern, bare=False)
    if not found and ":" not in pattern:
        found = _matching(listed, pattern, bare=True)
    return found


def rule_called(rules: Sequence[Rule], name: str) -> Rule | None:
    """The rule of that full name; else the first one, of any pack, that is called so."""
    exact = (rule for rule in rules if rule.name == name)
    bare = (rule for rule in rules if rule.name.partition(":")[2] == name)
    return next(exact, None) or next(bare, None)


def left_over(book: RuleBook, disable: Sequence[str], enable: Sequence[str]) -> frozenset[str]:
    """The full names that `disable` leaves; `enable` wins over it."""
    entries = entries_of(book)
    names = {entry.name for entry in entries}
    off = {name for pattern in disable for name in meant(entries, pattern)}
    on = {name for pattern in enable for name in meant(entries, pattern)} if off else set()
    return frozenset(names - (off - on))


def nearest(book: RuleBook, pattern: str) -> str | None:
    """The name or folder glob most like `pattern`, which means nothing in this book."""
    candidates: dict[str, None] = {}
    for entry in entries_of(book):
        names = _names(entry)
        pack, _, _ = entry.name.rpartition(":")
        folder = names[-1].rpartition(":")[2].split("/")[0]
        globs = [full_name(pack, f"{folder}/*"), *([f"{pack}:*"] if pack else [])]
        bare = [name.rpartition(":")[2] for name in names]
        candidates.update(dict.fromkeys((*names, *bare, *globs)))
    return did_you_mean(pattern, candidates)


def _matching(entries: Sequence[Named], pattern: str, bare: bool) -> frozenset[str]:
    return frozenset(
        entry.name
        for entry in entries
        if any(
            fnmatch.fnmatchcase(name.rpartition(":")[2] if bare else name, pattern)
            for name in _names(entry)
        )
    )


def _names(entry: Named) -> list[str]:
    """All ways to write an entry: `name`, `name/relu`, `name/relu/back`, each also with its
    folder in front."""
    pack, _, name = entry.name.rpartition(":")
    folder = "fusion" if isinstance(entry, FuseRule) else entry.folder
    short = list(accumulate(name.split("/"), "{}/{}".format))
    return [full_name(pack, text) for text in (*short, *(f"{folder}/{text}" for text in short))]
