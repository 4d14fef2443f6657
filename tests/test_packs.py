"""Rule packs: where they come from, what their rules are called, and what goes wrong."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsat
from eqsat import OptionError, RulePack
from eqsat.backend import EqsatWarning
from eqsat.config import resolve
from eqsat.engine.books import merge_books
from eqsat.engine.load import builtin_book
from eqsat.engine.naming import meant, rule_called
from eqsat.engine.source import RuleErrors
from eqsat.engine.why import why_not
from eqsat.reports import recording
from eqsat.tests.pack_files import (
    fresh,  # noqa: F401 - a fixture for every test
    marker,
    names,
    opened,
    tanh,
    write,
)

BUILTIN = {entry.name for entry in (*builtin_book().rules, *builtin_book().fuse)}


def factor(**options: Any) -> float:
    """What `tanh` multiplies by when it is compiled with these options; nan where it is tanh."""
    torch._dynamo.reset()
    x = torch.randn(7)
    result = torch.compile(tanh, backend="eqsat", options=options)(x)
    if torch.allclose(result, torch.tanh(x)):
        return float("nan")
    ratio = result / x
    torch.testing.assert_close(ratio, ratio[:1].expand(7))
    return round(float(ratio[0]))


# Where packs come from


def test_options_take_files_folders_and_packs(tmp_path: Path) -> None:
    file = write(tmp_path / "file.yaml", marker(2))
    write(tmp_path / "folder" / "decompose" / "deep.yaml", marker(3))
    assert factor(rules=[file]) == 2
    assert factor(rules=file) == 2
    assert factor(rules=(tmp_path / "folder",)) == 3
    assert factor(rules=[RulePack(file, name="mine")]) == 2
    assert factor(rules=RulePack(tmp_path / "folder")) == 3
    assert factor() != factor()  # nan: nothing stays behind


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "first.yaml", marker(2))
    write(tmp_path / "second" / "a.yaml", marker(3, op="cosh", name="other"))
    monkeypatch.setenv("EQSAT_RULES", f"{first}:{tmp_path / 'second'}")
    assert {"first:marker", "second:other"} <= names(opened())
    third = write(tmp_path / "third.yaml", marker(3, op="sinh"))
    assert {"first:marker", "second:other", "third:marker"} <= names(opened(rules=[third]))
    assert factor() == 2
    monkeypatch.setenv("EQSAT_DISABLE", "first:*, silu-split")
    assert BUILTIN - names(opened(numerics="fast")) == {"silu-split", "silu-split/back"}
    assert factor() != 2
    monkeypatch.setenv("EQSAT_ENABLE", "first:marker")
    assert factor() == 2


def test_load_rules_counts_for_every_compile_until_it_is_unloaded(tmp_path: Path) -> None:
    pack = eqsat.load_rules(write(tmp_path / "a.yaml", marker(4)), name="given")
    assert pack.loaded and factor() == 4 and "given:marker" in names(opened())
    pack.unload()
    assert not pack.loaded and factor() != 4
    assert factor(rules=[pack]) == 4
    with eqsat.load_rules(tmp_path / "a.yaml") as pack, pack.load():
        assert factor() == 4
    assert not pack.loaded
    with RulePack(tmp_path / "a.yaml") as pack:
        assert factor() == 4
    assert not pack.loaded
    pack.unload()  # nothing to undo
    pack.load()
    eqsat.reset()
    assert not pack.loaded


def test_a_loaded_path_does_not_follow_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "here" / "a.yaml", marker(5))
    monkeypatch.chdir(tmp_path)
    with eqsat.load_rules("here"):
        monkeypatch.chdir("/")
        assert "here:marker" in names(opened())


def test_a_pack_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", marker(4))
    (tmp_path / "link").symlink_to(tmp_path)
    with eqsat.load_rules(path):
        session = opened(rules=[path, RulePack(path), tmp_path / "link" / "a.yaml"])
    assert names(session) - BUILTIN == {"a:marker"}


def distribution(root: Path, name: str, points: str, code: str = "") -> None:
    """An installed distribution with a package `name` and the entry points `points`."""
    write(root / name / "__init__.py", code)
    info = root / f"{name}-1.0.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write(info / "entry_points.txt", f"[eqsat_rules]\n{points}\n")


def test_packages_bring_rules_by_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from pathlib import Path\n"
        "RELATIVE = 'more/b.yaml'\n"
        "def paths(): return [Path(__file__).parent / 'more' / 'c.yaml']\n"
    )
    points = (
        "folder = eqsat_pack_good.inner\nmodule = eqsat_pack_good.inner.code\n"
        "path = eqsat_pack_good:RELATIVE\ncalled = eqsat_pack_good:paths"
    )
    distribution(tmp_path, "eqsat_pack_good", points, code)
    package = tmp_path / "eqsat_pack_good"
    write(package / "inner" / "__init__.py", "")
    write(package / "inner" / "code.py", "")
    write(package / "inner" / "a.yaml", marker(6))
    write(package / "more" / "b.yaml", marker(2, op="cosh"))
    write(package / "more" / "c.yaml", marker(2, op="sinh"))
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[str] = []
    found = names(opened(told)) - BUILTIN
    assert found == {f"{name}:marker" for name in ("folder", "module", "path", "called")}
    assert told == []
    assert factor() == 6
    assert factor(disable=["folder:*", "module:*"]) != 6


def test_a_broken_entry_point_is_named_once_and_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = (
        "absent = eqsat_pack_bad:NOTHING\nmissing = eqsat_no_such_module\n"
        "number = eqsat_pack_bad:NUMBER\nraises = eqsat_pack_bad:fail\n"
        "empty = eqsat_pack_bad:NO_RULES\nfine = eqsat_pack_bad:RULES\nalone = eqsat_pack_alone"
    )
    code = (
        "NUMBER = 5\nRULES = 'r.yaml'\nNO_RULES = 'nowhere'\n"
        "def fail(): raise RuntimeError('on purpose')\n"
    )
    distribution(tmp_path, "eqsat_pack_bad", points, code)
    write(tmp_path / "eqsat_pack_bad" / "r.yaml", marker(8))
    write(tmp_path / "eqsat_pack_alone.py", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(EqsatWarning) as caught:
        assert factor() == 8
        assert factor() == 8
    texts = [str(warning.message) for warning in caught]
    for name in ("absent", "missing", "number", "raises", "alone"):
        assert sum(f"entry point '{name}'" in text for text in texts) == 1, name
    assert sum("RuntimeError: on purpose" in text for text in texts) == 1
    assert sum("no such file or folder" in text for text in texts) == 1
    assert len(texts) == 6


# Names


def test_packs_and_built_in_rules_may_share_names(tmp_path: Path) -> None:
    fuse = (
        "- forbid: pointwise-inline\n  doc: A wall.\n  producer: pointwise\n  consumer: any\n"
        "  when:\n    - flops(producer) > 1000\n"
    )
    text = marker(2, name="silu-split") + fuse
    first = write(tmp_path / "a" / "rules" / "x.yaml", text)
    second = write(tmp_path / "b" / "rules" / "x.yaml", text.replace("x * 2", "x * 3"))
    paths = [Path(first).parent, Path(second).parent, first]
    session = opened(rules=paths, numerics="fast")
    packs = ("rules", "rules-2", "x")
    expected = {f"{p}:{n}" for p in packs for n in ("silu-split", "pointwise-inline")}
    assert names(session) - BUILTIN == expected and names(session) >= BUILTIN
    only = opened(rules=paths, disable=["*"], enable=["rules-2:*"])
    assert names(only) == {"rules-2:silu-split", "rules-2:pointwise-inline"}


def test_names_of_packs(tmp_path: Path) -> None:
    (tmp_path / "v1.2").mkdir()
    assert RulePack(tmp_path / "v1.2").name == "v1.2"
    assert RulePack("some/my rules.yaml").name == "my-rules"
    assert RulePack("a.yaml", "b.yaml").name == "a"
    with pytest.raises(ValueError, match="a pack's name has letters"):
        RulePack("a.yaml", name="a:b")
    with pytest.raises(ValueError, match="needs a file"):
        RulePack()
    with pytest.raises(TypeError):
        eqsat.load_rules(5)  # type: ignore[arg-type]


def test_full_names_are_shown_by_explain_and_why_not(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", marker(2))
    with eqsat.load_rules(path):
        texts = [str(eqsat.explain(tanh, torch.randn(5))) for _ in range(2)]
        book, table = opened().book, opened().table
    for text in texts:
        assert f"{path}:2" in text
        assert text.count("mine:marker") == 2  # where it fired, and the kernel
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    for name in ("mine:marker", "marker"):
        told = why_not(graph, "pre_grad", book, table, name)
        assert str(told).startswith(f"mine:marker ({path}:2) fired 0 times")
    assert rule_called(book.rules, "silu-split") in book.rules


SPELL = "- op: my_op\n  doc: An op.\n  aten: [{aten}]\n  args: x\n  scalar: {means}\n"
SCALAR = "- scalar: {name}\n  doc: A square root.\n  type: float -> same\n  cpp: std::sqrt($x)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPELL.replace("my_op", "silu").format(aten="sin.default", means="x"), "the op 'silu'"),
        (SPELL.format(aten="silu.default", means="x"), "the ATen overload 'silu.default'"),
        (SCALAR.format(name="sqrt"), "the scalar 'sqrt' is already defined (in rules/scalar/"),
    ],
)
def test_what_an_op_is_cannot_be_redefined(tmp_path: Path, text: str, message: str) -> None:
    told: list[str] = []
    good = write(tmp_path / "good.yaml", marker(2))
    bad = write(tmp_path / "bad.yaml", text + marker(3))
    session = opened(told, rules=[bad, good])
    assert names(session) - BUILTIN == {"good:marker"}
    (warning,) = told
    assert message in warning and "give yours a name of its own" in warning


def test_the_same_op_in_two_packs_counts_once(tmp_path: Path) -> None:
    text = SPELL.format(aten="special_ndtri.default", means="x * x")
    first, second = (write(tmp_path / f"{name}.yaml", text) for name in ("a", "b"))
    told: list[str] = []
    table = opened(told, rules=[first, second]).table
    assert told == [] and sum(entry.name == "my_op" for entry in table.entries) == 1
    third = write(tmp_path / "c.yaml", text.replace("x * x", "x"))
    opened(told, rules=[first, third])
    assert "the op 'my_op' is already defined" in told[0] and "a.yaml:1" in told[0]


def test_merging_needs_no_packs() -> None:
    book = builtin_book()
    again = merge_books(book, book)
    assert (again.rules, again.ops, again.scalars) == (book.rules, book.ops, book.scalars)


# On and off


FAMILY = """
- rule: over-slice
  doc: "{f} moves past a slice."
  for: {f: [relu, tanh]}
  vars:
    x: float[m, n]
    a: const:int
  match: f(slice(x, 1, a, n))
  make: slice(f(x), 1, a, n)
  both_ways: true
  numerics: exact
