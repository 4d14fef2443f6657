"""Every mistake that a rule author can make: one file each, with the exact message.

`tests/errors/NAME.yaml` holds the mistake, `NAME.txt` what the loader prints.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from eqsat.engine.load import load_book
from eqsat.engine.source import RuleErrors
from eqsat.tests.golden import Golden

FOLDER = Path(__file__).resolve().parent.parent / "errors"
# Unreadable files: see test_load.py.
NO_FILE = {"E108"}
FILES = sorted(FOLDER.glob("*.yaml"))


def messages(path: Path) -> str:
    """What the loader says about a file: its errors, or else its warnings."""
    try:
        book = load_book([path])
    except RuleErrors as errors:
        return str(errors).replace(str(path), path.name)
    return "\n".join(map(str, book.warnings)).replace(str(path), path.name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_message(path: Path, golden: Golden) -> None:
    text = messages(path)
    assert text, "the loader accepts this file without a word"
    golden.check(path.with_suffix(".txt"), text)


def test_every_file_has_its_text() -> None:
    assert {path.stem for path in FILES} == {path.stem for path in FOLDER.glob("*.txt")}
    assert len(FILES) >= 35


def test_every_code_is_shown() -> None:
    """A code that no golden file shows is a message nobody has read."""
    engine = FOLDER.parent.parent / "engine"
    sources = "".join(path.read_text() for path in engine.glob("*.py"))
    texts = "".join(path.read_text() for path in FOLDER.glob("*.txt"))
    codes = set(re.findall(r'"([EW][1-7]\d\d)"', sources))
    shown = set(re.findall(r"\[([EW]\d\d\d)\]", texts))
    assert codes - shown == NO_FILE
