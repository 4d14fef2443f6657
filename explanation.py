"""`eqsat explain`: what the rules did to a program.

Takes the reports of the compiles that a call or a script caused; gives text (rich) or JSON:
per stage the rules that fired and the cost before and after, per kernel the nodes fused into
it and the rules behind them, and why pairs of loop nests were left apart.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .programs import ProgramError, run_program
from .reports import CompileReport, recording
from .terminal import complain, print_json, print_plain

# What a graph shows before "and N more"; `--all` shows everything.
_SHOWN_ORIGINS = 4  # FX nodes per kernel
_SHOWN_RULES = 8
_SHOWN_KERNELS = 8
_SHOWN_REASONS = 3


@dataclass(frozen=True)
class Explanation:
    """Reports of every graph that was compiled, and what the call gave."""

    reports: tuple[CompileReport, ...]
    result: Any = None

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120)
        print_reports(self.reports, console)
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    def to_json(self) -> list[dict[str, Any]]:
        """One dict per graph, of plain values."""
        return [report_json(report) for report in self.reports]


def explain_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile `fn` afresh with eqsat, call it, and give the reports."""
    torch._dynamo.reset()
    with recording() as reports:
        result = torch.compile(fn, backend="eqsat")(*args, **kwargs)
    return Explanation(tuple(reports), result)


def explain_program(
    program: str, *, json_output: bool, rejected: bool, everything: bool, node: str | None = None
) -> int:
    """Run `SCRIPT.py`, or compile and call `module:function`, and print what happened; with
    `node`, only the pairs not fused that hold this FX node, op or nest (or glob).

    Gives the exit status: 0, 1 where no graph was compiled, 2 where the program is not found.
    """
    try:
        reports = record_program(program)
    except ProgramError as error:
        return complain("explain", error)
    if not reports:
        print(f'{program} compiled nothing with backend="eqsat"', file=sys.stderr)
        return 1
    if json_output:
        print_json([report_json(report) for report in reports])
    elif node is not None:
        _print_rejected_at(reports, Console(), node)
    else:
        print_reports(reports, Console(), rejected=rejected, everything=everything)
    return 0


def record_program(program: str) -> list[CompileReport]:
    """The reports of the graphs that a program compiles. Raises ProgramError."""
    torch._dynamo.reset()
    with recording() as reports:
        run_program(program)
    return reports


def print_reports(
    reports: Sequence[CompileReport],
    console: Console,
    *,
    rejected: bool = False,
    everything: bool = False,
) -> None:
    """What happened to every graph: about a screen for each, or `everything`. `rejected` lists
    each pair that was not fused."""
    for report in reports:
        if report.kind == "capture" and not any(_worth_showing(s) for s in report.stages):
            continue
        console.rule(f"graph {report.graph}: {report.kind}")
        if report.fallback:
            console.print(f"runs unoptimised: {report.fallback}", markup=False)
        for stage in report.stages:
            _print_stage(stage, console, everything)
        if report.folded:
            values, size = report.folded["values"], report.folded["bytes"]
            console.print(f"folded: {len(values)} expressions of parameters, {size / 1e6:.1f} MB")
        if report.contest:
            _print_contest(report.contest, console)
        if report.kernels:
            _print_kernels(report, console, everything)
        if report.externs:
            _print_externs(report, console)
        if report.fusion is not None:
            _print_fusion(report.fusion, console, rejected, everything)
        if report.seconds:
            times = ", ".join(f"{name} {value:.2f} s" for name, value in report.seconds.items())
            console.print(f"compile time: {times}")


def _worth_showing(stage: Any) -> bool:
    return bool(stage.firings or stage.budgets or stage.disabled or stage.status == "failed")


def _print_stage(stage: Any, console: Console, everything: bool) -> None:
    head = f"[bold]{stage.stage}[/]: {stage.status}"
    if stage.reason:
        head += f" ({stage.reason})"
    if stage.status in ("changed", "unchanged"):
        head += (
            f"; {stage.nodes_before} -> {stage.nodes_after} nodes, estimated "
            f"{stage.cost_before * 1e6:.0f} -> {stage.cost_after * 1e6:.0f} us, "
            f"{stage.egraph_nodes} forms weighed in {stage.seconds:.2f} s"
        )
    console.print(head, highlight=False)
    if stage.firings:
        _print_firings(stage.firings, console, everything)
    for budget in stage.budgets:
        console.print(f"budget reached in {budget.phase}: {budget.what} (limit {budget.limit})")
    for rule in stage.disabled:
        console.print(f"disabled: {rule.where} {rule.rule}: {rule.reason}", markup=False)


