"""Which nests share a GPU kernel."""

from __future__ import annotations

import torch

from eqsat.codegen.gpu.kernels import emit_kernels
from eqsat.lowering.loops import Buffer, Nest
from eqsat.tests.codegen.drafts import Draft, random, scalar_table


def copy(source: str, result: str, dtype: torch.dtype) -> tuple[Nest, dict[str, Buffer]]:
    d = Draft()
    x = random(64, dtype=dtype)
    d.tensor(source, x), d.tensor(result, torch.empty_like(x))
    (i,) = d.over(64)
    d.store(result, i, value=d.load(source, i))
    return d.nest, d.buffers


def test_equal_text_with_other_types_is_another_kernel() -> None:
    nests, buffers = [], {}
    for at, dtype in enumerate((torch.float32, torch.int64, torch.float32)):
        nest, more = copy(f"x{at}", f"y{at}", dtype)
        nests.append(nest)
        buffers |= more
    kernels, uses = emit_kernels(nests, buffers, scalar_table())
    assert [use.kernel for use in uses] == [0, 1, 0]
    assert kernels[0][1].text == kernels[1][1].text and kernels[0][0].uses == 2
    assert kernels[0][0].name != kernels[1][0].name
    assert uses[2].buffers == ("x2", "y2")
