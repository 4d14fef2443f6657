"""Nothing is lost: whatever breaks in the compiler, the user gets eager's result."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

from eqsat import OptionError
from eqsat.backend import EqsatWarning
from eqsat.reports import recording


def _silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) * 2


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


PROGRAM = """
    import torch
    def f(x): return torch.nn.functional.silu(x) * 2
    x = torch.randn(9)
    torch.testing.assert_close(torch.compile(f, backend="eqsat")(x), f(x))
    print("right result")
"""


def test_an_unknown_option_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(Exception, match=r"no option 'numeric' \(did you mean 'numerics'\?\)"):
        torch.compile(_silu, backend="eqsat", options={"numeric": "fast"})(torch.randn(3))


def test_a_bad_value_is_an_error_that_names_the_choices() -> None:
    with pytest.raises(Exception, match="expected one of bitwise, default, fast"):
        torch.compile(_silu, backend="eqsat", options={"numerics": "quick"})(torch.randn(3))
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_every_mode_of_torch_compile_is_taken(mode: str) -> None:
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(_silu, backend="eqsat", mode=mode)(x), _silu(x))


def test_a_typo_in_a_user_rule_is_reported_and_the_rest_still_works(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        textwrap.dedent(
            """
            - rule: mine
              doc: A typo.
              vars:
                x: float[...]
              match: sofmax(x, dim=0)
              make: softmax(x, dim=0)
              numerics: exact
            """
        )
    )
    x = torch.randn(4)
    with pytest.warns(EqsatWarning, match=r"mine.yaml:6:10: error: unknown op 'sofmax'"):
        out = torch.compile(_silu, backend="eqsat", options={"rules": [str(rules)]})(x)
    torch.testing.assert_close(out, _silu(x))


def test_an_unsound_rule_is_named_and_disabled(tmp_path: Path) -> None:
    rules = tmp_path / "wrong.yaml"
    rules.write_text(
        textwrap.dedent(
            """
            - rule: relu-is-a-sum
              doc: Unites tensors of different shapes.
              vars:
                x: float[m, n]
              match: relu(x)
              make: sum(x, dim=1)
              numerics: exact
            """
        )
    )

    def relu(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    x = torch.randn(3, 4)
    options = {"rules": [str(rules)]}
    with recording() as reports, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = torch.compile(relu, backend="eqsat", options=options)(x)
    torch.testing.assert_close(out, relu(x))
    named = [str(stage.disabled) for report in reports for stage in report.stages]
    assert any("relu-is-a-sum" in text and "wrong.yaml" in text for text in named)


def test_without_a_compiler_the_graph_runs_eagerly(tmp_path: Path) -> None:
    result = _run(PROGRAM, PATH="/nowhere", CXX="", EQSAT_CACHE_DIR=str(tmp_path))
    assert "right result" in result.stdout, result.stderr
    assert "EqsatWarning" in result.stderr and "compiler" in result.stderr


def test_an_unwritable_cache_is_no_obstacle(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    result = _run(PROGRAM, EQSAT_CACHE_DIR=str(blocked / "cache"))
    assert "right result" in result.stdout, result.stderr
    assert "Traceback" not in result.stderr


def test_strict_raises(tmp_path: Path) -> None:
    result = _run(PROGRAM, PATH="/nowhere", CXX="", EQSAT_STRICT="1", EQSAT_CACHE_DIR=str(tmp_path))
    assert result.returncode != 0 and "right result" not in result.stdout


@torch.library.custom_op("eqsat_tests::twice_plus", mutates_args=())
def _twice_plus(x: torch.Tensor, shift: float) -> torch.Tensor:
    return x * 2 + shift


@_twice_plus.register_fake
def _(x: torch.Tensor, shift: float) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_custom_op_runs_between_kernels() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(_twice_plus(torch.sin(x), 0.5)) + 1

    x = torch.randn(6)
    torch.testing.assert_close(torch.compile(f, backend="eqsat", fullgraph=True)(x), f(x))
