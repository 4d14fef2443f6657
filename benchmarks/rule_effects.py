"""What the rule stages do to one model, by counts and by the cost model.

Takes names of `architectures.py`; gives `Effect` rows. Models are traced and rewritten, and
lowered and fused to count kernels and bytes; nothing is compiled or timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from functorch.compile import make_boxed_func
from torch import fx

from eqsat import backend
from eqsat.backend import AtenGraph
from eqsat.engine.cost import CostModel
from eqsat.engine.dtypes import dtype_of
from eqsat.engine.encode import encode
from eqsat.engine.rule import RuleBook
from eqsat.engine.stage import SECOND, StageOptions, StageResult, run_stage
from eqsat.engine.target import Target, load_target
from eqsat.lowering.dead import without_dead
from eqsat.lowering.dependence import make_node
from eqsat.lowering.domain import estimate, points, product
from eqsat.lowering.fold import split_constants
from eqsat.lowering.fuse import fuse
from eqsat.lowering.loops import Program, Step
from eqsat.lowering.lower import lower
from eqsat.lowering.nest_facts import axes_behind
from eqsat.reports import CompileReport

from .file_order import in_file_order

ABLATED = ("bert", "gpt2", "llama", "t5", "vit", "mixtral", "resnet50", "bert, training")
EARLY = ("pre_grad", "trace", "joint")  # stages before the graphs that are captured


@dataclass(frozen=True)
class Effect:
    """Pairs are before and after the rules. `before`, `after`, `file_order` and `guarded` are
    predicted seconds of all graphs of the model together; `file_order` and `guarded` are what
    `file_order.py` gives."""

    model: str
    target: str
    ops: Sequence[int]
    kernels: Sequence[int]
    bytes: Sequence[int]
    before: float
    after: float
    file_order: float
    guarded: float


@dataclass(frozen=True)
class Captured:
    """A `post_grad` graph as a stage is given it. `inference`: nobody differentiates it."""

    graph: AtenGraph
    inference: bool


@dataclass(frozen=True)
class Staged:
    """The stage of a captured graph on a target, with the rules of `book`."""

    captured: Captured
    target: Target
    book: RuleBook

    @property
    def options(self) -> StageOptions:
        graph = self.captured.graph
        return StageOptions(
            profile=graph.session.settings.numerics,
            weights=graph.weights,
            frozen=graph.frozen,
            target=self.target,
            inference=self.captured.inference,
            lowered=graph.session.lowered,
            strict=True,
        )

    def run(self) -> StageResult:
        graph = self.captured.graph
        return run_stage(graph.gm, "post_grad", self.book, graph.session.table, self.options)


def effect(name: str, target: str, captured: Sequence[Captured]) -> Effect:
    """What the rules do to the graphs of a model on a target."""
    ways = {"before": 0.0, "after": 0.0, "file_order": 0.0, "guarded": 0.0}
    ops, kernels, moved = [0, 0], [0, 0], [0, 0]
    for graph in captured:
        one = Staged(graph, load_target(target), graph.graph.session.book)
        given, result = graph.graph.gm, one.run()
        for at, gm in enumerate((given, result.gm)):
            program = _program(gm, one)
            ops[at] += sum(node.op == "call_function" for node in gm.graph.nodes)
            kernels[at] += len(program.steps)
            moved[at] += sum(_bytes(step, program) for step in program.steps)
        fired = {firing.rule for firing in result.report.firings}
        how = (given, one.book, graph.graph.session.table, one.options, fired)
        ways["before"] += seconds(given, one)
        ways["after"] += seconds(result.gm, one)
        ways["file_order"] += seconds(in_file_order(*how, always=True), one)
        ways["guarded"] += seconds(in_file_order(*how, always=False), one)
    return Effect(name, target, ops, kernels, moved, **ways)


def ablate(name: str, folders: Sequence[str]) -> list[dict[str, Any]]:
    """Predicted seconds and kernels on the CPU with all rules (`without` is empty), then without
    each folder. Folders of earlier stages change what is captured; the others do not."""
    whole, rows = capture(name), []
    for folder in ("", *folders):
        graphs = capture(name, disable=[f"{folder}/*"]) if folder in EARLY else whole
        kernels, cost = 0, 0.0
        for graph in graphs:
            book = graph.graph.session.book
            kept = tuple(rule for rule in book.rules if rule.folder != folder)
            one = Staged(graph, load_target("cpu"), replace(book, rules=kept))
            gm = one.run().gm
            kernels += len(_program(gm, one).steps)
            cost += seconds(gm, one)
        rows.append({"model": name, "without": folder, "cost": cost, "kernels": kernels})
    return rows


def capture(name: str, **options: Any) -> list[Captured]:
    """All `post_grad` graphs of a model; a training step where it is trained."""
    from .architectures import TRAINED, build  # noqa: PLC0415 - transformers is an extra

    torch._dynamo.reset()
    model, inputs = build(name)
    trained = name in TRAINED
    compiled = torch.compile(model, backend="eqsat", options={"strict": True, **options})
    with stages_only() as found, torch.set_grad_enabled(trained):
        result = compiled(**inputs)
        if trained:
            result.float().square().mean().backward()
    return found


@contextmanager
def stages_only() -> Iterator[list[Captured]]:
    """Ends compiles after the last stage of rules, and collects what that was given."""
    found: list[Captured] = []

    def rewritten(graph: AtenGraph, stage: StageResult, report: CompileReport) -> Any:
        found.append(Captured(graph, report.kind == "inference"))
        return make_boxed_func(stage.gm.forward)

    with patch.object(backend, "compile_rewritten", rewritten):
        yield found


def seconds(gm: fx.GraphModule, one: Staged) -> float:
    """What the cost model says of a graph, seen alone."""
    given = one.captured.graph
    session = given.session
    encoding = encode(gm, session.table, weights=given.weights, frozen=given.frozen)
    if encoding is None:
        return 0.0
    model, graph = CostModel(one.target, session.lowered), encoding.graph
    model.survey(graph, [encoding.classes[node] for node in encoding.roots])
    return sum(model.cost(graph, node) for node in range(len(graph))) / SECOND


def _program(gm: fx.GraphModule, one: Staged) -> Program:
    """The kernels and calls that a graph becomes; what can be folded is left out."""
    graph = one.captured.graph
    session = graph.session
    split = split_constants(gm, graph.frozen) if graph.frozen else None
    main = gm if split is None else split.main
    lowered = lower(main, session.table, session.scalars, one.target.loops)
    return fuse(without_dead(lowered), session.book.fuse)[0]


def _bytes(step: Step, program: Program) -> int:
    """What a step reads and writes: each buffer once, of a gathered one what is touched."""
    node = make_node(0, step, 0, 0, 0)
    sizes = {name: _size(program, name) for name in node.reads | node.writes}
    read: Mapping[str, int] = {
        name: max(estimate(points(axes_behind(load.index))) for load in loads)
        * dtype_of(program.buffers[name].dtype).itemsize
        for name, loads in node.loads.items()
    }
    inward = sum(min(sizes[name], read.get(name, sizes[name])) for name in node.reads)
    return inward + sum(sizes[name] for name in node.writes)


def _size(program: Program, name: str) -> int:
    buffer = program.buffers[name]
    return estimate(product(buffer.shape)) * dtype_of(buffer.dtype).itemsize