"""


def test_patterns(tmp_path: Path) -> None:
    write(tmp_path / "mine" / "layout" / "a.yaml", FAMILY)
    rules = opened(rules=[tmp_path / "mine"]).book.rules
    mine = {rule.name for rule in rules if rule.name.startswith("mine:")}
    assert len(mine) == 4

    def found(pattern: str) -> frozenset[str]:
        return meant(rules, pattern)

    assert found("silu-split") == {"silu-split", "silu-split/back"}
    for pattern in ("mine:*", "mine:over-slice", "mine:layout/*", "over-slice", "mine:layout/o*"):
        assert found(pattern) == mine, pattern
    assert found("over-slice/relu") == {"mine:over-slice/relu", "mine:over-slice/relu/back"}
    assert found("mine:over-slice/tanh/back") == {"mine:over-slice/tanh/back"}
    assert found("over-*/back") == {f"mine:over-slice/{f}/back" for f in ("relu", "tanh")}
    assert found("attention/*") and not found("attention/*") & mine
    assert not found("layout/*") & mine  # there are built-in ones
    assert found("*/back") > {"mine:over-slice/relu/back"}
    assert found("*") == {rule.name for rule in rules}
    assert not found("mine:nothing") and not found("yours:*")


def test_enable_wins_over_disable() -> None:
    attention = meant(builtin_book().rules, "attention/*")
    assert names(opened(disable=["*"], enable=["attention/*"], numerics="fast")) == attention
    assert names(opened(enable=["attention/*"])) == names(opened())
    some = names(opened(disable=["*"], enable=["fusion/*", "silu-split"]))
    silu = {"silu-split", "silu-split/back"}
    assert some == {pair.name for pair in builtin_book().fuse} | silu
    with eqsat.options(disable=["silu-split"]), eqsat.options(disable="gelu-*"):
        assert "silu-split" not in names(opened())
        assert "silu-split" in names(opened(enable="silu-split"))


def test_fusion_rules_can_be_switched_off() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.sin() + 1).sum()

    def nests(**options: Any) -> int:
        torch._dynamo.reset()
        with recording() as reports:
            torch.compile(program, backend="eqsat", options=options)(torch.randn(64, 64))
        return next(r.fusion.after for r in reports if r.fusion is not None)

    assert nests(disable=["fusion/*"]) > nests()
    assert nests(disable=["*"], enable=["fusion/*"]) == nests()


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("silu-spilt", "silu-split"),
        ("atention/*", "attention/*"),
        ("pointwise-inlin", "pointwise-inline"),
        ("mine:markr", "mine:marker"),
        ("mines:*", "mine:*"),
    ],
)
@pytest.mark.parametrize("option", ["disable", "enable"])
def test_a_pattern_without_rules_is_told_once(
    tmp_path: Path, option: str, pattern: str, near: str
) -> None:
    path = write(tmp_path / "mine.yaml", marker(2))
    told: list[str] = []
    for _ in range(3):
        opened(told, rules=[path], **{option: [pattern]})
    (text,) = told
    assert text == f"option '{option}': no rule is called '{pattern}' (did you mean '{near}'?)"


# What goes wrong


def test_each_bad_pack_is_told_once_with_everything_and_the_rest_works(tmp_path: Path) -> None:
    good = write(tmp_path / "good.yaml", marker(2))
    broken = write(
        tmp_path / "broken.yaml", marker(3, op="tahn") + marker(4, op="sofmax", name="b")
    )
    odd = (
        "- forbid: odd\n  doc: Odd.\n  producer: any\n  consumer: any\n"
        "  when:\n    - flop(producer) == 1\n"
    )
    write(tmp_path / "yml" / "rules.yml", marker(5))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    bad = [broken, write(tmp_path / "odd.yaml", odd), "nowhere", "yml", "empty", "bytes.yaml"]
    paths = [*(tmp_path / path for path in bad), good]
    with pytest.warns(EqsatWarning) as caught:
        assert factor(rules=paths) == 2
        assert factor(rules=paths) == 2
    texts = {str(w.message).split("/")[-1].splitlines()[0]: str(w.message) for w in caught}
    assert len(caught) == 6, [str(w.message) for w in caught]
    whole = "\n".join(texts.values())
    for part in (
        "unknown op 'tahn' (did you mean 'tanh'?)",
        "unknown op 'sofmax' (did you mean 'softmax'?)",
        "match: sofmax(x)",
        "unknown fact 'flop' (did you mean 'flops'?)",
        "there is no such file or folder",
        "this folder holds no rule files (*.yaml) (rename 'rules.yml' to .yaml)",
        "bytes.yaml:1:1: error: ",
    ):
        assert part in whole, part


def test_a_mistake_that_comes_back_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    told: list[str] = []
    for text in (marker(2, op="tahn"), marker(2), marker(2, op="tahn"), marker(2, op="tann")):
        opened(told, rules=[write(path, text)])
    assert len(told) == 3


def test_strict_raises(tmp_path: Path) -> None:
    broken = write(tmp_path / "broken.yaml", marker(3, op="tahn"))
    for path in (broken, str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(RuleErrors):
            opened(rules=[path], strict=True)
    with pytest.raises(Exception, match="unknown op 'tahn'"):
        factor(rules=[broken], strict=True)


def test_strict_as_an_option_reaches_the_rule_stages(tmp_path: Path) -> None:
    text = marker(2).replace("x * 2", "sum(x, dim=0)").replace("float[...]", "float[n]")
    path = write(tmp_path / "wrong.yaml", text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert factor(rules=[path]) != factor(rules=[path])
    with pytest.raises(Exception, match=r"wrong:marker .* is wrong here"):
        factor(rules=[path], strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disabled": []}, r"no option 'disabled' \(did you mean 'disable'\?\)"),
        ({"zzz": 1}, "no option 'zzz'; known options: mode, numerics, rules"),
        ({"rules": 5}, "option 'rules': bad value 5: expected a path or an eqsat.RulePack"),
        ({"rules": ["a.yaml", 5]}, "option 'rules': .*: 5 is not a path"),
        ({"rules": [""]}, "option 'rules': .*: '' is not a path"),
        ({"rules": {"a.yaml": 1}}, "option 'rules'"),
        ({"disable": None}, "option 'disable': .*expected a rule name or glob, or a list"),
        ({"disable": [b"x"]}, "option 'disable'"),
        ({"enable": {"x"}}, "option 'enable'"),
        ({"strict": 1}, "option 'strict': bad value 1: expected True or False"),
        ({"numerics": ["fast"]}, "option 'numerics': .*expected one of"),
        ([("rules", "a")], "options are a dict"),
    ],
)
def test_bad_options(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve(None, options)
    if isinstance(options, dict) and "zzz" not in options:
        with pytest.raises(OptionError, match=message), eqsat.options(**options):
            pass
    with pytest.raises(Exception, match=message):
        torch.compile(tanh, backend="eqsat", options=options)(torch.randn(3))


def test_op_tables_of_sessions_are_apart(tmp_path: Path) -> None:
    text = SPELL.format(aten="special_ndtri.default", means="x * x")
    table = opened(rules=[write(tmp_path / "a.yaml", text)]).table
    assert table.find("my_op") is not None
    assert opened().table.find("my_op") is None
