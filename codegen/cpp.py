"""Loop nests as C++ functions.

Takes a `Nest` with its buffers and the scalar entries; gives `KernelText`, a function that
needs `eqsat_math.h` and the flags of `flags.compile_flags`. Equal nests give equal text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..engine.loop_choices import LoopChoices
from ..engine.rule import ScalarEntry
from ..lowering.loops import Buffer, Nest
from .cpp_columns import ColumnWriter
from .cpp_kernel import Kernel
from .cpp_plan import plan_loops
from .cpp_rows import RowWriter


@dataclass(frozen=True)
class KernelText:
    """`text` defines one function named `@NAME@`; it is called with the memory of `args`
    (buffer names), then the values of `symbols` (sympy symbol names) as int64_t."""

    text: str
    args: tuple[str, ...]
    symbols: tuple[str, ...]


def emit_nest(
    nest: Nest,
    buffers: Mapping[str, Buffer],
    scalars: Mapping[str, ScalarEntry],
    loops: LoopChoices | None = None,
) -> KernelText:
    """The C++ function of `nest`. `loops` are those of the target "cpu" unless given.

    Raises MissingScalar for a scalar op without a C++ spelling and UnsupportedSize for a
    symbolic size without one.
    """
    kernel = Kernel(nest, buffers, scalars, loops)
    plan = plan_loops(kernel)
    writer = ColumnWriter(kernel, plan) if plan.shape == "column" else RowWriter(kernel, plan)
    writer.write()
    head = f"void @NAME@({kernel.signature()}) {{"
    text = "\n".join([head, *kernel.lines, "}", ""])
    return KernelText(text, tuple(kernel.arguments), tuple(kernel.symbols))
