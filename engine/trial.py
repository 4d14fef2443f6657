"""One example of a rule: both sides computed and compared.

Takes a rule, a structure and a filling of its tensors; gives the reason the sides differ, or
None. Raises `Rejected` for what is no example (the left side does not run).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from .aliases import aliasing_differs
from .binding import Failure, bind_vars
from .compare import Sides, differs, relative_errors, rms, tolerance
from .distribution import distribution_differs
from .draw import TORCH_ERRORS, Structure
from .evaluate import TensorWorld, evaluate
from .fill import SMOOTH
from .luck import Errors, is_luck
from .ops import OpTable
from .reference import LateWorld, ReferenceWorld, WideWorld
from .repair import keep_to
from .rule import Rule

_CLOSE = 1e-8  # how far float64 gradients may be apart, as part of their size
_STRICT = ("exact", "signed_zero")
_ORDERED = (*_STRICT, "fewer_roundings")  # compared under a fixed order of operations
_DRAWN_FROM = 2  # structures whose distributions are tested


class Rejected(Exception):
    """The draw is no example of the rule."""


@dataclass
class Trials:
    """All examples of one rule; what depends on a structure alone is computed once for it."""

    rule: Rule
    table: OpTable
    _gradients: dict[str, str | None] = field(default_factory=dict)
    _aliasing: dict[str, str | None] = field(default_factory=dict)
    _distributions: dict[str, str | None] = field(default_factory=dict)

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
            expr = assumption.expr
            if expr is None or assumption.text == without:
                continue
            if not keep_to(self.rule, expr, env, values, filling, assumed):
                raise Rejected("the assumption could not be met")
        return values

    def run(
        self,
        values: Mapping[str, Any],
        without: str | None = None,
        reordered: list[tuple[str, Sides]] | None = None,
    ) -> str | None:
        """Why the sides differ on these values, None where they agree. Results that are equal
        but for the order of arithmetic are added to `reordered`, with their roots."""
        numerics = self.rule.numerics
        ordered = numerics.float_class in _ORDERED
        world = ReferenceWorld(self.table) if ordered else TensorWorld(self.table)
        env = self._environment(values)
        left = self._left(env, world)
        try:
            right = self._right(env, world)
        except TORCH_ERRORS as error:
            return f"the right side fails: {error}"
        for name, sides in self._pairs(env, left, right, values, world, without).items():
            if isinstance(sides, str):
                reason: str | None = sides
            elif not sides.steady and numerics.float_class in _ORDERED:
                reason = differs(sides, "reassociate")
            else:
                kind = numerics.float_class if sides.is_float else numerics.int_class
                reason = differs(sides, kind, numerics.rtol, numerics.atol)
                errors_of = partial(self._errors_of, name)
                if reason and kind == "reassociate" and is_luck(sides, env, errors_of):
                    reason = None
            if reason is not None:
                return reason if len(self.rule.match) == 1 else f"{name}: {reason}"
            if reordered is not None and numerics.float_class == "reassociate":
                reordered += [(name, sides)] if isinstance(sides, Sides) else []
        return None

    def reference_sides(self, values: Mapping[str, Any], without: str | None = None) -> list[Sides]:
        """All results of both sides, every op rounded once. Raises Rejected."""
        world, env = ReferenceWorld(self.table), self._environment(values)
        left, right = self._left(env, world), self._right(env, world)
        pairs = self._pairs(env, left, right, values, world, without).values()
        return [sides for sides in pairs if isinstance(sides, Sides)]

    def tolerance(self, values: Mapping[str, Any], dtype: torch.dtype) -> float:
        """An absolute difference that results which `run` finds too far apart exceed."""
        return tolerance(self.rule.numerics.float_class, dtype, scale_of(values))

    def aliasing(self, structure: Structure) -> str | None:
        """Why the results of the sides share memory in different ways, where that shows."""
        if not self.torch_level:
            return None
        key = structure.key
        if key not in self._aliasing:
            self._aliasing[key] = self._aliasing_difference(structure)
        return self._aliasing[key]

    def distribution(self, structure: Structure) -> str | None:
        """Why the draws of the sides are distributed differently, for rules that draw."""
        if self.rule.numerics.float_class != "random":
            return None
        key = structure.key
        if key not in self._distributions:
            if len(self._distributions) >= _DRAWN_FROM:
                return None
            self._distributions[key] = self._distribution_difference(structure)
        return self._distributions[key]

    def gradients(self, structure: Structure) -> str | None:
        """Why the gradients of the sides differ at a smooth point, None where they agree."""
        if not self.rule.grad:
            return None
        key = structure.key
        if key not in self._gradients:
            self._gradients[key] = self._gradient_difference(structure)
        return self._gradients[key]

    def left_side(self, values: Mapping[str, Any], world: TensorWorld) -> dict[str, Any]:
        """The roots of the left side, made in a world."""
        return self._left(self._environment(values), world)

    def wide_environment(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the sides are computed of, in float64."""
        return self.widened(self._environment(values))

    def side_of(self, env: Mapping[str, Any], world: TensorWorld) -> dict[str, Any]:
        """The roots of the left side in an environment."""
        return self._left(env, world)

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

    def _pairs(
        self,
        env: Mapping[str, Any],
        left: Mapping[str, Any],
        right: Mapping[str, Any],
        values: Mapping[str, Any],
        world: TensorWorld,
        without: str | None,
    ) -> dict[str, Sides | str]:
        """What to compare per root, or what is wrong with it: a text."""
        known = self.strict
        late = self._late(env, left)
        wide = left if known else self._left(self.widened(env), WideWorld(self.table))
        soft = isinstance(world, ReferenceWorld) and world.soft
        pairs: dict[str, Sides | str] = {}
        for name in self.rule.match:
            one, two = left[name], right[name]
            if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
                pairs[name] = Sides(
                    one,
                    two,
                    wide[name],
                    scale_of(values),
                    overflow_is_fine="no_overflow" in self.kept(without),
                    only_places=_is_huge(values),
                    soft=soft,
                    late=late.get(name),
                )
            elif type(one) is not type(two):
                pairs[name] = f"{one!r} becomes {two!r}"
        return pairs

    def _errors_of(self, name: str, env: Mapping[str, Any]) -> Errors | None:
        """The relative errors of one root in an environment, where it can be computed there."""
        world = TensorWorld(self.table)
        try:
            left, right = self._left(env, world)[name], self._right(env, world)[name]
            wide = self._left(self.widened(env), WideWorld(self.table))[name]
        except (Rejected, *TORCH_ERRORS):
            return None
        return relative_errors(Sides(left, right, wide, scale_of(env)))

    def _late(self, env: Mapping[str, Any], left: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Half results of the right side, rounded no more often than a rule can choose."""
        if self.rule.numerics.float_class != "reassociate":
            return {}
        halves = {
            name: value.dtype
            for name, value in left.items()
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        }
        late: dict[str, torch.Tensor] = {}
        for dtype in dict.fromkeys(halves.values()):
            try:
                results = self._right(self.widened(env), LateWorld(self.table, dtype))
            except TORCH_ERRORS:  # it is for half types alone
                continue
            late |= {name: results[name].to(dtype) for name in halves if halves[name] is dtype}
        return late

    def _aliasing_difference(self, structure: Structure) -> str | None:
        values = self.smooth_values(structure)
        world = TensorWorld(self.table)
        left, right = self.both_sides(values, world, world)
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        for name in self.rule.match:
            reason = aliasing_differs(left[name], right[name], tensors)
            if reason is not None:
                return reason
        return None

    def _distribution_difference(self, structure: Structure) -> str | None:
        env = self._environment(self.smooth_values(structure))
        world = TensorWorld(self.table)
        for name in self.rule.match:
            reason = distribution_differs(
                lambda name=name: self._left(env, world)[name],  # type: ignore[misc]
                lambda name=name: self._right(env, world)[name],  # type: ignore[misc]
                seed=0,
            )
            if reason is not None:
                return reason
        return None

    def smooth_values(self, structure: Structure) -> dict[str, Any]:
        """Values without kinks and specials. Raises Rejected."""
        filling = {name: (SMOOTH, place) for place, name in enumerate(structure.tensors)}
        return self.values(structure, filling)

    def widened(self, env: Mapping[str, Any]) -> dict[str, Any]:
        """The same values in float64, dtypes among the constants included."""
        return {name: _widen(value) for name, value in env.items()}

    def _gradient_difference(self, structure: Structure) -> str | None:
        env = self.widened(self._environment(self.smooth_values(structure)))
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


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, list):
        return [_widen(item) for item in value]
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def scale_of(values: Mapping[str, Any]) -> float:
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
