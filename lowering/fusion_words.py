"""Whether fusion rules use the facts there are, as they are to be used.

Takes fusion rules; gives a diagnostic for every unknown fact and every wrong argument, so that
an author hears of it when the file is read and not in the middle of a compile.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

from ..engine.expr import Call, Expr, Literal, Name, walk
from ..engine.rule import FuseRule
from ..engine.source import Diagnostic, suggestion
from .conditions import PLAIN
from .pair_facts import FACTS, PairFacts

_NODES = ("producer", "consumer")


def check_fusion_rules(rules: Iterable[FuseRule]) -> tuple[Diagnostic, ...]:
    """What is wrong with the conditions and gains: E502 unknown facts, E505 their arguments."""
    return tuple(
        found
        for rule in rules
        for expr in (*(condition.expr for condition in rule.conditions), rule.gain)
        if expr is not None
        for found in _check(expr)
    )


def fact_rows() -> Iterator[tuple[str, str, str]]:
    """Name, arguments and meaning of every fact, for the table in the manual."""
    for name in FACTS:
        text = inspect.getdoc(getattr(PairFacts, name)) or ""
        yield name, ", ".join(_parameters(name)), " ".join(text.split())


def _check(expr: Expr) -> Iterator[Diagnostic]:
    for node in walk(expr):
        if not isinstance(node, Call) or node.fn in PLAIN:
            continue
        if node.fn not in FACTS:
            hint = suggestion(node.fn, (*FACTS, *PLAIN))
            yield _wrong(node, "E502", f"unknown fact '{node.fn}'", hint)
            continue
        wanted = _parameters(node.fn)
        given = [_kind(arg) for arg in node.args]
        if given != ["node" if name in _NODES or name == "node" else "text" for name in wanted]:
            hint = f"write {node.fn}({', '.join(map(_shown, wanted))})"
            yield _wrong(node, "E505", f"'{node.fn}' does not take these arguments", hint)


def _wrong(node: Call, code: str, message: str, hint: str | None) -> Diagnostic:
    return Diagnostic(node.span, "error", code, message, hint)


def _parameters(name: str) -> list[str]:
    return [
        part for part in inspect.signature(getattr(PairFacts, name)).parameters if part != "self"
    ]


def _shown(parameter: str) -> str:
    return "producer" if parameter == "node" else parameter if parameter in _NODES else "'...'"


def _kind(arg: Expr) -> str:
    if isinstance(arg, Name) and arg.id in _NODES:
        return "node"
    return "text" if isinstance(arg, Literal) and isinstance(arg.value, str) else "other"
