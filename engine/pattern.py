"""Left sides of rules as patterns, and patterns as egglog queries.

Takes a `Rule` and the op table; gives a `Pattern`: its op nodes with what stands in every
argument. `queries` spells it for the constructors a graph has. A query finds rows of class
ids and constant handles; what the constants must be is checked in Python (`apply.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from .egraph import Constructor
from .evaluate import TORCH_OPERATORS, operator_op
from .expr import (
    Binary,
    Call,
    Expr,
    Item,
    Literal,
    Logic,
    Name,
    Negative,
    Sequence,
    names,
    walk,
)
from .facts import PREDICATES
from .kinds import list_vars
from .op import GETITEM, ArgumentsError, Op, Param
from .ops import OpTable
from .rule import ConstType, Rule, TensorType

_ON_NUMBERS = frozenset({"min", "max", "abs", "len"})


class PatternError(Exception):
    """A left side that cannot be matched in an e-graph; the text says why."""


@dataclass(frozen=True)
class Slot:
    """What a pattern has in one argument of an op.

    kind "tensor": `item` is a variable's name or the index of another node
         "list":   `items` are those, "" for a constant
         "lists":  `item` names a list variable
         "constant": `item` names a variable that takes the constant
         "value":  the constant must equal `expr`
         "default": the argument was not mentioned
         "how":    `**how` takes whatever is there
    """

    kind: str
    item: str | int = ""
    items: tuple[str | int, ...] = ()
    expr: Expr | None = None
    early: bool = False  # a value without variables


@dataclass(frozen=True)
class PatternNode:
    op: Op
    slots: tuple[Slot, ...]
    expr: Expr
    how: str | None


@dataclass(frozen=True)
class Pattern:
    """`nodes` come operands first; `roots` maps root names to nodes. `tensors` are the plain
    tensor variables in order. `known` maps the expressions by which conditions or attributes
    may mention tensors of the match to their nodes. `order` holds the conditions that egglog
    can ask itself: (x,) where x must be a parameter, (x, y) where x must come before y.
    `numbers` are the nodes that stand for a number beside tensors."""

    rule: Rule
    nodes: tuple[PatternNode, ...]
    roots: Mapping[str, int]
    tensors: tuple[str, ...]
    known: Mapping[Expr, int]
    order: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def ops(self) -> frozenset[str]:
        return frozenset(node.op.name for node in self.nodes)


@dataclass(frozen=True)
class Query:
    """A pattern over given constructors. The row of a match holds `classes` class ids, then
    constant handles. `tensors`, `lists` and `nodes` say which columns hold a variable, the
    items of a list variable and a node's class; `handles` per node and argument the column
    of the constant (-1 for a tensor, a tuple for a list)."""

    pattern: Pattern
    relation: str
    ruleset: str  # its own, so that a query can wait while others run
    text: tuple[str, ...]
    classes: int
    width: int
    constructors: tuple[Constructor, ...]
    tensors: Mapping[str, int]
    lists: Mapping[str, tuple[int, ...]]
    nodes: tuple[int, ...]
    columns: tuple[tuple[tuple[str, int], ...], ...]  # per node its row: ("t" or "h", column)


def compile_rule(rule: Rule, table: OpTable) -> Pattern:
    """The pattern of a rule's left side. Raises PatternError."""
    try:
        return _Compiler(rule, table).pattern()
    except ArgumentsError as error:
        raise PatternError(str(error)) from error


