"""The table of tensor ops: one canonical form per ATen overload family.

Takes the `op` entries of a rule book; gives `OpTable`, which names ops for patterns, turns
FX calls into canonical ones (`bind`) and canonical calls back into something callable
(`call`). Ops without an entry get one parameter per schema argument.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import fx

from .attributes import Attributes
from .expr import Call, Expr, Literal, Name, map_children
from .expr import Sequence as SequenceExpr
from .functional import mutable_form
from .kinds import EACH
from .normal import normalise
from .op import (
    GETITEM,
    ArgumentsError,
    Bound,
    Op,
    Param,
    Target,
    automatic_params,
    default_of,
    find_overload,
    is_opaque,
    kind_of,
    overloads_of,
    params_of,
    plain_name,
    spelled,
)
from .rule import OpEntry
from .signature import Form, form_of
from .symbolic import plain
from .torch_level import TorchForm, sibling_names, torch_form, torch_object
from .world import EvaluateError, MetaFacts, is_number, node_meta

T = TypeVar("T")
# The types of `op.py` belong to the table's interface.
__all__ = ["GETITEM", "ArgumentsError", "Bound", "Op", "OpTable", "Param"]


@dataclass(frozen=True)
class _Route:
    """How calls of one FX target become canonical. `plain` is the op to fall back on where
    a call says more than the declared op can."""

    op: Op
    form: Form | TorchForm
    random: bool = False


class OpTable:
    """All ops of a rule book, resolved as they are asked for."""

    def __init__(self, entries: Sequence[OpEntry] = ()) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._by_overload: dict[str, OpEntry] = {}
        self._by_torch: dict[str, OpEntry] = {}
        for entry in entries:
            self._by_overload.update((overload, entry) for overload in entry.aten)
            self._by_torch.update((name, entry) for name in entry.torch)
        self._ops: dict[str, Op | None] = {"getitem": GETITEM}
        self._plain: dict[str, Op] = {}
        self._routes: dict[Target, tuple[_Route, ...]] = {}
        self._torch_targets: dict[Target, OpEntry] | None = None
        self._automatic_ops: dict[Target, Op] = {}
        self._forms: dict[tuple[Target, str], Form | TorchForm] = {}

    @property
    def entries(self) -> tuple[OpEntry, ...]:
        """What the table was made from."""
        return tuple(self._entries.values())

    @functools.cached_property
    def writers(self) -> frozenset[torch._ops.OpOverload]:
        """The declared custom ops that write into their arguments."""
        custom = (name for name in self._by_overload if name.count(".") == 2)
        found = (mutable_form(find_overload(name)) for name in custom)
        return frozenset(op for op in found if op is not None)

    def names(self) -> list[str]:
        """Declared names, for suggestions: ops, then torch-level names."""
        return [*self._entries, *self._by_torch]

    def find(self, name: str) -> Op | None:
        """The op a rule means by `name`: declared, an overload written out, an undeclared ATen
        op, or a declared torch-level name."""
        found = self._ops.get(name)
        if found is None:  # a library that defines it may come later
            found = self._ops[name] = self._resolve(name)
        return found

    def bind(self, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound | None:
        """The canonical form of an FX call, None for what must stay opaque.

        Nodes that stand for numbers (sizes) are replaced by their (symbolic) values.
        """
        if target is operator.getitem:
            return _bind_getitem(args)
        if target is getattr:
            target, args = _as_method(args)
        routes = self._routes.get(target)
        if routes is None:
            routes = self._routes[target] = self._find_routes(target)
        if not routes:
            return None
        args = [_read(arg) for arg in args]
        kwargs = {name: _read(arg) for name, arg in kwargs.items()}
        if not isinstance(target, torch._ops.OpOverload) and not _any_node(args):
            return None  # Python arithmetic on sizes
        for route in routes:
            values = route.form.read(args, kwargs)
            if values is None or (route.random and not _draws_nothing(route.op, values)):
                continue
            try:
                return self.normalise(route.op, values, node_meta)
            except EvaluateError:
                continue
        return None

    def normalise(self, op: Op, values: Sequence[Any], meta: Callable[[Any], Any]) -> Bound:
        """The normal form of a canonical call: aliases opened, attributes in one spelling.

        `meta` gives the (fake) tensor of a handle. Raises EvaluateError where the call
        cannot be right, or an alias is not a single op.
        """
        entry = op.entry
        if entry is None or entry.as_ is None:
            try:
                return Bound(op, tuple(normalise(op, list(values), meta)))
            except (TypeError, ValueError, IndexError) as error:
                raise EvaluateError(f"{op.name}: {error}") from error
        env = {
            param.name: tuple(value) if isinstance(value, list) else value
            for param, value in zip(op.params, values, strict=True)
        }
        target = entry.as_
        if not isinstance(target, Call):
            raise EvaluateError(f"{op.name} is more than one op")
        inner = self.find(target.fn)
        if inner is None:
            raise EvaluateError(f"unknown op '{target.fn}'")
        scope = Attributes(env, MetaFacts(meta))
        given = self.arrange(
            inner,
            [scope.value(arg) for arg in target.args],
            {name: scope.value(arg) for name, arg in target.kwargs},
        )
        return self.normalise(inner, self.fill(inner, given), meta)

    def call(
        self, op: Op, args: Sequence[Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """A callable with arguments that does `op`: the first overload that takes them.

        Raises EvaluateError where none does (a number where only a tensor will do).
        """
        for target in op.overloads:
            form = self._form(target, op)
            written = form.write(args)
            if written is not None:
                return form.target, *written
        raise EvaluateError(f"no overload of {op.name} takes these arguments")

    def swapped(self, op: Op, args: Sequence[Any]) -> tuple[Any, ...] | None:
        """`args` with the two operands exchanged, where that means the same."""
        if not op.commutes or any(
            value != param.default for value, param in zip(args[2:], op.params[2:], strict=True)
        ):
            return None
        return (args[1], args[0], *args[2:])

    def arrange(
        self,
        op: Op,
        args: Sequence[T],
        kwargs: Mapping[str, T],
        pack: Callable[[tuple[T, ...]], T] = lambda items: items,  # type: ignore[assignment,return-value]
        lists: Container[str] = (),
    ) -> dict[int, T]:
        """Parameter index to argument, for a call as rules write it. Works on values and on
        expressions alike; `pack` makes one list argument of several (`permute(x, 0, 2, 1)`).
        `lists` names the list variables, so that `cat(xs, 1)` is no list of two.

        Raises ArgumentsError for an unknown, doubled or surplus argument.
        """
        placed = dict(enumerate(_gather(op, args, pack, frozenset(kwargs), lists)))
        for name, value in kwargs.items():
            place = op.place(name)
            if place is None:
                raise ArgumentsError(f"{op.name} has no argument '{name}'")
            if place in placed:
                raise ArgumentsError(f"{op.name} got '{name}' twice")
            placed[place] = value
        return placed

    def fill(self, op: Op, placed: Mapping[int, Any]) -> list[Any]:
        """Values for all parameters, defaults filled in. Raises ArgumentsError for a required
        one that is missing."""
        values = []
        for place, param in enumerate(op.params):
            if place not in placed and param.required:
                raise ArgumentsError(f"{op.name} needs '{param.name}'")
            values.append(placed.get(place, param.default))
        return values

    def expand(self, expr: Expr, lists: Container[str] = ()) -> Expr:
        """`expr` with every alias and macro replaced by what it is `as:`; the ops left have
        ATen overloads. Attributes may then be computed ones (`permute(x, swapped(rank(x),
        -2, -1))`). `lists` names the list variables."""
        expr = map_children(lambda part: self.expand(part, lists), expr)
        if not isinstance(expr, Call):
            return expr
        op = self.find(expr.fn)
        if op is None or op.entry is None or op.entry.as_ is None:
            return expr
        placed = self.arrange(op, expr.args, dict(expr.kwargs), SequenceExpr, lists)
        return self.expand(self._open(op, expr, placed), lists)

    def _open(self, op: Op, call: Call, placed: Mapping[int, Expr]) -> Expr:
        table: dict[str, Expr] = {}
        taken_by_how: set[str] = set()
        for place, param in enumerate(op.params):
            if place in placed:
                table[param.name] = placed[place]
            elif call.how is not None:
                taken_by_how.add(param.name)
            elif param.required:
                raise ArgumentsError(f"{op.name} needs '{param.name}'")
            else:
                table[param.name] = _as_expr(param.default)
        assert op.entry is not None and op.entry.as_ is not None
        return _substitute(op.entry.as_, table, taken_by_how, call.how)

    def _resolve(self, name: str) -> Op | None:
        if name in self._entries:
            return self._declared(self._entries[name])
        if name in self._by_torch:
            return self._torch_level(self._by_torch[name])
        if name in self._by_overload:
            return self.find(self._by_overload[name].name)
        overload = find_overload(name)
        return self._automatic(name) if overload is None else self._undeclared(overload)

    def _declared(self, entry: OpEntry) -> Op | None:
        overloads = tuple(o for o in map(find_overload, entry.aten) if o is not None)
        if entry.aten and not overloads:
            return None  # this version of torch does not have the op
        if not entry.aten and entry.as_ is None:
            return self._torch_level(entry)
        return Op(entry.name, params_of(entry, overloads), overloads, entry, entry.commutes)

    def _torch_level(self, entry: OpEntry) -> Op | None:
        """The op of torch functions, apart from the ATen op of the same entry: one is for
        graphs before AOTAutograd, the other for those after it."""
        name = entry.torch[0] if entry.torch else entry.name
        if name not in self._ops:
            targets = tuple(t for t in map(torch_object, entry.torch) if t is not None)
            bare = replace(entry, as_=None)  # what `as:` says is about ATen ops
            op = Op(name, params_of(entry, overloads_of(entry)), targets, bare, entry.commutes)
            self._ops[name] = op if targets else None
        return self._ops[name]

    def _automatic(self, name: str) -> Op | None:
        """The op of a torch function that no entry declares, with the arguments that torch
        says it has. Calls become canonical once a rule has named it."""
        names = sibling_names(name)
        params = automatic_params(name)
        if params is None:
            return None
        declared = next((self._by_torch[own] for own in names if own in self._by_torch), None)
        if declared is not None:
            return self._torch_level(declared)
        op = Op(names[0], params, tuple(torch_object(own) for own in names))
        for own in names:
            self._ops[own] = op
            self._automatic_ops[own if own.startswith("Tensor.") else torch_object(own)] = op
        self._routes.clear()
        return op

    def _undeclared(self, overload: torch._ops.OpOverload) -> Op:
        """The op of one overload as its schema spells it: undeclared, or called in a way that
        the declared op cannot say."""
        name = plain_name(overload, self._entries)
        if name not in self._plain:
            params = tuple(
                Param(
                    argument.name,
                    default_of(argument),
                    not argument.has_default_value(),
                    kind_of(argument),
                )
                for argument in overload._schema.arguments
            )
            self._plain[name] = Op(name, params, (overload,))
        return self._plain[name]

    def _find_routes(self, target: Target) -> tuple[_Route, ...]:
        if not isinstance(target, torch._ops.OpOverload):
            return self._torch_routes(target)
        entry = self._by_overload.get(spelled(target))
        if is_opaque(target, declared=entry is not None):
            return ()
        random = torch.Tag.nondeterministic_seeded in target.tags
        ops = [self.find(entry.name) if entry is not None else None, self._undeclared(target)]
        return tuple(_Route(op, self._form(target, op), random) for op in ops if op is not None)

    def _torch_routes(self, target: Target) -> tuple[_Route, ...]:
        if self._torch_targets is None:
            self._torch_targets = {
                torch_object(name): entry for name, entry in self._by_torch.items()
            }
        key = f"Tensor.{target}" if isinstance(target, str) else None
        entry = self._by_torch.get(key) if key else self._torch_targets.get(target)
        op = self._automatic_ops.get(key or target)
        if entry is not None:
            op = self._torch_level(entry)
        if op is None:
            return ()
        return (_Route(op, torch_form(target, op.params), _may_draw(op)),)

    def _form(self, target: Target, op: Op) -> Form | TorchForm:
        key = (target, op.name)
        form = self._forms.get(key)
        if form is None:
            if isinstance(target, torch._ops.OpOverload):
                form = form_of(target, [param.name for param in op.params], op.defaults)
            else:
                form = torch_form(target, op.params)
            self._forms[key] = form
        return form


def _bind_getitem(args: Sequence[Any]) -> Bound | None:
    """One result of an op with several; indexing a tensor by Python slices stays opaque."""
    value, index = args
    if isinstance(index, int) and isinstance(node_meta(value), (tuple, list)):
        return Bound(GETITEM, (value, index))
    return None


def _as_method(args: Sequence[Any]) -> tuple[Target, Sequence[Any]]:
    """`x.mT`, and `x.T` of a matrix, as the methods that do the same."""
    value, name = args[0], args[1]
    tensor = node_meta(value)
    if name == "mT":
        return "transpose", (value, -2, -1)
    if name == "T" and isinstance(tensor, torch.Tensor) and tensor.dim() == 2:
        return "t", (value,)
    return getattr, args


def _any_node(args: Sequence[Any]) -> bool:
    return any(
        isinstance(arg, fx.Node) or (isinstance(arg, list) and _any_node(arg)) for arg in args
    )


def _substitute(expr: Expr, table: Mapping[str, Expr], absent: set[str], how: str | None) -> Expr:
    """`expr` of an alias with its parameters replaced; arguments that `**how` holds go."""
    if isinstance(expr, Name):
        return table.get(expr.id, expr)
    if isinstance(expr, Call) and how is not None and absent:
        kept = tuple(
            (name, value)
            for name, value in expr.kwargs
            if not (isinstance(value, Name) and value.id in absent)
        )
        if len(kept) < len(expr.kwargs):
            expr = replace(expr, kwargs=kept, how=how)
    return map_children(lambda part: _substitute(part, table, absent, how), expr)


def _as_expr(value: Any) -> Expr:
    if isinstance(value, tuple):
        return SequenceExpr(tuple(_as_expr(item) for item in value))
    return Literal(value)


def _gather(
    op: Op,
    args: Sequence[T],
    pack: Callable[[tuple[T, ...]], T],
    named: frozenset[str],
    lists: Container[str],
) -> list[T]:
    """Positional arguments, the surplus ones packed into the list parameter they spell; the
    parameters in `named` are given by keyword."""
    for place, param in enumerate(op.params):
        variadic = param.kind in ("tensors", "dims") or param.name in ("size", "repeats", "indices")
        if variadic and place < len(args):
            rest = args[place:]
            listed = _is_listed(rest[0], lists)
            if len(rest) > 1 and not listed and not _reads_on(op, place, rest, named):
                return [*args[:place], pack(tuple(rest))]
            break
    if len(args) > len(op.params):
        most = f"{len(op.params)} argument{'s' if len(op.params) > 1 else ''}"
        raise ArgumentsError(f"{op.name} takes {most}, not {len(args)}")
    return list(args)


def _is_listed(arg: Any, lists: Container[str]) -> bool:
    """Whether an argument is a list by itself: written out, a list variable, or `each(...)`."""
    if isinstance(arg, Call):
        return arg.fn == EACH
    if isinstance(arg, Name):
        return arg.id in lists
    return isinstance(arg, (tuple, list, SequenceExpr))


def _reads_on(op: Op, place: int, rest: Sequence[Any], named: frozenset[str]) -> bool:
    """Whether what follows a list parameter are further arguments (`sum(x, 1, True)`)."""
    last = rest[-1].value if isinstance(rest[-1], Literal) else rest[-1]
    return (
        op.params[place].reduces
        or any(param.required and param.name not in named for param in op.params[place + 1 :])
        or isinstance(last, (bool, str))
    )


def _read(arg: Any) -> Any:
    """An FX argument with number nodes replaced by their values, and lists as tuples where
    they hold constants."""
    if isinstance(arg, fx.Node):
        meta = node_meta(arg)
        if isinstance(meta, torch.Size):
            return tuple(map(plain, meta))
        return plain(meta) if is_number(meta) else arg
    if isinstance(arg, (list, tuple)):
        items = [_read(item) for item in arg]
        return items if any(isinstance(item, fx.Node) for item in items) else tuple(items)
    return plain(arg)


_RANDOM = ("rand", "bernoulli", "multinomial", "normal_", "poisson", "gumbel", "fractional")
_TRAINING = ("training", "train")
_PROBABILITY = ("dropout_p", "p")


def _may_draw(op: Op) -> bool:
    """Whether a torch function may draw random numbers, by its name and arguments."""
    trains = any(op.place(name) is not None for name in _TRAINING)
    dropout = op.place("dropout_p") is not None or (trains and "norm" not in op.name)
    return dropout or any(word in op.name for word in _RANDOM)


def _draws_nothing(op: Op, values: Sequence[Any]) -> bool:
    """Whether an op that may draw random numbers does not, as its dropout is off."""
    given = {param.name: value for param, value in zip(op.params, values, strict=True)}
    if any(given.get(name) is False for name in _TRAINING):
        return True
    return any(is_number(given.get(name)) and given[name] == 0 for name in _PROBABILITY)
