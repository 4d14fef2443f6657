"""The documents say what is so: their commands are run, their rules loaded and checked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from eqsat.cli import _parser, main
from eqsat.config import Settings
from eqsat.engine.load import builtin_book, diagnose
from eqsat.engine.rule import NUMERICS
from eqsat.manual import BEGIN, END, is_current, update_manual

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "rules" / "README.md"
DOCS = (ROOT / "README.md", GUIDE, *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What a machine, a version of torch or a day changes.
NUMBER = re.compile(r"k_[0-9a-f]{8}|\d[\d.e,-]*")
PASSING = re.compile(r"compile time:| becomes |estimated us|^\w+ = torch\.(?!ops\.)")
FOLDERS = "rules|engine|lowering|codegen|tests|docs|benchmarks"


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language note."""

    language: str
    note: str
    text: str


def blocks(path: Path) -> list[Block]:
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [Block(one[1], one[2] or "", one[3]) for one in found]


def rule_names(block: Block) -> list[str]:
    return re.findall(r"^- (?:rule|forbid|decompose): (\S+)", block.text, re.MULTILINE)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a transcript with the lines below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output.splitlines()


def plain(line: str) -> str:
    return " ".join(NUMBER.sub("#", line).replace("─", "").split())


def flowing(lines: list[str]) -> str:
    """Lines as one text without what changes from run to run, since terminals wrap them."""
    kept = [plain(line) for line in lines if not PASSING.search(line)]
    return " ".join(line for line in kept if line)


def assert_told(expected: list[str], output: str) -> None:
    """Each run of lines between `...` stands in the output, in order."""
    found, start = flowing(output.splitlines()), 0
    for part in "\n".join(expected).split("\n...\n"):
        wanted = flowing([line for line in part.splitlines() if line != "..."])
        assert wanted in found[start:], f"{wanted!r}\nis not in\n{found[start:]!r}"
        start = found.index(wanted, start) + len(wanted)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs `NAME=value eqsat ...` in an empty folder and gives what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(command: str) -> str:
        words = shlex.split(command)
        program = words.index("eqsat")
        with pytest.MonkeyPatch.context() as patch:
            for setting in words[:program]:
                patch.setenv(*setting.split("=", 1))
            arguments = words[program + 1 :]
            # No processes are forked from inside pytest.
            main([*arguments, "--jobs", "0"] if arguments[0] == "check" else arguments)
        return capsys.readouterr().out

    return run


def test_the_transcript_of_a_first_rule(shell: Callable[[str], str], tmp_path: Path) -> None:
    ran: list[str] = []
    for block in blocks(ROOT / "docs" / "first_rule.md"):
        if block.language != "console":
            (tmp_path / block.note).write_text(block.text)
            continue
        for command, expected in commands(block.text):
            output = shell(command)
            assert_told(expected, output)
            ran.append(command)
            if command == "eqsat check broken.yaml":
                program = output[output.index("import torch") : output.index("1 rules checked")]
                with pytest.raises(AssertionError):
                    exec(program, {})
    assert len(ran) >= 9


def test_a_transcript_that_is_wrong_is_noticed() -> None:
    output = "one rule\ntwo rules\nthree 0.25 s\n"
    assert_told(["one rule", "...", "three 0.99 s"], output)
    for wrong in (["two", "...", "one"], ["one rule", "three"], ["four"]):
        with pytest.raises(AssertionError):
            assert_told(wrong, output)


INDUCTOR = ROOT / "docs" / "for_inductor_users.md"
RULES = [block for path in (GUIDE, INDUCTOR) for block in blocks(path) if block.language == "yaml"]


@pytest.mark.parametrize("block", RULES, ids=lambda block: f"{rule_names(block)[0]} {block.note}")
def test_rules_of_the_guide(block: Block, tmp_path: Path) -> None:
    """A block without a note is right; `wrong: E608` says which code it gets, `wrong: check`
    that the check finds it."""
    path = tmp_path / "guide.yaml"
    path.write_text(block.text)
    codes = {found.code for found in diagnose([path], builtin_book())}
    wrong = block.note.removeprefix("wrong: ")
    if wrong in ("", "check"):
        assert codes == set() and main(["lint", str(path)]) == 0
        quick = ("--no-compiled", "--examples", "20", "--jobs", "0")
        assert main(["check", *quick, str(path)]) == bool(wrong)
    else:
        assert codes == {wrong}


def test_the_guide_has_wrong_and_right_examples() -> None:
    notes = [block.note for block in RULES]
    assert len([note for note in notes if note]) >= 5 and notes.count("") >= 5


def test_the_tables_of_the_guide_are_current() -> None:
    assert is_current(GUIDE.read_text(encoding="utf-8")), "run `eqsat schema`"


def test_old_tables_are_noticed_and_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "guide.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert not is_current(path.read_text())
    update_manual(path)
    text = path.read_text()
    assert is_current(text) and text.startswith("before\n") and text.endswith("\nafter\n")
    path.write_text("no marks")
    with pytest.raises(ValueError, match="once"):
        update_manual(path)


def test_the_guide_tells_of_every_class_and_condition() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in NUMERICS if f"`{name}" not in text] == []
    for word in ("`is_weight(x)`", "`lossless(x, y)`", "[E606](../engine/pages/E606.md)"):
        assert word in text


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_tests_and_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(rf"`((?:{FOLDERS})/[\w/.]+)(?:`|::)", text):
        assert (ROOT / name).exists(), name


def test_files_at_the_root_are_told_of() -> None:
    text = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
    files = [path.name for path in ROOT.glob("*.py") if not path.name.startswith("__")]
    assert [name for name in files if f"`{name}`" not in text and name != "version.py"] == []


def test_every_command_is_told_of() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = _parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert [name for name in commands if f"eqsat {name}" not in text] == []
    settings = [entry.name for entry in fields(Settings) if entry.name != "mode"]
    assert [name for name in settings if f"`{name}`" not in text] == []


def test_python_blocks_can_be_read() -> None:
    for path in DOCS:
        for block in blocks(path):
            if block.language == "python":
                compile(block.text, str(path), "exec")