class _Compiler:
    def __init__(self, rule: Rule, table: OpTable) -> None:
        self.rule = rule
        self.table = table
        self.nodes: list[PatternNode] = []
        self.numbers: list[int] = []
        self.index: dict[Expr, int] = {}
        self.tensors: dict[str, None] = {}
        self.roots: dict[str, int] = {}
        self.lists = list_vars(rule.vars)
        self.operators = TORCH_OPERATORS if rule.stage == "pre_grad" else None

    def pattern(self) -> Pattern:
        for name, expr in self.rule.match.items():
            expanded = self.table.expand(expr, self.lists)
            if not self.is_tensor(expanded) or isinstance(expanded, Name):
                raise PatternError(f"the left side of '{name}' is not an op")
            root = self.item(expanded)
            assert isinstance(root, int)
            self.roots[name] = root
        conditions = [condition.expr for condition in self.rule.when]
        values = [s.expr for node in self.nodes for s in node.slots if s.kind == "value"]
        known = any(
            self.is_tensor(part)
            for expr in (*conditions, *values)
            if expr is not None
            for part in walk(expr)
            if not isinstance(part, (Name, Literal))
        )
        return Pattern(
            self.rule,
            tuple(self.nodes),
            self.roots,
            tuple(self.tensors),
            self.spellings() if known else {},
            tuple(self.order(conditions)),
            tuple(self.numbers),
        )

    def spellings(self) -> dict[Expr, int]:
        """Nodes by their expressions: as the rule writes them, and with aliases opened."""
        found = {node.expr: at for at, node in enumerate(self.nodes)}
        for root in self.rule.match.values():
            for part in walk(root):
                node = self.index.get(self.table.expand(part, self.lists))
                if node is not None:
                    found[part] = node
        return found

    def order(self, conditions: Iterable[Expr]) -> Iterator[tuple[str, ...]]:
        """The conditions about the order of parameters that must hold for single tensors."""
        for expr in conditions:
            if isinstance(expr, Logic) and expr.op == "and":
                yield from self.order(expr.parts)
            elif isinstance(expr, Call) and expr.fn in ("is_weight", "before"):
                read = tuple(arg.id for arg in expr.args if isinstance(arg, Name))
                if len(read) == len(expr.args) and set(read) <= self.tensors.keys():
                    yield read

    def is_tensor(self, expr: Expr) -> bool:
        match expr:
            case Name(id=name):
                return name in self.roots or isinstance(self.rule.vars.get(name), TensorType)
            case Call(fn=fn, args=args):
                if fn in PREDICATES:
                    return False
                return self.table.find(fn) is not None and (
                    fn not in _ON_NUMBERS or any(map(self.is_tensor, args))
                )
            case Binary(left=left, right=right):
                return self.is_tensor(left) or self.is_tensor(right)
            case Negative(value=value):
                return self.is_tensor(value)
            case Item(base=base):
                return self.is_tensor(base)
        return False

    def item(self, expr: Expr) -> str | int:
        """The variable or node that stands for a tensor expression."""
        if isinstance(expr, Name):
            if expr.id in self.roots:
                return self.roots[expr.id]
            self.tensors[expr.id] = None
            return expr.id
        found = self.index.get(expr)
        if found is None:
            node = self.node(expr)
            found = self.index[expr] = len(self.nodes)
            self.nodes.append(node)
        return found

    def node(self, expr: Expr) -> PatternNode:
        match expr:
            case Call(fn=fn, args=args, kwargs=kwargs, how=how):
                op = self.op(fn)
                placed = self.table.arrange(op, args, dict(kwargs), Sequence, self.lists)
                return self.build(op, placed, expr, how)
            case Binary(op=op_text, left=left, right=right):
                name = operator_op(op_text)
                if self.operators is not None:
                    name = self.operators[op_text]
                return self.build(self.op(name), {0: left, 1: right}, expr, None)
            case Negative(value=value):
                name = "neg" if self.operators is None else "operator.neg"
                return self.build(self.op(name), {0: value}, expr, None)
            case Item(base=base, index=index):
                return self.build(GETITEM, {0: base, 1: index}, expr, None)
        raise PatternError(f"{type(expr).__name__} has no place in a left side")

    def op(self, name: str) -> Op:
        found = self.table.find(name)
        if found is None:
            raise PatternError(f"unknown op '{name}'")
        return found

    def build(self, op: Op, placed: Mapping[int, Expr], expr: Expr, how: str | None) -> PatternNode:
        slots = []
        for place, param in enumerate(op.params):
            if place in placed and not _is_own_device(param, placed[place]):
                slots.append(self.slot(placed[place], param))
            elif how is not None:
                slots.append(Slot("how", param.name))
            elif param.required:
                raise PatternError(f"{op.name} needs '{param.name}'")
            else:
                slots.append(Slot("default"))
        scalar_first = len(slots) > 1 and slots[0].kind in ("value", "constant")
        if op.commutes and scalar_first and slots[1].kind == "tensor":
            slots[:2] = [slots[1], slots[0]]
        return PatternNode(op, tuple(slots), expr, how)

    def slot(self, expr: Expr, param: Param) -> Slot:
        """What stands for an argument; a number where only tensors may stand is a tensor of
        one element."""
        found = self.plain_slot(expr, param.kind)
        none = isinstance(expr, Literal) and expr.value is None
        if param.number or none or found.kind not in ("value", "constant"):
            return found
        full, shape = self.op("full"), Sequence(())
        slots = (self.plain_slot(shape, "attribute"), found, Slot("how"), Slot("how"))
        self.nodes.append(PatternNode(full, slots, Call("full", (shape, expr)), None))
        self.numbers.append(len(self.nodes) - 1)
        return Slot("tensor", len(self.nodes) - 1)

    def plain_slot(self, expr: Expr, kind: str) -> Slot:
        var = self.rule.vars.get(expr.id) if isinstance(expr, Name) else None
        if isinstance(expr, Name) and isinstance(var, ConstType):
            return Slot("constant", expr.id)
        if isinstance(expr, Name) and isinstance(var, TensorType) and var.is_list:
            return Slot("lists", expr.id)
        if isinstance(expr, Sequence) and any(map(self.is_tensor, expr.items)):
            return Slot("list", items=tuple(map(self.list_item, expr.items)))
        if self.is_tensor(expr):
            if kind == "tensors":
                return Slot("list", items=(self.item(expr),))
            return Slot("tensor", self.item(expr))
        return Slot("value", expr=expr, early=not names(expr) and not _asks(expr))

    def list_item(self, expr: Expr) -> str | int:
        if self.is_tensor(expr):
            return self.item(expr)
        if isinstance(expr, Literal) and expr.value is None:
            return ""
        raise PatternError("a list of tensors may hold tensors and None only")


