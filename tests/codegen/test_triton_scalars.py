"""Every entry of rules/scalar in Triton against what torch computes eagerly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eqsat.codegen.gpu.emit import emit_nest
from eqsat.codegen.scalars import pick
from eqsat.engine.target import load_target
from eqsat.tests.codegen import triton_interpreter
from eqsat.tests.codegen.drafts import scalar_table
from eqsat.tests.codegen.test_scalars import (
    CASES,
    arguments,
    compare,
    expected_of,
    nest_of,
)

WIDE = replace(load_target("h200").blocks, flat=4096, least_flat=4096)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_scalar_agrees_with_eager(name: str, dtype: str, tmp_path: Path) -> None:
    entry = scalar_table()[name]
    operands = arguments(entry, dtype)
    expected = expected_of(name, dtype, operands)
    actual = torch.empty_like(expected)
    text = emit_nest(*nest_of(entry, dtype), scalar_table(), WIDE)
    tensors = {f"x{place}": operand for place, operand in enumerate(operands)} | {"o": actual}
    triton_interpreter.call(triton_interpreter.load(text, tmp_path), text, tensors)
    if name == "lerp":  # eager fuses its products on a CPU, ours are those of a GPU
        torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-6, equal_nan=True)
    else:
        compare(actual, expected, entry, dtype)


def test_every_op_has_a_spelling_for_what_it_takes() -> None:
    missing = [
        (entry.name, dtype)
        for entry in scalar_table().values()
        for dtype, kind in (("f32", "float"), ("i64", "int"), ("u8", "int"), ("bool", "any"))
        if any(word in entry.type for word in (kind, "any", "num" if kind != "any" else "any"))
        if pick(entry.cpp, dtype) is not None and pick(entry.triton, dtype) is None
    ]
    assert missing == []
