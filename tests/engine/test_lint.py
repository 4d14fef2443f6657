"""What lint finds in rules that load, and what it lets pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eqsat.engine.load import RULES, builtin_book, diagnose, load_book
from eqsat.engine.rule import RuleBook

RULE = """
- rule: {name}
  doc: A rule.
  vars:
{vars}
  match: {match}
{more}
  make: {make}
  numerics: {numerics}
"""


def rule(
    match: str,
    make: str,
    when: str = "",
    name: str = "mine",
    numerics: str = "reassociate",
    more: str = "",
    **kinds: str,
) -> str:
    lines = "".join(f"    {key}: {kind}\n" for key, kind in (kinds or {"x": "float[...]"}).items())
    if when:
        more += "  when:\n" + "".join(f"    - {part}\n" for part in when.split("; "))
    return RULE.format(
        name=name, vars=lines.rstrip(), match=match, make=make, numerics=numerics, more=more
    ).replace("\n\n", "\n")


@pytest.fixture
def found(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The codes that lint finds in a text, beside nothing or the built-in rules."""

    def codes(text: str, beside: RuleBook | None = None) -> list[str]:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return [d.code for d in diagnose([path], RuleBook() if beside is None else beside)]

    return codes


def test_no_false_alarm_over_the_built_in_rules() -> None:
    assert "\n".join(map(str, diagnose([RULES], builtin_book()))) == ""


@pytest.mark.parametrize(
    "when",
    [
        "n > 4; n < 2",
        "n > 4 and n < 2",
        "2 < n < 3",
        "n == 3; n != 3",
        "n > 1; n < 4; n not in (2, 3)",
        "n in (1, 2); n in (3, 4)",
        "n > m; n <= m",
        "n < 0",
        "n % 2 == 2",
        "rank(x) == 3",
        "dtype(x) in (i32, bool)",
        "dtype(x) == f32; is_half(x)",
        "dtype(x) == dtype(y); dtype(x) == f32; dtype(y) == f64",
        "not is_floating(x)",
        "c > 0; c < 0",
        "k > 0; k < 1",
        "contiguous(x); not contiguous(x)",
    ],
)
def test_conditions_that_cannot_hold(found, when: str) -> None:  # type: ignore[no-untyped-def]
    assert "W703" in found(_with(when))


@pytest.mark.parametrize(
    "when",
    [
        "n >= 0",
        "n > 0 or n == 0",
        "n * m >= 0",
        "rank(x) == 2",
        "rank(x) >= 1",
        "dtype(x) in (f16, bf16, f32, f64)",
        "is_floating(x)",
        "dtype(x) != i32",
        "n == n",
        "not n < 0",
        "n > 0; n > 1",  # the second says more
        "n > 1; n > 1",
        "dtype(x) == f32; dtype(x) in (f32, f64)",
        "contiguous(x); contiguous(x) or n > 1",
        "k > 0 or k <= 0",
    ],
)
def test_conditions_that_say_nothing(found, when: str) -> None:  # type: ignore[no-untyped-def]
    assert found(_with(when)) == ["W703"]


@pytest.mark.parametrize(
    "when",
    [
        "n > 0",
        "0 <= n < 5",
        "n > 4; n < 6",
        "n > 4; m < 2",
        "n > 1 or m > 1; n < 4",
        "n > m; n < 2 * m",
        "n % 2 == 1",
        "n * m > 0",
        "numel(x) > 0",
        "size(x, 0) > 0",
        "dtype(x) in (f32, f64)",
        "dtype(x) != f32; dtype(x) != f64",
        "dtype(x) == dtype(y)",
        "dtype(x) == f32; dtype(y) == f64",
        "c > 0 or c <= 0",  # not for nan
        "c == c",
        "c > 0; c < 1",
        "abs(c) < 0.5",
        "c == -inf",
        "contiguous(x); not contiguous(y)",
        "is_weight(x) and is_weight(y)",
    ],
)
def test_conditions_that_say_something(found, when: str) -> None:  # type: ignore[no-untyped-def]
    assert found(_with(when)) == []


def _with(when: str) -> str:
    kinds = {"x": "float[m, n]", "y": "float[m, n]", "c": "const:float", "k": "const:int"}
    return rule("tanh(x + y * c) * k", "tanh(x + c * y) * k + 0", when, **kinds)


