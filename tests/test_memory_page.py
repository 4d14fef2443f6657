"""What benchmarks/memory.py measures is what torch allocates; its table goes between two marks."""

from __future__ import annotations

import pytest
import torch

from benchmarks import memory
from benchmarks.memory import Peak

SIZE = 1 << 20


def test_the_highest_level_of_a_run() -> None:
    assert memory.highest([3, -2, 4, -5, 1]) == 5
    assert memory.highest([]) == 0


def test_allocations_are_seen_in_order() -> None:
    def call() -> torch.Tensor:
        first = torch.empty(2 * SIZE, dtype=torch.uint8)
        del first
        second = torch.empty(SIZE, dtype=torch.uint8)
        return second[:1]

    changes, result = memory.changes_of(call)
    large = [change for change in changes if abs(change) >= SIZE]
    assert large == [2 * SIZE, -2 * SIZE, SIZE]
    assert memory.highest(changes) < 3 * SIZE and isinstance(result, torch.Tensor)


def test_what_stays_is_found() -> None:
    kept: list[torch.Tensor] = []

    def call() -> None:
        if not kept:
            kept.append(torch.empty(SIZE, dtype=torch.uint8))
        torch.empty(3 * SIZE, dtype=torch.uint8)

    assert SIZE <= memory.held_by(call) < 2 * SIZE


def test_the_page_holds_a_table_of_every_call() -> None:
    text = memory.PAGE.read_text(encoding="utf-8")
    kinds = ("inference", "forward", "backward")
    assert all(text.count(f"| {name} | {kind} |") == 1 for name in memory.MODELS for kind in kinds)
    one = [Peak(kind, 4_000_000, 2_000_000, 1_000_000) for kind in kinds]
    two = [Peak(kind, 8_000_000, 0, 0) for kind in kinds]
    table = memory.table({"m": {"eqsat": one, "inductor": two, "eager": two}})
    row = "| m | forward | 4.0 | 2.0 | 1.0 | 8.0 | 8.0 | 0.50 | 0.50 |"
    assert row in table.splitlines()
    new = memory.filled(text, table)
    assert row in new and memory.filled(new, table) == new
    assert new.partition(memory.BEGIN)[0] == text.partition(memory.BEGIN)[0]
    with pytest.raises(ValueError, match="must hold"):
        memory.filled("no marks", table)
