"""The checker lets right rules pass and catches wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eqsat.engine.check import CheckResult, check_rule
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable

TABLE = OpTable(load_book([RULES / "ops"]).ops)
EXAMPLES = 40


def check(tmp_path: Path, body: str, examples: int = EXAMPLES) -> CheckResult:
    path = tmp_path / "rules.yaml"
    path.write_text("- rule: one-rule\n  doc: A rule for tests.\n" + body)
    return check_rule(load_book([path], TABLE).rules[0], TABLE, seed=1, examples=examples)


GELU = """
  vars:
    x: float[...]
  when:
    - dtype(x) in (f32, f64)
  match: gelu(x, approximate='tanh')
  let:
    inner: (x + x * x * x * 0.044715) * 0.7978845608028654
  make: x * 0.5 * (tanh(inner) + 1.0)
  numerics: reassociate
  assumes: [finite]
"""
CENTRE = """
  vars:
    x: float[m, n]
  match: x - mean(x, dim=1, keepdim=True)
  when:
    - n > 0
    - dtype(x) in (f32, f64)
  make: x - sum(x, dim=1, keepdim=True) / n
  numerics: reassociate
  assumes: [no_overflow]
"""
PRODUCT = """
  vars:
    a: float[m, k]
    b: float[k, n]
  match: permute(mm(a, b), 1, 0)
  when:
    - same_dtype(a, b)
  make: mm(permute(b, 1, 0), permute(a, 1, 0))
  numerics: exact
"""
SLICE = """
  vars:
    a: any[m, p]
    b: any[m, q]
  match: slice(cat(a, b, dim=1), 1, p, p + q)
  when:
    - same_dtype(a, b)
  make: b
  numerics: exact
"""
CAST = """
  vars:
    x: float[...]
    wide: dtype
    to: dtype
  match: cast(cast(x, wide), to)
  when:
    - to == dtype(x)
    - lossless(x, wide)
  make: x
  numerics: exact
  grad: false
"""
DROP = """
  vars:
    x: float[...]
    a: const:float
    b: const:float
  match: (x * a) * b
  when:
    - finite(a) and finite(b)
    - a == 1
  make: x * b
  numerics: exact
