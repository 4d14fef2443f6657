"""A failure of the checker is a program that shows the failure by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eqsat.engine.check import check_rule
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable

TABLE = OpTable(load_book([RULES / "ops"]).ops)
# The right side, the rest of the rule, and what the program must end in.
WRONG = {
    "value": (
        "x: float[m, n]",
        "x * 2.0",
        "x * 2.5",
        "reassociate",
        "Tensor-likes are not",
    ),
    "zero": ("x: float[...]", "x + 0.0", "x", "exact", "zeros of another sign"),
    "dtype": ("x: float[m]", "x * 2.0", "cast(x * 2.0, f64)", "exact", "dtype"),
    "shape": ("x: float[m, n]", "sum(x, dim=1)", "sum(x, dim=1, keepdim=True)", "exact", "shape"),
    "rounding": (
        "x: f16[m, n]",
        "x * 1.0",
        "x / 3.0 * 3.0",
        "reassociate",
        "error",
    ),
    "gradient": ("x: float[...]", "exp(x)", "exp(detach(x))", "exact", "not close"),
    "copy": (
        "x: float[m, n]",
        "Tensor.view(x, m * n)",
        "torch.clone(Tensor.view(x, m * n))",
        "exact",
        "not the same part of x",
    ),
    "view": (
        "x: float[m, n]",
        "torch.clone(x)",
        "Tensor.view(x, m, n)",
        "exact",
        "not the same part of x",
    ),
}
# Runs each program alone and tells how it ends.
DRIVER = """
import json, sys, traceback
ends = {}
for name, program in json.load(sys.stdin).items():
    try:
        exec(compile(program, name, "exec"), {})
        ends[name] = "no error"
    except BaseException:
        ends[name] = traceback.format_exc()
print("ENDS" + json.dumps(ends))
"""


def write_rule(name: str) -> str:
    variables, match, make, numerics, _ = WRONG[name]
    stage = "  stage: pre_grad\n" if name in ("copy", "view") else ""
    return (
        f"- rule: wrong-{name}\n  doc: A wrong rule.\n{stage}  vars:\n    {variables}\n"
        f"  match: {match}\n  make: {make}\n  numerics: {numerics}\n"
    )


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("wrong")
    found = {}
    for name in WRONG:
        path: Path = folder / f"{name}.yaml"
        path.write_text(write_rule(name))
        result = check_rule(load_book([path], TABLE).rules[0], TABLE, seed=1, examples=30)
        assert result.failures, f"{name}: a wrong rule is found right"
        found[name] = result.failures[0]
    return found


def test_programs_show_the_failure(failures: dict[str, str]) -> None:
    programs = {name: text[text.index("import torch") :] for name, text in failures.items()}
    run = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(programs), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    ends = json.loads(run.stdout[run.stdout.index("ENDS") + 4 :])
    for name, end in ends.items():
        assert "AssertionError" in end, f"{name}: {end}\n{programs[name]}"
        assert WRONG[name][-1] in end, f"{name}: {end}"


def test_reasons_say_what_differs(failures: dict[str, str]) -> None:
    assert "dtype" in failures["dtype"].partition("\n")[0]
    assert "shape" in failures["shape"].partition("\n")[0]
    assert "gradient" in failures["gradient"].partition("\n")[0]
    assert "the right side is a copy" in failures["copy"]
    assert "the right side is a view of x" in failures["view"]


def test_programs_are_short(failures: dict[str, str]) -> None:
    assert all(len(text) < 1500 for text in failures.values())
