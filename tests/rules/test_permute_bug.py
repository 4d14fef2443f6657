"""A published miscompile cannot be written as a rule.

Patterns of torch's inductor for attention ignored the dims of a permute (pytorch#195320, #195282,
fixed by #195383): keys permuted by (0, 2, 3, 1) were taken for keys transposed in their last two
dims, and the fused attention gave wrong numbers without a word. Here such a rule is refused when
it is loaded; where the dims are written out wrongly, the check finds an input that shows it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eqsat.engine.check import check_rule
from eqsat.engine.load import builtin_book, diagnose, load_book
from eqsat.engine.ops import OpTable

TABLE = OpTable(builtin_book().ops)
ATTENTION = """
- rule: attention
  doc: Softmax of scaled scores times the values is scaled dot-product attention.
  vars:
    q: f32[b, h, s, d]
    k: {k}
    v: f32[b, h, l, e]
    scale: const:float{more}
  match: matmul(softmax(matmul(q, {transposed}) * scale, dim=-1), v)
  when:
    - 0.01 <= abs(scale) <= 100
    - b > 0 and h > 0 and s > 0 and l > 0 and d > 0 and e > 0{when}
  make: sdpa(q, {key}, v, scale=scale)
  numerics: reassociate
  assumes: [finite]
"""


def attention(
    folder: Path,
    transposed: str,
    k: str = "f32[b, h, l, d]",
    more: str = "",
    when: str = "",
    key: str = "k",
) -> Path:
    path = folder / "attention.yaml"
    more = "".join(f"\n    {line}" for line in more.split("; ") if line)
    when = f"\n    - {when}" if when else ""
    path.write_text(ATTENTION.format(transposed=transposed, k=k, more=more, when=when, key=key))
    return path


@pytest.mark.parametrize(
    ("transposed", "more", "when"),
    [
        ("permute(k, order)", "order: dims", ""),
        ("permute(k, order)", "order: dims", "len(order) == 4"),
        ("permute(k, order)", "order: dims", "rank(k) == 4 and len(order) == rank(k)"),
        ("permute(k, dims=order)", "order: dims", "same_dtype(q, k)"),
        ("permute(k, **how)", "", ""),
        ("transpose(k, i, j)", "i: const:int; j: const:int", ""),
        ("transpose(k, i, -1)", "i: const:int", ""),
        ("movedim(k, i, j)", "i: const:int; j: const:int", ""),
        ("transpose(k, **how)", "", ""),
        ("permute(permute(k, first), second)", "first: dims; second: dims", ""),
        ("permute(transpose(k, -2, -1), order)", "order: dims", ""),
    ],
)
@pytest.mark.parametrize("k", ["f32[b, h, l, d]", "f32[...]"])
def test_open_dims_are_refused(
    transposed: str, more: str, when: str, k: str, tmp_path: Path
) -> None:
    found = diagnose([attention(tmp_path, transposed, k, more, when)], builtin_book())
    errors = [str(diagnostic) for diagnostic in found if diagnostic.severity == "error"]
    assert errors and all("[E608]" in error for error in errors)


@pytest.mark.parametrize(
    ("transposed", "k"),
    [
        ("permute(k, (0, 1, 2))", "f32[b, h, l, d]"),
        ("permute(k, (0, 2, 2, 1))", "f32[b, h, l, d]"),
        ("permute(k, (0, 2, 3, 1))", "f32[b, l, d]"),
        ("transpose(k, 2, 4)", "f32[b, h, l, d]"),
    ],
)
def test_dims_that_fit_no_key_are_refused(transposed: str, k: str, tmp_path: Path) -> None:
    found = diagnose([attention(tmp_path, transposed, k)], builtin_book())
    assert "E610" in {diagnostic.code for diagnostic in found}


def test_a_transpose_of_any_rank_is_named(tmp_path: Path) -> None:
    """Dims 1 and 2 are the last two of a batch of matrices only."""
    found = diagnose([attention(tmp_path, "transpose(k, 1, 2)", "f32[...]")], builtin_book())
    assert {diagnostic.code for diagnostic in found} == {"W706"}


@pytest.mark.parametrize(
    ("transposed", "k"),
    [
        ("permute(k, (0, 2, 3, 1))", "f32[b, h, l, d]"),  # the bug itself
        ("permute(k, (0, 3, 2, 1))", "f32[b, h, l, d]"),
        ("permute(k, (1, 0, 3, 2))", "f32[b, h, l, d]"),
        ("transpose(k, 1, 3)", "f32[b, h, l, d]"),
    ],
)
def test_wrong_dims_give_a_program_that_shows_it(transposed: str, k: str, tmp_path: Path) -> None:
    (rule,) = load_book([attention(tmp_path, transposed, k)], TABLE).rules
    result = check_rule(rule, TABLE, seed=0, examples=40)
    assert result.examples and "import torch" in "\n".join(result.failures)


@pytest.mark.parametrize("transposed", ["permute(k, (0, 2, 3, 1))", "transpose(k, 1, 2)"])
def test_a_rule_that_is_never_tried_does_not_pass(transposed: str, tmp_path: Path) -> None:
    """Keys of any rank do not say for which ranks the rule is meant, so none is drawn that fits."""
    (rule,) = load_book([attention(tmp_path, transposed, "f32[...]")], TABLE).rules
    result = check_rule(rule, TABLE, seed=0, examples=10)
    assert not result.ok


@pytest.mark.parametrize(
    ("transposed", "k", "key", "more", "when"),
    [
        ("permute(k, (0, 1, 3, 2))", "f32[b, h, l, d]", "k", "", ""),
        ("transpose(k, -2, -1)", "f32[b, h, l, d]", "k", "", ""),
        # The keys of the issue, with heads next to last, and the dims handed on as they are.
        ("permute(k, (0, 2, 3, 1))", "f32[b, l, h, d]", "permute(k, (0, 2, 1, 3))", "", ""),
        ("permute(k, order)", "f32[b, h, l, d]", "k", "order: dims", "order == swapped(4, 2, 3)"),
    ],
)
def test_right_rules_pass(
    transposed: str, k: str, key: str, more: str, when: str, tmp_path: Path
) -> None:
    path = attention(tmp_path, transposed, k, more, when, key)
    assert not [d for d in diagnose([path], builtin_book()) if d.severity == "error"]
    (rule,) = load_book([path], TABLE).rules
    result = check_rule(rule, TABLE, seed=0, examples=10)
    assert result.ok, result.failures
    assert result.examples > 0
