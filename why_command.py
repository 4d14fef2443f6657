"""`eqsat explain PROGRAM --why-not RULE`: what kept a rule from a program.

Takes a program and the name of a rule; compiles the program and asks, before each stage that
the rule belongs to, why it does not fire there. Gives text or JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from .config import Settings, config
from .engine.naming import left_over, rule_called
from .engine.profile import why_refused
from .engine.rule import Rule, RuleBook
from .engine.source import did_you_mean
from .engine.why import WhyNot, why_not
from .programs import ProgramError, run_program
from .reports import StageInput, watching
from .session import whole_book
from .terminal import complain, print_json, print_plain

_TRACED = (
    "rules of stage trace are applied by AOTAutograd op by op while it traces, and leave no graph"
    " to look at"
)


@dataclass(frozen=True)
class Question:
    """Why does rule `name` not fire: at node `at`, in graph number `graph`, where given."""

    name: str
    at: str | None = None
    stage: str | None = None
    graph: int | None = None


@dataclass
class _Watcher:
    """Asks the question of every stage that it is about."""

    question: Question
    rule: Rule
    stage: str
    answers: list[tuple[StageInput, WhyNot]] = field(default_factory=list)
    graphs: dict[int, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)

    def __call__(self, seen: StageInput) -> None:
        self.graphs[seen.report.graph] = seen.report.kind
        wanted = self.question.graph in (None, seen.report.graph)
        if seen.stage != self.stage or not wanted:
            return
        names = [node.name for node in seen.gm.graph.nodes]
        self.nodes += names
        at = self.question.at
        loaded = rule_called(seen.book.rules, self.rule.name) is not None
        if loaded and (at is None or at in names):
            rule, book, table = self.rule.name, seen.book, seen.table
            answer = why_not(seen.gm, seen.stage, book, table, rule, seen.options, at)
            self.answers.append((seen, answer))


def explain_why_not(program: str, question: Question, *, json_output: bool) -> int:
    """Print why a rule does not fire in a program.

    Gives the exit status: 0, or 2 where the program, rule, node or graph does not exist.
    """
    settings = config.snapshot()
    book = whole_book(settings, lambda text: print_plain(Console(stderr=True), text))
    rule = rule_called(book.rules, question.name)
    if rule is None:
        return complain("explain", _unknown("rule", question.name, [r.name for r in book.rules]))
    watcher = _Watcher(question, rule, question.stage or rule.stage)
    try:
        with watching(watcher):
            run_program(program)
    except ProgramError as error:
        return complain("explain", error)
    if not watcher.graphs:
        return complain("explain", f'{program} compiled nothing with backend="eqsat"')
    if question.graph is not None and question.graph not in watcher.graphs:
        numbers = ", ".join(f"{number} ({kind})" for number, kind in watcher.graphs.items())
        return complain("explain", f"there is no graph {question.graph}; there are {numbers}")
    if question.at is not None and question.at not in watcher.nodes and watcher.nodes:
        return complain("explain", _unknown("node", question.at, watcher.nodes))
    _print(rule, _note(rule, watcher, book, settings), watcher, json_output)
    return 0


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    near = did_you_mean(name, known)
    return f"no {kind} '{name}'" + (f" (did you mean '{near}'?)" if near else "")


def _note(rule: Rule, watcher: _Watcher, book: RuleBook, settings: Settings) -> str:
    """What keeps the rule from every graph, and why there is no answer."""
    if rule.name not in left_over(book, settings.disable, settings.enable):
        patterns = [p for p in settings.disable if rule.name not in left_over(book, (p,), ())]
        return f"disabled by {', '.join(map(repr, patterns))} in option 'disable'"
    refused = why_refused(rule, settings.numerics)
    if refused:
        return refused
    if rule.stage != watcher.stage:
        return f"the rule belongs to stage {rule.stage}, not {watcher.stage}"
    if rule.stage == "trace":
        return _TRACED
    return "" if watcher.answers else f"no graph came to stage {rule.stage}"


def _print(rule: Rule, note: str, watcher: _Watcher, json_output: bool) -> None:
    if json_output:
        answers: list[dict[str, Any]] = [
            {"graph": seen.report.graph, "kind": seen.report.kind, **answer.to_json()}
            for seen, answer in watcher.answers
        ]
        print_json({"rule": rule.name, "where": rule.where, "note": note, "answers": answers})
        return
    console = Console()
    if note:
        print_plain(console, f"{rule.name} ({rule.where}): {note}")
    for seen, answer in watcher.answers:
        print_plain(console, f"graph {seen.report.graph} ({seen.report.kind}), {seen.stage}:")
        print_plain(console, str(answer))
