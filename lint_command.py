"""`eqsat lint`: everything the loader has to say about rule files, and what its codes mean.

Takes paths or codes and prints; gives an exit status: 0 fine, 1 errors (or, with `strict`,
warnings), 2 a code that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from .engine.books import refuse_empty
from .engine.explanations import pages
from .engine.load import builtin_book, diagnose, load_book
from .engine.source import Diagnostic, RuleErrors, did_you_mean
from .lowering.fusion_words import check_fusion_rules
from .terminal import complain, print_json, print_plain


def lint_paths(paths: Sequence[str], strict: bool, json_output: bool) -> int:
    """Print all errors and warnings of rule files, with their lines or as JSON."""
    found = _diagnose(paths)
    errors = sum(diagnostic.severity == "error" for diagnostic in found)
    if json_output:
        print_json([_as_json(diagnostic) for diagnostic in found])
    else:
        console = Console()
        for diagnostic in found:
            print_plain(console, str(diagnostic))
        print_plain(console, _summary(found, errors))
    return 1 if errors or (strict and found) else 0


def explain_code(code: str) -> int:
    """Print the page of one code."""
    wanted = code.strip().upper()
    page = pages().get(wanted)
    if page is None:
        close = did_you_mean(wanted, pages())
        hint = f"did you mean {close}?" if close else "eqsat lint --codes lists them"
        return complain("lint", f"there is no code '{code}' ({hint})")
    console = Console()
    if console.is_terminal:
        console.print(Markdown(page.text))
    else:
        print_plain(console, page.text.rstrip())
    return 0


def list_codes() -> int:
    """Print every code with its meaning."""
    console = Console()
    for page in pages().values():
        print_plain(console, f"{page.code}  {page.title}")
    return 0


def _diagnose(paths: Sequence[str]) -> tuple[Diagnostic, ...]:
    try:
        for path in paths:
            refuse_empty(Path(path))
    except RuleErrors as errors:
        return errors.diagnostics
    found = diagnose(paths, builtin_book())
    if any(diagnostic.severity == "error" for diagnostic in found):
        return found
    return (*found, *check_fusion_rules(load_book(paths).fuse))


def _summary(found: Sequence[Diagnostic], errors: int) -> str:
    if not found:
        return "nothing to complain about"
    codes = sorted({diagnostic.code for diagnostic in found})
    counts = f"{_counted(errors, 'error')}, {_counted(len(found) - errors, 'warning')}"
    return f"{counts}; eqsat lint --explain {codes[0]} says more about {codes[0]}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """`line` and `column` count from 1; `length` is in characters."""
    span = diagnostic.span
    return {
        "path": span.path,
        "line": span.line,
        "column": span.col,
        "length": span.length,
        "severity": diagnostic.severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
    }
