"""Loop nests written by hand, with the tensors they run on, and kernels compiled from them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import sympy
import torch

from eqsat.codegen.build import Unit, build_library
from eqsat.codegen.cpp import KernelText
from eqsat.codegen.flags import compile_flags
from eqsat.engine.load import load_book
from eqsat.engine.rule import ScalarEntry
from eqsat.lowering.index import Axis, as_index
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Buffer, Builder, Nest, Program, Scalar, SizeValue, Store

RULES = Path(__file__).parents[2] / "rules" / "scalar"
WORDS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
INF = float("inf")
NAN = float("nan")


@dataclass
class Draft:
    """A nest under construction, with the tensors it runs on."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    builder: Builder = field(default_factory=Builder)
    axes: tuple[Axis, ...] = ()
    raxes: tuple[Axis, ...] = ()
    symbols: dict[str, int] = field(default_factory=dict)
    tolerance: float = 0.0

    def tensor(self, name: str, tensor: torch.Tensor, shape: Any = None, stride: Any = None) -> str:
        self.tensors[name] = tensor
        word = WORDS[tensor.dtype]
        shape = tuple(tensor.shape) if shape is None else shape
        stride = tuple(tensor.stride()) if stride is None else stride
        self.buffers[name] = Buffer(name, word, shape, stride, "input")
        return name

    def over(self, *sizes: Any, reduce: int = 0) -> list[Axis]:
        """Axes of these sizes; the last `reduce` of them are reduced."""
        count = len(sizes) - reduce
        axes = [Axis(f"{'p' if i < count else 'r'}{i}", size) for i, size in enumerate(sizes)]
        self.axes, self.raxes = tuple(axes[:count]), tuple(axes[count:])
        return axes

    def load(self, name: str, *index: Any) -> Scalar:
        return self.builder.load(self.buffers[name], tuple(map(as_index, index)))

    def make(self, op: str, *args: Scalar, dtype: str = "f32", value: Any = None) -> Scalar:
        return self.builder.make(op, args, dtype, value=value)

    def reduce(self, kind: str, x: Scalar, dtype: str | None = None) -> Scalar:
        return self.make("reduce", x, dtype=dtype or x.dtype, value=kind)

    def const(self, value: Any, dtype: str = "f32") -> Scalar:
        return self.builder.const(value, dtype)

    def position(self, index: Any) -> Scalar:
        return self.builder.make("index", (), "i64", index=(as_index(index),))

    def masked(self, name: str, mask: Scalar, other: Scalar, *index: Any) -> Scalar:
        dtype = self.buffers[name].dtype
        places = tuple(map(as_index, index))
        return self.builder.make("load", (mask, other), dtype, buffer=name, index=places)

    def store(self, name: str, *index: Any, value: Scalar, mode: str = "set") -> None:
        self.stores.append(Store(name, tuple(map(as_index, index)), value, mode))

    @property
    def nest(self) -> Nest:
        return Nest("nest", self.axes, self.raxes, tuple(self.stores))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-9 if dtype != torch.uint8 else 0, 9, shape, generator=generator).to(
            dtype
        )
    return torch.randn(shape, generator=generator).to(dtype)


@lru_cache(maxsize=1)
def scalar_table() -> Mapping[str, ScalarEntry]:
    """The entries of rules/scalar by name."""
    return {entry.name: entry for entry in load_book([RULES]).scalars}


def compile_texts(texts: Mapping[str, KernelText]) -> dict[str, Any]:
    """A callable per text, all from one translation unit."""
    body = "".join(text.text.replace("@NAME@", f"k_{name}") for name, text in texts.items())
    source = f'#include "eqsat_math.h"\nextern "C" {{\n{body}}}\n'
    library = ctypes.CDLL(str(build_library([Unit(source, source)], compile_flags())))
    return {name: getattr(library, f"k_{name}") for name in texts}


def call(
    kernel: Any,
    text: KernelText,
    tensors: Mapping[str, torch.Tensor],
    symbols: Mapping[str, int] | None = None,
) -> None:
    """Runs a kernel on the memory of `tensors`."""
    kernel(
        *(ctypes.c_void_p(tensors[buffer].data_ptr()) for buffer in text.args),
        *(ctypes.c_int64((symbols or {})[symbol]) for symbol in text.symbols),
    )


def check(draft: Draft, text: KernelText, kernel: Any) -> None:
    """Fails unless the kernel leaves in every buffer what the interpreter leaves there."""
    expected = {name: tensor.clone() for name, tensor in draft.tensors.items()}
    actual = {name: tensor.clone() for name, tensor in draft.tensors.items()}
    sizes = [SizeValue(sympy.Symbol(s, integer=True, positive=True)) for s in draft.symbols]
    program = Program((*expected, *sizes), draft.buffers, (draft.nest,), ())
    interpret(program, [*expected.values(), *draft.symbols.values()])
    call(kernel, text, actual, draft.symbols)
    for name, wanted in expected.items():
        torch.testing.assert_close(
            actual[name], wanted, rtol=draft.tolerance, atol=draft.tolerance, equal_nan=True
        )
