"""Evaluates expressions of rules, op calls included.

Takes an expression, an environment and a `World`; gives a handle, a list of handles, or a
constant. `TensorWorld` computes with torch; the e-graph has a world of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .attributes import Attributes
from .expr import Call, Expr, Literal, Name, children
from .facts import promoted
from .op import GETITEM, ArgumentsError, Bound, Op
from .ops import OpTable
from .world import EvaluateError, Facts, Truth, World, is_constant, is_number

# The environment entry that names the device new tensors live on.
DEVICE = "$device"

# Kernels that divide by a size and end the process where it is 0; the torch functions above
# them see to it that none is.
_NEED_ELEMENTS = frozenset({"_scaled_dot_product_flash_attention_for_cpu"})

_OPERATORS: Mapping[str, str] = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_divide",
    "%": "remainder",
    "**": "pow",
    "neg": "neg",
}
# In rules for graphs before AOTAutograd, operators are Python's.
TORCH_OPERATORS: Mapping[str, str] = {
    "+": "operator.add",
    "-": "operator.sub",
    "*": "operator.mul",
    "/": "operator.truediv",
    "//": "operator.floordiv",
    "%": "operator.mod",
    "**": "operator.pow",
    "neg": "operator.neg",
}


def operator_op(op: str, torch_level: bool = False) -> str:
    """The op behind an operator on tensors: `+` is `add`, unary minus (`neg`) is `neg`."""
    return (TORCH_OPERATORS if torch_level else _OPERATORS)[op]


class Evaluator(Attributes):
    """Evaluates in `world`, making tensors by `world.emit`."""

    def __init__(
        self,
        env: Mapping[str, Any],
        world: World,
        table: OpTable,
        known: Mapping[Expr, Any] | None = None,
        torch_level: bool = False,
    ) -> None:
        super().__init__(env, world, known)
        self.maker = world
        self.table = table
        self.torch_level = torch_level

    def call(self, call: Call) -> Any:
        if call.fn == "each":
            return self._each(call)
        args = [self.value(arg) for arg in call.args]
        found, value = self.function(call, args)
        if found:
            return value
        kwargs = {name: self.value(arg) for name, arg in call.kwargs}
        return self.apply(call.fn, args, kwargs, call.how)

    def bound(self, call: Call) -> Bound:
        """The canonical form of a call, its tensor arguments made but not itself. For
        comparing the attributes of a pattern with those of a match."""
        args = [self.value(arg) for arg in call.args]
        kwargs = {name: self.value(arg) for name, arg in call.kwargs}
        op, values = self._arguments(call.fn, args, kwargs, call.how)
        return self._normal(op, values)

    def apply(
        self, fn: str, args: Sequence[Any], kwargs: Mapping[str, Any], how: str | None = None
    ) -> Any:
        """The result of op `fn` on values."""
        op, values = self._arguments(fn, args, kwargs, how)
        if op.entry is not None and op.entry.as_ is not None:
            env = {param.name: value for param, value in zip(op.params, values, strict=True)}
            if DEVICE in self.env:
                env[DEVICE] = self.env[DEVICE]
            return Evaluator(env, self.maker, self.table).value(op.entry.as_)
        bound = self._normal(op, values)
        return self.maker.emit(bound.op, bound.args)

    def binary(self, op: str, left: Any, right: Any) -> Any:
        if is_constant(left) and is_constant(right):
            return super().binary(op, left, right)
        return self.apply(operator_op(op, self.torch_level), [left, right], {})

    def negative(self, value: Any) -> Any:
        if is_number(value):
            return -value
        return self.apply(operator_op("neg", self.torch_level), [value], {})

    def item(self, base: Any, index: int) -> Any:
        if isinstance(base, list) or (isinstance(base, tuple) and is_shape(base)):
            return super().item(base, index)
        return self.maker.emit(GETITEM, (base, index))

    def _arguments(
        self, fn: str, args: Sequence[Any], kwargs: Mapping[str, Any], how: str | None
    ) -> tuple[Op, list[Any]]:
        op = self.table.find(fn)
        if op is None:
            raise EvaluateError(f"unknown op '{fn}'")
        try:
            placed = self.table.arrange(op, args, kwargs)
            if how is not None:
                for name, value in self.name(how).items():
                    place = op.place(name)
                    if place is not None:
                        placed.setdefault(place, value)
            return op, self.table.fill(op, placed)
        except ArgumentsError as error:
            raise EvaluateError(str(error)) from error

    def _normal(self, op: Op, values: list[Any]) -> Bound:
        for at, param in enumerate(op.params):
            if not param.number and is_number(values[at]):
                values[at] = self._one_element(values[at], values)
        place = op.place("device")
        if place is not None and values[place] is None:
            values[place] = self.env.get(DEVICE)
        return self.table.normalise(op, values, self.world.meta)

    def _one_element(self, number: Any, beside: Sequence[Any]) -> Any:
        """A number as a tensor without dims, where an op takes tensors only; of the dtype that
        the number has beside the other operands."""
        tensors = [value for value in beside if not is_constant(value)]
        return self.apply("full", [(), number, promoted(self.world, *tensors, number)], {})

    def _each(self, call: Call) -> list[Any]:
        target, xs, *rest = call.args
        if not isinstance(target, Name):
            raise EvaluateError("each(op, xs) takes the name of an op first")
        extra = [self.value(arg) for arg in rest]
        kwargs = {name: self.value(arg) for name, arg in call.kwargs}
        values = self.value(xs)
        if not isinstance(values, (list, tuple)):
            raise EvaluateError("each(op, xs) takes a list of tensors")
        return [self.apply(target.id, [value, *extra], kwargs) for value in values]


def is_shape(value: tuple[Any, ...]) -> bool:
    """Whether a tuple holds constants (a shape) rather than the results of an op."""
    return all(is_constant(item) for item in value)


def evaluate(
    expr: Expr,
    env: Mapping[str, Any],
    world: World,
    table: OpTable,
    known: Mapping[Expr, Any] | None = None,
    torch_level: bool = False,
) -> Any:
    """The value of `expr`; with `torch_level`, operators are Python's (stage pre_grad).

    Raises EvaluateError with a reason where it has none.
    """
    return Evaluator(env, world, table, known, torch_level).value(expr)


def holds(
    expr: Expr,
    env: Mapping[str, Any],
    world: Facts,
    table: OpTable,
    known: Mapping[Expr, Any] | None = None,
) -> tuple[bool, str]:
    """Whether a condition holds, and where it does not, why, with the values it read.

    `known` gives values of sub-expressions that are tensors of the match.
    """
    scope = Attributes(env, world, known)
    try:
        answer = scope.answer(expr)
    except EvaluateError as error:
        return False, str(error)
    if answer is True or answer is Truth.FREE:
        return True, ""
    values = ", ".join(f"{text} = {value}" for text, value in _readings(expr, scope))
    lead = "not statically known" if answer is Truth.UNKNOWN else ""
    return False, ": ".join(part for part in (lead, values) if part)


def _readings(expr: Expr, scope: Attributes) -> list[tuple[str, Any]]:
    """Names and facts a condition reads, with their values, each once."""
    found: dict[str, Any] = {}
    stack = [expr]
    while stack:
        part = stack.pop()
        if isinstance(part, Literal):
            continue
        if isinstance(part, Name):
            value = scope.env.get(part.id)
            if value is not None and is_constant(value):
                found.setdefault(part.id, _shown(value))
        elif isinstance(part, Call) and all(isinstance(arg, Name) for arg in part.args):
            text = f"{part.fn}({', '.join(arg.id for arg in part.args if isinstance(arg, Name))})"
            try:
                found.setdefault(text, _shown(scope.value(part)))
            except EvaluateError as error:
                found.setdefault(text, f"<{error}>")
        else:
            stack.extend(reversed(children(part)))
    return list(found.items())


def _shown(value: Any) -> str:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else str(value)


def _has_elements(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.numel() > 0


class TensorWorld:
    """Makes tensors by calling torch. Questions about a place in a graph have no answer here:
    they count as true (`Truth.FREE`)."""

    def __init__(self, table: OpTable) -> None:
        self.table = table

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        """The result of one canonical call; several results come as a tuple."""
        target, call_args, kwargs = self.table.call(op, args)
        if op is GETITEM:
            return operator.getitem(*call_args)
        if op.name in _NEED_ELEMENTS and not all(_has_elements(arg) for arg in call_args):
            raise EvaluateError(f"{op.name} takes no empty tensors")
        result = target(*call_args, **kwargs)
        return tuple(result) if isinstance(result, list) else result

    def meta(self, handle: Any) -> Any:
        return handle

    def is_weight(self, handle: Any) -> bool | Truth:
        return Truth.FREE

    def is_frozen(self, handle: Any) -> bool | Truth:
        return Truth.FREE

    def is_input(self, handle: Any) -> bool | Truth:
        return Truth.FREE

    def position(self, handle: Any) -> int | Truth | None:
        return Truth.FREE

    def users(self, handle: Any) -> int | Truth:
        return Truth.FREE

    def feeds_comparison(self, handle: Any) -> bool | Truth:
        return Truth.FREE
