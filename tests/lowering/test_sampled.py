"""Places computed in floats that turn out to be plain arithmetic, as upsampling has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eqsat.lowering.dead import without_dead
from eqsat.lowering.fuse import fuse
from eqsat.lowering.loops import Nest, gathered, scalars
from eqsat.lowering.simplify import simplify
from eqsat.tests.lowering.compared import book, check, lowered, random

aten = torch.ops.aten


def sampled(x: torch.Tensor, high: int, wide: int, scale: float, shift: float = 0.0) -> Any:
    rows = ((torch.arange(high, dtype=torch.float32) + shift) * scale).to(torch.int64)
    columns = ((torch.arange(wide, dtype=torch.float32) + shift) * scale).to(torch.int64)
    return aten._unsafe_index(x, [None, None, rows[:, None], columns])


def nests(function: Any, *args: torch.Tensor) -> list[Nest]:
    program, _ = fuse(without_dead(lowered(function, args)), book().fuse)
    return [step for step in simplify(without_dead(program)).steps if isinstance(step, Nest)]


def gathers(found: list[Nest]) -> int:
    return sum(bool(gathered(s.index)) for nest in found for s in scalars(nest) if s.op == "load")


@pytest.mark.parametrize("count", [2, 3, 4])
def test_repeated_neighbours_are_stored_by_one_point(count: int) -> None:
    def enlarged(x: torch.Tensor) -> Any:
        return sampled(x, 5 * count, 40 * count, 1 / count)

    x = random(2, 3, 5, 40)
    check(enlarged, x)
    (found,) = nests(enlarged, x)
    assert gathers([found]) == 0 and len(found.stores) == count


def test_skipped_neighbours_are_strides() -> None:
    def halved(x: torch.Tensor) -> Any:
        return sampled(x, 4, 20, 2.0).relu(), sampled(x, 4, 20, 2.0, 0.5)

    x = random(2, 3, 9, 41)
    check(halved, x)
    assert gathers(nests(halved, x)) == 0


def test_other_places_stay_gathered() -> None:
    def uneven(x: torch.Tensor) -> Any:
        return sampled(x, 11, 57, 1 / 1.3)

    x = random(2, 3, 9, 44)
    check(uneven, x)
    assert gathers(nests(uneven, x)) == 1


def test_what_is_read_beside_is_read_at_its_own_place() -> None:
    def joined(x: torch.Tensor, skip: torch.Tensor) -> Any:
        return (sampled(x.exp(), 10, 80, 0.5) + skip).relu()

    x, skip = random(2, 3, 5, 40), random(2, 3, 10, 80)
    check(joined, x, skip)
    check(joined, x, random(2, 3, 80, 10).transpose(2, 3))
    check(joined, x.to(memory_format=torch.channels_last), skip)


def test_symbolic_sizes_stay_gathered() -> None:
    def enlarged(x: torch.Tensor) -> Any:
        size = x.shape[3] * 2
        columns = (torch.arange(size, dtype=torch.float32) * 0.5).to(torch.int64)
        return aten._unsafe_index(x, [None, None, None, columns])

    check(enlarged, random(2, 3, 5, 40), mode="symbolic")
