"""The command line, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
