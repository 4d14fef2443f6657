"""Turns a match into new nodes and a union.

Takes rows that egglog found for a `Query`; checks constants, variable types and conditions,
builds the right side in the e-graph, and merges it with the match once shape, dtype and
device agree. A rule whose right side differs is disabled for this graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .assumed import ParameterCheck
from .attributes import Attributes
from .binding import Failure, bind_vars
from .egraph import FROZEN, EGraph, Ref
from .evaluate import evaluate
from .expr import Expr, names
from .metadata import constant_key
from .op import Op
from .ops import OpTable
from .pattern import Query
from .rule import Assumption, Rule
from .symbolic import compare
from .world import EvaluateError

# Told of a rule, the classes it matched and why the match did not hold.
OnFailure = Callable[[Rule, Sequence[int], str], None]


class GraphWorld:
    """The e-graph as the world that rules are evaluated in; handles are `Ref`s."""

    def __init__(self, graph: EGraph) -> None:
        self.graph = graph
        self.firing = -1

    def meta(self, handle: Any) -> Any:
        if isinstance(handle, Ref):
            graph = self.graph
            return graph.metadata.values[graph.meta[graph.find(handle.id)]]
        return handle

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        constructor, row = self.graph.row(op, args)
        node = self.graph.add(constructor, row, firing=self.firing)
        return self.graph.ref(self.graph.find(node))

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


class Mismatch(Exception):
    """The right side has another shape, dtype or device than the left."""


class Applier:
    """Applies matches to one e-graph and remembers what fired, failed or was disabled."""

    def __init__(self, graph: EGraph, table: OpTable, on_failure: OnFailure | None = None) -> None:
        self.graph = graph
        self.table = table
        self.on_failure = on_failure
        self.world = GraphWorld(graph)
        self.firings: list[Firing] = []
        self.disabled: dict[str, tuple[Rule, str]] = {}
        self.failures: dict[str, dict[str, int]] = {}
        self._early: dict[tuple[Any, ...], bool] = {}
        self._matchers: dict[str, _Matcher] = {}

    def apply(self, query: Query, row: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Applies one match of canonical ids; gives the pairs of nodes that are now one class,
        none where the match does not hold or changes nothing."""
        rule = query.pattern.rule
        if rule.name in self.disabled:
            return ()
        matcher = self._matchers.get(query.relation)
        if matcher is None:
            matcher = self._matchers[query.relation] = _Matcher(query, self)
        env = matcher.bind(row)
        if isinstance(env, Failure):
            self._failed(rule, matcher.classes(row), str(env))
            return ()
        start = len(self.graph)
        self.world.firing = len(self.firings)
        try:
            checks = tuple(self._check(rule, assumption, env) for assumption in rule.checked)
            made = self._build(rule, env)
            roots = [(row[query.nodes[at]], made[name]) for name, at in query.pattern.roots.items()]
            self._compare(rule, roots)
        except (EvaluateError, Mismatch) as error:
            self.graph.rollback(start)
            self._failed(rule, matcher.classes(row), str(error))
            if isinstance(error, Mismatch):
                self.disabled[rule.name] = (rule, str(error))
            return ()
        unions = [(old, new) for old, new in roots if self.graph.union(old, new)]
        if not unions:
            self.graph.rollback(start)
            return ()
        firing = Firing(rule, matcher.classes(row), start, len(self.graph), unions, checks)
        self.firings.append(firing)
        return unions

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

    def _build(self, rule: Rule, env: dict[str, Any]) -> dict[str, int]:
        """Node ids of the right side per root."""
        for name, expr in rule.lets.items():
            env[name] = evaluate(expr, env, self.world, self.table)
        made = {}
        for name, expr in rule.make.items():
            value = evaluate(expr, env, self.world, self.table)
            if not isinstance(value, Ref):
                raise Mismatch(f"the right side of '{name}' is {value!r}, not a tensor")
            made[name] = value.id
        return made

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

    def early(self, key: tuple[Any, ...], decide: Callable[[], bool]) -> bool:
        found = self._early.get(key)
        if found is None:
            found = self._early[key] = decide()
        return found


