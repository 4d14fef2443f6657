"""Hand-built loop programs for the code generation tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from eqsat.engine.load import builtin_folder, load_book
from eqsat.engine.rule import ScalarEntry
from eqsat.lowering.index import Axis, Size, as_index, row_major
from eqsat.lowering.loops import Buffer, Builder, Nest, Program, Store, View


class Make:
    """Short ways to write buffers, views and pointwise nests."""

    def __init__(self) -> None:
        self.builder = Builder()

    def buffer(
        self,
        name: str,
        *shape: Size,
        role: str = "temp",
        dtype: str = "f32",
        stride: tuple[Size, ...] | None = None,
    ) -> Buffer:
        return Buffer(name, dtype, shape, stride or row_major(shape), role)

    def view(self, buffer: Buffer) -> View:
        return View(buffer.name, buffer.shape, buffer.stride)

    def nest(self, op: str, out: Buffer, left: Buffer, right: Buffer | float) -> Nest:
        """out = left op right, element by element, without broadcasting."""
        axes = tuple(Axis(f"i{d}", size) for d, size in enumerate(out.shape))
        index = tuple(map(as_index, axes))
        first = self.builder.load(left, index)
        second = (
            self.builder.load(right, index)
            if isinstance(right, Buffer)
            else self.builder.const(right, left.dtype)
        )
        value = self.builder.make(op, (first, second), out.dtype)
        name = f"{op}_{out.name}"
        store = Store(out.name, index, value)
        return Nest(name, axes, (), (store,), (name,), (f"rules/demo.yaml:3 {op}",))

    def program(
        self,
        inputs: list,
        buffers: list[Buffer],
        steps: list,
        outputs: list,
        constants: dict | None = None,
    ) -> Program:
        table = {buffer.name: buffer for buffer in buffers}
        return Program(tuple(inputs), table, tuple(steps), tuple(outputs), constants or {})


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep compiled code out of the user's cache."""
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(shared_cache))
    yield shared_cache


@pytest.fixture(scope="session")
def table() -> Mapping[str, ScalarEntry]:
    entries = load_book([builtin_folder() / "scalar"]).scalars
    return {entry.name: entry for entry in entries}
