"""Plans that are wrong are told from plans that are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from eqsat.lowering.placement import order_problems, placement_problems
from eqsat.lowering.plan import MemoryPlan, plan

SIZES = {"t": 64, "u": 64}


@dataclass(frozen=True)
class Fixed(MemoryPlan):
    """A plan with given offsets."""

    offsets: Mapping[str, int] | None = None

    def assign(self, sizes_in_bytes: Mapping[str, int]) -> tuple[dict[str, int], int]:
        return dict(self.offsets or {}), 128


def program(m: Any) -> Any:
    """u = t[::-1] * 2, so that t and u are alive together."""
    x = m.input("x", (16,))
    t = m.pointwise("t", (16,), lambda i: m.load(x, i))
    u = m.pointwise("u", (16,), lambda i: m.op("neg", m.load(t, i * -1 + 15)))
    return m.program(m.pointwise("out", (16,), lambda i: m.load(u, i), "output"))


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ({"t": 0, "u": 64}, None),
        ({"t": 0, "u": 0}, "share bytes at u"),
        ({"t": 0, "u": 32}, "is not aligned"),
        ({"t": 0, "u": 128}, "beyond the arena's 128"),
        ({"t": 0}, "u is given no place"),
    ],
)
def test_offsets(maker: Any, offsets: dict[str, int], text: str | None) -> None:
    made = program(maker)
    fixed = Fixed((), {}, offsets=offsets)
    found = placement_problems(made, fixed, SIZES)
    assert found == [] if text is None else any(text in problem for problem in found), found


def test_a_takeover_needs_a_nest_and_the_same_place(maker: Any) -> None:
    m = maker
    made = program(m)
    found = placement_problems(made, Fixed((), {"u": "t"}, offsets={"t": 0, "u": 0}), SIZES)
    assert found == []  # whether the elements agree is the plan's business
    m.steps.clear()
    m.extern("t", torch.ops.aten.neg.default, [m.buffers["x"]], m.buffers["t"])
    m.extern("u", torch.ops.aten.neg.default, [m.buffers["t"]], m.buffers["u"])
    called = m.program(m.buffers["u"])
    found = placement_problems(called, Fixed((), {"u": "t"}, offsets={"t": 0, "u": 0}), SIZES)
    assert any("which is no nest" in problem for problem in found)


def test_the_plan_is_right(maker: Any) -> None:
    made = program(maker)
    assert placement_problems(made, plan(made), SIZES) == []


def test_swapped_steps_are_seen(maker: Any) -> None:
    steps = program(maker).steps
    assert list(order_problems(steps, steps)) == []
    swapped = (steps[1], steps[0], steps[2])
    assert list(order_problems(steps, swapped)) == ["u runs before t: they share t"]
    assert list(order_problems(steps, steps[:2])) == ["the steps are not the same"]


def test_calls_in_order_stay_in_order(maker: Any) -> None:
    m = maker
    x = m.input("x", (4,))
    for name in ("one", "two"):
        m.extern(name, torch.ops.aten.bernoulli.default, [x], m.buffer(name, (4,)), ordered=True)
    steps = m.program().steps
    assert list(order_problems(steps, steps[::-1])) == [
        "two runs before one: they are calls in order"
    ]
    free = [replace(step, ordered=False) for step in steps]
    assert list(order_problems(free, free[::-1])) == []
