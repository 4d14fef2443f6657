"""Decides whether a row that egglog found is a match, once for all rows that look alike.

Takes rows of a `Query`; gives the environment of the rule or the first thing that does not
hold. Whatever depends only on metadata and constants is decided once per combination of them
(a model has few layers that differ); conditions about the place in the graph are asked for
each row. The right side is evaluated once per combination too, and then replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .attributes import Attributes
from .binding import Failure, bind_types
from .egraph import Constructor, EGraph, Ref
from .evaluate import evaluate, holds
from .expr import Call, Expr, Name, walk
from .expr import Sequence as Listed
from .facts import PREDICATES, promoted
from .metadata import constant_key
from .normal import as_one_number
from .op import Op
from .ops import OpTable
from .pattern import Query
from .rule import ConstType, Rule
from .symbolic import compare
from .world import EvaluateError, Facts


class Mismatch(Exception):
    """The right side has another shape, dtype or device than the left."""


@dataclass(frozen=True)
class Step:
    """One node of a right side: `columns` says per column whether it is a register or the
    handle of a constant; `meta` is the metadata that the node's class had."""

    constructor: Constructor
    columns: tuple[tuple[bool, int], ...]
    meta: int


@dataclass(frozen=True)
class Recipe:
    """A right side as steps. Registers are the classes of the row, then the results of the
    steps; `roots` maps root names to registers."""

    steps: tuple[Step, ...]
    roots: Mapping[str, int]


@dataclass
class Verdict:
    """What metadata and constants say of a match: the environment without its tensors, or a
    failure after the first `held` conditions."""

    env: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    held: int = 0
    recipe: Recipe | None = None


