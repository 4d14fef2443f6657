"""`eqsat check`: are the rules of these files right?

Takes paths and prints what is wrong; gives an exit status: 0 all are right, 1 some are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rich.console import Console
from rich.progress import track
from torch import fx

from .codegen.compile import CompiledGraph, CompileOptions, compile_program
from .engine.check import check_rule
from .engine.compiled import compiled_failures
from .engine.load import builtin_book
from .engine.naming import meant
from .engine.ops import OpTable
from .engine.rule import Rule
from .engine.schedule import load_schedule
from .engine.source import RuleErrors
from .engine.termination import neighbours
from .lowering.fuse import fuse
from .lowering.lower import lower
from .lowering.simplify import simplify
from .rule_paths import load_path
from .terminal import print_plain


def check_paths(
    paths: Sequence[str], only: Sequence[str], examples: int, seed: int, compiled: int | None = 0
) -> int:
    """Load the rules of `paths` and test each by hypothesis; prints what is wrong. The sides of
    `compiled` of the rules, drawn by `seed`, are compiled too (None: those of all)."""
    console = Console()
    try:
        loaded = [(path, load_path(path)) for path in paths]
    except RuleErrors as errors:
        print_plain(console, str(errors))
        return 1
    for _, book in loaded:
        for warning in book.warnings:
            print_plain(console, str(warning))
    checked = [
        (rule, table)
        for _, book in loaded
        for table in [OpTable(book.ops)]
        for rule in book.rules
        if not only or any(rule.name in meant(book.rules, pattern) for pattern in only)
    ]
    known = {rule.name: rule for rule in (*builtin_book().rules, *(rule for rule, _ in checked))}
    wrong = set()
    for rule, table in track(checked, "checking rules", console=console, transient=True):
        beside = neighbours(rule, list(known.values()), load_schedule())
        result = check_rule(rule, table, seed=seed, examples=examples, beside=beside)
        for text in (*result.failures, *result.warnings):
            print_plain(console, f"{rule.where} {rule.name}: {text}")
        if not result.ok:
            wrong.add(rule.name)
    right = [(rule, table) for rule, table in checked if rule.name not in wrong]
    drawn = right if compiled is None else sample(right, compiled, seed)
    for name, text in compiled_failures(drawn, _compile_plainly, seed).items():
        where = next(rule.where for rule, _ in drawn if rule.name == name)
        print_plain(console, f"{where} {name}: {text}")
        wrong.add(name)
    console.print(f"{len(checked)} rules checked, {len(drawn)} compiled, {len(wrong)} wrong")
    return 1 if wrong else 0


def sample(
    rules: Sequence[tuple[Rule, OpTable]], count: int, seed: int
) -> list[tuple[Rule, OpTable]]:
    """At most `count` of `rules`, in their order."""
    places = Random(seed).sample(range(len(rules)), min(count, len(rules)))
    return [rules[place] for place in sorted(places)]


def _compile_plainly(gm: fx.GraphModule) -> CompiledGraph:
    """A graph as it stands, no rule applied: lowered, fused and built."""
    book = builtin_book()
    scalars = {entry.name: entry for entry in book.scalars}
    program, _ = fuse(lower(gm, OpTable(book.ops), scalars), book.fuse)
    return compile_program(simplify(program), scalars, CompileOptions(measure_gemm=False))
