"""Runs the programs of `rules/rule_sets` through every stage of rules, up to lowering.

Takes a `Program`; gives which rules fired, the ops of the rewritten graphs and the number of
loop nests. No C++ is compiled: the rewritten graphs themselves run, and are compared with eager.
"""

from __future__ import annotations

import math
import sys
import types
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from eqsat import backend
from eqsat.backend import AtenGraph
from eqsat.engine.rule_sets import Program, base_name
from eqsat.engine.stage import StageResult
from eqsat.lowering.dead import without_dead
from eqsat.lowering.fold import split_constants
from eqsat.lowering.fuse import fuse
from eqsat.lowering.loops import Nest
from eqsat.lowering.lower import lower
from eqsat.reports import CompileReport, recording
from eqsat.snippet import make_snippet

_MODULE = "rule_set_program"


@dataclass
class Outcome:
    """Base names of rules that fired; ops of all rewritten ATen graphs; loop nests."""

    fired: set[str] = field(default_factory=set)
    ops: Counter[str] = field(default_factory=Counter)
    nests: int = 0


class Holder(nn.Module):
    """A function some of whose inputs are parameters of a module."""

    def __init__(self, function: Any, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.names = tuple(weights)
        for name, value in weights.items():
            differentiable = value.is_floating_point()
            self.register_parameter(f"weight_{name}", nn.Parameter(value, differentiable))

    def forward(self, **inputs: Any) -> Any:
        held = {name: getattr(self, f"weight_{name}") for name in self.names}
        return self.function(**inputs, **held)


def run_program(program: Program) -> Outcome:
    """Compiles and runs a program. Raises AssertionError where it differs from eager."""
    function, inputs = read_program(program.text)
    weights = {name: inputs.pop(name) for name in program.weights}
    outcome = Outcome()
    options = {"strict": True, "numerics": program.numerics, "target": program.target}
    wanted = _results(Holder(function, weights), inputs, program, None)
    with rewriting_only(outcome), recording() as reports:
        found = _results(Holder(function, weights), inputs, program, options)
    for report in reports:
        assert not report.fallback, report.fallback
        for stage in report.stages:
            assert not stage.disabled, stage.disabled
            outcome.fired |= {base_name(firing.rule) for firing in stage.firings}
    _compare(found, wanted, program)
    return outcome


def read_program(text: str) -> tuple[Any, dict[str, Any]]:
    """The function of a text, and example inputs by name."""
    name = f"{_MODULE}_{zlib.crc32(text.encode())}"  # Dynamo remembers modules by their names
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(torch=torch, F=F, math=math)
    torch.manual_seed(0)
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    function = vars(module)["program"]
    snippet = make_snippet(function, function, vars(module).get("inputs"))
    return function, dict(snippet.inputs)


def _results(
    module: nn.Module, inputs: Mapping[str, Any], program: Program, options: Any
) -> list[Any]:
    """What the module gives, and with `trains` also the gradients; in eager without options."""
    torch._dynamo.reset()
    run = (
        torch.compile(module, backend="eqsat", dynamic=False, options=options)
        if options
        else module
    )
    leaves = {name: _fresh(value, program.trains) for name, value in inputs.items()}
    torch.manual_seed(1)
    if not program.trains:
        with torch.no_grad():
            return tree_leaves(run(**leaves))
    results = tree_leaves(run(**leaves))
    results[0].sum().backward()
    held = [*leaves.values(), *module.parameters()]
    return [*results, *(x.grad for x in held if isinstance(x, torch.Tensor) and x.requires_grad)]


def _fresh(value: Any, trains: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(trains and value.is_floating_point())


def _compare(found: Sequence[Any], wanted: Sequence[Any], program: Program) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        half = isinstance(other, torch.Tensor) and other.dtype in (torch.float16, torch.bfloat16)
        close = 1e-4 if program.numerics == "default" and not half else 2e-2
        if program.numerics == "bitwise":
            close = 0.0
        torch.testing.assert_close(one, other, rtol=close, atol=close / 10, equal_nan=True)


@contextmanager
def rewriting_only(outcome: Outcome) -> Iterator[None]:
    """Ends compiles after the last stage of rules: the rewritten graph is what runs."""

    def rewritten(graph: AtenGraph, stage: StageResult, report: CompileReport) -> Any:
        outcome.ops += ops_of(stage.gm)
        session = graph.session
        split = split_constants(stage.gm, graph.frozen) if graph.frozen else None
        main = stage.gm if split is None else split.main
        lowered = lower(main, session.table, session.scalars, session.target.loops)
        program, _ = fuse(without_dead(lowered), session.book.fuse)
        outcome.nests += sum(isinstance(step, Nest) for step in program.steps)
        return make_boxed_func(stage.gm.forward)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "compile_rewritten", rewritten)
        yield


def ops_of(gm: fx.GraphModule) -> Counter[str]:
    """How often each op stands in a graph, by its name in ATen without overload."""
    return Counter(
        node.target._schema.name.split("::")[1]
        for node in gm.graph.nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    )