class Matcher:
    """Reads rows of one query into the environment of its rule."""

    def __init__(self, query: Query, graph: EGraph, table: OpTable, world: Facts) -> None:
        self.query = query
        self.rule: Rule = query.pattern.rule
        self.graph = graph
        self.table = table
        self.world = world
        self._read_slots()
        conditions = [condition.expr for condition in self.rule.when]
        self.placed = [at for at, expr in enumerate(conditions) if about_graph([expr])]
        late = [s.expr for node in query.pattern.nodes for s in node.slots if s.expr is not None]
        self.alike = not about_graph(late) and not self._compares_classes()
        self.replays = not about_graph([*self.rule.lets.values(), *self.rule.make.values()])
        self._verdicts: dict[tuple[int, ...], Verdict] = {}

    def _read_slots(self) -> None:
        """Sorts the slots of the pattern by what has to be done about them."""
        query = self.query
        self.constants: list[tuple[str, int, int, int]] = []  # name, column, node, parameter
        self.entries: list[tuple[str, int, int, int]] = []  # name, column, place, length of list
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
            for place, (slot, at) in enumerate(zip(node.slots, places, strict=True)):
                if slot.kind == "constant":
                    self.constants.append((str(slot.item), at[1], index, place))
                elif slot.kind == "value" and isinstance(slot.expr, Listed):
                    self._read_entries(slot.expr, at[1])

    def _read_entries(self, written: Listed, column: int) -> None:
        """Notes the constants that are entries of a written list, as in `split(x, (a, b))`."""
        for place, entry in enumerate(written.items):
            if isinstance(entry, Name) and isinstance(self.rule.vars.get(entry.id), ConstType):
                self.entries.append((entry.id, column, place, len(written.items)))

    def _compares_classes(self) -> bool:
        """Whether one `**how` stands in two places and takes tensors."""
        twice = [name for name, _ in self.hows]
        return len(set(twice)) < len(twice) and any(
            slot.kind == "how" and kind != "h"
            for node, constructor in zip(
                self.query.pattern.nodes, self.query.constructors, strict=True
            )
            for slot, kind in zip(node.slots, constructor.kinds, strict=True)
        )

    def classes(self, row: Sequence[int]) -> tuple[int, ...]:
        """The classes of the pattern's nodes."""
        return tuple(dict.fromkeys(row[column] for column in self.query.nodes))

    def verdict(self, row: Sequence[int]) -> Verdict:
        """What is known of every row with the metadata and constants of `row`."""
        meta, count = self.graph.meta, self.query.classes
        key = (*[meta[item] for item in row[:count]], *row[count:])
        found = self._verdicts.get(key)
        if found is None:
            found = self._judge(row)
            if self.alike:
                self._verdicts[key] = found
        return found

    def env(self, verdict: Verdict, row: Sequence[int]) -> dict[str, Any]:
        """The environment of a row that was not refused."""
        return {**verdict.env, **self._handles(row, self._refs(row))}

    def refusal(self, verdict: Verdict, row: Sequence[int], exact: bool) -> Failure | None:
        """Why `row` is no match; None where it is one. `exact` asks for the first condition
        in the rule's order, whatever it depends on."""
        if verdict.failure is not None and not exact:
            return verdict.failure
        places = [at for at in self.placed if verdict.failure is None or at < verdict.held]
        if places:
            env = self.env(verdict, row)
            known = self._known(row)
            for at in places:
                condition = self.rule.when[at]
                good, reason = holds(condition.expr, env, self.world, self.table, known)
                if not good:
                    return Failure(condition.text, reason)
        return verdict.failure

    def _judge(self, row: Sequence[int]) -> Verdict:
        for index in self.early:
            if not self._constants_hold(index, row, True, {}, None):
                reason = f"the constants of {self.query.pattern.nodes[index].op.name}"
                return Verdict(failure=Failure(reason, ""))
        values = self._values(row)
        env = values if isinstance(values, Failure) else bind_types(self.rule, values, self.world)
        if isinstance(env, Failure):
            return Verdict(failure=env)
        for index in self.query.pattern.numbers:
            if not self._is_number(index, row):
                return Verdict(failure=Failure("a number", "its dtype changes the result's"))
        known = self._known(row)
        for at, condition in enumerate(self.rule.when):
            if at in self.placed:
                continue
            good, reason = holds(condition.expr, env, self.world, self.table, known)
            if not good:
                return Verdict(env, Failure(condition.text, reason), at)
        for index in self.late:
            if not self._constants_hold(index, row, False, env, known):
                reason = f"the attributes of {self.query.pattern.nodes[index].op.name}"
                return Verdict(env, Failure(reason, ""), len(self.rule.when))
        return Verdict(env)

    # Right sides

    def build(self, verdict: Verdict, row: Sequence[int], firing: int) -> dict[str, int]:
        """Node ids of the right side per root, made if they are not there.

        Raises EvaluateError where an op refuses its arguments, Mismatch for no tensor.
        """
        if verdict.recipe is not None:
            made = self._replay(verdict.recipe, row, firing)
            if made is not None:
                return made
        classes = [Ref(item) for item in row[: self.query.classes]]
        recorder = _Recorder(self.graph, self.world, classes, firing)
        env = {**verdict.env, **self._handles(row, classes)}
        for name, expr in self.rule.lets.items():
            env[name] = evaluate(expr, env, recorder, self.table)
        results: dict[str, Ref] = {}
        for name, expr in self.rule.make.items():
            value = evaluate(expr, env, recorder, self.table)
            if not isinstance(value, Ref):
                raise Mismatch(f"the right side of '{name}' is {value!r}, not a tensor")
            results[name] = value
        if self.replays and self.alike and verdict.recipe is None:
            verdict.recipe = recorder.recipe(results)
        return {name: value.id for name, value in results.items()}

    def _replay(self, recipe: Recipe, row: Sequence[int], firing: int) -> dict[str, int] | None:
        """The right side by its steps; None where a class has other metadata than it had."""
        graph = self.graph
        find, meta, start = graph.find, graph.meta, len(graph)
        registers = list(row[: self.query.classes])
        for step in recipe.steps:
            columns = tuple([find(registers[at]) if kind else at for kind, at in step.columns])
            owner = find(graph.add(step.constructor, columns, firing=firing))
            if meta[owner] != step.meta:
                graph.rollback(start)
                return None
            registers.append(owner)
        return {name: registers[at] for name, at in recipe.roots.items()}

    # Values of a row

    def _values(self, row: Sequence[int]) -> dict[str, Any] | Failure:
        """Constants, then handles; a constant that stands in two places must be the same."""
        values: dict[str, Any] = {}
        for name, column, index, place in self.constants:
            value = self._constant(name, self.graph.constants.value(row[column]), index, place, row)
            if name in values and not same_constant(values[name], value, self._real(index, row)):
                return Failure(name, f"{values[name]} and {value}")
            values.setdefault(name, value)
        for name, column, place, length in self.entries:
            listed = self.graph.constants.value(row[column])
            if not isinstance(listed, tuple) or len(listed) != length:
                return Failure(name, f"{listed} is no list of {length}")
            if values.setdefault(name, listed[place]) != listed[place]:
                return Failure(name, f"{values[name]} and {listed[place]}")
        refs = self._refs(row)
        for name, index in self.hows:
            how = self._how(index, row, refs)
            if values.setdefault(name, how) != how:
                return Failure(f"**{name}", f"{values[name]} and {how}")
        return {**values, **self._handles(row, refs)}

    def _constant(self, name: str, value: Any, index: int, place: int, row: Sequence[int]) -> Any:
        """A constant as the type of its variable reads it: one number, where it can be one; next
        to a float tensor a whole number is a float."""
        kind = self.rule.vars.get(name)
        if kind == ConstType("float") and type(value) is int and self._real(index, row):
            return float(value)
        if not isinstance(kind, ConstType) or kind.kind not in ("any", "int"):
            return value
        rank = 0
        if value is None:
            tensor = self.world.meta(self._actual(index, row)[0])
            rank = tensor.dim() if isinstance(tensor, torch.Tensor) else 0
        return as_one_number(self.query.pattern.nodes[index].op, place, value, rank)

    def _refs(self, row: Sequence[int]) -> list[Ref]:
        return [self.graph.ref(item) for item in row[: self.query.classes]]

    def _handles(self, row: Sequence[int], refs: Sequence[Ref]) -> dict[str, Any]:
        """What stands for tensors, list variables and `**how`; `refs` go by column."""
        query = self.query
        values: dict[str, Any] = {name: refs[column] for name, column in query.tensors.items()}
        for name, columns in query.lists.items():
            values[name] = [refs[column] for column in columns]
        for name, index in self.hows:
            values[name] = self._how(index, row, refs)
        return values

    def _how(self, index: int, row: Sequence[int], refs: Sequence[Ref]) -> dict[str, Any]:
        node = self.query.pattern.nodes[index]
        return {
            param.name: value
            for param, slot, value in zip(
                node.op.params, node.slots, self._actual(index, row, refs), strict=True
            )
            if slot.kind == "how"
        }

    def _actual(self, index: int, row: Sequence[int], refs: Sequence[Ref] | None = None) -> Any:
        """The arguments that a node really has: `Ref`s and constants."""
        graph = self.graph
        return self.query.constructors[index].split(
            [
                (graph.ref(row[column]) if refs is None else refs[column])
                if kind == "t"
                else graph.constants.value(row[column])
                for kind, column in self.query.columns[index]
            ]
        )

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

    def _is_number(self, index: int, row: Sequence[int]) -> bool:
        """Whether a tensor of one element promotes as its number would, wherever it is read."""
        number = self._actual(index, row)[1]
        column = self.query.nodes[index]
        for reader, columns in enumerate(self.query.columns):
            reads = [at for kind, at in columns if kind == "t"]
            if column not in reads:
                continue
            others = [self.graph.ref(row[at]) for at in reads if at != column]
            result = self.world.meta(self.graph.ref(row[self.query.nodes[reader]]))
            wide = promoted(self.world, *others, number)
            if not isinstance(result, torch.Tensor) or result.dtype != wide:
                return False
        return True

    def _real(self, index: int, row: Sequence[int]) -> bool:
        """Whether a node works on floats, where 2 and 2.0 are the same number."""
        for kind, column in self.query.columns[index]:
            if kind == "h":
                value = self.graph.constants.value(row[column])
                if isinstance(value, torch.dtype) and value.is_floating_point:
                    return True
                continue
            meta = self.world.meta(self.graph.ref(row[column]))
            if isinstance(meta, torch.Tensor) and meta.dtype.is_floating_point:
                return True
        return False

    def _known(self, row: Sequence[int]) -> dict[Expr, Any] | None:
        if not self.query.pattern.known:
            return None
        nodes = self.query.nodes
        return {
            expr: self.graph.ref(row[nodes[at]]) for expr, at in self.query.pattern.known.items()
        }


