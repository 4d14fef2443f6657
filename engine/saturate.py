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

from .apply import Applier
from .breadth import Breadth
from .egraph import LEAF, Constructor, EGraph
from .native import engine_class
from .pattern import Pattern, Query, queries
from .report import Budget
from .schedule import Phase

# The names of the base program start with "g."; constructors with "o.", loaders with "r.",
# match relations with "m.", rule sets with "f." and "q.": rules of users cannot clash with them.
_BASE = (
    "(sort T)",
    "(constructor g.node (i64) T :unextractable)",
    "(function g.number (T) i64 :merge (min old new))",
    "(function g.canonical (i64) i64 :merge (min old new))",
    "(function g.place (T) i64 :merge (min old new))",
    "(relation r.leaf (i64))",
    "(relation r.merge (i64 i64))",
    "(relation r.place (i64 i64))",
    "(ruleset f.load)",
    "(ruleset f.merged)",
    '(rule ((r.leaf n)) ((set (g.number (g.node n)) n)) :ruleset f.load :name "leaf")',
    '(rule ((r.merge a b)) ((union (g.node a) (g.node b))) :ruleset f.load :name "merge")',
    '(rule ((r.place n p)) ((set (g.place (g.node n)) p)) :ruleset f.load :name "place")',
    "(rule ((= t (g.node n)) (= m (g.number t)) (!= n m)) ((set (g.canonical n) m))"
    ' :ruleset f.merged :name "merged")',
)


# Back-off, as egg's scheduler has it (Willsey et al., arXiv:2004.03082): a query that may have
# more rows than its limit is banned for some rounds; each ban doubles its limit and the length
# of the next ban. Its rows are counted before they are listed, and no limit is above the last.
_ROWS, _MOST_ROWS = 25_000, 100_000
_BAN = 1  # rounds
# A rule that makes more than this part of a phase's nodes runs away: rules that make nodes for
# every node of a graph stay below it.
_MOST_OF_GROWTH = 0.75

_LOAD = ("(run-schedule (run f.load) (run f.merged))", "(print-size g.canonical)")
_RUN = "(run-schedule (run {}))"
_PARSED: dict[tuple[type, str], tuple[Any, ...]] = {}
_KEPT_TEXTS = 20_000