def _is_own_device(param: Param, expr: Expr) -> bool:
    """Whether an alias (`ones`) leaves out the device, as a rule does: any will do."""
    return param.name == "device" and isinstance(expr, Literal) and expr.value is None


def _asks(expr: Expr) -> bool:
    return any(isinstance(part, Call) for part in walk(expr))


def fits(node: PatternNode, constructor: Constructor) -> bool:
    """Whether a constructor has tensors, lists and constants where the pattern has them."""
    for slot, kind in zip(node.slots, constructor.kinds, strict=True):
        match slot.kind:
            case "tensor":
                good = kind == "t"
            case "constant" | "value" | "default":
                good = kind == "h"
            case "list":
                good = kind == "l" + "".join("h" if item == "" else "t" for item in slot.items)
            case "lists":
                good = kind[0] == "l" and "h" not in kind
            case _:
                good = True
        if not good:
            return False
    return True


def queries(
    pattern: Pattern,
    by_op: Mapping[str, list[Constructor]],
    number: int,
    known: Container[tuple[int, ...]] = (),
    ordered: bool = True,
) -> Iterator[tuple[tuple[int, ...], Query]]:
    """Every way to spell the pattern with the constructors there are, each with a key, but
    for the keys in `known`.

    `number` makes relation names unique among patterns. With `ordered` egglog asks for the
    order of parameters; otherwise its rows hold matches that fail there.
    """
    choices = []
    for node in pattern.nodes:
        fitting = [c for c in by_op.get(node.op.name, ()) if fits(node, c)]
        if not fitting:
            return
        choices.append(fitting)
    for picked in itertools.product(*choices):
        key = tuple(constructor.index for constructor in picked)
        if key in known:
            continue
        relation = f"m.{number}.{'.'.join(map(str, key))}"
        query = _Writer(pattern, picked, ordered).query(relation)
        if query is not None:
            yield key, query


