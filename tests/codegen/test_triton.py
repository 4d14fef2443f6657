"""Triton kernels against the loop IR interpreter, on the nests that the C++ kernels are tested
with. Triton's own interpreter runs them, so no GPU is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sympy
import torch

from eqsat.codegen.gpu.emit import emit_nest
from eqsat.engine.block_choices import BlockChoices
from eqsat.engine.target import load_target
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Program, SizeValue
from eqsat.tests.codegen import test_cpp, test_scan_kernels, triton_interpreter
from eqsat.tests.codegen.drafts import Draft, scalar_table
from eqsat.tests.codegen.test_cpp_random import RandomNest

CASES = {**test_cpp.CASES, **test_scan_kernels.CASES}
# Large blocks, as the interpreter takes long per program; and small ones, so that rows are walked.
FEW = replace(load_target("h200").blocks, programs=4)
WIDE = replace(FEW, flat=65536, least_flat=65536, square=128, tile=8192)
NARROW = replace(FEW, row=1, least_row=32, columns=8, step=512, tile=4096)


def check(draft: Draft, choices: BlockChoices, folder: Path) -> None:
    """Fails unless the kernel leaves in every buffer what the interpreter leaves there."""
    expected = {name: tensor.clone() for name, tensor in draft.tensors.items()}
    actual = {name: tensor.clone() for name, tensor in draft.tensors.items()}
    sizes = [SizeValue(sympy.Symbol(s, integer=True, positive=True)) for s in draft.symbols]
    program = Program((*expected, *sizes), draft.buffers, (draft.nest,), ())
    interpret(program, [*expected.values(), *draft.symbols.values()])
    text = emit_nest(draft.nest, draft.buffers, scalar_table(), choices)
    triton_interpreter.call(triton_interpreter.load(text, folder), text, actual, draft.symbols)
    tolerance = max(draft.tolerance, 1e-4) if draft.tolerance else 0.0
    for name, wanted in expected.items():
        torch.testing.assert_close(
            actual[name], wanted, rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("choices", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_the_loops(name: str, choices: BlockChoices, tmp_path: Path) -> None:
    check(CASES[name](), choices, tmp_path)


@pytest.mark.parametrize("choices", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("seed", range(10))
def test_random_nest(seed: int, choices: BlockChoices, tmp_path: Path) -> None:
    check(RandomNest(seed).draft, choices, tmp_path)
