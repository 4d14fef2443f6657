"""The command line, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import eqsat
from eqsat.cli import main
from eqsat.engine.load import builtin_book

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import torch

def mlp(x, w, b):
    return torch.nn.functional.silu(x @ w + b).softmax(-1)

compiled = torch.compile(mlp, backend="eqsat")
with torch.no_grad():
    compiled(torch.randn(8, 16), torch.randn(16, 32), torch.randn(32))
"""


def _eqsat(*arguments: str, module: str = "eqsat") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def test_explain_tells_rules_costs_kernels_and_reasons(script: Path) -> None:
    done = _eqsat("explain", str(script), module="engine")
    assert done.returncode == 0, done.stderr
    for part in ("post_grad: changed", "silu-split", "rules/decompose/activation.yaml:"):
        assert part in done.stdout
    for part in ("estimated", "kernel", "aten.addmm", "loop nests ->", "compile time"):
        assert part in done.stdout


def test_explain_as_json(script: Path) -> None:
    done = _eqsat("explain", str(script), "--json")
    graphs = json.loads(done.stdout)
    (graph,) = [graph for graph in graphs if graph["kind"] == "inference"]
    (stage,) = graph["stages"]
    silu = next(fired for fired in stage["firings"] if fired["rule"] == "silu-split")
    assert silu["where"].startswith("rules/decompose/activation.yaml:") and silu["count"] == 1
    assert stage["cost_after"] <= stage["cost_before"]
    assert graph["kernels"] and graph["kernels"][0]["origins"]
    assert {"producer", "consumer", "rule"} <= set(graph["fusion"]["joined"][0])


def test_explain_a_function(tmp_path: Path) -> None:
    done = _eqsat("explain", "tests.models.sample:program")
    assert done.returncode == 0, done.stderr
    assert "gelu" in done.stdout


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("nowhere.py", "no such file: nowhere.py"),
        ("json:nothing", "cannot load json:nothing"),
        ("json", "expected SCRIPT.py or module:function"),
    ],
)
def test_explain_says_what_is_wrong_with_a_name(program: str, message: str) -> None:
    done = _eqsat("explain", program)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_explain_a_script_that_compiles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "idle.py"
    path.write_text("print('idle')")
    done = _eqsat("explain", str(path))
    assert done.returncode == 1 and "compiled nothing" in done.stderr


def test_check_passes_a_right_rule_and_fails_a_wrong_one(tmp_path: Path) -> None:
    text = """
- rule: mine
  doc: Doubling is adding twice.
  vars:
    x: float[...]
  match: x + x
  make: x * {factor}
  numerics: exact
"""
    for factor, status in ((2, 0), (3, 1)):
        path = tmp_path / f"rule{factor}.yaml"
        path.write_text(text.format(factor=factor))
        done = _eqsat("check", str(path))
        assert done.returncode == status, done.stdout + done.stderr
    assert "import torch" in done.stdout  # a program that shows the difference


def test_check_prints_every_error_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(
        """
- rule: first
  doc: A typo in an op.
  vars:
    x: float[...]
  match: sofmax(x, dim=0)
  make: x
  numerics: exact

- rule: second
  docs: A typo in a field and in a type.
  vars:
    x: flaot[...]
  match: relu(x)
  make: x
  numerics: exact
"""
    )
    done = _eqsat("check", str(path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "broken.yaml:6:10: error: unknown op 'sofmax' (did you mean 'softmax'?)" in done.stdout
    for part in ("did you mean 'doc'?", "did you mean 'float'?"):
        assert part in done.stdout


def test_rules_lists_them() -> None:
    done = _eqsat("rules")
    assert done.returncode == 0 and "silu" in done.stdout


def test_rules_are_listed_shown_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list", "*-merge", "--stage", "post_grad", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows and all(row["stage"] == "post_grad" and "merge" in row["name"] for row in rows)
    assert main(["rules", "show", "silu-split", "--expanded"]) == 0
    shown = capsys.readouterr().out
    for part in ("- rule: silu-split", "%0 = silu(x)", "roots: out = %0", "(ruleset q.m.0"):
        assert part in shown
    assert main(["rules", "stats", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert sum(counts["folder"].values()) == sum(counts["stage"].values()) == counts["rules"]
    assert counts["ops"]["mm"] > 0 and not set(counts["ops"]) & set(counts["ops_without_rule"])


def test_every_rule_can_be_shown_expanded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "show", "*", "--expanded", "--json"]) == 0
    members = json.loads(capsys.readouterr().out)
    rules = [member for member in members if member["folder"] not in ("fusion", "trace")]
    assert rules and all(member.get("queries") for member in rules)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules", "list", "silu-splt"], "did you mean 'silu-split'?"),
        (["rules", "list", "--stage", "later"], "there are"),
        (["rules", "show", "silu-splt"], "did you mean 'silu-split'?"),
        (["explain", "x.py", "--why-not", "silu-splt"], "did you mean 'silu-split'?"),
        (["explain", "x.py", "--why-not", "silu-split"], "no such file: x.py"),
        (["explain", "x.py", "--against", "numerics"], "--against takes name=value"),
        (["explain", "x.py", "--against", "numercs=fast"], "did you mean 'numerics'?"),
        (["explain", "--diff", "a.json", "b.json"], "are not both from"),
    ],
)
def test_what_does_not_exist_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_rules_that_fired_and_never_fired(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "fired", str(script), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fired = {use["rule"]: use for use in found["fired"]}
    assert fired["silu-split"]["fired"] == 1 and fired["silu-split"]["kept"] == 1
    assert "silu-split" not in {use["rule"] for use in found["never_fired"]}
    assert found["never_fired"]


def test_why_not_answers(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*arguments: str) -> str:
        assert main(["explain", str(script), "--why-not", *arguments]) == 0
        return capsys.readouterr().out

    assert "fired once, kept 1" in ask("silu-split")
    assert "belongs to stage post_grad, not joint" in ask("silu-split", "--stage", "joint")
    with eqsat.options(disable=["silu-*"]):
        assert "disabled by 'silu-*'" in ask("silu-split")
    fast = next(r for r in builtin_book().rules if r.numerics.float_class == "approximate")
    assert "under profile default" in ask(fast.name)
    answer = json.loads(ask("silu-split", "--json"))
    assert answer["rule"] == "silu-split" and answer["answers"][0]["fired"] == 1
    assert main(["explain", str(script), "--why-not", "silu-split", "--graph", "99"]) == 2
    assert main(["explain", str(script), "--why-not", "silu-split", "--at", "silo"]) == 2
    assert "did you mean 'silu'?" in capsys.readouterr().err


def test_what_a_rule_changes(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(script), "--disable", "silu-split", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert any(c["what"] == "rule silu-split" and c["after"] is None for c in changes)
    assert main(["explain", str(script), "--against", "numerics=bitwise"]) == 0
    assert "rule silu-split: fired 1, kept 1 -> none" in capsys.readouterr().out
    assert main(["explain", str(script), "--json"]) == 0
    path = tmp_path / "run.json"
    path.write_text(capsys.readouterr().out)
    assert main(["explain", "--diff", str(path), str(path)]) == 0
    assert "no difference" in capsys.readouterr().out
