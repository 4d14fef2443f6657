"""The explanation pages: every code has one, and its examples do what it says."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from eqsat.engine.explanations import FOLDER, Page, pages
from eqsat.engine.load import RULES, builtin_book, diagnose
from eqsat.engine.schedule import load_schedule
from eqsat.engine.source import RuleErrors

# Their examples are commands; `test_lint.py` tries both.
COMMANDS = {"E108", "E115"}


def codes_raised() -> set[str]:
    """Every code that the source of the package names."""
    root = RULES.parent
    sources = [*root.glob("engine/*.py"), *root.glob("lowering/*.py")]
    return set(re.findall(r'"([EW]\d{3})"', "".join(path.read_text() for path in sources)))


def codes_of(text: str, folder: Path) -> set[str]:
    path = folder / "example.yaml"
    path.write_text(text)
    return {found.code for found in diagnose([path], builtin_book())}


def codes_of_schedule(text: str, folder: Path) -> set[str]:
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
    path.write_text(text)
    try:
        load_schedule(path)
    except RuleErrors as errors:
        return {found.code for found in errors.diagnostics}
    return set()


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    raised = codes_raised()
    assert len(raised) > 60
    assert set(pages()) == raised


def test_pages_without_runnable_examples_are_few() -> None:
    assert {page.code for page in pages().values() if page.language == "sh"} == COMMANDS


@pytest.mark.parametrize("page", pages().values(), ids=lambda page: page.code)
def test_a_page_is_complete(page: Page) -> None:
    assert len(page.text.split("Wrong:")[0]) > 120, "say what is wrong and why it matters"
    assert not page.title.endswith(".")
    assert page.see and page.code not in page.see
    assert set(page.see) <= set(pages())


@pytest.mark.parametrize(
    "page", [page for page in pages().values() if page.code not in COMMANDS], ids=lambda p: p.code
)
def test_examples(page: Page, tmp_path: Path) -> None:
    codes = codes_of_schedule if page.language == "yaml schedule" else codes_of
    assert codes(page.wrong, tmp_path) == {page.code}
    assert codes(page.right, tmp_path) == set()


def test_a_damaged_page_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FOLDER.glob("E1*.md"):
        (tmp_path / path.name).write_text(path.read_text().replace("# E101", "# E999"))
    monkeypatch.setattr("eqsat.engine.explanations.FOLDER", tmp_path)
    pages.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"E101\.md"):
            pages()
    finally:
        pages.cache_clear()
