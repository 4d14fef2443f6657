"""Hand-built loop programs for tests of fusion, planning and simplification. Whatever a test
compiles is checked after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from eqsat.engine.load import RULES, load_book
from eqsat.engine.rule import FuseRule
from eqsat.lowering.index import Axis, Index, as_index, row_major
from eqsat.lowering.loops import (
    Buffer,
    Builder,
    Extern,
    Nest,
    Program,
    Scalar,
    Step,
    Store,
    View,
)
from eqsat.tests.verifying import verified


@pytest.fixture(autouse=True)
def _verified() -> Iterator[None]:
    with verified():
        yield


class Maker:
    """Collects buffers and steps. Values are written as functions of the loop indices."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.inputs: list[str] = []

    def buffer(
        self, name: str, shape: Sequence[Any], role: str = "temp", dtype: str = "f32", **more: Any
    ) -> Buffer:
        shape = tuple(shape)
        stride = more.pop("stride", row_major(shape))
        self.buffers[name] = Buffer(name, dtype, shape, stride, role, **more)
        return self.buffers[name]

    def input(self, name: str, shape: Sequence[Any], **more: Any) -> Buffer:
        self.inputs.append(name)
        return self.buffer(name, shape, "input", **more)

    def load(self, buffer: Buffer, *index: Index) -> Scalar:
        return self.builder.load(buffer, index)

    def op(self, name: str, *args: Scalar, dtype: str | None = None) -> Scalar:
        return self.builder.make(name, args, dtype or args[0].dtype)

    def masked(
        self, buffer: Buffer, index: tuple[Index, ...], mask: Scalar, other: float
    ) -> Scalar:
        args = (mask, self.builder.const(other, buffer.dtype))
        return self.builder.make("load", args, buffer.dtype, buffer=buffer.name, index=index)

    def nest(
        self,
        name: str,
        sizes: Sequence[Any],
        rsizes: Sequence[Any],
        stores: Callable[..., Sequence[Store]],
    ) -> None:
        """`stores` gets one index per axis, then one per reduced axis."""
        axes = tuple(Axis(f"{name}_a{n}", size) for n, size in enumerate(sizes))
        raxes = tuple(Axis(f"{name}_r{n}", size) for n, size in enumerate(rsizes))
        made = tuple(stores(*map(as_index, (*axes, *raxes))))
        self.steps.append(Nest(name, axes, raxes, made, (name,)))

    def pointwise(
        self,
        name: str,
        shape: Sequence[Any],
        value: Callable[..., Scalar],
        role: str = "temp",
        dtype: str = "f32",
    ) -> Buffer:
        """A buffer `name` with `value` at each point."""
        out = self.buffer(name, shape, role, dtype)
        self.nest(name, shape, (), lambda *at: [Store(name, at, value(*at))])
        return out

    def reduction(
        self,
        name: str,
        sizes: Sequence[Any],
        rsizes: Sequence[Any],
        kind: str,
        value: Callable[..., Scalar],
        role: str = "temp",
        dtype: str = "f32",
    ) -> Buffer:
        """A buffer `name` over `sizes` that reduces `value` over `rsizes`."""
        out = self.buffer(name, sizes, role, dtype)
        rows = len(tuple(sizes))

        def stores(*at: Index) -> list[Store]:
            made = self.builder.make("reduce", (value(*at),), dtype, value=kind)
            return [Store(name, at[:rows], made)]

        self.nest(name, sizes, rsizes, stores)
        return out

    def extern(
        self, name: str, target: Any, reads: Sequence[Buffer], out: Buffer | None, **more: Any
    ) -> None:
        args = tuple(self.view(buffer) for buffer in reads)
        outs = (out.name,) if out is not None else (None,)
        self.steps.append(Extern(name, target, args, {}, outs, **more))

    def view(self, buffer: Buffer) -> View:
        return View(buffer.name, buffer.shape, buffer.stride)

    def program(self, *outputs: Buffer) -> Program:
        return Program(
            tuple(self.inputs),
            self.buffers,
            tuple(self.steps),
            tuple(self.view(buffer) for buffer in outputs),
        )


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture(scope="session")
def fusion_rules() -> tuple[FuseRule, ...]:
    """The built-in fusion rules alone."""
    return load_book([RULES / "fusion"]).fuse
