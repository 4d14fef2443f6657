"""How commands print: plain text as it is, and JSON.

Takes texts and plain values; gives output on stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console


def print_plain(console: Console, text: str) -> None:
    """Text without markup, colours or wrapping, so that it can be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON on stdout; what JSON does not know becomes its text."""
    print(json.dumps(value, indent=1, default=str))


def complain(command: str, problem: object) -> int:
    """Says on stderr what is wrong with a command line; gives exit status 2."""
    print(f"eqsat {command}: {problem}", file=sys.stderr)
    return 2