@pytest.mark.parametrize(
    ("match", "make", "when", "code"),
    [
        ("relu(permute(x, order))", "relu(x)", "", "E608"),
        ("relu(permute(x, order))", "relu(x)", "len(order) == rank(x)", "E608"),
        ("relu(permute(x, **how))", "relu(x)", "", "E608"),
        ("relu(transpose(x, d, e))", "relu(transpose(x, -1, -2))", "", "E608"),
        ("relu(slice(x, dim=-1, start=d, end=e))", "relu(x)", "", "E608"),
        ("relu(sum(x, dim=d))", "relu(x)", "", "E608"),
        ("view(x, order)", "x", "", "E608"),
        ("softmax(relu(x), dim=d)", "softmax(x, dim=-1)", "", "E608"),
        ("softmax(relu(x), dim=-1, **how)", "relu(x)", "", "W704"),
        ("relu(x * c)", "relu(x)", "", "W707"),
        ("relu(x) + 2 * c", "relu(x)", "", None),  # E408 says more
        ("relu(permute(x, order))", "permute(relu(x), order)", "", None),
        ("relu(permute(x, **how))", "permute(relu(x), **how)", "", None),
        ("permute(x, order)", "x", "order == all_dims(rank(x))", None),
        ("relu(sum(x, dim=d))", "sum(x, dim=d)", "", None),
        ("view(view(x, order), (-1,))", "view(x, (-1,))", "", None),
        ("relu(x * c)", "relu(x)", "c > 0", None),
        ("relu(clone(x, **how))", "relu(x)", "", None),
        ("relu(native_dropout(x, c, False)[0])", "relu(x)", "", None),
    ],
)
def test_open_numbers(found, match: str, make: str, when: str, code: str | None) -> None:  # type: ignore[no-untyped-def]
    kinds = {"order": "dims", "d": "const:int", "e": "const:int", "c": "const:float"}
    used = {name: kind for name, kind in kinds.items() if _mentions(match, name)}
    codes = found(rule(match, make, when, x="float[..., n]", **used))
    if code is None:
        assert not {"E608", "W704", "W707"} & set(codes)
    else:
        assert code in codes


def _mentions(text: str, name: str) -> bool:
    words = "".join(letter if letter.isalnum() else " " for letter in text.replace("=", "= "))
    return name in words.split()


@pytest.mark.parametrize(
    ("kind", "match", "code"),
    [
        ("float[m, n]", "softmax(relu(x), dim=2) + softmax(x, dim=2)", "E610"),
        ("float[m, n]", "relu(transpose(x, 0, 2))", "E610"),
        ("float[m, n]", "relu(permute(x, (0, 2, 1)))", "E610"),
        ("float[m, n]", "relu(permute(x, (0, 0)))", "E610"),
        ("float[m, n]", "relu(permute(x, (0, -2)))", "E610"),
        ("float[m, n]", "relu(sum(x, dim=(0, 2)))", "E610"),
        ("float[m, n]", "relu(permute(x, (1, 0)))", None),
        ("float[m, n]", "relu(permute(x, (-1, 0)))", None),
        ("float[m, n]", "relu(unsqueeze(x, 2))", None),
        ("float[m, n]", "relu(sum(x, dim=(0, -1)))", None),
        ("float[...]", "relu(softmax(x, dim=0))", "W706"),
        ("float[...]", "relu(transpose(x, 1, 2))", "W706"),
        ("float[..., n]", "relu(sum(x, dim=0))", "W706"),
        ("float[...]", "relu(softmax(x, dim=-1))", None),
        ("float[...]", "relu(transpose(x, -1, -2))", None),
        ("float[...]", "relu(permute(x, (0, 2, 1)))", None),  # says that there are three
    ],
)
def test_dims_and_ranks(found, kind: str, match: str, code: str | None) -> None:  # type: ignore[no-untyped-def]
    assert found(rule(match, match.replace("relu(", "abs("), x=kind))[:1] == (
        [code] if code else []
    )


@pytest.mark.parametrize(
    ("match", "make", "when", "feeds"),
    [
        ("tanh(x)", "tanh(relu(x))", "", True),
        ("tanh(x)", "relu(tanh(x * 1))", "", True),
        ("x * y", "(x + 0) * y", "", True),
        ("x * y", "y * (x + 0)", "", True),
        ("pow(x, c)", "x * pow(x, c - 1)", "", True),
        ("tanh(x)", "tanh(relu(x))", "dtype(y) == f32", True),
        ("tanh(x)", "relu(tanh(x))", "", False),
        ("tanh(relu(x))", "tanh(x)", "", False),
        ("tanh(x)", "tanh(relu(x))", "dtype(x) == f32", False),
        ("pow(x, c)", "x * pow(x, c - 1)", "c > 1", False),
        ("x * y", "exp(log(x) + log(y))", "", False),
        ("tanh(x)", "cast(tanh(cast(x, i32)), f32)", "", False),
    ],
)
def test_rules_that_feed_themselves(  # type: ignore[no-untyped-def]
    found, match: str, make: str, when: str, feeds: bool
) -> None:
    kinds = {"x": "float[...]", "y": "float[...]", "c": "const:int"}
    used = {n: k for n, k in kinds.items() if _mentions(match + when, n)}
    if "y" in used and not _mentions(match, "y"):
        match, make = f"{match} + y", f"{make} + y"
    assert ("W709" in found(rule(match, make, when, **used))) is feeds


