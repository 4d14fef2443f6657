"""Loading: what files become, families and directions, profiles, the cache."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine import saturate
from eqsat.engine.books import merge_books
from eqsat.engine.expr import Call, Compare, Name
from eqsat.engine.load import RULES, builtin_book, load_book, select
from eqsat.engine.ops import OpTable
from eqsat.engine.pattern import Query, queries
from eqsat.engine.rule import Rule, RuleBook, TensorType
from eqsat.engine.schema import schema_texts
from eqsat.engine.shelf import BOOKS, cache_dir
from eqsat.engine.source import RuleErrors
from eqsat.engine.stage import StageOptions, StageRun

SILU = """
- rule: silu-split
  doc: Silu in scalar ops.
  vars:
    x: float[...]
  match: silu(x)
  make: x * sigmoid(x)
  numerics: reassociate
"""


def book(folder: Path, text: str, name: str = "mine.yaml") -> RuleBook:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return load_book([path])


def one(folder: Path, text: str) -> Rule:
    (rule,) = book(folder, text).rules
    return rule


def test_a_rule(tmp_path: Path) -> None:
    rule = one(tmp_path, SILU)
    assert rule.name == "silu-split"
    assert rule.match == {"out": Call("silu", (Name("x"),))}
    assert rule.where == f"{tmp_path}/mine.yaml:2"
    assert (rule.folder, rule.stage, rule.grad) == ("mine", "post_grad", True)
    assert rule.numerics.float_class == "reassociate"
    assert rule.grows
    assert rule.text.startswith("- rule: silu-split")


def test_builtin_paths_are_relative() -> None:
    rule = builtin_book().rules[0]
    assert rule.span.path.startswith("rules/")
    assert (RULES.parent / rule.span.path).exists()
    assert rule.span.path.split("/")[1] == rule.folder
    single = load_book([RULES / rule.span.path.removeprefix("rules/")])
    assert single.rules[0].where == rule.where


def test_folder_gives_stage(tmp_path: Path) -> None:
    text = SILU.replace("silu(x)", "F.silu(x)").replace("x * sigmoid(x)", "torch.sigmoid(x)")
    (tmp_path / "pre_grad").mkdir()
    (tmp_path / "pre_grad" / "a.yaml").write_text(text)
    (tmp_path / "schedule.yaml").write_text("not: a rule file")
    (rule,) = load_book([tmp_path]).rules
    assert (rule.folder, rule.stage) == ("pre_grad", "pre_grad")


FUSE = f"""{SILU}
- fuse: a-pair
  doc: A pair.
  producer: pointwise
  consumer: any
  when:
    - readers(producer) == 1
  gain: 2 * bytes(producer)
"""

FAMILY = """
- rule: over-slice
  doc: "{f} moves past a slice."
  for: {f: [relu, tanh], d: [-1, -2]}
  vars:
    x: float[..., m, n]
    a: const:int
    b: const:int
  match: f(slice(x, d, a, b))
  make: slice(f(x), d, a, b)
  both_ways: true
  numerics: exact
