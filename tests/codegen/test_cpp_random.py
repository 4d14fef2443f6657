"""Random nests (shapes, memory orders, reductions, dtypes, symbols) against the interpreter."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import pytest
import sympy
import torch

from eqsat.codegen.cpp import KernelText, emit_nest
from eqsat.lowering.index import Axis, as_index, row_major
from eqsat.lowering.loops import Scalar
from eqsat.tests.codegen.drafts import INF, NAN, WORDS, Draft, check, compile_texts, scalar_table

COUNT = 24
SIZES = (1, 2, 3, 5, 17, 33, 64, 70, 130, 300, 1025)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.float16)
TYPES = {word: dtype for dtype, word in WORDS.items()}


class RandomNest:
    """One draft; `draft.axes` and `draft.raxes` are set, everything else drawn."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.draft = Draft()
        self.dtype = self.random.choice(DTYPES)
        wide = {"f16": "f32", "bf16": "f32"}
        self.word = wide.get(WORDS[self.dtype], WORDS[self.dtype])
        self.draft.tolerance = {"f32": 1e-4, "f64": 1e-9, "i64": 0.0}[self.word]
        if self.dtype in (torch.float16, torch.bfloat16):
            self.draft.tolerance = 3e-2
        self.sizes = self._axes()
        value = self._inputs()
        if self.draft.raxes:
            for place in range(self.random.randint(1, 3)):
                value = self._reduce(place, value)
        else:
            self._output("o", value, list(self.sizes), self.dtype)

    def _axes(self) -> dict[Axis, int]:
        draw = self.random
        sizes = [draw.choice(SIZES) for _ in range(draw.randint(1, 4))]
        while prod(sizes) > 200_000:
            sizes[draw.randrange(len(sizes))] = 2
        if draw.random() < 0.1:
            sizes[draw.randrange(len(sizes))] = 0
        axes: dict[Axis, int] = {}
        symbolic = draw.random() < 0.3
        for place, size in enumerate(sizes):
            shown: Any = size
            if symbolic and size > 1 and draw.random() < 0.6:
                self.draft.symbols[f"z{place}"] = size
                shown = sympy.Symbol(f"z{place}", integer=True, positive=True)
            axes[Axis(f"a{place}", shown)] = size
        reduced = [axis for axis in axes if draw.random() < 0.45] if draw.random() < 0.8 else []
        self.draft.raxes = tuple(reduced)
        self.draft.axes = tuple(axis for axis in axes if axis not in reduced)
        return axes

    def _place(self, name: str, axes: list[Axis], values: torch.Tensor) -> tuple[Any, ...]:
        """A buffer over `axes` in a random memory order; gives the index that walks it."""
        order = axes[:]
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        tensor = values.reshape([self.sizes[axis] for axis in order])
        shape = tuple(axis.size for axis in order)
        self.draft.tensor(name, tensor, shape, row_major(shape))
        return tuple(as_index(axis) for axis in order)

    def _input(self, name: str, axes: list[Axis]) -> Scalar:
        count = prod(self.sizes[axis] for axis in axes)
        values = torch.randn(count, generator=self.torch)
        if self.dtype.is_floating_point and count > 3 and self.random.random() < 0.3:
            values[self.random.randrange(count)] = NAN
            values[self.random.randrange(count)] = INF
        scale = 1 if self.dtype.is_floating_point else 5
        index = self._place(name, axes, (values * scale).to(self.dtype))
        return self.draft.builder.cast(self.draft.load(name, *index), self.word)

    def _inputs(self) -> Scalar:
        value = self._input("x", list(self.sizes))
        for place in range(self.random.randint(0, 2)):
            kept = [axis for axis in self.sizes if self.random.random() < 0.8]
            other = self._input(f"y{place}", kept)
            op = self.random.choice(["add", "mul", "maximum", "sub"])
            value = self.draft.make(op, value, other, dtype=self.word)
        return value

    def _output(self, name: str, value: Scalar, axes: list[Axis], dtype: torch.dtype) -> None:
        zeros = torch.zeros(prod(self.sizes[axis] for axis in axes), dtype=dtype)
        index = self._place(name, axes, zeros)
        self.draft.store(name, *index, value=self.draft.builder.cast(value, WORDS[dtype]))

    def _reduce(self, place: int, value: Scalar) -> Scalar:
        """Stores a reduction of `value`; gives what the next one reduces."""
        draft, draw = self.draft, self.random
        kind = draw.choice(["sum", "sum", "max", "min", "argmax", "argmin", "any"])
        if kind.startswith("arg") and 0 in self.sizes.values():
            kind = "sum"  # there is no first place among none
        if kind == "any":
            zero = draft.const(0, self.word)
            value_of = draft.make("gt", value, zero, dtype="bool")
            result = draft.reduce("any", value_of)
        else:
            result = draft.reduce(kind, value, "i64" if kind.startswith("arg") else self.word)
        self._output(f"o{place}", result, list(draft.axes), TYPES[result.dtype])
        if result.dtype != self.word or draw.random() < 0.4:
            return value
        moved = draft.make("sub", value, result, dtype=self.word)
        if self.word != "i64":
            limit = draft.const(3.0, self.word)
            moved = draft.make("minimum", moved, limit, dtype=self.word)
            moved = draft.make("exp", moved, dtype=self.word)
        if draw.random() < 0.6:
            self._output(f"p{place}", moved, list(self.sizes), self.dtype)
        return moved


@pytest.fixture(scope="module")
def built() -> list[tuple[Draft, KernelText, Any]]:
    table = scalar_table()
    drafts = {f"n{seed}": RandomNest(seed).draft for seed in range(COUNT)}
    texts = {name: emit_nest(d.nest, d.buffers, table) for name, d in drafts.items()}
    kernels = compile_texts(texts)
    return [(drafts[name], texts[name], kernels[name]) for name in drafts]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_nest(seed: int, built: list[tuple[Draft, KernelText, Any]]) -> None:
    check(*built[seed])