@dataclass
class _Running:
    """A query that egglog runs: whether it knows it by now, rows read so far, canonical rows
    seen, rows not yet used, the state of the e-graph that it last saw, how often it was banned,
    and the round in which it may run again."""

    query: Query
    declared: bool = False
    read: int = 0
    state: int = -1
    bans: int = 0
    free: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)
    waiting: deque[tuple[int, ...]] = field(default_factory=deque)

    @property
    def limit(self) -> int:
        """The most rows that it may have to be run."""
        return min(_MOST_ROWS, _ROWS << self.bans)

    def ban(self, now: int) -> None:
        self.free = now + 1 + (_BAN << self.bans)
        self.bans += 1


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
        self._engine = engine_class()(fact_directory=str(self._folder))
        self._files = 0
        self._sent = 0
        self._declared = 0
        self._loaders: set[int] = set()
        self._unions: list[tuple[int, int]] = []
        self._running: dict[str, list[_Running]] = {folder: [] for folder in patterns}
        self._state = 0  # counts the states that were sent
        self._changed: dict[int, int] = {}  # per constructor the state that last changed it
        self._placed = 0  # the state that last changed places
        self._keys: dict[int, set[tuple[int, ...]]] = {}  # per pattern what was instantiated
        self._instantiated: dict[str, int] = {}  # per folder how many constructors it saw
        self._made: dict[str, int] = {}  # nodes that each rule made in this phase
        self._stopped: set[str] = set()  # rules that are not run any more
        self._numbers = {
            id(pattern): number
            for number, pattern in enumerate(p for group in patterns.values() for p in group)
        }
        self._run(_BASE)

    def __enter__(self) -> Saturator:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, phase: Phase, folders: Sequence[str], limit: int) -> None:
        """Rounds of the rules in `folders` until nothing changes or a bound of `phase` is
        reached. `limit` is the greatest number of nodes the e-graph may have; a rule that alone
        makes most of them is set aside for this graph, so that the others have the rest."""
        self._made.clear()
        most = int(_MOST_OF_GROWTH * max(0, limit - len(self.graph)))
        for _ in range(phase.iterations):
            self._flush()
            self._instantiate(folders)
            self.rounds += 1
            changed = False
            for one in self._search(phase, folders):
                changed |= self._use(one, phase, most, limit)
            if not changed and not self._release(folders):
                break
        else:
            self.budgets.append(Budget(phase.name, "iterations", phase.iterations))
        self._flush()
        for running in self._of(folders):
            rule = running.query.pattern.rule.name
            if running.waiting:
                self._note(Budget(phase.name, f"matches of {rule}", phase.matches))
            if running.bans and self._may_have_new_rows(running):
                self._note(Budget(phase.name, f"rows of {rule}", running.limit))
        if len(self.graph) >= limit:
            self.budgets.append(Budget(phase.name, "nodes", limit))

    def _run(self, commands: Sequence[str]) -> list[Any]:
        """Runs command texts. They are parsed one at a time, as parsing is quadratic in the
        length of a text, and once per process."""
        parsed: list[Any] = []
        for text in commands:
            key = engine_class(), text
            found = _PARSED.get(key)
            if found is None:
                if len(_PARSED) >= _KEPT_TEXTS:
                    _PARSED.clear()
                found = _PARSED[key] = tuple(self._engine.parse_program(text))
            parsed += found
        return self._engine.run_program(*parsed)

    def _instantiate(self, folders: Sequence[str]) -> None:
        """Adds the queries that the constructors there are by now make possible."""
        by_op, ordered = self.graph.by_op, self.applier.on_failure is None
        count = len(self.graph.constructors)
        for folder in folders:
            if self._instantiated.get(folder) == count:
                continue
            self._instantiated[folder] = count
            for pattern in self.patterns[folder]:
                if pattern.rule.name in self._stopped:
                    continue
                number = self._numbers[id(pattern)]
                keys = self._keys.setdefault(number, set())
                for key, query in queries(pattern, by_op, number, keys, ordered):
                    keys.add(key)
                    self._running[folder].append(_Running(query))

    def _search(self, phase: Phase, folders: Sequence[str]) -> list[_Running]:
        """Runs the queries that may have new rows; gives those with rows to use, in order."""
        breadth = Breadth(self.graph)
        chosen = []
        for running in self._of(folders):
            if running.free > self.rounds or len(running.waiting) > phase.matches:
                continue
            if self._may_have_new_rows(running):
                if breadth.is_empty(running.query):
                    running.state = self._state
                elif breadth.exceeds(running.query, running.limit):
                    running.ban(self.rounds)
                else:
                    chosen.append(running)
        if chosen:
            chosen = self._find_rows(chosen)
            functions = self._engine.freeze().functions
            for running in chosen:
                running.state = self._state
                self._read(running, functions[running.query.relation].rows)
        return [running for running in self._of(folders) if running.waiting]

    def _of(self, folders: Sequence[str]) -> list[_Running]:
        return [running for folder in folders for running in self._running[folder]]

    def _release(self, folders: Sequence[str]) -> bool:
        """Ends the bans that would be the first to end, as nothing else is left to do; whether
        there were any."""
        banned = [
            running
            for running in self._of(folders)
            if running.free > self.rounds and running.limit < _MOST_ROWS
        ]
        first = min((running.free for running in banned), default=0)
        for running in banned:
            if running.free == first:
                running.free = self.rounds
        return bool(banned)

    def _find_rows(self, chosen: Sequence[_Running]) -> list[_Running]:
        """Lets egglog find the rows of queries; gives the queries that it could run. The rule
        of one that makes it panic is disabled, and a fresh engine takes over."""
        wanted = list(chosen)
        try:
            self._run_queries(wanted)
            return wanted
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic is no Exception, and does not say whose it is
            self._restart()
        found: list[_Running] = []
        while wanted:
            running = wanted.pop(0)
            try:
                self._run_queries([running])
                found.append(running)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                rule = running.query.pattern.rule
                self.applier.disabled[rule.name] = (rule, f"egglog: {error}")
                self._stop(rule.name)
                self._restart()
                wanted = [r for r in (*found, *wanted) if r.query.pattern.rule.name != rule.name]
                found = []
        return found

    def _run_queries(self, wanted: Sequence[_Running]) -> None:
        """Runs queries, and first tells egglog of those that were never wanted before."""
        new = [running for running in wanted if not running.declared]
        declared = [text for running in new for text in running.query.text]
        self._run([*declared, *(_RUN.format(running.query.ruleset) for running in wanted)])
        for running in new:
            running.declared = True

    def _restart(self) -> None:
        """A fresh engine that is told all the mirror knows: after a panic the old one may hold
        anything."""
        self._engine = engine_class()(fact_directory=str(self._folder))
        self._sent = self._declared = 0
        self._loaders.clear()
        graph = self.graph
        self._unions = [
            (node, graph.find(node)) for node in range(len(graph)) if graph.find(node) != node
        ]
        self._run(_BASE)
        self._flush()
        for group in self._running.values():
            for running in group:
                running.declared, running.read, running.state = False, 0, -1

    def _may_have_new_rows(self, running: _Running) -> bool:
        """Whether a node that the query could match is new, or in another class, since."""
        latest = max(self._changed.get(c.index, 0) for c in running.query.constructors)
        if running.query.pattern.order:
            latest = max(latest, self._placed)
        return latest > running.state

    def _note(self, budget: Budget) -> None:
        if budget not in self.budgets:
            self.budgets.append(budget)

    def _read(self, running: _Running, rows: Sequence[Any]) -> None:
        number = self._engine.value_to_i64
        fresh = [tuple(map(number, row.inputs)) for row in rows[running.read :]]
        running.read += len(fresh)
        fresh.sort()
        running.waiting.extend(fresh)

    def _use(self, running: _Running, phase: Phase, most: int, limit: int) -> bool:
        """Applies waiting rows until as many as the phase allows held, or until the rule has
        made more than `most` nodes in it; whether any changed the graph."""
        find, count = self.graph.find, running.query.classes
        rule, matches = running.query.pattern.rule.name, phase.matches
        made = self._made.get(rule, 0)
        changed = False
        while running.waiting and matches > 0 and len(self.graph) < limit and made <= most:
            raw = running.waiting.popleft()
            row = (*map(find, raw[:count]), *raw[count:])
            if row in running.seen:
                continue
            running.seen.add(row)
            size = len(self.graph)
            unions = self.applier.apply(running.query, row)
            if unions is not None:
                matches -= 1
                made += len(self.graph) - size
                changed |= bool(unions)
                self._unions += unions
        self._made[rule] = made
        if made > most:
            self._note(Budget(phase.name, f"nodes of {rule}", most))
            self._stop(rule)
        return changed

    def _stop(self, rule: str) -> None:
        """No query of a rule runs any more for this graph."""
        for folder, running in self._running.items():
            self._running[folder] = [r for r in running if r.query.pattern.rule.name != rule]
        self._stopped.add(rule)

    def _flush(self) -> None:
        """Sends new nodes, places and unions, and learns which classes became one."""
        graph = self.graph
        # a rule that failed leaves no nodes, but the constructors it asked for stay known
        declared = self._declared == len(graph.constructors)
        if self._sent == len(graph) and not self._unions and declared:
            return
        self._state += 1
        commands = self._declare(graph.constructors[self._declared :])
        self._declared = len(graph.constructors)
        rows: dict[str, list[str]] = {}
        fresh = range(self._sent, len(graph))
        for node in fresh:
            self._rows_of(node, rows)
        self._sent = len(graph)
        renewed = {graph.kind[node] for node in fresh}
        merged = bool(self._unions)
        for old, new in self._unions:
            rows.setdefault("r.merge", []).append(f"{old}\t{new}\n")
        self._unions.clear()
        for relation, lines in rows.items():
            name = f"{self._files}.tsv"
            self._files += 1
            (self._folder / name).write_text("".join(lines))
            commands.append(f'(input {relation} "{name}")')
        *_, size = self._run([*commands, *_LOAD])
        if size.size != graph.absorbed:
            merged |= self._learn()
        if merged:
            self._placed = self._state
            renewed |= graph.rehash()
        self._changed.update(dict.fromkeys(renewed, self._state))

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
        place = graph.position.get(node)
        if place is not None:
            rows.setdefault("r.place", []).append(f"{node}\t{place}\n")
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

    def _learn(self) -> bool:
        """Takes over the classes that egglog merged because their nodes became equal; whether
        there were any. Freezing copies all rows, so `_flush` asks only how many there are."""
        number, union = self._engine.value_to_i64, self.graph.union
        rows = self._engine.freeze().functions["g.canonical"].rows
        return any([union(number(row.inputs[0]), number(row.output)) for row in rows])
