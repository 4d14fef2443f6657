"""Rules that say what others say are found, however they are spelled, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eqsat.cli import main
from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.overlaps import Overlap, overlaps

TABLE = OpTable(builtin_book().ops)

WIDE = """
- rule: wide
  doc: Twice the same permute of two dims is nothing.
  vars:
    x: any[...]
    a: dims
    b: dims
  match: permute(permute(x, a), b)
  when:
    - b == inverse(a)
  make: x
  numerics: exact
"""
NARROW = """
- rule: narrow
  doc: Transposing a matrix of floats twice is nothing.
  vars:
    x: float[m, n]
  match: transpose(transpose(x, 0, 1), 0, 1)
  make: x
  numerics: {numerics}
"""
FOLD = """
- rule: {name}
  doc: A factor goes into the weight.
  vars:
    x: float[m, k]
    w: float[k, n]
    f: const:float
  match: mm(x, w) * f
  when:
    - 0.001 <= abs(f) <= 1000
{condition}
  make: mm(x, w * f)
  numerics: reassociate
  assumes: [no_overflow]
"""


def found(tmp_path: Path, *texts: str) -> list[Overlap]:
    path = tmp_path / "rules.yaml"
    path.write_text("\n".join(texts))
    rules = load_book([path], TABLE).rules
    return list(overlaps(rules, rules, TABLE))


def test_a_special_case_in_another_spelling(tmp_path: Path) -> None:
    (one,) = found(tmp_path, WIDE, NARROW.replace("{numerics}", "exact"))
    assert (one.narrow.name, one.wide.name, one.both) == ("narrow", "wide", False)
    assert "the first is part of the second" in str(one)


def test_a_rule_that_fewer_profiles_have_covers_nothing(tmp_path: Path) -> None:
    loose = WIDE.replace("numerics: exact", "numerics: reassociate")
    assert found(tmp_path, loose, NARROW.replace("{numerics}", "exact")) == []


def test_the_same_twice(tmp_path: Path) -> None:
    first = NARROW.replace("{numerics}", "exact")
    second = first.replace("rule: narrow", "rule: other").replace(
        "transpose(transpose(x, 0, 1), 0, 1)", "permute(permute(x, (1, 0)), (1, 0))"
    )
    (one,) = found(tmp_path, first, second)
    assert one.both and "say the same" in str(one)


def test_what_holds_for_fewer_inputs_covers_less(tmp_path: Path) -> None:
    frozen = FOLD.format(name="frozen", condition="    - is_frozen(w)")
    free = FOLD.format(name="free", condition="")
    (one,) = found(tmp_path, frozen, free)
    assert (one.narrow.name, one.wide.name, one.both) == ("frozen", "free", False)


def test_members_of_a_family_are_not_compared(tmp_path: Path) -> None:
    family = NARROW.replace("{numerics}", "exact").replace(
        "  match: transpose(transpose(x, 0, 1), 0, 1)",
        "  for: {d: [0, -2]}\n  match: transpose(transpose(x, d, 1), d, 1)",
    )
    assert found(tmp_path, family) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(NARROW.replace("{numerics}", "exact"))
    assert main(["rules", "overlaps", str(path), "--json"]) == 1
    pairs = {(one["narrow"], one["wide"]) for one in json.loads(capsys.readouterr().out)}
    assert ("mine:narrow", "permute-back-drop") in pairs
    path.write_text(NARROW.replace("{numerics}", "exact").replace("make: x", "make: exp(log(x))"))
    assert main(["rules", "overlaps", str(path)]) == 0
    assert "0 overlaps" in capsys.readouterr().out
    path.write_text("- rule: broken\n")
    assert main(["rules", "overlaps", str(path)]) == 1
