"""Assumptions about the values of parameters, checked when the parameters are folded.

`-inf < w < inf` is no fact of a graph. Where a rule demands `is_frozen(w)`, the value is at
hand when the rule's result is computed, so the assumption is verified there, each time the
parameter changes; where it fails the graph runs without the rules (`codegen.folded`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .expr import Call, Compare, Expr, Literal, Logic, Name, Negative, names, walk
from .kinds import tensor_vars
from .rule import Rule
from .world import EvaluateError

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class ParameterCheck:
    """`expr` must hold for every element; `inputs` pairs its variables with the
    positions of graph inputs."""

    rule: str
    where: str
    text: str
    expr: Expr
    inputs: tuple[tuple[str, int], ...]


def speaks_of_frozen(expr: Expr, rule: Rule) -> bool:
    """Whether `expr` compares elements of tensors that `when` demands to be frozen, and
    nothing but numbers with them."""
    tensors = names(expr) & tensor_vars(rule.vars)
    frozen = {
        argument.id
        for condition in rule.when
        for part in _conjuncts(condition.expr)
        if isinstance(part, Call) and part.fn == "is_frozen"
        for argument in part.args
        if isinstance(argument, Name)
    }
    plain = all(isinstance(node, Compare | Name | Literal | Negative) for node in walk(expr))
    return isinstance(expr, Compare) and plain and bool(tensors) and names(expr) <= frozen


def holds_for(check: ParameterCheck, inputs: Sequence[Any]) -> bool:
    """Whether the assumption holds for every element of the parameters."""
    values = {name: inputs[place] for name, place in check.inputs}
    assert isinstance(check.expr, Compare)
    left = _value(check.expr.first, values)
    for op, part in zip(check.expr.ops, check.expr.rest, strict=True):
        right = _value(part, values)
        if not bool(torch.as_tensor(_COMPARISONS[op](left, right)).all()):
            return False
        left = right
    return True


def _conjuncts(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Logic) and expr.op == "and":
        return tuple(part for inner in expr.parts for part in _conjuncts(inner))
    return (expr,)


def _value(expr: Expr, values: Mapping[str, Any]) -> Any:
    match expr:
        case Name(id=name):
            return values[name]
        case Literal(value=value):
            return value
        case Negative(value=inner):
            return -_value(inner, values)
    raise EvaluateError(f"{type(expr).__name__} in an assumption about parameters")