def _print_firings(firings: Sequence[Any], console: Console, everything: bool) -> None:
    """A line for every rule that did most of what is in the result, one for all others."""
    ranked = sorted(firings, key=lambda item: (-item.kept, -item.count, item.rule))
    kept = [fired for fired in ranked if fired.kept]
    shown = ranked if everything else kept[:_SHOWN_RULES]
    if shown:
        table = Table(box=None, pad_edge=False)
        for head in ("rule", "fired", "kept", "where"):
            table.add_column(head, no_wrap=True)  # to be copied into an editor
        table.add_column("first at", overflow="fold")
        for fired in shown:
            nodes = fired.nodes[0] if fired.nodes else ()
            first = ", ".join(nodes if everything else nodes[:1])
            table.add_row(fired.rule, str(fired.count), str(fired.kept), fired.where, first)
        console.print(table)
    for text, others in (
        ("also kept", kept[_SHOWN_RULES:]),
        ("fired, but another form was cheaper", ranked[len(kept) :]),
    ):
        if others and not everything:
            names = [f"{fired.rule} {fired.count}" for fired in others]
            print_plain(console, f"{text} (--all): {_some(names)}")


def _print_contest(contest: Mapping[str, Any], console: Console) -> None:
    console.print(f"candidates: {contest['decided']}", markup=False)
    for one in contest.get("candidates", ()):
        seconds = one["seconds"]
        taken = "failed or differs" if seconds is None else f"{seconds * 1e6:.1f} us"
        mark = "  <- chosen" if one["chosen"] else ""
        console.print(f"  {one['how']}: {taken}{mark}", markup=False, highlight=False)


def _print_kernels(report: CompileReport, console: Console, everything: bool) -> None:
    table = Table("kernel", "calls", "nodes", "rules", box=None, pad_edge=False)
    table.title = f"{len(report.kernels)} kernels"
    ranked = sorted(report.kernels, key=lambda kernel: -kernel.uses)
    shown = report.kernels if everything else ranked[:_SHOWN_KERNELS]
    for kernel in shown:
        rules = list(dict.fromkeys(rule.split()[-1] for rule in kernel.rules))
        nodes = ", ".join(kernel.origins) if everything else _some(kernel.origins)
        told = "\n".join(rules) if everything else _some(rules)
        table.add_row(kernel.name, str(kernel.uses), nodes, told)
    console.print(table)
    more = ranked[len(shown) :]
    if more:
        calls = sum(kernel.uses for kernel in more)
        console.print(f"and {len(more)} more kernels, called {calls} times (--all)")


def _print_externs(report: CompileReport, console: Console) -> None:
    counts = Counter((extern.target, extern.path) for extern in report.externs)
    parts = [f"{count} x {target} ({path})" for (target, path), count in counts.most_common()]
    console.print("extern calls: " + ", ".join(parts), markup=False)


def _print_fusion(fusion: Any, console: Console, rejected: bool, everything: bool) -> None:
    console.print(f"fusion: {fusion.before} loop nests -> {fusion.after}")
    reasons = Counter((pair.rule, pair.where, pair.condition) for pair in fusion.rejected)
    if rejected:
        if fusion.rejected:
            console.print("pairs left apart:")
        for pair in fusion.rejected:
            print_plain(console, f"  {_pair_line(pair)}")
        return
    if reasons:
        console.print("pairs left apart, by reason (each one: --rejected):")
    shown = reasons.most_common(None if everything else _SHOWN_REASONS)
    for (rule, where, condition), count in shown:
        console.print(f"  {count} x {rule} ({where}): {condition}", markup=False)
    if len(reasons) > len(shown):
        console.print(f"  and {len(reasons) - len(shown)} more reasons (--all)")


def _print_rejected_at(reports: Sequence[CompileReport], console: Console, node: str) -> None:
    found = False
    for report in reports:
        for pair in report.fusion.rejected if report.fusion is not None else ():
            calls = {name: op for side in pair.nodes for name, op in side.items()}
            names = (*calls, *calls.values(), pair.producer, pair.consumer)
            if any(fnmatchcase(name, node) for name in names):
                found = True
                print_plain(console, f"graph {report.graph} ({report.kind}): {_pair_line(pair)}")
    if not found:
        print_plain(console, f"no pair that was left apart holds '{node}'")


def _pair_line(pair: Any) -> str:
    """The calls on both sides, the rule that came nearest, and the condition that decided."""
    producer, consumer = (
        ", ".join(f"{name} = {op}" for name, op in side.items()) for side in pair.nodes
    )
    values = ", ".join(f"{fact} = {value}" for fact, value in pair.values.items())
    told = not values or list(pair.values) == [pair.condition]
    decided = values or pair.condition if told else f"{pair.condition} ({values})"
    return f"[{producer}] + [{consumer}]: {pair.rule} ({pair.where}): {decided}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_ORIGINS])
    more = len(names) - _SHOWN_ORIGINS
    return f"{shown} and {more} more" if more > 0 else shown


def report_json(report: CompileReport, *, code: bool = False) -> dict[str, Any]:
    """A report as plain values; `code` adds the text of every kernel."""
    return {
        "graph": report.graph,
        "kind": report.kind,
        "key": report.key,
        "fallback": report.fallback,
        "stages": [stage.as_json() for stage in report.stages],
        "folded": report.folded,
        "contest": report.contest,
        "kernels": [
            {key: value for key, value in asdict(kernel).items() if code or key != "text"}
            for kernel in report.kernels
        ],
        "externs": [asdict(extern) for extern in report.externs],
        "fusion": report.fusion.to_json() if report.fusion is not None else None,
        "seconds": report.seconds,
    }
