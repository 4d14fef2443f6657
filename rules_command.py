"""`eqsat rules`: which rules there are, what one of them says, how many there are of what.

Takes the built-in rules and those of packs; gives tables, text or JSON.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from .config import config
from .engine.egraph import Constructor
from .engine.naming import Named, entries_of, meant, nearest
from .engine.ops import OpTable
from .engine.pattern import Pattern, PatternError, compile_rule, queries
from .engine.rule import FuseRule, Rule, RuleBook
from .engine.source import RuleErrors
from .rule_paths import load_all
from .session import whole_book
from .terminal import complain, print_json, print_plain


@dataclass(frozen=True)
class Filter:
    """Which rules are meant: all that are given must fit. `name` is a name or a glob."""

    name: str | None = None
    stage: str | None = None
    folder: str | None = None
    numerics: str | None = None


def open_book(paths: Sequence[str]) -> RuleBook:
    """The built-in rules, those of the settings (EQSAT_RULES), and those of `paths`.

    Raises RuleErrors.
    """
    if not paths:
        return whole_book(config.snapshot(), lambda text: print_plain(Console(stderr=True), text))
    return load_all(paths)


def list_rules(paths: Sequence[str], wanted: Filter, *, json_output: bool) -> int:
    """Print a table of the rules. Gives 0, 1 for files with errors, 2 where none fits."""
    try:
        book = open_book(paths)
    except RuleErrors as errors:
        print_plain(Console(), str(errors))
        return 1
    rows = [_row(entry) for entry in _filtered(book, wanted)]
    if not rows:
        return complain("rules", _nothing(book, wanted))
    if json_output:
        print_json(rows)
        return 0
    table = Table("rule", "stage", "numerics", "where", "what it does", title=f"{len(rows)} rules")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(row["name"], row["stage"], row["numerics"], row["where"], row["doc"])
    Console().print(table)
    return 0


def show_rule(name: str, paths: Sequence[str], *, expanded: bool, json_output: bool) -> int:
    """Print all that is known of a rule; its family and both directions are one rule."""
    try:
        book = open_book(paths)
    except RuleErrors as errors:
        print_plain(Console(), str(errors))
        return 1
    names = meant(entries_of(book), name)
    members = [entry for entry in entries_of(book) if entry.name in names]
    if not members:
        return complain("rules", _nothing(book, Filter(name)))
    table = OpTable(book.ops)
    shown = [_described(entry, table, expanded) for entry in members]
    if json_output:
        print_json(shown)
    else:
        _print_members(shown, expanded)
    return 0


def count_rules(paths: Sequence[str], *, json_output: bool) -> int:
    """Print how many rules there are per folder, stage and class, and which ops they use."""
    try:
        book = open_book(paths)
    except RuleErrors as errors:
        print_plain(Console(), str(errors))
        return 1
    counts = statistics(book)
    if json_output:
        print_json(counts)
        return 0
    console = Console()
    for title in ("folder", "stage", "numerics", "fusion"):
        table = Table(title, "rules", box=None, pad_edge=False)
        for key, count in counts[title].items():
            table.add_row(key, str(count))
        console.print(table)
        console.print()
    print_plain(console, f"{counts['rules']} rules from {counts['entries']} entries")
    used = ", ".join(f"{name} {count}" for name, count in counts["ops"].items())
    print_plain(console, f"ops in left sides: {used}")
    print_plain(console, f"ops without a rule: {', '.join(counts['ops_without_rule'])}")
    return 0


def statistics(book: RuleBook) -> dict[str, Any]:
    """Counts of a book: per folder, stage, numerics class and kind of fusion rule; `ops` maps
    ops of left sides to the rules that look for them."""
    table = OpTable(book.ops)
    ops: Counter[str] = Counter()
    made: set[str] = set()
    for rule in book.rules:
        pattern = _pattern(rule, table)
        if isinstance(pattern, Pattern):
            ops.update(pattern.ops)
            made |= pattern.ops
    return {
        "rules": len(book.rules),
        "entries": len({rule.where for rule in book.rules}),
        "folder": dict(Counter(rule.folder for rule in book.rules).most_common()),
        "stage": dict(Counter(rule.stage for rule in book.rules).most_common()),
        "numerics": dict(Counter(r.numerics.float_class for r in book.rules).most_common()),
        "fusion": dict(Counter(pair.kind for pair in book.fuse).most_common()),
        "ops": dict(ops.most_common()),
        "ops_without_rule": sorted(
            {entry.name for entry in book.ops if entry.as_ is None and not _used(entry.torch, made)}
            - made
        ),
    }


def _used(torch_names: Iterable[str], made: set[str]) -> bool:
    return any(name in made for name in torch_names)


def _filtered(book: RuleBook, wanted: Filter) -> list[Named]:
    entries = entries_of(book)
    names = None if wanted.name is None else meant(entries, wanted.name)
    return [
        entry
        for entry in entries
        if (names is None or entry.name in names)
        and _fits(wanted.stage, _stage(entry))
        and _fits(wanted.folder, _folder(entry))
        and _fits(wanted.numerics, _numerics(entry))
    ]


def _fits(pattern: str | None, text: str) -> bool:
    return pattern is None or fnmatch.fnmatchcase(text, pattern)


def _nothing(book: RuleBook, wanted: Filter) -> str:
    """Why no rule fits, with the nearest word where one is unknown."""
    entries = entries_of(book)
    known = {
        "stage": sorted({_stage(entry) for entry in entries}),
        "folder": sorted({_folder(entry) for entry in entries}),
        "numerics": sorted({_numerics(entry) for entry in entries} - {""}),
    }
    for field, words in known.items():
        given = getattr(wanted, field)
        if given is not None and not fnmatch.filter(words, given):
            return f"no rule has {field} '{given}'; there are {', '.join(words)}"
    if wanted.name is not None and not meant(entries, wanted.name):
        close = nearest(book, wanted.name)
        return f"no rule '{wanted.name}'" + (f" (did you mean '{close}'?)" if close else "")
    return "no rule fits all of that"


def _row(entry: Named) -> dict[str, str]:
    return {
        "name": entry.name,
        "folder": _folder(entry),
        "stage": _stage(entry),
        "numerics": _numerics(entry),
        "where": entry.where,
        "doc": entry.doc,
    }


def _stage(entry: Named) -> str:
    if isinstance(entry, FuseRule):
        return entry.kind
    return entry.stage if isinstance(entry, Rule) else "trace"


def _folder(entry: Named) -> str:
    return "fusion" if isinstance(entry, FuseRule) else entry.folder


def _numerics(entry: Named) -> str:
    return "" if isinstance(entry, FuseRule) else entry.numerics.float_class


def _described(entry: Named, table: OpTable, expanded: bool) -> dict[str, Any]:
    found: dict[str, Any] = {**_row(entry), "text": entry.text}
    if not isinstance(entry, Rule):
        return found
    found["ref"] = entry.ref
    if not expanded:
        return found
    pattern = _pattern(entry, table)
    if isinstance(pattern, str):
        return {**found, "not_matched": pattern}
    found["ops"] = sorted(pattern.ops)
    found["nodes"] = [
        f"%{at} = {node.op.name}({', '.join(_slots(node))})"
        for at, node in enumerate(pattern.nodes)
    ]
    found["roots"] = {name: f"%{at}" for name, at in pattern.roots.items()}
    found["commuted"] = [f"%{at}" for at, node in enumerate(pattern.nodes) if node.op.commutes]
    found["queries"] = _queries(pattern)
    return found


def _pattern(rule: Rule, table: OpTable) -> Pattern | str:
    """The left side as the e-graph looks for it; a text says why it does not."""
    if rule.stage == "trace":
        return "trace rules are applied while AOTAutograd traces, not in an e-graph"
    try:
        return compile_rule(rule, table)
    except PatternError as error:
        return str(error)


def _slots(node: Any) -> list[str]:
    """The arguments of a node of a left side; `?` stands for what was not mentioned."""
    found = []
    for param, slot in zip(node.op.params, node.slots, strict=True):
        match slot.kind:
            case "tensor":
                text = _item(slot.item)
            case "list":
                text = f"[{', '.join(map(_item, slot.items))}]"
            case "value":
                text = f"{param.name}={_literal(slot.expr)}"
            case "default":
                continue
            case "how":
                text = f"{param.name}=?"
            case _:
                text = f"{param.name}={slot.item}"
        found.append(text)
    return found


def _literal(expr: Any) -> str:
    value = getattr(expr, "value", None)
    return str(value) if isinstance(value, int | float | str | bool) else "<computed>"


def _item(item: str | int) -> str:
    return f"%{item}" if isinstance(item, int) else item or "None"


def _queries(pattern: Pattern) -> list[str]:
    """The egglog text of the pattern in a graph that has each op called as the rule says."""
    by_op: dict[str, list[Constructor]] = {}
    for at, node in enumerate(pattern.nodes):
        kinds = tuple(_kind(slot) for slot in node.slots)
        columns = "".join(kind[1:] if kind[0] == "l" else kind for kind in kinds)
        tensors = tuple(place for place, column in enumerate(columns) if column == "t")
        name = f"o.{node.op.name}/{'.'.join(kinds)}"
        known = by_op.setdefault(node.op.name, [])
        if all(one.kinds != kinds for one in known):
            known.append(Constructor(at, node.op, kinds, columns, name, tensors))
    return ["\n".join(query.text) for _, query in queries(pattern, by_op, 0)]


def _kind(slot: Any) -> str:
    match slot.kind:
        case "tensor":
            return "t"
        case "list":
            return "l" + "".join("h" if item == "" else "t" for item in slot.items)
        case "lists":
            return "ltt"
    return "h"


def _print_members(shown: Sequence[dict[str, Any]], expanded: bool) -> None:
    console = Console()
    texts = dict.fromkeys((member["where"], member["text"]) for member in shown)
    for where, text in texts:
        members = [member for member in shown if member["where"] == where]
        first = members[0]
        print_plain(console, f"{where} ({', '.join(filter(None, _labels(first)))})")
        print_plain(console, text.rstrip())
        if len(members) > 1 or expanded:
            print_plain(console, f"stands for: {', '.join(member['name'] for member in members)}")
        for member in members if expanded else ():
            _print_expanded(console, member)


def _labels(member: dict[str, Any]) -> tuple[str, ...]:
    return f"folder {member['folder']}", member["stage"], member["numerics"]


def _print_expanded(console: Console, member: dict[str, Any]) -> None:
    print_plain(console, f"\n{member['name']}")
    if "not_matched" in member:
        print_plain(console, f"  {member['not_matched']}")
        return
    for line in member.get("nodes", ()):
        print_plain(console, f"  {line}")
    roots = ", ".join(f"{name} = {at}" for name, at in member.get("roots", {}).items())
    print_plain(console, f"  roots: {roots}")
    if member.get("commuted"):
        print_plain(console, f"  operands in either order: {', '.join(member['commuted'])}")
    for text in member.get("queries", ()):
        print_plain(console, "\n".join(f"  {line}" for line in text.splitlines()))
