"""Turns a match into new nodes and a union.

Takes rows that egglog found for a `Query`; checks constants, variable types and conditions,
builds the right side in the e-graph, and merges it with the match once shape, dtype and
device agree. A rule whose right side differs, or that raises, is disabled for this graph;
`disabled` holds those that already are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .assumed import ParameterCheck
from .egraph import FROZEN, EGraph, Ref
from .expr import names
from .matcher import Matcher, Mismatch
from .ops import OpTable
from .pattern import Query
from .rule import Assumption, Rule
from .symbolic import compare
from .world import EvaluateError

EQUAL = "already equal"  # how the reason begins where a match had nothing left to do

# Told of a rule, the classes it matched and why the match did not hold, or did nothing.
OnFailure = Callable[[Rule, Sequence[int], str], None]


class GraphWorld:
    """The e-graph as what conditions ask; handles are `Ref`s."""

    def __init__(self, graph: EGraph) -> None:
        self.graph = graph

    def meta(self, handle: Any) -> Any:
        if isinstance(handle, Ref):
            graph = self.graph
            return graph.metadata.values[graph.meta[graph.find(handle.id)]]
        return handle

    def is_weight(self, handle: Any) -> bool:
        return self.position(handle) is not None

    def is_frozen(self, handle: Any) -> bool:
        return isinstance(handle, Ref) and self.graph.level[self.graph.find(handle.id)] >= FROZEN

    def is_input(self, handle: Any) -> bool:
        return isinstance(handle, Ref) and self.graph.find(handle.id) in self.graph.inputs

    def position(self, handle: Any) -> int | None:
        if not isinstance(handle, Ref):
            return None
        return self.graph.position.get(self.graph.find(handle.id))

    def users(self, handle: Any) -> int:
        if not isinstance(handle, Ref):
            return 0
        return self.graph.users.get(self.graph.find(handle.id), 0)

    def feeds_comparison(self, handle: Any) -> bool:
        return isinstance(handle, Ref) and self.graph.find(handle.id) in self.graph.deciding


@dataclass
class Firing:
    """One application: the classes it matched, the nodes it made (from `start` to `end`), and
    per root the node it had and the node it now also has."""

    rule: Rule
    matched: tuple[int, ...]
    start: int
    end: int
    roots: list[tuple[int, int]] = field(default_factory=list)
    checks: tuple[ParameterCheck, ...] = ()


class Applier:
    """Applies matches to one e-graph and remembers what fired, failed or was disabled."""

    def __init__(
        self,
        graph: EGraph,
        table: OpTable,
        on_failure: OnFailure | None = None,
        disabled: Mapping[str, tuple[Rule, str]] | None = None,
    ) -> None:
        self.graph = graph
        self.table = table
        self.on_failure = on_failure
        self.world = GraphWorld(graph)
        self.firings: list[Firing] = []
        self.disabled: dict[str, tuple[Rule, str]] = dict(disabled or {})
        self.failures: dict[str, dict[str, int]] = {}
        self._matchers: dict[str, Matcher] = {}

    def apply(self, query: Query, row: Sequence[int]) -> Sequence[tuple[int, int]] | None:
        """Applies one match of canonical ids; gives the pairs of nodes that are now one class
        (none where nothing changes), None where the match does not hold."""
        rule = query.pattern.rule
        if rule.name in self.disabled:
            return None
        start = len(self.graph)
        try:
            found = self._built(query, row)
        except Exception as error:  # an error in a fact or an op is the rule's own affair
            self.graph.rollback(start)
            reason = str(error) or type(error).__name__
            if not isinstance(error, (EvaluateError, Mismatch)):
                reason = f"{type(error).__name__}: {error}"
            self._failed(rule, self._matcher(query).classes(row), reason)
            if not isinstance(error, EvaluateError):
                self.disabled[rule.name] = (rule, reason)
            return None
        if found is None:
            return None
        roots, checks = found
        unions = [(old, new) for old, new in roots if self.graph.union(old, new)]
        if not unions:
            if self.on_failure is not None:
                self._equal_already(rule, self._matcher(query).classes(row), roots)
            self.graph.rollback(start)
            return ()
        firing = Firing(
            rule, self._matcher(query).classes(row), start, len(self.graph), unions, checks
        )
        self.firings.append(firing)
        return unions

    def _matcher(self, query: Query) -> Matcher:
        matcher = self._matchers.get(query.relation)
        if matcher is None:
            matcher = Matcher(query, self.graph, self.table, self.world)
            self._matchers[query.relation] = matcher
        return matcher

    def _built(
        self, query: Query, row: Sequence[int]
    ) -> tuple[list[tuple[int, int]], tuple[ParameterCheck, ...]] | None:
        """The node that every root has and the one that it may become, and what must hold for
        that; None, and the reason noted, where the match does not hold."""
        rule, matcher = query.pattern.rule, self._matcher(query)
        verdict = matcher.verdict(row)
        failure = matcher.refusal(verdict, row, self.on_failure is not None)
        if failure is not None:
            self._failed(rule, matcher.classes(row), str(failure))
            return None
        env = matcher.env(verdict, row) if rule.checked else {}
        checks = tuple(self._check(rule, assumption, env) for assumption in rule.checked)
        made = matcher.build(verdict, row, len(self.firings))
        roots = [(row[query.nodes[at]], made[name]) for name, at in query.pattern.roots.items()]
        self._compare(rule, roots)
        return roots, checks

    def _equal_already(
        self, rule: Rule, matched: Sequence[int], roots: Sequence[tuple[int, int]]
    ) -> None:
        """Tells of a match whose sides were one class before, and of the rules that had united
        classes of it; not where the rule itself had fired there."""
        assert self.on_failure is not None
        find = self.graph.find
        touched = {find(node) for node in matched}
        touched.update(find(child) for _, new in roots for child in self.graph.children(new))
        others = dict.fromkeys(
            firing.rule.name
            for firing in self.firings
            if any(find(old) in touched for old, _ in firing.roots)
        )
        if rule.name not in others:
            did = f"{' and '.join(others)} did the same"
            done = did if others else "both sides are one value in this graph"
            self.on_failure(rule, matched, f"{EQUAL}: {done}")

    def missed(self) -> dict[str, int]:
        """Per rule, how many matches did not hold."""
        return {name: sum(reasons.values()) for name, reasons in self.failures.items()}

    def _check(self, rule: Rule, assumption: Assumption, env: dict[str, Any]) -> ParameterCheck:
        """Which graph inputs an assumption about parameters speaks of. Raises EvaluateError."""
        assert assumption.expr is not None
        inputs = []
        for name in sorted(names(assumption.expr)):
            position = self.world.position(env[name])
            if position is None:
                raise EvaluateError(f"'{name}' is computed from parameters and cannot be checked")
            inputs.append((name, position))
        return ParameterCheck(
            rule.name, rule.where, assumption.text, assumption.expr, tuple(inputs)
        )

    def _failed(self, rule: Rule, matched: Sequence[int], reason: str) -> None:
        reasons = self.failures.setdefault(rule.name, {})
        reasons[reason] = reasons.get(reason, 0) + 1
        if self.on_failure is not None:
            self.on_failure(rule, matched, reason)

    def _compare(self, rule: Rule, roots: Sequence[tuple[int, int]]) -> None:
        """Raises Mismatch where a right side differs, EvaluateError where symbolic sizes do not
        tell."""
        for old, new in roots:
            if self.graph.same_facts(old, new):
                continue
            left, right = (self.world.meta(self.graph.ref(node)) for node in (old, new))
            both = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
            if both and left.dtype == right.dtype and left.device == right.device:
                equal = compare("==", tuple(left.shape), tuple(right.shape))
                if equal is True:
                    continue
                if equal is not False:
                    raise EvaluateError("the shapes are not statically known to be equal")
            raise Mismatch(f"left side is {_describe(left)}, right side {_describe(right)}")


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_describe, value))})"
    return repr(value)