"""
RIGHT = {
    "gelu": GELU,
    "centre": CENTRE,
    "product": PRODUCT,
    "slice": SLICE,
    "cast": CAST,
    "drop": DROP,
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_rules_pass(tmp_path: Path, name: str) -> None:
    result = check(tmp_path, RIGHT[name])
    assert result.ok, result.failures
    assert result.examples >= EXAMPLES // 2


MUTANTS = {
    "wrong constant": (GELU, "0.044715", "0.04472"),
    "wrong sign": (GELU, "+ 1.0", "- 1.0"),
    "dropped term": (GELU, "x + x * x * x * 0.044715", "x"),
    "swapped operands": (
        CENTRE,
        "x - sum(x, dim=1, keepdim=True) / n",
        "sum(x, dim=1, keepdim=True) / n - x",
    ),
    "wrong dim": (CENTRE, "make: x - sum(x, dim=1", "make: x - sum(x, dim=0"),
    "missing keepdim": (CENTRE, "make: x - sum(x, dim=1, keepdim=True)", "make: x - sum(x, dim=1)"),
    "wrong size": (CENTRE, "/ n", "/ m"),
    "swapped matrices": (
        PRODUCT,
        "mm(permute(b, 1, 0), permute(a, 1, 0))",
        "mm(permute(a, 1, 0), permute(b, 1, 0))",
    ),
    "lost transpose": (PRODUCT, "make: mm(permute(b, 1, 0), permute(a, 1, 0))", "make: mm(a, b)"),
    "wrong dtype": (PRODUCT, "permute(a, 1, 0))\n", "cast(permute(a, 1, 0), dtype(b)) * 1.5)\n"),
    "wrong piece": (SLICE, "make: b", "make: a"),
    "wrong bound": (SLICE, "1, p, p + q)\n  when", "1, p - 1, p + q - 1)\n  when"),
    "dropped condition": (CAST, "    - lossless(x, wide)\n", ""),
    "dropped dtype condition": (CAST, "to == dtype(x)", "lossless(x, to)"),
    "loose bits": (DROP, "    - a == 1\n", ""),
    "result in another dtype": (DROP, "make: x * b", "make: cast(x * b, f64)"),
    "class too strict": (CENTRE, "numerics: reassociate", "numerics: exact"),
    "nan is lost": (
        "\n  vars:\n    x: float[...]\n  match: maximum(x, x)\n  make: relu(x)\n"
        "  numerics: exact\n",
        "",
        "",
    ),
    "zero sign is lost": (
        "\n  vars:\n    x: float[...]\n  match: x + 0.0\n  make: x\n  numerics: exact\n",
        "",
        "",
    ),
    "zero times inf": (
        "\n  vars:\n    x: float[...]\n  match: x * 0.0\n  make: full(shape(x), 0.0, dtype(x))\n"
        "  numerics: signed_zero\n",
        "",
        "",
    ),
    "other gradient": (
        "\n  vars:\n    x: float[...]\n  match: exp(x)\n  make: exp(detach(x))\n"
        "  numerics: exact\n",
        "",
        "",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_rules_are_caught(tmp_path: Path, name: str) -> None:
    body, old, new = MUTANTS[name]
    assert old in body
    result = check(tmp_path, body.replace(old, new))
    assert not result.ok


def test_failures_are_small(tmp_path: Path) -> None:
    result = check(
        tmp_path,
        "\n  vars:\n    x: float[m, n]\n  match: x + 0.0\n  make: x\n  numerics: exact\n",
    )
    tensor = re.search(r"x = .*", result.failures[0])
    assert tensor is not None and len(tensor.group()) < 120, tensor


def test_a_rule_that_never_fires_fails(tmp_path: Path) -> None:
    result = check(tmp_path, DROP.replace("a == 1", "a == 1 and a == 2"))
    assert not result.ok and "no example could be drawn" in result.failures[0]


def test_fires_and_misses(tmp_path: Path) -> None:
    body = CENTRE.replace("n > 0", "0 < n <= 6")
    good = check(tmp_path, body + "  fires:\n    - {n: 6, m: 2}\n  misses:\n    - {n: 7}\n", 10)
    assert good.ok, good.failures
    bad = check(tmp_path, body + "  fires:\n    - {n: 7}\n  misses:\n    - {n: 6, x: f64}\n", 10)
    assert len(bad.failures) == 2
    assert "does not fire for {n: 7}" in bad.failures[0] and "n = 7" in bad.failures[0]
    assert "fires for {n: 6, x: f64}" in bad.failures[1]


def test_loose_tags_and_idle_assumptions_warn(tmp_path: Path) -> None:
    body = SLICE.replace("numerics: exact", "numerics: reassociate\n  assumes: [finite]")
    result = check(tmp_path, body.replace("any[", "float["))
    assert result.ok and result.measured == "exact"
    assert any("tagged reassociate" in text for text in result.warnings)
    assert any("'finite' is needed" in text for text in result.warnings)


def test_assumptions_on_values_hold(tmp_path: Path) -> None:
    body = """
  vars:
    w: float[n, c]
    i: int[m]
  match: embedding(w, i)
  when:
    - dtype(i) == i64
  make: index_select(w, 0, i)
  numerics: exact
  assumes: ["0 <= i < n"]
"""
    result = check(tmp_path, body)
    assert result.ok, result.failures
    wrong = check(
        tmp_path,
        body.replace("make: index_select(w, 0, i)", "make: index_select(flip(w, 0), 0, i)"),
    )
    assert not wrong.ok


def test_the_same_seed_gives_the_same_result(tmp_path: Path) -> None:
    body = CENTRE.replace("/ n", "/ m")
    assert check(tmp_path, body) == check(tmp_path, body)
