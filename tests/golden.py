"""Golden files: texts that a test compares with, and `pytest --bless` rewrites.

A test takes the `golden` fixture and calls `golden.check(path, text)`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Golden:
    """Compares texts with files; with `bless` it writes them instead."""

    bless: bool
    test: str

    def check(self, path: Path, text: str) -> None:
        """Fails with a unified diff where the file says something else, or does not exist."""
        text = text.rstrip("\n") + "\n"
        expected = path.read_text(encoding="utf-8") if path.exists() else None
        if text == expected:
            return
        if self.bless:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        accept = f"if this is right, run: pytest --bless '{self.test}'"
        if expected is None:
            pytest.fail(f"{path} does not exist\n{text}\n{accept}", pytrace=False)
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), str(path), "now", lineterm=""
        )
        pytest.fail("\n".join([*diff, "", accept]), pytrace=False)
