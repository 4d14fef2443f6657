"""A user's rule in a real compile: did it fire, was it used, are the results eager's.

Every step is the compiler's own but the last: the loop IR is interpreted instead of built as
C++, which is what takes the time, and which tests/codegen compares with the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from eqsat import backend
from eqsat.engine.load import builtin_book
from eqsat.lowering.interpret import interpret
from eqsat.reports import recording

# Without the built-in rules it is the rule under test that decides what comes out.
OTHERS = tuple(dict.fromkeys(rule.name.split("/")[0] for rule in builtin_book().rules))


@dataclass
class Proof:
    """What became of the user's rules, by name: how often they fired, and how often what they
    made is in the result."""

    fired: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)


class Interpreted:
    """What `compile_program` gives, without a build. Takes one list of inputs, as AOTAutograd's
    boxed functions do."""

    source = ""
    kernels: tuple[Any, ...] = ()
    externs: tuple[Any, ...] = ()
    _boxed_call = True

    def __init__(self, program: Any, *_: Any) -> None:
        self.program = program

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given = list(inputs)
        inputs.clear()
        return interpret(self.program, given)


def rule_text(
    variables: Mapping[str, str],
    match: str | Mapping[str, str],
    make: str | Mapping[str, str],
    numerics: str = "reassociate",
    when: tuple[str, ...] = (),
    **fields: str,
) -> str:
    """The YAML of one rule called `r`; further fields as they are."""
    lines = ["- rule: r", "  doc: A rule of a test.", "  vars:"]
    lines += [f"    {name}: {kind}" for name, kind in variables.items()]
    lines += _side("match", match)
    lines += ["  when:", *(f"    - {condition}" for condition in when)] if when else []
    lines += [f"  {'for' if key == 'family' else key}: {text}" for key, text in fields.items()]
    lines += [*_side("make", make), f"  numerics: {numerics}"]
    return "\n".join(lines) + "\n"


def _side(name: str, value: str | Mapping[str, str]) -> list[str]:
    if isinstance(value, str):
        return [f"  {name}: {value}"]
    return [f"  {name}:", *(f"    {root}: {text}" for root, text in value.items())]


def prove(
    folder: Path,
    text: str,
    function: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    numerics: str = "default",
    tolerance: float = 1e-5,
) -> Proof:
    """Compiles `function` with the rules of `text` alone, and checks results, gradients and
    what was written to the inputs against eager."""
    path = folder / "mine.yaml"
    path.write_text(text)
    torch._dynamo.reset()
    options = {"rules": [str(path)], "disable": OTHERS, "strict": True, "numerics": numerics}
    compiled = torch.compile(function, backend="eqsat", dynamic=dynamic, options=options)
    with recording() as reports, mock.patch.object(backend, "compile_program", Interpreted):
        got = _run(compiled, inputs)
    torch.testing.assert_close(got, _run(function, inputs), rtol=tolerance, atol=tolerance)
    proof = Proof()
    for stage in (stage for report in reports for stage in report.stages):
        assert stage.status != "failed", stage.reason
        assert not stage.disabled, stage.disabled
        for fired in stage.firings:
            name = fired.rule.rpartition(":")[2]
            proof.fired[name] = proof.fired.get(name, 0) + fired.count
            if fired.kept:
                proof.used[name] = proof.used.get(name, 0) + fired.kept
    return proof


def _run(function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Any]:
    """Results, inputs afterwards, and gradients where an input wants them."""
    copies = [_copy(value) for value in inputs]
    wants = [value for value in copies if isinstance(value, torch.Tensor) and value.requires_grad]
    with torch.set_grad_enabled(bool(wants)):
        result = function(*copies)
    if wants:
        leaves = [part for part in torch.utils._pytree.tree_leaves(result) if part.requires_grad]
        sum(part.sum() for part in leaves).backward()
    return [result, copies, [value.grad for value in wants]]


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)