class _Recorder:
    """A world that notes what a right side emits. Its handles are told apart by identity, so
    that two variables that are one class here stay two registers."""

    def __init__(self, graph: EGraph, world: Facts, classes: Sequence[Ref], firing: int) -> None:
        self.graph = graph
        self.world = world
        self.firing = firing
        self.handles = list(classes)
        self.registers = {id(ref): at for at, ref in enumerate(classes)}
        self.steps: list[Step] = []

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        graph = self.graph
        constructor, row, handles = graph.placed_row(op, args)
        node = graph.find(graph.add(constructor, row, firing=self.firing))
        columns = tuple(
            (False, item) if handle is None else (True, self.registers[id(handle)])
            for item, handle in zip(row, handles, strict=True)
        )
        self.steps.append(Step(constructor, columns, graph.meta[node]))
        result = Ref(node)
        self.registers[id(result)] = len(self.handles)
        self.handles.append(result)  # keeps it alive, so that its identity stays its own
        return result

    def recipe(self, roots: Mapping[str, Ref]) -> Recipe:
        return Recipe(
            tuple(self.steps), {name: self.registers[id(ref)] for name, ref in roots.items()}
        )

    def meta(self, handle: Any) -> Any:
        return self.world.meta(handle)

    def is_weight(self, handle: Any) -> Any:
        return self.world.is_weight(handle)

    def is_frozen(self, handle: Any) -> Any:
        return self.world.is_frozen(handle)

    def is_input(self, handle: Any) -> Any:
        return self.world.is_input(handle)

    def position(self, handle: Any) -> Any:
        return self.world.position(handle)

    def users(self, handle: Any) -> Any:
        return self.world.users(handle)

    def feeds_comparison(self, handle: Any) -> Any:
        return self.world.feeds_comparison(handle)


def about_graph(exprs: Iterable[Expr]) -> bool:
    """Whether one of the expressions asks for a place in the graph."""
    return any(
        isinstance(part, Call) and part.fn in PREDICATES and PREDICATES[part.fn].about_graph
        for expr in exprs
        for part in walk(expr)
    )


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
