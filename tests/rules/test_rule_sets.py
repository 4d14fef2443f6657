"""What `rules/rule_sets` claims is so: its rules exist, fire in its programs, and give the graphs
that it says; its page is current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eqsat.benchmarks.rule_sets import PAGE, describe
from eqsat.cli import main
from eqsat.engine.load import builtin_book
from eqsat.engine.rule_sets import (
    Entry,
    base_name,
    load_rule_sets,
    load_uses,
    problems,
    rules_of,
)
from eqsat.engine.source import RuleErrors
from eqsat.tests.rules.rule_set_programs import run_program

ROOT = Path(__file__).resolve().parent.parent.parent
BOOK = builtin_book()
SETS = load_rule_sets()
# Rules that reports tell of: not those that AOTAutograd applies, nor those of fusion.
SEEN = {base_name(rule.name) for rule in BOOK.rules if rule.stage != "trace"}
ENTRIES = [(one.name, entry) for one in SETS for entry in one.entries]
SHOWN = [(name, entry) for name, entry in ENTRIES if entry.program is not None]
_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def label(value: object) -> str:
    return re.sub(r"[^\w.-]+", "_", value.name) if isinstance(value, Entry) else str(value)


def assert_shown(entry: Entry) -> None:
    """The program of an entry does what it says."""
    assert entry.program is not None
    outcome = run_program(entry.program)
    for glob in entry.rules:
        names = SEEN & set(rules_of((glob,), BOOK))
        assert not names or names & outcome.fired, f"{glob} did not fire, but {outcome.fired}"
    counts = {op: outcome.ops[op] for op in entry.program.graph}
    assert counts == dict(entry.program.graph), f"the graph has {dict(outcome.ops)}"
    if entry.program.nests >= 0:
        assert outcome.nests == entry.program.nests


def test_the_data_is_sound() -> None:
    assert list(problems(SETS, BOOK)) == []


@pytest.mark.parametrize(("name", "entry"), SHOWN[::8], ids=label)
def test_some_programs_do_what_is_said(name: str, entry: Entry) -> None:
    assert_shown(entry)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "entry"), SHOWN, ids=label)
def test_programs_do_what_is_said(name: str, entry: Entry) -> None:
    assert_shown(entry)


def test_the_tests_that_are_named_exist() -> None:
    for _, entry in ENTRIES:
        if not entry.test:
            continue
        found = _TEST.findall(entry.test)
        assert found, f"{entry.where}: expected tests/FILE.py::test_name"
        for file, test in found:
            assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), entry.where


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe(), "run `python -m benchmarks.rule_sets`"


def test_models_were_run_with_the_rules_there_are() -> None:
    uses = load_uses()
    assert set(uses.counted) == SEEN, "run `python -m benchmarks.rule_sets --models`"
    assert set(uses.fired) <= SEEN and uses.models


WRONG = """
about: A part with mistakes.
entries:
  - name: unknown
    rules: [permute-back-drip]
    program: "x"
  - name: bare
    design: Nothing shows this.
  - name: bare
    reason: Said twice.
"""


def write(folder: Path, text: str) -> Path:
    (folder / "sample").mkdir()
    (folder / "sample" / "part.yaml").write_text(text)
    return folder


def test_wrong_data_is_noticed(tmp_path: Path) -> None:
    unknown, nothing, twice = problems(load_rule_sets(write(tmp_path, WRONG)), BOOK)
    assert "no rule is called 'permute-back-drip' (did you mean 'permute-back-drop'?)" in unknown
    assert "nothing shows 'bare'" in nothing and "already stands at" in twice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("about: a\nentries:\n  - name: n\n", "one of 'rules', 'design' and 'reason'"),
        ("about: a\nentries:\n  - name: n\n    rule: [x]\n", "an entry has no 'rule'"),
        ("about: a\nentries:\n  - reason: n\n", "an entry has no 'name'"),
        ("about: a\nentries:\n  - name: n\n    reason: r\n    graph: {mm: -1}\n", None),
        (
            "about: a\nentries:\n  - {name: n, design: d, program: p, graph: {mm: -1}}\n",
            "'mm' is a",
        ),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, message: str | None) -> None:
    folder = write(tmp_path, text)
    if message is None:  # nothing reads it without a program
        load_rule_sets(folder)
        return
    with pytest.raises(RuleErrors, match=re.escape(message)):
        load_rule_sets(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": ("relu-twice",)}, "relu-twice did not fire"),
        ({"graph": "{permute: 1}"}, "the graph has"),
        ({"nests": "2"}, "assert 1 == 2"),
    ],
)
def test_a_claim_that_is_wrong_is_noticed(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    said = {"rules": ("permute-back-drop",), "graph": "{permute: 0}", "nests": "1", **change}
    text = f"""
about: One claim.
entries:
  - name: claim
    rules: [{", ".join(said["rules"])}]
    program: |
      def program(x: "float[2, 3, 4]"):
          return x.permute(2, 0, 1).permute(1, 2, 0).exp()
    graph: {said["graph"]}
    nests: {said["nests"]}
"""
    (one,) = load_rule_sets(write(tmp_path, text))
    with pytest.raises(AssertionError, match=message):
        assert_shown(one.entries[0])


def test_the_command_prints_the_sets_and_the_rules_that_never_fired(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rules", "--coverage", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in found["sets"]} == {one.name for one in SETS}
    assert set(found["never_fired"]) == set(load_uses().never)
    assert main(["rules", "--coverage"]) == 0
    out = capsys.readouterr().out
    assert "inductor" in out and "never fired in" in out
