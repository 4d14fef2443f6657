"""Rules of stage `trace`: decompositions that AOTAutograd applies while it traces.

Takes a rule book and the op table; gives a table from overload to function, as AOTAutograd's
`decompositions` want it. A rule of this stage matches one op call; where its types or
conditions fail the function gives NotImplemented, and torch's own decomposition is tried where
an entry of kind `decompose` names the op. Else the op stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .attributes import Attributes
from .binding import Failure, bind_types
from .borrowed import borrowed_decompositions
from .evaluate import TensorWorld, evaluate, holds
from .expr import Call, Expr, Name
from .op import Bound, Op
from .ops import OpTable
from .repaired import repaired_calls
from .rule import Rule, RuleBook
from .signature import Form, form_of
from .source import fail
from .symbolic import same_constant
from .world import EvaluateError, is_constant

Decomposition = Callable[..., Any]


class TraceWorld(TensorWorld):
    """Emits onto the tracer, without casts that change nothing."""

    def emit(self, op: Op, args: Sequence[Any]) -> Any:
        if op.name == "cast" and args[0].dtype == args[1]:
            return args[0]
        return super().emit(op, args)


@dataclass(frozen=True)
class _Pattern:
    """One op call on variables: the arguments that the rule names, by parameter index."""

    rule: Rule
    op: Op
    placed: Mapping[int, Expr]
    how: str | None


def decomposition_table(
    book: RuleBook, table: OpTable
) -> dict[torch._ops.OpOverload, Decomposition]:
    """The decompositions of all rules of stage "trace", in file order for each op, then those
    that torch has for the ops that entries of kind `decompose` name. Calls that this version of
    torch knows wrong metadata of come first.

    Raises RuleErrors where such a rule matches more than one op call.
    """
    by_op: dict[str, list[_Pattern]] = {}
    for rule in book.rules:
        if rule.stage == "trace":
            pattern = _pattern(rule, table)
            by_op.setdefault(pattern.op.name, []).append(pattern)
    found: dict[torch._ops.OpOverload, Decomposition] = {}
    for patterns in by_op.values():
        op = patterns[0].op
        for target in op.overloads:
            if isinstance(target, torch._ops.OpOverload):
                found[target] = _decomposition(target, tuple(patterns), table)
    return chained(repaired_calls(), found, borrowed_decompositions(book.decompose))


def chained(
    *tables: Mapping[torch._ops.OpOverload, Decomposition],
) -> dict[torch._ops.OpOverload, Decomposition]:
    """One table of several: for each op the first result that is not NotImplemented."""
    every: dict[torch._ops.OpOverload, list[Decomposition]] = {}
    for table in tables:
        for target, function in table.items():
            every.setdefault(target, []).append(function)
    return {target: _first_of(functions) for target, functions in every.items()}


def _first_of(functions: Sequence[Decomposition]) -> Decomposition:
    if len(functions) == 1:
        return functions[0]

    def decompose(*args: Any, **kwargs: Any) -> Any:
        results = (function(*args, **kwargs) for function in functions)
        return next((one for one in results if one is not NotImplemented), NotImplemented)

    return decompose


def _pattern(rule: Rule, table: OpTable) -> _Pattern:
    call = table.expand(next(iter(rule.match.values())))
    op = table.find(call.fn) if isinstance(call, Call) else None
    if op is None or not isinstance(call, Call) or len(rule.match) > 1:
        raise fail(rule.span, "E414", "a rule of stage 'trace' matches one op call")
    return _Pattern(rule, op, table.arrange(op, call.args, dict(call.kwargs)), call.how)


def _decomposition(
    target: torch._ops.OpOverload, patterns: tuple[_Pattern, ...], table: OpTable
) -> Decomposition:
    op = patterns[0].op
    form: Form = form_of(target, [param.name for param in op.params], op.defaults)
    world = TraceWorld(table)

    def decompose(*args: Any, **kwargs: Any) -> Any:
        values = form.read(
            [_tupled(arg) for arg in args], {k: _tupled(v) for k, v in kwargs.items()}
        )
        if values is None:
            return NotImplemented
        try:
            bound = table.normalise(op, values, world.meta)
        except EvaluateError:
            return NotImplemented
        for pattern in patterns:
            result = _rewrite(pattern, bound, world, table)
            if result is not NotImplemented:
                return result
        return NotImplemented

    return decompose


def _tupled(value: Any) -> Any:
    """Lists of constants as tuples, lists of tensors as they are."""
    if isinstance(value, (list, tuple)) and all(map(is_constant, value)):
        return tuple(value)
    return value


def _rewrite(pattern: _Pattern, bound: Bound, world: TraceWorld, table: OpTable) -> Any:
    rule = pattern.rule
    env = _match_call(pattern, bound, world)
    if env is None:
        return NotImplemented
    if any(not holds(condition.expr, env, world, table)[0] for condition in rule.when):
        return NotImplemented
    try:
        for name, expr in rule.lets.items():
            env[name] = evaluate(expr, env, world, table)
        return evaluate(next(iter(rule.make.values())), env, world, table)
    except EvaluateError:
        return NotImplemented


def _match_call(pattern: _Pattern, bound: Bound, world: TraceWorld) -> dict[str, Any] | None:
    """The environment in which the pattern is this call, conditions aside."""
    rule, values = pattern.rule, {}
    later: list[tuple[int, Expr]] = []
    for place, expr in pattern.placed.items():
        value = bound.args[place]
        if not (isinstance(expr, Name) and expr.id in rule.vars):
            later.append((place, expr))
        elif expr.id not in values:
            values[expr.id] = value
        elif values[expr.id] is not value:
            return None
    if pattern.how is not None:
        values[pattern.how] = {
            param.name: value
            for place, (param, value) in enumerate(zip(bound.op.params, bound.args, strict=True))
            if place not in pattern.placed
        }
    env = bind_types(rule, values, world)
    if isinstance(env, Failure) or not _attributes_agree(pattern, bound, env, later, world):
        return None
    return env


def _attributes_agree(
    pattern: _Pattern,
    bound: Bound,
    env: Mapping[str, Any],
    later: Sequence[tuple[int, Expr]],
    world: TraceWorld,
) -> bool:
    scope = Attributes(env, world)
    wanted = list(bound.args)
    for place, param in enumerate(bound.op.params):
        if place not in pattern.placed and pattern.how is None:
            wanted[place] = param.default
    try:
        for place, expr in later:
            wanted[place] = scope.value(expr)
        normal = world.table.normalise(bound.op, wanted, world.meta).args
    except EvaluateError:
        return False
    in_float = all(
        value.is_floating_point() for value in env.values() if isinstance(value, torch.Tensor)
    )
    return all(
        a is b or (is_constant(a) and is_constant(b) and same_constant(a, b, in_float))
        for a, b in zip(normal, bound.args, strict=True)
    )
