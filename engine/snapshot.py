"""Everything a stage weighed, as plain data for a page to show.

Takes what a stage is given; runs it and gives a `Snapshot`: the graph before and after, every
e-class with its forms and what each would cost, and every firing with what it matched and made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import fx

from .decode import FORMS
from .dtypes import word_of
from .egraph import LEAF, EGraph
from .encode import Encoding
from .ops import OpTable
from .rule import RuleBook
from .search import Search
from .selection import Choice, Problem
from .stage import SECOND, StageOptions, StageRun

_LONGEST = 60  # characters of a constant


@dataclass(frozen=True)
class Form:
    """One node of an e-class. `text` names its op and operands (`e7` is class 7), `classes` are
    these operands. `own` is its cost, `total` that of the cheapest graph found with it in place
    of the form that was chosen (None where no graph without a cycle has it); both in seconds.
    `firing` is the number of the firing that made it, -1 for a form of the captured graph."""

    node: int
    text: str
    classes: tuple[int, ...]
    own: float
    total: float | None
    firing: int
    chosen: bool


@dataclass(frozen=True)
class EClass:
    """An e-class; `used` says whether the chosen graph computes it."""

    number: int
    type: str
    used: bool
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class FiringNote:
    """A firing: the classes it matched, those of the nodes it made, and the classes in which
    the two sides met."""

    rule: str
    where: str
    doc: str
    matched: tuple[int, ...]
    made: tuple[int, ...]
    roots: tuple[int, ...]


@dataclass(frozen=True)
class GraphNode:
    """A call or input of an FX graph, and its e-class (-1 where it has none)."""

    name: str
    text: str
    type: str
    number: int
    source: str


@dataclass(frozen=True)
class Snapshot:
    """`cost_*` are seconds by the cost model; `status` is that of the stage's report."""

    stage: str
    status: str
    reason: str
    cost_before: float
    cost_after: float
    before: tuple[GraphNode, ...]
    after: tuple[GraphNode, ...]
    classes: tuple[EClass, ...]
    firings: tuple[FiringNote, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def take_snapshot(
    gm: fx.GraphModule, stage: str, book: RuleBook, table: OpTable, options: StageOptions
) -> Snapshot:
    """Runs `stage` on `gm`, which is left as it is, and keeps what it saw."""
    run = StageRun(gm, stage, book, table, options)
    result = run.run()
    report = result.report
    encoding, choice = run.encoding, run.choice
    classes: tuple[EClass, ...] = ()
    numbers: dict[str, int] = {}
    rewritten: dict[str, int] = {}
    if encoding is not None:
        graph = encoding.graph
        numbers = {node.name: graph.find(at) for node, at in encoding.classes.items()}
        forms = {} if result.gm is gm else result.gm.meta[FORMS]
        rewritten = {name: graph.find(node) for name, node in forms.items()}
        if choice is not None:
            classes = _classes(run, encoding, choice)
    return Snapshot(
        stage=stage,
        status=report.status,
        reason=report.reason,
        cost_before=report.cost_before,
        cost_after=report.cost_after,
        before=_nodes(gm, numbers),
        after=_nodes(result.gm, {**numbers, **rewritten}),
        classes=classes,
        firings=_firings(run),
    )


def _classes(run: StageRun, encoding: Encoding, choice: Choice) -> tuple[EClass, ...]:
    graph = encoding.graph
    problem, members = run.problem(encoding)
    nodes = [node for group in members.values() for node in group]
    totals = _totals(problem, choice)
    found = []
    for at, owner in enumerate(members):
        used = at in choice.used
        forms = tuple(
            Form(
                node=nodes[index],
                text=_form(graph, nodes[index]),
                classes=tuple(map(graph.find, graph.children(nodes[index]))),
                own=problem.cost[index] / SECOND,
                total=None if totals[index] is None else totals[index] / SECOND,
                firing=graph.firing[nodes[index]],
                chosen=used and choice.node[at] == index,
            )
            for index in problem.members[at]
        )
        found.append(
            EClass(owner, type_text(graph.metadata.values[graph.meta[owner]]), used, forms)
        )
    return tuple(found)


def _totals(problem: Problem, choice: Choice) -> list[Any]:
    """Per node the cost of the chosen graph with that node in it, None where it cannot be or is
    of a class that the graph does not compute."""
    totals: list[int | None] = [None] * len(problem.children)
    search = Search(problem, choice.node)
    for owner in sorted(choice.used):
        old = search.node[owner]
        for index in problem.members[owner]:
            if index == old:
                totals[index] = search.total
            elif search.switch(owner, index):
                totals[index] = search.total
                search.switch(owner, old)
    return totals


def _firings(run: StageRun) -> tuple[FiringNote, ...]:
    if run.applier is None:
        return ()
    find = run.applier.graph.find
    return tuple(
        FiringNote(
            rule=firing.rule.name,
            where=firing.rule.where,
            doc=firing.rule.doc,
            matched=tuple(dict.fromkeys(map(find, firing.matched))),
            made=tuple(dict.fromkeys(map(find, range(firing.start, firing.end)))),
            roots=tuple(dict.fromkeys(find(old) for old, _ in firing.roots)),
        )
        for firing in run.applier.firings
    )


def _nodes(gm: fx.GraphModule, numbers: Mapping[str, int]) -> tuple[GraphNode, ...]:
    return tuple(
        GraphNode(
            name=node.name,
            text=_call_text(node),
            type=type_text(node.meta.get("val", node.meta.get("example_value"))),
            number=numbers.get(node.name, -1),
            source=_source_line(node),
        )
        for node in gm.graph.nodes
    )


def _call_text(node: fx.Node) -> str:
    if node.op in ("placeholder", "get_attr"):
        return node.op
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if isinstance(target, torch._ops.OpOverload):
        name = str(target).removeprefix("aten.").removesuffix(".default")
    given = [_shortened(arg) for arg in node.args]
    given += [f"{key}={_shortened(value)}" for key, value in node.kwargs.items()]
    return f"{name}({', '.join(given)})"


def _source_line(node: fx.Node) -> str:
    """The last line of the user's program behind a node, with its place."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    return " ".join(lines[-2:]) if lines else ""


def _form(graph: EGraph, node: int) -> str:
    kind = graph.kind[node]
    source = graph.source[node]
    if kind == LEAF:
        return source.name if source is not None else "leaf"
    constructor = graph.constructors[kind]
    row = [
        f"e{graph.find(item)}" if column == "t" else _shortened(graph.constants.value(item))
        for column, item in zip(constructor.columns, graph.args[node], strict=True)
    ]
    params = constructor.op.params
    parts = []
    for param, value in zip(params, constructor.split(row), strict=True):
        text = f"[{', '.join(value)}]" if isinstance(value, list) else value
        if text != _shortened(param.default) or param.required:
            parts.append(text if param.kind in ("tensor", "tensors") else f"{param.name}={text}")
    return f"{constructor.op.name}({', '.join(parts)})"


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def type_text(value: Any) -> str:
    """`f32[4, s0]`, several of them for a tuple."""
    if isinstance(value, torch.Tensor):
        return f"{word_of(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(type_text, value))})"
    return "" if value is None else str(value)
