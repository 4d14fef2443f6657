"""Split reductions against the nests that they come from, in the loop IR interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqsat.codegen.gpu.split import split_nest, split_reductions
from eqsat.engine.target import load_target
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Program, View
from eqsat.tests.codegen.drafts import NAN, Draft, random

LIMITS = replace(load_target("h200").blocks, programs=64, least_piece=8)


def reductions(shape: tuple[int, ...], reduced: tuple[int, ...], kind: str) -> Draft:
    """A reduction of `reduced` dims, twice read: as it is, and plus one."""
    d = Draft(tolerance=1e-5)
    x = random(*shape)
    x[0, 3] = NAN if kind in ("max", "argmin") else 1.0
    x[-1, -1] = x.max()
    kept = [size for dim, size in enumerate(shape) if dim not in reduced]
    result = torch.int64 if kind.startswith("arg") else torch.float32
    d.tensor("x", x), d.tensor("o", torch.empty(kept, dtype=result))
    d.tensor("p", torch.empty(kept, dtype=result))
    order = [*(dim for dim in range(len(shape)) if dim not in reduced), *reduced]
    axes = d.over(*(shape[dim] for dim in order), reduce=len(reduced))
    at = dict(zip(order, axes, strict=True))
    value = d.load("x", *(at[dim] for dim in range(len(shape))))
    word = "i64" if kind.startswith("arg") else "f32"
    found = d.reduce(kind, value, word)
    d.store("o", *axes[: len(kept)], value=found)
    d.store("p", *axes[: len(kept)], value=d.make("add", found, d.const(1, word), dtype=word))
    return d


def run(program: Program, draft: Draft) -> list[torch.Tensor]:
    tensors = [tensor.clone() for tensor in draft.tensors.values()]
    interpret(program, list(tensors))
    return tensors


def program_of(draft: Draft, device: str) -> Program:
    buffers = {name: replace(b, device=device) for name, b in draft.buffers.items()}
    return Program(tuple(buffers), buffers, (draft.nest,), tuple[View, ...]())


@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin", "prod"])
@pytest.mark.parametrize(
    ("shape", "reduced"),
    [((3, 96), (1,)), ((96, 5), (0,)), ((12, 40), (0, 1)), ((4, 6, 80), (1, 2))],
)
def test_same_results(shape: tuple[int, ...], reduced: tuple[int, ...], kind: str) -> None:
    draft = reductions(shape, reduced, kind)
    split = split_reductions(program_of(draft, "cuda:0"), LIMITS)
    assert len(split.steps) == 2
    home = {name: replace(b, device="cpu") for name, b in split.buffers.items()}
    ours = run(replace(split, buffers=home), draft)
    for one, other in zip(ours, run(program_of(draft, "cpu"), draft), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_what_is_left_whole() -> None:
    many = reductions((5000, 96), (1,), "sum")
    assert split_nest(many.nest, many.buffers, LIMITS) is None, "rows enough"
    prime = reductions((3, 97), (1,), "sum")
    assert split_nest(prime.nest, prime.buffers, LIMITS) is None, "no equal pieces"
    short = reductions((3, 8), (1,), "sum")
    assert split_nest(short.nest, short.buffers, LIMITS) is None, "nothing to share"
