"""Runs the phases of a stage: egglog finds matches, Python applies them, until nothing changes.

Takes an e-graph, patterns by folder and phases; grows the e-graph. Nodes go to egglog as TSV
rows, one loader rule per constructor; each query writes a relation of integers. All numbers
are node ids of the mirror, so nothing has to be read back but matches and merged ids.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egglog.bindings import EGraph as Engine

from .apply import Applier
from .egraph import LEAF, Constructor, EGraph
from .pattern import Pattern, Query, queries, ruleset
from .report import Budget
from .schedule import Phase

# The names of the base program start with "g."; constructors with "o.", loaders with "r.",
# match relations with "m.", rule sets with "f.": rules of users cannot clash with them.
_BASE = (
    "(sort T)",
    "(constructor g.node (i64) T :unextractable)",
    "(function g.number (T) i64 :merge (min old new))",
    "(function g.canonical (i64) i64 :merge (min old new))",
    "(relation r.leaf (i64))",
    "(relation r.merge (i64 i64))",
    "(ruleset f.load)",
    "(ruleset f.merged)",
    '(rule ((r.leaf n)) ((set (g.number (g.node n)) n)) :ruleset f.load :name "leaf")',
    '(rule ((r.merge a b)) ((union (g.node a) (g.node b))) :ruleset f.load :name "merge")',
    "(rule ((= t (g.node n)) (= m (g.number t)) (!= n m)) ((set (g.canonical n) m))"
    ' :ruleset f.merged :name "merged")',
)


# More matches of one rule at one shared value than this are not looked for.
_MOST_ROWS = 200_000

_PARSED: dict[str, tuple[Any, ...]] = {}


@dataclass
class _Running:
    """A query that egglog runs: rows read so far, canonical rows seen, rows not yet used."""

    query: Query
    read: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)
    waiting: deque[tuple[int, ...]] = field(default_factory=deque)


class Saturator:
    """One e-graph in egglog, kept in step with its mirror. A context manager, as rows travel
    through a temporary folder. To be used from one thread."""

    def __init__(
        self, graph: EGraph, applier: Applier, patterns: Mapping[str, Sequence[Pattern]]
    ) -> None:
        self.graph = graph
        self.applier = applier
        self.patterns = patterns
        self.budgets: list[Budget] = []
        self.rounds = 0
        self._folder = Path(tempfile.mkdtemp(prefix="eqsat-"))
        self._engine = Engine(fact_directory=str(self._folder))
        self._files = 0
        self._sent = 0
        self._declared = 0
        self._loaders: set[int] = set()
        self._unions: list[tuple[int, int]] = []
        self._running: dict[str, list[_Running]] = {folder: [] for folder in patterns}
        self._keys: set[tuple[int, tuple[int, ...]]] = set()
        self._numbers = {
            id(pattern): number
            for number, pattern in enumerate(p for group in patterns.values() for p in group)
        }
        self._run(_BASE)
        self._run([f"(ruleset {name})" for name in dict.fromkeys(map(ruleset, patterns))])

    def __enter__(self) -> Saturator:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, phase: Phase, folders: Sequence[str], limit: int) -> None:
        """Rounds of the rules in `folders` until nothing changes or a bound of `phase` is
        reached. `limit` is the greatest number of nodes the e-graph may have."""
        for _ in range(phase.iterations):
            self._flush()
            self._instantiate(folders)
            self.rounds += 1
            self._run([f"(run-schedule {' '.join(f'(run {ruleset(f)})' for f in folders)})"])
            changed = self._apply(phase, folders, limit)
            if not changed:
                break
        else:
            self.budgets.append(Budget(phase.name, "iterations", phase.iterations))
        self._flush()
        for folder in folders:
            for running in self._running[folder]:
                if running.waiting:
                    what = f"matches of {running.query.pattern.rule.name}"
                    self.budgets.append(Budget(phase.name, what, phase.matches))
        if len(self.graph) >= limit:
            self.budgets.append(Budget(phase.name, "nodes", limit))

    def _run(self, commands: Sequence[str]) -> list[Any]:
        """Runs command texts. They are parsed one at a time, as parsing is quadratic in the
        length of a text, and once per process."""
        parsed: list[Any] = []
        for text in commands:
            found = _PARSED.get(text)
            if found is None:
                found = _PARSED[text] = tuple(self._engine.parse_program(text))
            parsed += found
        return self._engine.run_program(*parsed)

    def _instantiate(self, folders: Sequence[str]) -> None:
        """Adds the queries that the constructors there are by now make possible."""
        by_op = self.graph.by_op
        for folder in folders:
            for pattern in self.patterns[folder]:
                number = self._numbers[id(pattern)]
                for key, query in queries(pattern, by_op, number):
                    if (number, key) in self._keys:
                        continue
                    self._keys.add((number, key))
                    if self._breadth(query) > _MOST_ROWS:
                        what = f"readers of one value in {pattern.rule.name}"
                        self.budgets.append(Budget(folder, what, _MOST_ROWS))
                        continue
                    self._run(query.text)
                    self._running[folder].append(_Running(query))

    def _breadth(self, query: Query) -> int:
        """How many matches a pattern with several roots can have at one value that the roots
        share: egglog would list them all before any bound could act."""
        roots = list(query.pattern.roots.values())
        if len(roots) < 2:
            return 0
        variables = set(query.tensors.values())
        shared = [
            {at for kind, at in query.columns[root] if kind == "t"} & variables for root in roots
        ]
        common = set.intersection(*shared)
        total = 1
        for root in roots:
            places = [at for at, (_, column) in enumerate(query.columns[root]) if column in common]
            total *= self._readers(query.constructors[root], places[0]) if places else 1
        return total

    def _readers(self, constructor: Constructor, place: int) -> int:
        """The most nodes of a constructor that have one class in one column."""
        counts: dict[int, int] = {}
        graph = self.graph
        for node, kind in enumerate(graph.kind):
            if kind == constructor.index:
                owner = graph.find(graph.args[node][place])
                counts[owner] = counts.get(owner, 0) + 1
        return max(counts.values(), default=0)

    def _apply(self, phase: Phase, folders: Sequence[str], limit: int) -> bool:
        functions = self._engine.freeze().functions
        changed = False
        for folder in folders:
            for running in self._running[folder]:
                self._read(running, functions[running.query.relation].rows)
                changed |= self._use(running, phase.matches, limit)
        return changed

    def _read(self, running: _Running, rows: Sequence[Any]) -> None:
        number = self._engine.value_to_i64
        fresh = [tuple(map(number, row.inputs)) for row in rows[running.read :]]
        running.read += len(fresh)
        fresh.sort()
        running.waiting.extend(fresh)

    def _use(self, running: _Running, matches: int, limit: int) -> bool:
        """Applies waiting matches, at most `matches` of them; whether any changed the graph."""
        find, count = self.graph.find, running.query.classes
        changed = False
        while running.waiting and matches > 0 and len(self.graph) < limit:
            raw = running.waiting.popleft()
            row = (*map(find, raw[:count]), *raw[count:])
            if row in running.seen:
                continue
            running.seen.add(row)
            matches -= 1
            unions = self.applier.apply(running.query, row)
            changed |= bool(unions)
            self._unions += unions
        return changed

    def _flush(self) -> None:
        """Sends new nodes, places and unions, and learns which classes became one."""
        graph = self.graph
        if self._sent == len(graph) and not self._unions:
            return
        commands = self._declare(graph.constructors[self._declared :])
        self._declared = len(graph.constructors)
        rows: dict[str, list[str]] = {}
        for node in range(self._sent, len(graph)):
            self._rows_of(node, rows)
        self._sent = len(graph)
        merged = bool(self._unions)
        for old, new in self._unions:
            rows.setdefault("r.merge", []).append(f"{old}\t{new}\n")
        self._unions.clear()
        for relation, lines in rows.items():
            name = f"{self._files}.tsv"
            self._files += 1
            (self._folder / name).write_text("".join(lines))
            commands.append(f'(input {relation} "{name}")')
        self._run([*commands, "(run-schedule (run f.load) (run f.merged))"])
        self._learn(merged)

    def _declare(self, constructors: Sequence[Constructor]) -> list[str]:
        """A constructor and its loader, for each; a loader relation per number of columns."""
        commands = []
        for constructor in constructors:
            width = len(constructor.columns)
            if width not in self._loaders:
                self._loaders.add(width)
                commands.append(f"(relation r.{width} ({' '.join(['i64'] * (width + 2))}))")
            sorts = " ".join("T" if column == "t" else "i64" for column in constructor.columns)
            args = " ".join(
                f"(g.node a{at})" if column == "t" else f"a{at}"
                for at, column in enumerate(constructor.columns)
            )
            names = " ".join(f"a{at}" for at in range(width))
            commands += [
                f"(constructor {constructor.name} ({sorts}) T :unextractable)",
                f"(rule ((r.{width} {constructor.index} n {names}))"
                f" ((union (g.node n) ({constructor.name} {args})) (set (g.number (g.node n)) n))"
                f' :ruleset f.load :name "load {constructor.name}")',
            ]
        return commands

    def _rows_of(self, node: int, rows: dict[str, list[str]]) -> None:
        graph = self.graph
        kind = graph.kind[node]
        if kind == LEAF:
            rows.setdefault("r.leaf", []).append(f"{node}\n")
            return
        constructor = graph.constructors[kind]
        args = graph.args[node]
        lines = rows.setdefault(f"r.{len(args)}", [])
        lines.append("\t".join(map(str, (kind, node, *args))) + "\n")
        swapped = graph.swapped(constructor, args)
        if swapped is not None:
            lines.append("\t".join(map(str, (kind, node, *swapped))) + "\n")

    def _learn(self, changed: bool) -> None:
        """Takes over the classes that egglog merged because their nodes became equal."""
        number = self._engine.value_to_i64
        for row in self._engine.freeze().functions["g.canonical"].rows:
            changed |= self.graph.union(number(row.inputs[0]), number(row.output))
        if changed:
            self.graph.rehash()
