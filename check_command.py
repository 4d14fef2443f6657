"""`eqsat check`: are the rules of these files right?

Takes paths and prints what is wrong; gives an exit status: 0 all are right, 1 some are not,
130 stopped by Ctrl-C. Rules are tested in processes of their own, as a wrong one may crash a
kernel of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rich.console import Console
from rich.progress import Progress
from torch import fx

from .codegen.compile import CompiledGraph, CompileOptions, compile_program
from .engine.check import CheckResult, check_rule, lost_text, patience
from .engine.compiled import compiled_failures
from .engine.load import builtin_book
from .engine.naming import meant
from .engine.ops import OpTable
from .engine.rule import Rule
from .engine.schedule import load_schedule
from .engine.source import RuleErrors
from .engine.termination import neighbours
from .engine.workers import Lost, run_all, usable_cores
from .lowering.fuse import fuse
from .lowering.lower import lower
from .lowering.simplify import simplify
from .rule_paths import load_path
from .terminal import print_plain

_INTERRUPTED = 130


@dataclass(frozen=True)
class CheckSettings:
    """`only` holds names and globs of rules. The sides of `compiled` of the rules are compiled
    too (None: those of all). `jobs` processes check rules (None: as many as there are cores; 0:
    this one), each rule for at most `limit` seconds (None: as many as its examples may take)."""

    only: Sequence[str] = ()
    examples: int = 30
    seed: int = 0
    compiled: int | None = 0
    jobs: int | None = None
    limit: float | None = None

    @property
    def processes(self) -> int:
        return usable_cores() if self.jobs is None else self.jobs

    @property
    def seconds(self) -> float:
        return patience(self.examples) if self.limit is None else self.limit


def check_paths(paths: Sequence[str], settings: CheckSettings) -> int:
    """Load the rules of `paths` and test each; prints what is wrong."""
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
        if not settings.only
        or any(rule.name in meant(book.rules, pattern) for pattern in settings.only)
    ]
    wrong: set[str] = set()
    try:
        _check_all(checked, settings, console, wrong)
        right = [(rule, table) for rule, table in checked if rule.name not in wrong]
        drawn = right
        if settings.compiled is not None:
            drawn = sample(right, settings.compiled, settings.seed)
        for name, text in _compiled_failures(drawn, settings).items():
            where = next(rule.where for rule, _ in drawn if rule.name == name)
            print_plain(console, f"{where} {name}: {text}")
            wrong.add(name)
    except KeyboardInterrupt:
        console.print(f"stopped; {len(wrong)} rules are wrong so far")
        return _INTERRUPTED
    console.print(f"{len(checked)} rules checked, {len(drawn)} compiled, {len(wrong)} wrong")
    return 1 if wrong else 0


def _check_all(
    checked: Sequence[tuple[Rule, OpTable]],
    settings: CheckSettings,
    console: Console,
    wrong: set[str],
) -> None:
    """Tests each rule and prints what is wrong, in the order of the rules; adds to `wrong`."""
    known = {rule.name: rule for rule in (*builtin_book().rules, *(rule for rule, _ in checked))}
    schedule = load_schedule()

    def check(pair: tuple[Rule, OpTable]) -> CheckResult:
        rule, table = pair
        beside = neighbours(rule, list(known.values()), schedule)
        return check_rule(
            rule, table, seed=settings.seed, examples=settings.examples, beside=beside
        )

    results = run_all(check, checked, settings.processes, settings.seconds)
    progress = Progress(console=console, transient=True, auto_refresh=False)  # no thread: we fork
    with progress:
        bar = progress.add_task("checking rules", total=len(checked))
        for (rule, _), result in zip(checked, results, strict=True):
            texts = (lost_text(result),) if isinstance(result, Lost) else _texts(result)
            for text in texts:
                print_plain(progress.console, f"{rule.where} {rule.name}: {text}")
            if isinstance(result, Lost) or not result.ok:
                wrong.add(rule.name)
            progress.update(bar, advance=1, refresh=True)


def _texts(result: CheckResult) -> tuple[str, ...]:
    return (*result.failures, *result.warnings)


def _compiled_failures(
    rules: Sequence[tuple[Rule, OpTable]], settings: CheckSettings
) -> dict[str, str]:
    """What is wrong with the compiled sides, by name of rule. Where all together crash, each
    rule is compiled by itself."""

    def compile_some(some: Sequence[tuple[Rule, OpTable]]) -> dict[str, str]:
        return compiled_failures(some, _compile_plainly, settings.seed)

    limit = settings.seconds * max(len(rules), 1)
    (found,) = run_all(compile_some, [rules], settings.processes, limit)
    if not isinstance(found, Lost):
        return found
    failures: dict[str, str] = {}
    alone = run_all(compile_some, [[pair] for pair in rules], settings.processes, settings.seconds)
    for (rule, _), result in zip(rules, alone, strict=True):
        if isinstance(result, Lost):
            failures[rule.name] = f"compiling and running its sides {result.reason}"
        else:
            failures |= result
    return failures


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