class _Matcher:
    """Reads rows of one query into the environment of its rule."""

    def __init__(self, query: Query, applier: Applier) -> None:
        self.query = query
        self.applier = applier
        self.graph = applier.graph
        self.table = applier.table
        self.world = applier.world
        self.constants: list[tuple[str, int, int]] = []  # name, column, node
        self.hows: list[tuple[str, int]] = []
        self.early: list[int] = []
        self.late: list[int] = []
        for index, node in enumerate(query.pattern.nodes):
            kinds = {slot.kind for slot in node.slots}
            if node.how is not None:
                self.hows.append((node.how, index))
            if "default" in kinds or any(slot.early for slot in node.slots):
                self.early.append(index)
            if any(slot.kind == "value" and not slot.early for slot in node.slots):
                self.late.append(index)
            places = query.constructors[index].split(query.columns[index])
            for slot, place in zip(node.slots, places, strict=True):
                if slot.kind == "constant":
                    self.constants.append((str(slot.item), place[1], index))

    def classes(self, row: Sequence[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(row[column] for column in self.query.nodes))

    def bind(self, row: Sequence[int]) -> dict[str, Any] | Failure:
        """The environment of a match, or the first thing that does not hold."""
        for index in self.early:
            if not self._early_holds(index, row):
                return Failure(f"the constants of {self.query.pattern.nodes[index].op.name}", "")
        values = self._values(row)
        if isinstance(values, Failure):
            return values
        known = self._known(row) if self.query.pattern.known else None
        env = bind_vars(self.query.pattern.rule, values, self.world, self.table, known)
        if isinstance(env, Failure):
            return env
        for index in self.late:
            if not self._late_holds(index, row, env, known):
                return Failure(f"the attributes of {self.query.pattern.nodes[index].op.name}", "")
        return env

    def _values(self, row: Sequence[int]) -> dict[str, Any] | Failure:
        query, graph = self.query, self.graph
        values: dict[str, Any] = {
            name: graph.ref(row[column]) for name, column in query.tensors.items()
        }
        for name, columns in query.lists.items():
            values[name] = [graph.ref(row[column]) for column in columns]
        for name, column, index in self.constants:
            value = graph.constants.value(row[column])
            if name in values and not same_constant(values[name], value, self._real(index, row)):
                return Failure(name, f"{values[name]} and {value}")
            values.setdefault(name, value)
        for name, index in self.hows:
            how = self._how(index, row)
            if values.setdefault(name, how) != how:
                return Failure(f"**{name}", f"{values[name]} and {how}")
        return values

    def _how(self, index: int, row: Sequence[int]) -> dict[str, Any]:
        node = self.query.pattern.nodes[index]
        return {
            param.name: value
            for param, slot, value in zip(
                node.op.params, node.slots, self._actual(index, row), strict=True
            )
            if slot.kind == "how"
        }

    def _actual(self, index: int, row: Sequence[int]) -> list[Any]:
        """The arguments that a node really has: `Ref`s and constants."""
        graph = self.graph
        return self.query.constructors[index].split(
            [
                graph.ref(row[column]) if kind == "t" else graph.constants.value(row[column])
                for kind, column in self.query.columns[index]
            ]
        )

    def _early_holds(self, index: int, row: Sequence[int]) -> bool:
        meta = self.graph.meta
        key = (
            self.query.relation,
            index,
            *(
                meta[row[column]] if kind == "t" else row[column]
                for kind, column in self.query.columns[index]
            ),
        )
        return self.applier.early(key, lambda: self._constants_hold(index, row, True, {}, None))

    def _late_holds(
        self,
        index: int,
        row: Sequence[int],
        env: Mapping[str, Any],
        known: Mapping[Expr, Any] | None,
    ) -> bool:
        return self._constants_hold(index, row, False, env, known)

    def _constants_hold(
        self,
        index: int,
        row: Sequence[int],
        early: bool,
        env: Mapping[str, Any],
        known: Mapping[Expr, Any] | None,
    ) -> bool:
        """Whether a node has the constants that the pattern says, once both are in normal
        form. `early` looks at those without variables, otherwise at the others."""
        node = self.query.pattern.nodes[index]
        actual = self._actual(index, row)
        wanted = list(actual)
        places = []
        scope = Attributes(env, self.world, known)
        try:
            for place, slot in enumerate(node.slots):
                if slot.kind == "value" and slot.expr is not None and slot.early == early:
                    wanted[place] = scope.value(slot.expr)
                elif slot.kind == "default" and early and node.op.params[place].name != "device":
                    wanted[place] = node.op.params[place].default
                else:
                    continue
                places.append(place)
            normal = self.table.normalise(node.op, wanted, self.world.meta).args
        except EvaluateError:
            return False
        real = self._real(index, row)
        return all(same_constant(normal[place], actual[place], real) for place in places)

    def _real(self, index: int, row: Sequence[int]) -> bool:
        """Whether a node works on floats, where 2 and 2.0 are the same number."""
        for kind, column in self.query.columns[index]:
            if kind == "t":
                meta = self.world.meta(self.graph.ref(row[column]))
                if isinstance(meta, torch.Tensor) and meta.dtype.is_floating_point:
                    return True
        return False

    def _known(self, row: Sequence[int]) -> dict[Expr, Any]:
        return {
            node.expr: self.graph.ref(row[column])
            for node, column in zip(self.query.pattern.nodes, self.query.nodes, strict=True)
        }


def same_constant(wanted: Any, actual: Any, real: bool) -> bool:
    """Whether two constants are the same: by type and bits, except that a whole number may be
    written either way next to a float tensor (but never -0.0 for 0)."""
    if constant_key(wanted) == constant_key(actual):
        return True
    if isinstance(wanted, tuple) and isinstance(actual, tuple):
        return len(wanted) == len(actual) and all(
            same_constant(a, b, real) for a, b in zip(wanted, actual, strict=True)
        )
    symbolic = (torch.SymInt, torch.SymFloat)
    if isinstance(wanted, symbolic) or isinstance(actual, symbolic):
        return compare("==", wanted, actual) is True
    if not real or {type(wanted), type(actual)} != {int, float}:
        return False
    return bool(wanted == actual) and math.copysign(1, wanted) == math.copysign(1, actual)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_describe, value))})"
    return repr(value)
