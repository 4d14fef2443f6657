"""Fusion of random programs never changes a result, and never spoils one in place."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from eqsat.lowering.fuse import fuse
from eqsat.lowering.index import ZERO, Index, flatten, row_major, unflatten
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Buffer, Nest, Program, Scalar, Store, scalars
from eqsat.lowering.plan import plan
from eqsat.lowering.simplify import simplify

SHAPES = [(4, 6), (4, 6), (24,), (6, 4), (4, 2, 3), (4,), (6,), (8, 3), ()]


class Draw:
    """Random nests over a `Maker`; every value stays small and finite."""

    def __init__(self, maker: Any, seed: int) -> None:
        self.m = maker
        self.random = random.Random(seed)
        self.made: list[Buffer] = [maker.input(f"x{n}", SHAPES[n]) for n in range(3)]
        self.count = 0

    def program(self, steps: int) -> Program:
        kinds = (self.pointwise, self.pointwise, self.reduction, self.pieces, self.call)
        for _ in range(steps):
            self.random.choice(kinds)()
        if self.random.random() < 0.4:
            self.in_place()
        fresh = self.made[3:]
        outs = [*self.random.sample(fresh, k=min(2, len(fresh))), fresh[-1]]
        for out in outs:
            self.m.buffers[out.name] = Buffer(**{**vars(out), "role": "output"})
        inputs = [self.m.buffers[name] for name in self.m.inputs]
        return self.m.program(*outs, *inputs)

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def buffer(self) -> Buffer:
        return self.random.choice(self.made[-6:] if self.random.random() < 0.8 else self.made)

    def element(self, buffer: Buffer, at: tuple[Index, ...], box: tuple[int, ...]) -> Any:
        """Some element of `buffer` for a point of `box`, always inside."""
        count, total = volume(buffer.shape), volume(box)
        if count == total and self.random.random() < 0.8:
            place = flatten(at, row_major(box))
            if self.random.random() < 0.1:
                place = place * -1 + (total - 1)
            return unflatten(place, buffer.shape)
        fitting = list(zip(at, box, strict=True))
        index = []
        for size in buffer.shape:
            same = [part for part, length in fitting if length == size]
            smaller = [(part, length) for part, length in fitting if length < size]
            if same:
                index.append(same[0])
            elif smaller:
                part, length = self.random.choice(smaller)
                index.append(part + self.random.randrange(size - length + 1))
            else:
                index.append(ZERO)
        return tuple(index)

    def value(self, at: tuple[Index, ...], box: tuple[int, ...], reads: list[Buffer]) -> Scalar:
        made = [self.read(buffer, at, box) for buffer in reads]
        found = made[0]
        for other in made[1:]:
            found = self.m.op(self.random.choice(["add", "sub", "maximum"]), found, other)
        if self.random.random() < 0.5:
            found = self.m.op(self.random.choice(["sin", "abs", "neg"]), found)
        return found

    def read(self, buffer: Buffer, at: tuple[Index, ...], box: tuple[int, ...]) -> Scalar:
        index = self.element(buffer, at, box)
        if not at or not buffer.shape or self.random.random() < 0.85:
            return self.m.load(buffer, *index)
        shift = self.random.randrange(1, 3)
        make = self.m.builder.make
        place = make("index", (), "i64", index=(index[0],))
        mask = make("ge", (place, self.m.builder.const(shift, "i64")), "bool")
        return self.m.masked(buffer, (index[0] - shift, *index[1:]), mask, 0.5)

    def pointwise(self) -> None:
        shape = self.random.choice(SHAPES)
        reads = [self.buffer() for _ in range(self.random.randrange(1, 4))]
        self.made.append(
            self.m.pointwise(self.name(), shape, lambda *at: self.value(at, shape, reads))
        )

    def reduction(self) -> None:
        box = self.random.choice([shape for shape in SHAPES if shape])
        cut = self.random.randrange(len(box))
        order = list(range(len(box)))
        if self.random.random() < 0.4:
            self.random.shuffle(order)
        turned = tuple(box[place] for place in order)
        reads = [self.buffer() for _ in range(self.random.randrange(1, 3))]

        def value(*at: Index) -> Scalar:
            straight = tuple(at[order.index(place)] for place in range(len(box)))
            return self.value(straight, box, reads)

        kind = self.random.choice(["max", "min", "sum"])
        self.made.append(self.m.reduction(self.name(), turned[:cut], turned[cut:], kind, value))

    def pieces(self) -> None:
        shape = self.random.choice([shape for shape in SHAPES if shape])
        dim = self.random.randrange(len(shape))
        split = self.random.randrange(1, shape[dim])
        out = self.m.buffer(self.name(), shape)
        for low, high in ((0, split), (split, shape[dim])):
            box = (*shape[:dim], high - low, *shape[dim + 1 :])
            reads = [self.buffer()]

            def stores(*at: Index, low: int = low, box: Any = box, reads: Any = reads) -> Any:
                place = (*at[:dim], at[dim] + low, *at[dim + 1 :])
                return [Store(out.name, place, self.value(at, box, reads))]

            self.m.nest(self.name(), box, (), stores)
        self.made.append(out)

    def call(self) -> None:
        read = self.buffer()
        out = self.m.buffer(self.name(), read.shape, "extern")
        self.m.extern(self.name(), torch.ops.aten.sin.default, [read], out)
        self.made.append(out)

    def in_place(self) -> None:
        target = self.made[self.random.randrange(3)]
        other = self.random.choice([buffer for buffer in self.made if buffer is not target])

        def stores(*at: Index) -> list[Store]:
            loads = [self.m.load(target, *at), self.read(other, at, target.shape)]
            return [Store(target.name, at, self.m.op("add", *loads))]

        self.m.nest(self.name(), target.shape, (), stores)


def volume(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def in_any_order(nest: Nest) -> bool:
    """Whether no point reads what another one writes."""
    places = {store.buffer: store.index for store in nest.stores}
    loads = [scalar for scalar in scalars(nest) if scalar.op == "load"]
    return all(load.index == places.get(load.buffer, load.index) for load in loads)


@pytest.mark.parametrize("worth", [True, False])
@pytest.mark.parametrize("seed", [*range(60), 1505])
def test_random_program(maker: Any, fusion_rules: Any, seed: int, worth: bool) -> None:
    """Results stay right, also where every legal pair joins, whether it pays or not."""
    if not worth:
        legal = [rule for rule in fusion_rules if rule.kind != "avoid"]
        fusion_rules = [replace(rule, worth=()) for rule in legal]
    program = Draw(maker, seed).program(14)
    torch.manual_seed(seed)
    inputs = [torch.randn(program.buffers[str(name)].shape) for name in program.inputs]
    expected = [out.clone() for out in interpret(program, [x.clone() for x in inputs])]
    joined, _ = fuse(program, fusion_rules)
    assert all(in_any_order(step) for step in joined.steps if isinstance(step, Nest))
    cleaned = simplify(joined)
    plan(cleaned)
    for candidate in (joined, cleaned):
        results = interpret(candidate, [x.clone() for x in inputs])
        for got, want in zip(results, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
