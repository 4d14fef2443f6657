"""`eqsat rules overlaps`: pairs of rules of which one says what the other says already.

Takes paths of rule files, or all built-in rules; gives text or JSON, and an exit status: 0 there
are none, 1 there are some or a file has errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from .engine.load import builtin_book
from .engine.ops import OpTable
from .engine.overlaps import Overlap, overlaps
from .engine.source import RuleErrors
from .rule_paths import load_all, load_path
from .terminal import print_json, print_plain


def print_overlaps(paths: Sequence[str], *, json_output: bool) -> int:
    """Compare the rules of `paths` with each other and with the built-in ones; without paths the
    built-in ones with each other."""
    try:
        book = load_all(paths) if paths else builtin_book()
        named = [rule for path in paths for rule in load_path(path).rules]
    except RuleErrors as errors:
        print_plain(Console(), str(errors))
        return 1
    mine = {rule.name for rule in named} if paths else {rule.name for rule in book.rules}
    rules = [rule for rule in book.rules if rule.name in mine]
    found = list(overlaps(rules, book.rules, OpTable(book.ops)))
    if json_output:
        print_json([_as_json(one) for one in found])
    else:
        console = Console()
        for one in found:
            print_plain(console, str(one))
        print_plain(console, f"{len(rules)} rules compared, {len(found)} overlaps")
    return 1 if found else 0


def _as_json(one: Overlap) -> dict[str, Any]:
    return {
        "narrow": one.narrow.name,
        "narrow_where": one.narrow.where,
        "wide": one.wide.name,
        "wide_where": one.wide.where,
        "both": one.both,
    }
