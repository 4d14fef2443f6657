"""One example of a rule: both sides computed and compared.

Takes a rule, a structure and a filling of its tensors; gives the reason the sides differ, or
None. Raises `Rejected` for what is no example (the left side does not run).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .attributes import Attributes
from .binding import Failure, bind_vars
from .compare import Sides, differs, rms, same_bits, same_values
from .draw import TORCH_ERRORS, Structure
from .evaluate import TensorWorld, evaluate
from .expr import Compare, Expr, Name, names
from .fill import SMOOTH, draw_values
from .ops import OpTable
from .reference import ReferenceWorld, WideWorld
from .rule import Rule, TensorType
from .world import MetaFacts

_ROUNDS = 64  # redraws of an element that an assumption forbids
_CLOSE = 1e-8  # how far float64 gradients may be apart, as part of their size
_STRICT = ("exact", "signed_zero")


class Rejected(Exception):
    """The draw is no example of the rule."""


@dataclass
class Trials:
    """All examples of one rule. `bits_differ` and `values_differ` remember whether any pair
    of results differed in bits, or in more than the sign of a zero."""

    rule: Rule
    table: OpTable
    bits_differ: bool = False
    values_differ: bool = False
    floats_seen: bool = False
    _gradients: dict[str, str | None] = field(default_factory=dict)

    @property
    def torch_level(self) -> bool:
        return self.rule.stage == "pre_grad"

    @property
    def strict(self) -> bool:
        """Whether results must have equal bits (or zeros of either sign)."""
        return self.rule.numerics.float_class in _STRICT

    def kept(self, without: str | None = None) -> list[str]:
        """What the values of tensors keep to; finite means that no result overflows either."""
        named = [a.text for a in self.rule.assumes if a.expr is None and a.text != without]
        if not self.strict:
            named.append("no_extremes")
            if "finite" in named:
                named.append("no_overflow")
        return named

    def values(
        self,
        structure: Structure,
        filling: Mapping[str, tuple[str, int]],
        without: str | None = None,
    ) -> dict[str, Any]:
        """Values of the variables that keep the rule's assumptions, all but one perhaps."""
        assumed = self.kept(without)
        values = structure.fill(filling, assumed)
        env = self._environment(values)
        for assumption in self.rule.assumes:
            if assumption.expr is not None and assumption.text != without:
                self._repair(assumption.expr, env, values, filling, assumed)
        return values

    def run(self, values: Mapping[str, Any], without: str | None = None) -> str | None:
        """Why the sides differ on these values, None where they agree."""
        env = self._environment(values)
        strict = self.strict
        world = ReferenceWorld(self.table) if strict else TensorWorld(self.table)
        left = self._left(env, world)
        try:
            right = self._right(env, world)
        except TORCH_ERRORS as error:
            return f"the right side fails: {error}"
        wide = left if strict else self._left(self._widened(env), WideWorld(self.table))
        soft = isinstance(world, ReferenceWorld) and world.soft
        for name in self.rule.match:
            reason = self._compare(left[name], right[name], wide[name], values, soft, without)
            if reason is not None:
                return reason if len(self.rule.match) == 1 else f"{name}: {reason}"
        return None

    def is_exact(self, values: Mapping[str, Any]) -> bool:
        """Whether both sides have equal bits when every op is rounded once."""
        left, right = self.both_sides(
            values, ReferenceWorld(self.table), ReferenceWorld(self.table)
        )
        return all(
            same_bits(left[name], right[name])
            for name in left
            if isinstance(left[name], torch.Tensor)
        )

    def gradients(self, structure: Structure) -> str | None:
        """Why the gradients of the sides differ at a smooth point, None where they agree."""
        if not self.rule.grad:
            return None
        key = structure.key
        if key not in self._gradients:
            self._gradients[key] = self._gradient_difference(structure)
        return self._gradients[key]

    def both_sides(
        self, values: Mapping[str, Any], left_world: TensorWorld, right_world: TensorWorld
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The roots of both sides, each made in its world."""
        env = self._environment(values)
        return self._left(env, left_world), self._right(env, right_world)

    def _environment(self, values: Mapping[str, Any]) -> dict[str, Any]:
        env = bind_vars(self.rule, values, TensorWorld(self.table), self.table)
        if isinstance(env, Failure):
            raise Rejected(str(env))
        return env

    def _left(self, env: Mapping[str, Any], world: TensorWorld) -> dict[str, Any]:
        try:
            return {
                name: evaluate(expr, env, world, self.table, torch_level=self.torch_level)
                for name, expr in self.rule.match.items()
            }
        except TORCH_ERRORS as error:
            raise Rejected(str(error)) from error

    def _right(self, env: Mapping[str, Any], world: TensorWorld) -> dict[str, Any]:
        scope = dict(env)
        for name, expr in self.rule.lets.items():
            scope[name] = evaluate(expr, scope, world, self.table, torch_level=self.torch_level)
        return {
            name: evaluate(expr, scope, world, self.table, torch_level=self.torch_level)
            for name, expr in self.rule.make.items()
        }

    def _compare(
        self,
        left: Any,
        right: Any,
        wide: Any,
        values: Mapping[str, Any],
        soft: bool,
        without: str | None,
    ) -> str | None:
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            return None if type(left) is type(right) else f"{left!r} becomes {right!r}"
        sides = Sides(
            left,
            right,
            wide,
            left,
            right,
            _scale(values),
            overflow_is_fine="no_overflow" in self.kept(without),
            only_places=_is_huge(values),
        )
        numerics = self.rule.numerics
        kind = numerics.float_class
        if soft and kind in _STRICT and left.dtype is torch.float64:
            kind = "reassociate"
        elif left.shape == right.shape and left.dtype == right.dtype:
            self.floats_seen |= left.is_floating_point() and left.numel() > 0
            self.bits_differ |= not same_bits(left, right)
            self.values_differ |= not same_values(left, right)
        return differs(sides, kind, numerics.rtol, numerics.atol)

    def _widened(self, env: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _widen(value) for name, value in env.items()}

    def _repair(
        self,
        expr: Expr,
        env: Mapping[str, Any],
        values: dict[str, Any],
        filling: Mapping[str, tuple[str, int]],
        assumed: Collection[str],
    ) -> None:
        """Draws elements of tensors again until a comparison on values holds."""
        for name in sorted(names(expr)):
            kind, tensor = self.rule.vars.get(name), values.get(name)
            if not isinstance(kind, TensorType) or not isinstance(tensor, torch.Tensor):
                continue
            good = holds_elementwise(expr, {**env, **values})
            for attempt in range(_ROUNDS):
                if bool(good.all()):
                    return
                seed = filling.get(name, ("", 0))[1] * _ROUNDS + attempt
                style = "positive" if attempt % 2 else "counting"
                fresh = draw_values(tensor.numel(), tensor.dtype, style, seed, assumed)
                fresh = fresh.roll(attempt).view(tensor.shape)
                values[name] = put(values[name], torch.where(good, values[name], fresh))
                good = holds_elementwise(expr, {**env, **values})
            raise Rejected("the assumption could not be met")

    def _gradient_difference(self, structure: Structure) -> str | None:
        filling = {name: (SMOOTH, place) for place, name in enumerate(structure.tensors)}
        env = self._widened(self._environment(self.values(structure, filling)))
        # No gradient to speak of, and some backward kernels divide by the number of elements.
        if any(isinstance(value, torch.Tensor) and not value.numel() for value in env.values()):
            return None
        inputs = self._differentiable(env)
        env.update(inputs)
        world, wanted = WideWorld(self.table), list(inputs.values())
        try:
            roots = self._left(env, world)
            left = _gradients_of(roots, wanted)
        except (Rejected, *TORCH_ERRORS):
            return None
        if left is None or not all(_is_finite(root) for root in roots.values()):
            return None
        try:
            right = _gradients_of(self._right(env, world), wanted)
        except TORCH_ERRORS as error:
            return f"the right side has no gradient: {error}"
        if right is None:
            return "the right side has no gradient"
        return _gradients_differ(left, right)

    def _differentiable(self, env: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Float inputs, made leaves, that the left side can be differentiated in."""
        leaves = {
            name: value.detach().clone().requires_grad_()
            for name, value in env.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        world = WideWorld(self.table)
        try:
            self._left({**env, **leaves}, world)
        except Rejected:
            return {
                name: leaf for name, leaf in leaves.items() if self._takes(env, name, leaf, world)
            }
        return leaves

    def _takes(
        self, env: Mapping[str, Any], name: str, leaf: torch.Tensor, world: WideWorld
    ) -> bool:
        try:
            self._left({**env, name: leaf}, world)
        except Rejected:
            return False
        return True


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


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, list):
        return [_widen(item) for item in value]
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def _scale(values: Mapping[str, Any]) -> float:
    """The size of the inputs: a result of exactly 0 may become a rounding error of that size."""
    sizes = [
        rms(value.double()[value.isfinite()])
        for value in values.values()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    return max(sizes, default=1.0)


def _gradients_differ(left: list[torch.Tensor], right: list[torch.Tensor]) -> str | None:
    scale = max(1.0, *(rms(grad[grad.isfinite()]) for grad in left))
    for grad_left, grad_right in zip(left, right, strict=True):
        finite = grad_left.isfinite()
        if not bool((finite == grad_right.isfinite()).all()):
            return "a gradient is finite on one side only"
        error = rms((grad_left - grad_right)[finite])
        if error > _CLOSE * scale:
            return f"gradients are {error:.3g} apart"
    return None


def _is_finite(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or bool(value.detach().isfinite().all())


def _is_huge(values: Mapping[str, Any]) -> bool:
    """Whether an input holds numbers whose products overflow."""
    return any(
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.numel() > 0
        and float(value.nan_to_num(0, 0, 0).abs().max()) > torch.finfo(value.dtype).max ** 0.6
        for value in values.values()
    )


def _gradients_of(
    roots: Mapping[str, Any], inputs: list[torch.Tensor]
) -> list[torch.Tensor] | None:
    """Gradients of a fixed mix of all results; None where nothing can be differentiated."""
    total: Any = None
    for root in roots.values():
        if isinstance(root, torch.Tensor) and root.requires_grad and root.is_floating_point():
            weights = torch.cos(torch.arange(root.numel(), dtype=root.dtype)).view(root.shape)
            part = (root * weights).sum()
            total = part if total is None else total + part
    if total is None:
        return None
    if not inputs:
        return None
    grads = torch.autograd.grad(total, inputs, allow_unused=True)
    return [
        torch.zeros_like(value) if grad is None else grad
        for value, grad in zip(inputs, grads, strict=True)
    ]
