"""Draws sizes, dtypes, layouts and constants for which a rule fires.

Takes a rule and a random generator; gives `Structure`s: everything about an example except
the values inside the tensors. Choices lean towards what the rule's conditions ask for; what
still does not meet them is drawn again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from .attributes import Attributes
from .binding import Failure, bind_vars
from .dtypes import DTYPES
from .evaluate import DEVICE, TensorWorld, evaluate
from .expr import Call, Compare, Expr, Item, Literal, Logic, Name, Negative, names, walk
from .fill import LAYOUTS, TensorSpec, make_tensor
from .kinds import list_vars
from .op import Op
from .ops import OpTable
from .pools import constant_pool, dims_pool, how_pool
from .repair import keep_to
from .rule import ConstType, Rule, TensorType
from .steer import broadcast_leads, order_numbers
from .world import EvaluateError, MetaFacts

# What evaluating torch code on unsuitable arguments may raise.
TORCH_ERRORS = (
    *(EvaluateError, RuntimeError, IndexError, ValueError, TypeError, NotImplementedError),
    OverflowError,  # an infinity as an integer
)

_SIZES = (2, 3, 1, 4, 5, 2, 3, 7, 8)
# Single twice: half types hide a rounding, and nothing wider than double shows one.
_FLOATS = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_LEADS = (0, 1, 2, 1, 2, 3)  # how many dims `...` stands for
_COUNTS = (1, 2, 3, 2, 3, 4)  # tensors of a list
_LARGEST = 1 << 12  # elements per tensor
# Kernels that read some inputs as if they were contiguous, whatever their strides; the torch
# functions above them see to it that they are.
_NEED_CONTIGUOUS = frozenset(
    {
        *("native_group_norm", "native_group_norm_backward", "native_layer_norm_backward"),
        *("_native_batch_norm_legit_no_training", "native_batch_norm_backward"),
        "F.batch_norm",  # its backward
    }
)


@dataclass(frozen=True)
class Structure:
    """Tensors (a tuple of specs for a list variable), constants, and `**how` attributes.
    `marks` are numbers that the rule itself speaks of."""

    tensors: Mapping[str, TensorSpec | tuple[TensorSpec, ...]]
    constants: Mapping[str, Any]
    how: Mapping[str, Mapping[str, Any]]
    marks: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.tensors}{self.constants}{self.how}"

    @property
    def has_elements(self) -> bool:
        """Whether no tensor is empty."""
        return all(spec.numel for spec in self._specs())

    @property
    def is_single(self) -> bool:
        """Whether every tensor has one element."""
        return all(spec.numel == 1 for spec in self._specs())

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes of all tensors."""
        return frozenset(spec.dtype for spec in self._specs())

    @property
    def weight(self) -> tuple[int, int, int]:
        """Smaller is simpler, for showing the simplest failure."""
        specs = self._specs()
        return (
            sum(spec.numel if spec.numel else 50 for spec in specs),
            sum(LAYOUTS.index(spec.layout) for spec in specs),
            len(repr(self.constants)),
        )

    def fill(
        self, filling: Mapping[str, tuple[str, int]], assumed: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Values of all variables; `filling` gives (kind, seed) per tensor variable."""
        values: dict[str, Any] = dict(self.constants) | {
            name: dict(entries) for name, entries in self.how.items()
        }
        for name, item in self.tensors.items():
            kind, seed = filling.get(name, ("counting", 0))
            if isinstance(item, tuple):
                values[name] = [
                    make_tensor(spec, kind, seed + i, assumed, self._marks())
                    for i, spec in enumerate(item)
                ]
            else:
                values[name] = make_tensor(item, kind, seed, assumed, self._marks())
        return values

    def _specs(self) -> list[TensorSpec]:
        return [
            spec
            for item in self.tensors.values()
            for spec in (item if isinstance(item, tuple) else (item,))
        ]

    def _marks(self) -> tuple[float, ...]:
        """Numbers of the rule, its constants, and their quotients: `x * a > b` bends there."""
        drawn = [float(v) for v in self.constants.values() if type(v) in (int, float)]
        pairs = itertools.permutations(drawn, 2)
        return (*self.marks, *drawn, *(a / b for a, b in pairs if b != 0))


@dataclass
class Search:
    """Structures of one rule. `fixed` holds sizes (those of `...` under "...name"), dtypes and
    constants that are not drawn. `failures` counts what stood in the way, in `drawn` draws."""

    rule: Rule
    table: OpTable
    random: Random
    fixed: Mapping[str, Any] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    drawn: int = 0

    def __post_init__(self) -> None:
        self.world = TensorWorld(self.table)
        self.conditions = [
            part
            for expr in (
                *(condition.expr for condition in self.rule.when),
                *(a.expr for a in self.rule.assumes if a.expr is not None),
            )
            for part in conjuncts(expr)
        ]
        lists = list_vars(self.rule.vars)
        self.match = {n: self.table.expand(expr, lists) for n, expr in self.rule.match.items()}
        self.numbers = _numbers((*self.conditions, *self.match.values()))
        sides = (*self.rule.match.values(), *self.rule.lets.values(), *self.rule.make.values())
        self.marks = tuple(sorted({float(value) for expr in sides for value in _literals(expr)}))
        self.tensor_vars = {
            name: kind for name, kind in self.rule.vars.items() if isinstance(kind, TensorType)
        }
        self.flat = any(
            isinstance(node, Call) and node.fn in _NEED_CONTIGUOUS
            for expr in self.match.values()
            for node in walk(expr)
        )
        self.how_ops = _how_ops(self.match.values(), self.table)

    def collect(self, count: int, attempts: int) -> list[Structure]:
        """Up to `count` different structures that the rule fires on, simplest first."""
        found: dict[str, Structure] = {}
        for attempt in range(attempts):
            if len(found) >= count or (attempt >= 40 * count and found):
                break
            structure = self.attempt()
            if structure is not None:
                found.setdefault(structure.key, structure)
        return sorted(found.values(), key=lambda structure: structure.weight)

    def attempt(self) -> Structure | None:
        """One structure, or None where the draw does not meet the rule's conditions."""
        self.drawn += 1
        try:
            structure = self._draw()
            values = structure.fill({})
            env = bind_vars(self.rule, values, self.world, self.table)
            if isinstance(env, Failure):
                self.failures[str(env)] += 1
                return None
            for assumption in self.rule.assumes:
                if assumption.expr is not None:
                    keep_to(self.rule, assumption.expr, env, values, {}, ())
            env |= {name: values[name] for name in self.tensor_vars}
            for expr in self.rule.match.values():
                evaluate(
                    expr, env, self.world, self.table, torch_level=self.rule.stage == "pre_grad"
                )
        except TORCH_ERRORS as error:
            self.failures[f"the left side fails: {str(error).splitlines()[0]}"] += 1
            return None
        return structure

    def _draw(self) -> Structure:
        dtypes = self._dtypes()
        sizes = self._sizes()
        shapes = self._shapes(sizes)
        tensors: dict[str, TensorSpec | tuple[TensorSpec, ...]] = {}
        for name, kind in self.tensor_vars.items():
            spec = TensorSpec(shapes[name], dtypes[name], self._layout(len(shapes[name])))
            if spec.numel > _LARGEST:
                raise EvaluateError("too large")
            tensors[name] = self._listed(spec, kind) if kind.is_list else spec
        metas = {
            name: torch.empty(shapes[name], dtype=dtypes[name], device="meta")
            for name in self.tensor_vars
        }
        lists = {
            name: [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in item]
            for name, item in tensors.items()
            if isinstance(item, tuple)
        }
        constants = self._constants(metas, lists, sizes)
        how = {
            name: how_pool(op, placed, metas, self.random)
            for name, (op, placed) in self.how_ops.items()
        }
        return Structure(tensors, constants, how, self.marks)

    def _listed(self, spec: TensorSpec, kind: TensorType) -> tuple[TensorSpec, ...]:
        """Tensors of a list; where each has its own sizes, they mostly differ in one dim, so that
        a cat takes them."""
        count = self.random.choice(_COUNTS)
        rank = len(spec.shape)
        if not kind.any_sizes or not rank or self.random.random() < 0.2:
            return (spec,) * count
        dim = self.random.randrange(rank)
        lengths = [self.random.choice(_SIZES) for _ in range(count)]
        return tuple(
            replace(spec, shape=(*spec.shape[:dim], length, *spec.shape[dim + 1 :]))
            for length in lengths
        )

    def _dtypes(self) -> dict[str, torch.dtype]:
        """Mostly one dtype for all variables that allow it."""
        floating, whole = self.random.choice(_FLOATS), self.random.choice(_INTS)
        other = self.random.choice((torch.bool, torch.complex64, torch.bool))
        order = [floating, whole, other]
        if self.random.random() < 0.3:
            self.random.shuffle(order)
        drawn: dict[str, torch.dtype] = {}
        for name, kind in self.tensor_vars.items():
            allowed = [DTYPES[word] for word in kind.dtypes]
            fitting = [dtype for dtype in order if dtype in allowed]
            strange = not fitting or self.random.random() < 0.2
            drawn[name] = self.random.choice(allowed) if strange else fitting[0]
        for condition in self.conditions:
            if self.random.random() < 0.95:
                self._steer_dtypes(condition, drawn)
        for name, word in self.fixed.items():
            if name in drawn and word in DTYPES:
                drawn[name] = DTYPES[word]
        return drawn

    def _steer_dtypes(self, condition: Expr, drawn: dict[str, torch.dtype]) -> None:
        """Makes `same_dtype(...)`, `dtype(x) == ...` and `dtype(x) in (...)` true."""
        if isinstance(condition, Logic):
            self._steer_dtypes(self.random.choice(condition.parts), drawn)
            return
        if isinstance(condition, Call) and condition.fn == "same_dtype":
            mentioned = [a.id for a in condition.args if isinstance(a, Name) and a.id in drawn]
            wanted = [drawn[name] for name in mentioned if self._allows(mentioned, drawn[name])]
            if wanted:
                drawn.update(dict.fromkeys(mentioned, wanted[0]))
        if not isinstance(condition, Compare) or condition.ops[0] not in ("==", "in"):
            return
        first = condition.first
        if not (
            isinstance(first, Call) and first.fn == "dtype" and isinstance(first.args[0], Name)
        ):
            return
        name = first.args[0].id
        metas = {key: torch.empty((), dtype=d, device="meta") for key, d in drawn.items()}
        try:
            value = Attributes(metas, MetaFacts(lambda x: x)).value(condition.rest[0])
        except EvaluateError:
            return
        choices = list(value) if isinstance(value, tuple) else [value]
        choices = [choice for choice in choices if self._allows([name], choice)]
        if choices and drawn.get(name) not in choices:
            drawn[name] = self.random.choice(choices)

    def _allows(self, variables: Sequence[str], dtype: Any) -> bool:
        return all(
            any(DTYPES[word] is dtype for word in self.tensor_vars[name].dtypes)
            for name in variables
            if name in self.tensor_vars
        )

    def _sizes(self) -> dict[str, Any]:
        """Values of letters and of `...` leads."""
        letters = sorted(
            {
                dim.id
                for kind in self.tensor_vars.values()
                for dim in kind.dims
                if isinstance(dim, Name)
            }
        )
        zeros, equal = self.random.random() < 0.2, self.random.random() < 0.2
        pool = (*_SIZES, *((0, 0, 0) if zeros else ()))
        common = self.random.choice(pool)
        sizes: dict[str, Any] = {}
        for letter in letters:
            extra = [n for n in self.numbers.get(letter, ()) if 0 <= n <= 512]
            near = [n + step for n in extra for step in (-1, 0, 1) if n + step >= 0]
            chosen = near if near and self.random.random() < 0.25 else pool
            sizes[letter] = common if equal else self.random.choice(chosen)
        for name, kind in self.tensor_vars.items():
            if kind.lead is not None or kind.any_sizes:
                rank = self.random.choice(_LEADS)
                lead = tuple(self.random.choice(pool) for _ in range(rank))
                sizes.setdefault(f"...{name if kind.any_sizes else kind.lead}", lead)
        for name, value in self.fixed.items():
            if isinstance(value, (int, tuple)) and name in sizes:
                sizes[name] = value
        for condition in self.conditions:
            self._steer(condition, sizes, set(letters) - set(self.fixed), {})
        metas = {
            name: torch.empty(shape, device="meta") for name, shape in self._shapes(sizes).items()
        }
        broadcast_leads(self.conditions, self.tensor_vars, sizes, metas, self.random)
        return sizes

    def _shapes(self, sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        scope = Attributes(sizes, MetaFacts(lambda x: x))
        shapes = {}
        for name, kind in self.tensor_vars.items():
            lead = () if kind.lead is None else sizes[f"...{kind.lead}"]
            if kind.any_sizes:
                lead = sizes[f"...{name}"]
            shapes[name] = (*lead, *(scope.value(dim) for dim in kind.dims))
        return shapes

    def _layout(self, rank: int) -> str:
        if rank == 0 or self.flat or self.random.random() < 0.5:
            return LAYOUTS[0]
        return self.random.choice(LAYOUTS)

    def _constants(
        self,
        metas: Mapping[str, torch.Tensor],
        lists: Mapping[str, Sequence[torch.Tensor]],
        sizes: Mapping[str, Any],
    ) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for name, kind in self.rule.vars.items():
            if not isinstance(kind, ConstType):
                continue
            if kind.kind == "dims":
                pool: Sequence[Any] = dims_pool(metas.values(), self.random)
            elif kind.kind == "dtype":
                pool = [*(meta.dtype for meta in metas.values()), *DTYPES.values()]
            else:
                pool = constant_pool(kind.kind, self.numbers.get(name, ()), sizes, self.random)
            drawn[name] = self.random.choice(pool)
        for name, value in self.fixed.items():
            if name in drawn:
                drawn[name] = DTYPES.get(value, value) if isinstance(value, str) else value
        free = set(drawn) - set(self.fixed)
        scope: dict[str, Any] = {**metas, **lists, **sizes, DEVICE: torch.device("cpu")}
        for condition in self.conditions:
            self._steer(condition, drawn, free, scope)
        return drawn

    def _steer(
        self, condition: Expr, drawn: dict[str, Any], free: set[str], scope: Mapping[str, Any]
    ) -> None:
        """Makes `name == value`, `name in (...)` and `low <= name <= high` true, mostly."""
        if isinstance(condition, Logic):
            condition = self.random.choice(condition.parts)
        if not isinstance(condition, Compare):
            return
        order_numbers(condition, drawn, free, scope, self.random)
        if condition.ops[0] not in ("==", "in"):
            return
        if self.random.random() < 0.1:
            return
        sides = [(condition.first, condition.rest[0])]
        if condition.ops[0] == "==":
            sides.append((condition.rest[0], condition.first))
        for name, other in sides:
            if not (isinstance(name, Name) and name.id in free):
                continue
            try:
                value = Attributes({**scope, **drawn}, MetaFacts(lambda x: x)).value(other)
            except EvaluateError:
                continue
            several = condition.ops[0] == "in" and isinstance(value, tuple)
            drawn[name.id] = self.random.choice(value) if several else value
            return


def conjuncts(expr: Expr) -> list[Expr]:
    """The parts of a condition that must all hold."""
    if isinstance(expr, Logic) and expr.op == "and":
        return [inner for part in expr.parts for inner in conjuncts(part)]
    return [expr]


def _numbers(exprs: Sequence[Expr]) -> dict[str, list[Any]]:
    """Numbers written next to each name: bounds to draw around, divisors to draw multiples
    of. The match's own literals go with every name it mentions."""
    found: dict[str, list[Any]] = {}
    for expr in exprs:
        values = _literals(expr)
        for name in names(expr):
            found.setdefault(name, []).extend(values)
    return {
        name: [*values, *(2 * v for v in values if isinstance(v, int) and 1 < v < 64)]
        for name, values in found.items()
    }


def _literals(expr: Expr) -> list[Any]:
    """Every number in an expression; one behind a minus with both signs."""
    values: list[Any] = []
    for node in walk(expr):
        if isinstance(node, Literal) and type(node.value) in (int, float):
            values.append(node.value)
        elif isinstance(node, Negative) and isinstance(node.value, Literal):
            inner = node.value.value
            if isinstance(inner, (int, float)):
                values.append(-inner)
    return values


def _how_ops(exprs: Any, table: OpTable) -> dict[str, tuple[Op, Mapping[int, Expr]]]:
    """For each `**how`, the op whose attributes it takes and the arguments given by hand."""
    found: dict[str, tuple[Op, Mapping[int, Expr]]] = {}
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, Item):
                continue
            if isinstance(node, Call) and node.how is not None:
                op = table.find(node.fn)
                if op is not None:
                    found[node.how] = (op, table.arrange(op, node.args, dict(node.kwargs)))
    return found