UNDO = rule("tan(x)", "sin(x) / cos(x)", name="split")


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (rule("sin(y) / cos(y)", "tan(y)", name="join", y="float[...]"), "E606"),
        (rule("div(sin(y), cos(y))", "tan(y)", name="join", y="float[...]"), "E606"),
        (rule("sin(x) / cos(x)", "tan(x)", name="join", numerics="exact"), None),
        (rule("sin(x) / cos(x)", "tan(x)", "numel(x) > 1", name="join"), None),
        (rule("sin(x) / cos(x)", "tan(x)", name="join", x="int[...]"), None),
        (rule("cos(x) / sin(x)", "tan(x)", name="join"), None),
    ],
)
def test_rules_that_undo_each_other(found, other: str, code: str | None) -> None:  # type: ignore[no-untyped-def]
    assert found(UNDO + other) == ([code] if code else [])


WIDE = rule("relu(x + y)", "relu(y + x) + 0", name="wide", x="float[...]", y="float[...]")


@pytest.mark.parametrize(
    ("kinds", "when", "shadowed"),
    [
        ({"x": "float[...]", "y": "float[...]"}, "", True),
        ({"x": "f32[m, n]", "y": "f32[m, n]"}, "", True),
        ({"x": "f32[..., n]", "y": "f32[..., n]"}, "n > 1", True),
        ({"x": "f32[m, n]", "y": "f32[n]"}, "", False),  # the wide one wants equal shapes
        ({"x": "f32[...a]", "y": "f32[...b]"}, "", False),
        ({"x": "num[...]", "y": "float[...]"}, "", True),  # the other way round
        ({"x": "num[...]", "y": "float[...]"}, "dtype(x) == i64", False),
        ({"x": "int[...]", "y": "float[...]"}, "", False),
    ],
)
def test_shadowed_rules(found, kinds: dict[str, str], when: str, shadowed: bool) -> None:  # type: ignore[no-untyped-def]
    narrow = rule("relu(x + y)", "relu(y + x) + 0", when, name="narrow", **kinds)
    assert found(WIDE + narrow) == (["W705"] if shadowed else [])


def test_letters_are_compared_by_what_they_measure(found) -> None:  # type: ignore[no-untyped-def]
    first = rule("tanh(relu(x))", "relu(tanh(x))", "n > 1", name="a", x="float[m, n]")
    same = rule("tanh(relu(z))", "relu(tanh(z))", "q > 1", name="b", z="float[p, q]")
    other = rule("tanh(relu(z))", "relu(tanh(z))", "p > 1", name="b", z="float[p, q]")
    assert found(first + same) == ["W705"]
    assert found(first + other) == []


def test_against_the_built_in_rules(found) -> None:  # type: ignore[no-untyped-def]
    """A rule of the user that does again, or undoes, what a built-in one does."""
    text = "  grad: false\n"
    wide = "cast(x, promoted(dtype(x), f32))"
    written_out = f"cast({wide} * tanh(log1p(exp({wide}))), dtype(x))"
    again = rule("mish(x)", written_out, more=text, x="f32[m, n]")
    back = rule(written_out, "mish(x)", more=text)
    for mine, code in ((again, "W705"), (back, "W708")):
        assert found(mine) == []
        assert found(mine, builtin_book()) == [code]
    assert found(rule("mish(relu(x))", "relu(mish(x))"), builtin_book()) == []


def test_a_built_in_file_is_not_beside_itself() -> None:
    assert diagnose([RULES / "decompose" / "activation.yaml"], builtin_book()) == ()


def test_lint_says_what_the_loader_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_with("n >= 0"))
    assert diagnose([path], RuleBook()) == load_book([path]).warnings


def _lint(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eqsat", "lint", *map(str, arguments)]
    return subprocess.run(command, cwd=RULES.parent, capture_output=True, text=True, check=False)


def test_the_command_prints_errors_and_warnings_together(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_with("n >= 0") + rule("rellu(x)", "x", name="typo"))
    done = _lint(path)
    assert done.returncode == 1 and not done.stderr
    for part in ("warning: 'n >= 0' always holds [W703]", "did you mean 'relu'", "1 error, 1 warn"):
        assert part in done.stdout
    found = json.loads(_lint(path, "--json").stdout)
    assert [entry["code"] for entry in found] == ["W703", "E501"]
    assert found[0]["path"] == str(path) and found[0]["severity"] == "warning"


def test_strict_counts_warnings(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_with("n >= 0"))
    assert _lint(path).returncode == 0
    assert _lint(path, "--strict").returncode == 1


def test_paths_without_rules(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none.yaml", "E108"), (tmp_path, "E115")):
        done = _lint(path)
        assert done.returncode == 1 and f"[{code}]" in done.stdout, code


def test_explain() -> None:
    page = _lint("--explain", "e606")
    assert page.returncode == 0 and page.stdout.startswith("# E606: two rules undo each other")
    codes = _lint("--codes").stdout
    assert _lint("--explain", "all").stdout == codes
    assert "E606  two rules undo each other\n" in codes
    unknown = _lint("--explain", "E660")
    assert unknown.returncode == 2 and "did you mean E606?" in unknown.stderr
    assert _lint().returncode == 2