"""


def test_families_multiply_and_turn_around(tmp_path: Path) -> None:
    rules = book(tmp_path, FAMILY).rules
    assert [rule.name for rule in rules] == [
        f"over-slice/{f}-{d}{back}"
        for f in ("relu", "tanh")
        for d in ("-1", "-2")
        for back in ("", "/back")
    ]
    assert rules[0].doc == "relu moves past a slice."
    assert rules[1].match == rules[0].make
    assert rules[1].make == rules[0].match
    assert len({rule.where for rule in rules}) == 1


def test_paired_family(tmp_path: Path) -> None:
    members = "  for:\n    - {f: relu, g: abs}\n    - {f: tanh, g: neg}\n"
    text = SILU.replace("  vars", f"{members}  vars")
    text = text.replace("silu(x)", "f(g(x))").replace("x * sigmoid(x)", "g(x)")
    rules = book(tmp_path, text).rules
    assert [rule.name for rule in rules] == ["silu-split/relu-abs", "silu-split/tanh-neg"]
    assert rules[1].match["out"] == Call("tanh", (Call("neg", (Name("x"),)),))


def test_pieces_are_written_into_the_back_rule(tmp_path: Path) -> None:
    text = SILU.replace("  make: x * s", "  let:\n    s: s").replace(
        "  numerics", "  make: x * s\n  both_ways: true\n  numerics"
    )
    forth, back = book(tmp_path, text).rules
    assert list(forth.lets) == ["s"] and not back.lets
    assert "sigmoid" in repr(back.match["out"])
    assert not back.grows


@pytest.mark.parametrize(
    ("match", "make", "grows"),
    [
        ("silu(x)", "x", False),
        ("relu(x) + relu(x)", "relu(x) * 2", False),  # equal ops count once
        ("view(x, (n * 2, 1))", "view(x, (n + n, 1))", False),  # size arithmetic is no op
        ("relu(x)", "where(gt(x, 0), x, 0)", True),
    ],
)
def test_grows(tmp_path: Path, match: str, make: str, grows: bool) -> None:
    text = SILU.replace("float[...]", "float[n, 2]").replace("match: silu(x)", f"match: {match}")
    assert one(tmp_path, text.replace("x * sigmoid(x)", make)).grows is grows


def test_numerics(tmp_path: Path) -> None:
    def numerics(text: str) -> tuple[str, str, float, float]:
        found = one(tmp_path, SILU.replace("reassociate", text)).numerics
        return found.float_class, found.int_class, found.rtol, found.atol

    assert numerics("exact") == ("exact", "exact", 0, 0)
    assert numerics("{int: exact, float: reassociate}") == ("reassociate", "exact", 0, 0)
    assert numerics("{approximate: {rtol: 1e-3, atol: 2e-5}}") == (
        "approximate",
        "approximate",
        1e-3,
        2e-5,
    )
    assert numerics("{float: {approximate: {rtol: 1e-3}}}") == ("approximate", "exact", 1e-3, 0)


def test_assumptions_and_cases(tmp_path: Path) -> None:
    extra = """
  assumes: [no_nan, n > 0]
  witness: {x: nan}
  device: cpu
  grad: false
  fires:
    - {n: 3, x: bf16}
  misses:
    - {n: 0}
"""
    rule = one(tmp_path, SILU.replace("float[...]", "float[n]").rstrip() + extra)
    assert [assumption.text for assumption in rule.assumes] == ["no_nan", "n > 0"]
    assert isinstance(rule.assumes[1].expr, Compare)
    assert rule.assumes[0].witness == {"x": "nan"}
    assert (rule.device, rule.grad) == ("cpu", False)
    assert [dict(case.values) for case in rule.fires] == [{"n": 3, "x": "bf16"}]
    assert [dict(case.values) for case in rule.misses] == [{"n": 0}]


def test_yaml_never_reads_scalars(tmp_path: Path) -> None:
    """`no`, `on`, 12:30, 1e-5 and 0x10 stay what was written."""
    text = SILU.replace("Silu in scalar ops.", "no")
    rule = one(tmp_path, text.replace("x * sigmoid(x)", "x * 1e-5 + 0x10"))
    assert rule.doc == "no"
    assert "1e-05" in repr(rule.make) and "16" in repr(rule.make)


def test_other_kinds(tmp_path: Path) -> None:
    found = book(
        tmp_path,
        """
- fuse: a-pair
  doc: A pair.
  producer: pointwise
  consumer: any
  when:
    - readers(producer) == 1
  gain: 2 * bytes(producer)
- forbid: a-wall
  doc: A wall.
  producer: any
  consumer: extern
- scalar: rsqrt
  doc: One over the square root.
  type: float -> same
  means: 1 / sqrt(x)
  cpp: {f32: "1 / sqrtf($x)", any: 1 / std::sqrt($x)}
  triton: tl.rsqrt($x)
  widen: [f16, bf16]
  ulp: 2
- op: my_silu
  doc: An op.
  torch: F.silu
  args: x, inplace=False
  scalar: x / (1 + exp(-x))
