"""docs/fusion.md names the rules, facts and files that there are, and all of the rules."""

from __future__ import annotations

import re

from eqsat.engine.load import RULES, load_book
from eqsat.lowering.pair_facts import FACTS

ROOT = RULES.parent
PAGE = (ROOT / "docs" / "fusion.md").read_text(encoding="utf-8")
TEXT = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
WORDS = set(re.findall(r"`([^`]+)`", TEXT))
NAMES = {rule.name for rule in load_book([RULES / "fusion"]).fuse}


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_rule_is_named_and_no_other() -> None:
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)+|pieces|neighbours|siblings)`", TEXT))
    assert told == NAMES
    assert set(re.findall(r"`([^`]+)`", section("The rules").split("Before that")[0])) == NAMES


def test_facts_and_files_exist() -> None:
    facts = {word.removesuffix("()") for word in WORDS if word.endswith("()")}
    assert facts and facts <= set(FACTS)
    files = {word for word in WORDS if re.fullmatch(r"[\w/]+\.(py|md|yaml)", word)}
    assert files and all((ROOT / name).is_file() for name in files)


def test_every_line_of_the_list_is_answered() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    found = set(re.findall(r"\b([LVHSEP]\d+)\b", " ".join(line.split("|")[1] for line in lines)))
    wanted = {f"L{n}" for n in range(1, 12)} | {f"V{n}" for n in range(1, 12)}
    wanted |= {f"{letter}{n}" for letter in "HS" for n in range(1, 6)}
    assert found >= wanted | {"E1", "E2", "E3", "P1", "P8"}
    rows = [line.strip("|").split("|") for line in lines]
    assert all(cell.strip() for row in rows if len(row) == 2 for cell in row)
