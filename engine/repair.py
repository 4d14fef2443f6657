"""Values that keep to the comparisons a rule assumes, such as `0 <= t < c`.

Takes the variables of a rule and drawn values; draws elements again where an assumption does not
hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from .attributes import Attributes
from .expr import Compare, Expr, Name, names
from .fill import draw_values
from .rule import Rule, TensorType
from .world import MetaFacts

_ROUNDS = 64  # redraws of an element that an assumption forbids


def keep_to(
    rule: Rule,
    expr: Expr,
    env: Mapping[str, Any],
    values: dict[str, Any],
    filling: Mapping[str, tuple[str, int]],
    assumed: Collection[str],
) -> bool:
    """Draws elements of tensors again until a comparison on values holds; False where it does
    not come to hold. `assumed` holds what the values keep to besides (`fill.ASSUMPTIONS`)."""
    for name in sorted(names(expr)):
        kind, tensor = rule.vars.get(name), values.get(name)
        if not isinstance(kind, TensorType) or not isinstance(tensor, torch.Tensor):
            continue
        good = holds_elementwise(expr, {**env, **values})
        for attempt in range(_ROUNDS):
            if bool(good.all()):
                return True
            seed = filling.get(name, ("", 0))[1] * _ROUNDS + attempt
            style = "positive" if attempt % 2 else "counting"
            fresh = draw_values(tensor.numel(), tensor.dtype, style, seed, assumed)
            fresh = fresh.roll(attempt).view(tensor.shape)
            tensor = values[name] = _mended(tensor, good, fresh)
            good = holds_elementwise(expr, {**env, **values})
        return False
    return True


def _mended(tensor: torch.Tensor, good: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """`tensor` with elements of `fresh` where it is not good, in the same layout: what an
    expanded tensor repeats is one element."""
    shape, good = tensor.shape, good.expand(tensor.shape)
    repeated = [dim for dim, step in enumerate(tensor.stride()) if step == 0]
    for dim in repeated:
        good = good.all(dim, keepdim=True)
        tensor, fresh = tensor.narrow(dim, 0, 1), fresh.narrow(dim, 0, 1)
    return put(tensor, torch.where(good, tensor, fresh)).expand(shape)


def put(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`values` in the layout of `tensor`, where that has a place for each element."""
    if 0 in tensor.stride():
        return values
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(values)


def holds_elementwise(expr: Expr, env: Mapping[str, Any]) -> torch.Tensor:
    """Where a comparison holds, tensors compared element by element."""
    if not isinstance(expr, Compare):
        return torch.tensor(True)
    operations = {
        "==": torch.eq,
        "!=": torch.ne,
        "<": torch.lt,
        "<=": torch.le,
        ">": torch.gt,
        ">=": torch.ge,
    }
    answer = torch.tensor(True)
    left = _operand(expr.first, env)
    for op, part in zip(expr.ops, expr.rest, strict=True):
        right = _operand(part, env)
        answer = answer & operations[op](left, right)
        left = right
    return answer


def _operand(expr: Expr, env: Mapping[str, Any]) -> torch.Tensor:
    if isinstance(expr, Name) and isinstance(env.get(expr.id), torch.Tensor):
        value: torch.Tensor = env[expr.id]
        return value
    return torch.as_tensor(Attributes(env, MetaFacts(lambda x: x)).value(expr))