class _Writer:
    """Spells one query. egglog variables are v0, v1, ... for classes and h0, h1, ... for
    constants; i0, i1, ... are the canonical numbers of the classes, p0, p1, ... the places
    of those that are parameters."""

    def __init__(self, pattern: Pattern, picked: tuple[Constructor, ...], ordered: bool) -> None:
        self.pattern = pattern
        self.picked = picked
        self.order = pattern.order if ordered else ()
        self.classes: dict[str | int | tuple[str, int], int] = {}
        self.handles = 0
        self.lists: dict[str, int] = {}

    def of(self, item: str | int | tuple[str, int]) -> int:
        return self.classes.setdefault(item, len(self.classes))

    def query(self, relation: str) -> Query | None:
        pattern = self.pattern
        rows = []
        for index, (node, constructor) in enumerate(zip(pattern.nodes, self.picked, strict=True)):
            columns = self.columns(node, constructor)
            if columns is None:
                return None
            rows.append((self.of(index), columns))
        count = len(self.classes)
        body = []
        for (result, columns), constructor in zip(rows, self.picked, strict=True):
            args = " ".join(f"{'v' if kind == 't' else 'h'}{at}" for kind, at in columns)
            body.append(f"(= v{result} ({constructor.name} {args}))")
        body += self.places()
        body += [f"(= i{at} (g.number v{at}))" for at in range(count)]
        head = " ".join(
            [*(f"i{at}" for at in range(count)), *(f"h{at}" for at in range(self.handles))]
        )
        width = count + self.handles
        ruleset = f"q.{relation}"
        declare = f"(relation {relation} ({' '.join(['i64'] * width)}))"
        rule = (
            f'(rule ({" ".join(body)}) (({relation} {head})) :ruleset {ruleset} :name "{relation}")'
        )
        return Query(
            pattern,
            relation,
            ruleset,
            (f"(ruleset {ruleset})", declare, rule),
            count,
            width,
            self.picked,
            {name: self.classes[name] for name in pattern.tensors},
            {
                name: tuple(self.classes[(name, at)] for at in range(length))
                for name, length in self.lists.items()
            },
            tuple(self.classes[index] for index in range(len(pattern.nodes))),
            tuple(
                tuple((kind, at if kind == "t" else count + at) for kind, at in columns)
                for _, columns in rows
            ),
        )

    def places(self) -> Iterator[str]:
        """The conditions on the order of parameters."""
        for name in dict.fromkeys(itertools.chain(*self.order)):
            yield f"(= p{self.of(name)} (g.place v{self.of(name)}))"
        for pair in self.order:
            if len(pair) == 2:
                yield f"(< p{self.of(pair[0])} p{self.of(pair[1])})"

    def columns(self, node: PatternNode, constructor: Constructor) -> list[tuple[str, int]] | None:
        """Kind and variable number per column; None where a list variable has two lengths."""
        found: list[tuple[str, int]] = []
        for place, (slot, kind) in enumerate(zip(node.slots, constructor.kinds, strict=True)):
            if slot.kind == "tensor":
                found.append(("t", self.of(slot.item)))
            elif slot.kind == "list":
                for item in slot.items:
                    found.append(self.handle() if item == "" else ("t", self.of(item)))
            elif slot.kind == "lists":
                name = str(slot.item)
                length = len(kind) - 1
                if self.lists.setdefault(name, length) != length:
                    return None
                found += [("t", self.of((name, at))) for at in range(length)]
            else:
                for at, column in enumerate(kind[1:] if kind[0] == "l" else kind):
                    if column == "h":
                        found.append(self.handle())
                    else:
                        found.append(("t", self.of((f"{id(node)}.{place}", at))))
        return found

    def handle(self) -> tuple[str, int]:
        self.handles += 1
        return "h", self.handles - 1
