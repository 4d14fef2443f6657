"""What a random program is: inputs, statements and outputs, and how it is to be run.

`Program.source()` is plain Python text that needs torch and `inputs.py` alone; `read_program`
reads such a text again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

_HEAD = """\
import torch
from torch.nn import functional as F

from eqsat.tests.fuzz.inputs import tensor
"""


@dataclass(frozen=True)
class Settings:
    """How a program is run. `extraction` and `interpreted` concern the compiler alone."""

    backward: bool = False
    grad_mode: str = "enable_grad"  # or no_grad, inference_mode: around the whole call
    dynamic: bool = False
    extraction: str = "cheapest"  # as the option of eqsat
    interpreted: bool = False  # the loop IR is interpreted: no C++ is built


@dataclass(frozen=True)
class Input:
    """`text` gives the value from the sizes of the call and the inputs before it."""

    name: str
    text: str


@dataclass(frozen=True)
class Statement:
    """Lines of Python; `kind` is the kind of op that made them."""

    text: str
    kind: str = ""

    def targets(self) -> list[str]:
        return [name.id for name in _names(self.text) if isinstance(name.ctx, ast.Store)]

    def reads(self) -> set[str]:
        return {name.id for name in _names(self.text) if isinstance(name.ctx, ast.Load)}


@dataclass(frozen=True)
class Program:
    """`calls` holds, per call of the function, the value of each size."""

    sizes: tuple[str, ...]
    calls: tuple[tuple[int, ...], ...]
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    settings: Settings = Settings()

    def function(self) -> str:
        names = ", ".join(entry.name for entry in self.inputs)
        lines = [f"def f({names}):"]
        for statement in self.statements:
            lines += [f"    {line}" for line in statement.text.splitlines()]
        outputs = ", ".join(self.outputs)
        return "\n".join([*lines, f"    return ({outputs},)"]) + "\n"

    def inputs_function(self) -> str:
        lines = [f"def inputs({', '.join(self.sizes)}):"]
        lines += [f"    {entry.name} = {entry.text}" for entry in self.inputs]
        names = ", ".join(entry.name for entry in self.inputs)
        return "\n".join([*lines, f"    return [{names}]"]) + "\n"

    def source(self) -> str:
        """The program as a module that names everything the oracle needs."""
        changed = {
            entry.name: getattr(self.settings, entry.name)
            for entry in fields(Settings)
            if getattr(self.settings, entry.name) != entry.default
        }
        parts = [_HEAD, self.inputs_function(), self.function()]
        return "\n\n".join([*parts, f"CALLS = {list(self.calls)}\nSETTINGS = {changed}\n"])

    def with_settings(self, **changes: Any) -> Program:
        return replace(self, settings=replace(self.settings, **changes))


def read_program(source: str) -> Program:
    """The program that `source` holds: what `Program.source()` gave, changed by hand or not.

    Raises ValueError where a part is missing.
    """
    parts: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            parts[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            parts[node.targets[0].id] = ast.literal_eval(node.value)
    missing = {"f", "inputs", "CALLS", "SETTINGS"} - parts.keys()
    if missing:
        raise ValueError(f"the program has no {', '.join(sorted(missing))}")
    *body, last = parts["f"].body
    assert isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple)
    given = {ast.unparse(line.targets[0]): line.value for line in parts["inputs"].body[:-1]}
    return Program(
        tuple(arg.arg for arg in parts["inputs"].args.args),
        tuple(tuple(call) for call in parts["CALLS"]),
        tuple(Input(name, ast.unparse(value)) for name, value in given.items()),
        tuple(Statement(ast.unparse(line)) for line in body),
        tuple(ast.unparse(item) for item in last.value.elts),
        Settings(**parts["SETTINGS"]),
    )


def _names(text: str) -> Iterator[ast.Name]:
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
