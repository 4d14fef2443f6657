"""Every mistake that a rule author can make: one file each, with the exact message.

`tests/errors/NAME.yaml` holds the mistake, `NAME.txt` what the loader prints.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from eqsat.engine.load import load_book
from eqsat.engine.schedule import load_schedule
from eqsat.engine.source import RuleErrors
from eqsat.engine.target import load_target
from eqsat.tests.golden import Golden

FOLDER = Path(__file__).resolve().parent.parent / "errors"
# The other files that people edit, and what reads them.
SETTINGS = {
    "schedule": load_schedule,
    "targets": lambda path: load_target(path.stem, path.parent),
}
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


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.yaml")), ids=lambda path: path.stem)
def test_message_of_settings(path: Path, golden: Golden) -> None:
    with pytest.raises(RuleErrors) as raised:
        SETTINGS[path.parent.name](path)
    golden.check(path.with_suffix(".txt"), str(raised.value).replace(str(path), path.name))


def test_a_damaged_file_never_gives_a_traceback(tmp_path: Path) -> None:
    """Whatever is lost, doubled or put in: rules, or errors at places inside the file."""
    path = tmp_path / "damaged.yaml"
    chance = random.Random(0)
    whole = sorted((FOLDER.parent.parent / "rules").rglob("*.yaml"))
    for _ in range(150):
        text = chance.choice(whole).read_text()[:1500]
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(text) + 1)
            put = chance.choice([*"()[]{}:,.*&!|>'\"#%@-=?\t\n ", "...", "**how", "- ", "x: "])
            text = text[:place] + put + text[place + chance.randint(0, 5) :]
        path.write_text(text)
        try:
            load_book([path])
        except RuleErrors as errors:
            lines = text.count("\n") + 1
            assert all(1 <= found.span.line <= lines for found in errors.diagnostics)
            assert str(errors)


def test_every_file_has_its_text() -> None:
    assert {path.stem for path in FILES} == {path.stem for path in FOLDER.glob("*.txt")}


# A folder without rules as a pack, and what only stands beside built-in rules: see
# test_lint.py.
ELSEWHERE = {"E115", "W708"}


def test_every_code_is_shown() -> None:
    """A code that no golden file shows is a message nobody has read."""
    engine = FOLDER.parent.parent / "engine"
    sources = "".join(path.read_text() for path in engine.glob("*.py"))
    texts = "".join(path.read_text() for path in FOLDER.rglob("*.txt"))
    codes = set(re.findall(r'"([EW][1-7]\d\d)"', sources))
    shown = set(re.findall(r"\[([EW]\d\d\d)\]", texts))
    assert codes - shown == ELSEWHERE
    assert len(FILES) >= 100
