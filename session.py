"""What stays the same over the graphs of one compile: rules, ops, scalars, target.

Takes settings; gives a frozen `Session`. User rule files are read afresh each time (edit,
`torch._dynamo.reset()`, run); a pack with errors is left out with one warning that prints
them all, so a typo never costs the user the run. With `strict` it raises RuleErrors. What is
derived from the rules is shared by sessions whose rules have the same text in the same places.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import notices
from .config import Settings
from .engine.books import load_pack, merge_books, places_of
from .engine.foreach import foreach_decompositions
from .engine.load import builtin_book
from .engine.mixed import mixed_norms
from .engine.naming import entries_of, meant, nearest
from .engine.ops import OpTable
from .engine.profile import select
from .engine.rule import RuleBook, ScalarEntry
from .engine.schedule import load_schedule
from .engine.source import RuleErrors
from .engine.target import Target, named_target
from .engine.trace import chained, decomposition_table
from .lowering.fusion_words import check_fusion_rules
from .lowering.lower import lowered_ops
from .lowering.work import GENERATED
from .machine import machine_target
from .packs import RulePack, distinct, package_packs
from .version import VERSION

Warn = Callable[[str], None]
KEPT = 8  # sets of rules whose tables stay in memory


@dataclass(frozen=True)
class Tables:
    """What follows from the text of the rules alone."""

    book: RuleBook
    table: OpTable
    scalars: Mapping[str, ScalarEntry]
    decompositions: Mapping[Any, Callable[..., Any]]
    lowered: Mapping[str, str]


@dataclass(frozen=True)
class Session(Tables):
    """`key` is a hash of all that decides what a graph becomes: the text of the rules in use,
    wherever their files are, settings, target, and the versions of eqsat and torch."""

    settings: Settings
    target: Target
    key: str


def open_session(settings: Settings, warn: Warn, device: str = "cpu") -> Session:
    """Rules for these settings: the built-in ones, packages' (entry point group
    `eqsat_rules`), then the user's packs in order. `device` is the type that most of the work
    runs on.

    Raises RuleErrors with `strict`, where a pack is wrong.
    """
    packages = package_packs(lambda text: notices.tell(text, text, warn))
    packs = distinct((*packages, *settings.rules))
    book, missing = _gather(packs, settings.strict, warn)
    _tell_unknown(book, settings, missing, warn)
    chosen = select(book, settings.numerics, settings.disable, settings.enable)
    target = _target(settings, device, warn)
    key = _key(settings, chosen, target)
    tables = _tables(chosen)
    if device not in GENERATED:
        tables = replace(tables, lowered=lowered_ops(tables.table, device))
    return Session(**vars(tables), settings=settings, target=target, key=key)


def _target(settings: Settings, device: str, warn: Warn) -> Target:
    """The target that the settings name, else that of the machine.

    Raises RuleErrors with `strict`, where the file is wrong.
    """
    text, found = "", None
    if settings.target:
        try:
            found = named_target(settings.target)
        except RuleErrors as errors:
            if settings.strict:
                raise
            text = f"the target '{settings.target}' is not used:\n{errors}"
        notices.tell(("target", settings.target), text, warn)
    return found or machine_target(device, warn)


def whole_book(settings: Settings, warn: Warn) -> RuleBook:
    """Every rule there is for these settings, before profile, `disable` and `enable`."""
    return _gather(distinct((*package_packs(warn), *settings.rules)), settings.strict, warn)[0]


def _gather(
    packs: Iterable[RulePack], strict: bool, warn: Warn
) -> tuple[RuleBook, tuple[str, ...]]:
    """The built-in rules with those of all packs that can be read, and the names of the
    other packs. A pack may use the ops of those before it."""
    book = builtin_book()
    missing = []
    for pack in packs:
        subject = (pack.name, *map(os.path.realpath, pack.paths))
        try:
            mine = load_pack(pack.name, pack.paths, OpTable(book.ops))
            wrong = check_fusion_rules(mine.fuse)
            if wrong:
                raise RuleErrors(wrong)
            book = merge_books(book, mine)
        except RuleErrors as errors:
            if strict:
                raise
            missing.append(pack.name)
            text = f"rules of {', '.join(pack.paths)} are left out:\n{errors}"
            notices.tell(subject, text, warn)
        else:
            notices.tell(subject, "", warn)
    return book, tuple(missing)


def _tell_unknown(book: RuleBook, settings: Settings, missing: tuple[str, ...], warn: Warn) -> None:
    """Warns of each pattern that names no rule; those of packs left out were told of."""
    entries = entries_of(book)
    for option in ("disable", "enable"):
        for pattern in getattr(settings, option):
            text = ""
            if pattern.partition(":")[0] not in missing and not meant(entries, pattern):
                close = nearest(book, pattern)
                hint = f" (did you mean '{close}'?)" if close else ""
                text = f"option '{option}': no rule is called '{pattern}'{hint}"
            notices.tell((option, pattern), text, warn)


def _key(settings: Settings, chosen: RuleBook, target: Target) -> str:
    """`chosen.hash` holds the texts of the rules, the profile and what was switched off."""
    decisive = replace(settings, rules=(), disable=(), enable=(), strict=False, verify=False)
    parts = (chosen.hash, decisive, target, load_schedule(), VERSION, torch.__version__)
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


_kept: dict[str, Tables] = {}
_lock = threading.Lock()


def _tables(chosen: RuleBook) -> Tables:
    """The tables of a book; of the latest ones they are kept, as patterns compiled from a book
    are remembered with its rules."""
    key = f"{chosen.hash} {places_of(chosen)}"
    with _lock:
        tables = _kept.pop(key, None)
        if tables is None:
            tables = _make_tables(chosen)
            while len(_kept) >= KEPT:
                del _kept[next(iter(_kept))]
        _kept[key] = tables
    return tables


def _make_tables(book: RuleBook) -> Tables:
    table = OpTable(book.ops)
    return Tables(
        book,
        table,
        {entry.name: entry for entry in book.scalars},
        chained(mixed_norms(), decomposition_table(book, table), foreach_decompositions()),
        lowered_ops(table),
    )
