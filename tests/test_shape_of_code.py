"""The code base keeps its shape: sizes of files and functions, and which imports are allowed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from eqsat.engine.schedule import load_schedule

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("engine", "lowering", "codegen")
FILE_LINES, FUNCTION_LINES, RULE_FILE_LINES = 500, 50, 600


def _sources() -> Iterator[Path]:
    yield from ROOT.glob("*.py")
    for floor in FLOORS:
        yield from (ROOT / floor).glob("**/*.py")


def test_files_are_short() -> None:
    long = {
        path.name: lines
        for path in (*_sources(), *(ROOT / "tests").glob("**/*.py"))
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }
    assert long == {}


def test_rule_files_are_short() -> None:
    files = (ROOT / "rules").glob("**/*.yaml")
    long = [path.name for path in files if len(path.read_text().splitlines()) > RULE_FILE_LINES]
    assert long == []


def test_functions_are_short() -> None:
    long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in _sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES
    ]
    assert long == []


def test_the_compiler_never_imports_inductor() -> None:
    users = [
        path.name
        for path in _sources()
        for line in path.read_text().splitlines()
        if "import" in line and "torch._inductor" in line
    ]
    assert users == []


def test_every_folder_of_rules_has_a_place_in_the_schedule() -> None:
    tables = {"ops", "scalar", "fusion", "targets", "rule_sets", "schema", "__pycache__"}
    folders = {path.name for path in (ROOT / "rules").iterdir() if path.is_dir()}
    assert folders - tables == set(load_schedule().folders)