""",
    )
    assert [(pair.kind, pair.gain is None) for pair in found.fuse] == [
        ("fuse", False),
        ("forbid", True),
    ]
    scalar = found.scalars[0]
    assert scalar.args == ("x",)
    assert scalar.cpp == {"f32": "1 / sqrtf($x)", "any": "1 / std::sqrt($x)"}
    assert scalar.triton == {"any": "tl.rsqrt($x)"}
    assert (scalar.widen, scalar.ulp, scalar.cost) == (("f16", "bf16"), 2.0, 1.0)
    op = found.ops[0]
    assert op.torch == ("F.silu",) and op.args[0] == ("x", None)


def test_conditions_may_ask_about_what_is_matched(tmp_path: Path) -> None:
    when = "match: silu(relu(x))\n  when:\n    - users(relu(x)) == 1"
    text = SILU.replace("match: silu(x)", when)
    assert len(one(tmp_path, text).when) == 1


def test_every_file_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"# first\n# \xff")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "wrong.yaml").write_text(SILU.replace("silu(x)", "sillu(x)"))
    with pytest.raises(RuleErrors) as raised:
        load_book([tmp_path / "nowhere.yaml", tmp_path])
    text = str(raised.value).replace(f"{tmp_path}/", "")
    assert re.findall(r"^\S+ error: .*", text, re.MULTILINE) == [
        "bytes.yaml:2:3: error: the byte 0xff is no UTF-8 (save the file as UTF-8) [E108]",
        "loop.yaml:1:1: error: this file cannot be read: too many levels of symbolic links [E108]",
        "nowhere.yaml:1:1: error: there is no such file or folder [E108]",
        "wrong.yaml:6:10: error: unknown op 'sillu' (did you mean 'silu'?) [E501]",
    ]


def test_folders_without_rule_files(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (warning,) = load_book([tmp_path]).warnings
    assert "there is no .yaml file in this folder" in str(warning)
    (tmp_path / "mine.yml").write_text(SILU)
    (warning,) = load_book([tmp_path]).warnings
    assert "rename mine.yml" in str(warning)
    assert len(book(tmp_path / "folder.yaml", SILU).rules) == 1


def test_a_kept_book_knows_where_its_entries_stand(tmp_path: Path) -> None:
    first = book(tmp_path, FUSE)
    kept = load_book([tmp_path / "mine.yaml"])
    assert kept == first and kept is not first
    assert kept.fuse[0].span == first.fuse[0].span
    assert kept.fuse[0].when[0].expr.span == first.fuse[0].when[0].expr.span
    assert kept.rules[0].where == first.rules[0].where


def test_merge(tmp_path: Path) -> None:
    first = book(tmp_path, SILU, "a.yaml")
    second = book(tmp_path, SILU.replace("silu-split", "other"), "b.yaml")
    merged = merge_books(first, second)
    assert [rule.name for rule in merged.rules] == ["silu-split", "other"]
    assert merged.hash not in (first.hash, second.hash)
    assert len(merge_books(first, first).rules) == 1
    with pytest.raises(RuleErrors, match="already defined"):
        merge_books(first, book(tmp_path, SILU, "c.yaml"))


def profiled(folder: Path, profile: str, numerics: str, assumes: str = "", **types: str) -> bool:
    kinds = {"x": "float[n]", "i": "int[n]", "e": "const:float", **types}
    lines = "".join(f"    {name}: {kind}\n" for name, kind in kinds.items())
    text = SILU.replace("    x: float[...]\n", lines).replace("silu(x)", "silu(x) * e + i")
    text = text.replace("reassociate", numerics)
    if assumes:
        text += f"  assumes: [{assumes}]\n"
    return len(select(book(folder, text), profile).rules) == 1


@pytest.mark.parametrize(
    ("numerics", "assumes", "profiles"),
    [
        ("exact", "", "bitwise default fast"),
        ("exact", "e > 0", "bitwise default fast"),  # proved at each firing
        ("exact", "no_overflow", "default fast"),
        ("exact", "0 <= i < n", "default fast"),
        ("exact", "x > 0", "fast"),
        ("exact", "finite", "fast"),
        ("signed_zero", "", "fast"),
        ("fewer_roundings", "", "default fast"),
        ("reassociate", "no_overflow", "default fast"),
        ("{approximate: {rtol: 1e-3}}", "", "fast"),
        ("random", "", "fast"),
    ],
)
def test_profiles(tmp_path: Path, numerics: str, assumes: str, profiles: str) -> None:
    for profile in ("bitwise", "default", "fast"):
        expected = profile in profiles.split()
        assert profiled(tmp_path, profile, numerics, assumes) is expected, profile


def test_a_proved_assumption_is_a_condition(tmp_path: Path) -> None:
    text = SILU.replace("silu(x)", "silu(x * e)").replace("float[...]", "float[...]\n    e: const")
    chosen = select(book(tmp_path, text + "  assumes: [e > 0]\n"), "default")
    assert [condition.text for condition in chosen.rules[0].when] == ["e > 0"]


def test_bitwise_keeps_the_exact_kind(tmp_path: Path) -> None:
    text = SILU.replace("float[...]", "num[...]")
    text = text.replace("reassociate", "{int: exact, float: reassociate}")
    (rule,) = select(book(tmp_path, text), "bitwise").rules
    kind = rule.vars["x"]
    assert isinstance(kind, TensorType) and kind.dtypes == ("i8", "i16", "i32", "i64", "u8")


def test_default_never_drops_a_written_cast(tmp_path: Path) -> None:
    text = SILU.replace("silu(x)", "cast(cast(x, f16), f32)").replace("x * sigmoid(x)", "x")
    text = text.replace("float[...]", "f32[...]").replace("reassociate", "fewer_roundings")
    found = book(tmp_path, text)
    assert not select(found, "default").rules
    assert select(found, "fast").rules


def test_disable(tmp_path: Path) -> None:
    found = book(tmp_path, FAMILY + SILU)

    def left(*disable: str) -> int:
        return len(select(found, "fast", disable).rules)

    assert left() == 9
    assert left("silu-split") == 8
    assert left("over-slice") == 1
    assert left("over-slice/relu*") == 5
    assert left("*/back") == 5
    assert left("mine/*") == 0
    assert left("nothing") == 9
    assert select(found, "fast", ["silu-split"]).hash != select(found, "fast").hash
    with pytest.raises(ValueError, match="numerics is one of"):
        select(found, "quick")


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "cache"))
    first = book(tmp_path, SILU)
    (kept,) = (cache_dir() / "rules").iterdir()
    assert load_book([tmp_path / "mine.yaml"]) == first
    kept.write_bytes(b"broken")
    assert load_book([tmp_path / "mine.yaml"]) == first
    edited = book(tmp_path, SILU.replace("x * sigmoid(x)", "sigmoid(x) * x"))
    assert edited != first


def test_the_cache_keeps_only_the_latest_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "cache"))
    for number in range(BOOKS + 3):
        book(tmp_path, SILU.replace("x * sigmoid(x)", f"x * sigmoid(x) * {number}"))
    assert len(list((cache_dir() / "rules").iterdir())) == BOOKS


def test_loading_leaves_garbage_collection_as_it_was(tmp_path: Path) -> None:
    frozen = gc.get_freeze_count()
    for running in (False, True):
        (gc.enable if running else gc.disable)()
        try:
            book(tmp_path, SILU)
            assert gc.isenabled() is running and gc.get_freeze_count() == frozen
        finally:
            gc.enable()


def test_cache_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path / "file"))
    assert len(book(tmp_path, SILU).rules) == 1


def test_builtin_rules_have_no_warnings() -> None:
    assert "\n".join(map(str, builtin_book().warnings)) == ""


def test_egglog_sees_only_rules_that_the_graph_can_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule becomes a query once all ops of its left side are there, also by other rules."""
    asked: list[Query] = []

    def spy(*args: Any) -> Iterator[tuple[tuple[int, ...], Query]]:
        for key, query in queries(*args):
            asked.append(query)
            yield key, query

    monkeypatch.setattr(saturate, "queries", spy)
    rules = builtin_book()
    traced = make_fx(lambda x: torch.relu(x + 1.0) + 2.0, tracing_mode="fake")(torch.rand(3, 4))
    run = StageRun(traced, "post_grad", rules, OpTable(rules.ops), StageOptions())
    run.run()
    assert run.saturator is not None
    there = set(run.saturator.graph.by_op)
    assert {"relu", "add"} <= there
    names = {query.pattern.rule.name for query in asked}
    assert asked and all(query.pattern.ops <= there for query in asked)
    assert len(names) < len([rule for rule in rules.rules if rule.stage == "post_grad"]) / 5


def test_schemas_are_current() -> None:
    """If this fails: python -m eqsat schema."""
    for name, text in schema_texts().items():
        assert (RULES / "schema" / name).read_text() == text
