"""One function three ways: interpreted loops, compiled C++, and eager; also against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.codegen.compile import compile_program
from eqsat.engine.load import RULES, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import RuleBook
from eqsat.lowering.fuse import fuse
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Program
from eqsat.lowering.lower import lower
from eqsat.lowering.simplify import simplify
from eqsat.lowering.spec import problems

NAN, INF = float("nan"), float("inf")
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


@lru_cache(maxsize=1)
def book() -> RuleBook:
    return load_book([RULES / "ops", RULES / "scalar", RULES / "fusion"])


def lowered(function: Callable[..., Any], args: Sequence[Any], mode: str = "fake") -> Program:
    """The loops of a function, which must be a legal program."""
    graph = make_fx(function, tracing_mode=mode)(*args)
    program = lower(graph, OpTable(book().ops), {one.name: one for one in book().scalars})
    assert problems(program) == []
    return program


def compiled(program: Program) -> Callable[[list[Any]], list[Any]]:
    """The fused program in C++."""
    fused, _ = fuse(program, book().fuse)
    assert problems(fused) == []
    return compile_program(simplify(fused), {one.name: one for one in book().scalars})


def check(
    function: Callable[..., Any], *args: torch.Tensor, mode: str = "fake", externs: int = 0
) -> Program:
    """Fails unless interpreter and C++ give what eager gives: values, dtypes, strides. Where
    eager's floats are finite they must also be as near to float64 as eager's own are."""
    program = lowered(function, args, mode)
    assert sum(isinstance(step, Extern) for step in program.steps) == externs, program.steps
    wanted = _listed(function(*args))
    exact = _exact(function, args)
    for run in (lambda inputs: interpret(program, inputs), compiled(program)):
        got = _listed(run([_copied(arg) for arg in args]))
        for one, want, true in zip(got, wanted, exact, strict=True):
            _same(one, want)
            if true is not None:
                _near(one, want, true)
    return program


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the very strides of `x`."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).clone()
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _same(got: torch.Tensor, want: torch.Tensor) -> None:
    tolerance = TOLERANCE.get(want.dtype, 0)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    if want.numel():
        for size, real, wanted in zip(want.shape, got.stride(), want.stride(), strict=True):
            assert size == 1 or real == wanted, (got.stride(), want.stride())


def _exact(function: Callable[..., Any], args: Sequence[torch.Tensor]) -> list[Any]:
    """Results of the same function on doubles, None for those that are not floats."""
    wide = [arg.double() if arg.is_floating_point() else arg for arg in args]
    return [
        one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else None
        for one in _listed(function(*wide))
    ]


def _near(got: torch.Tensor, want: torch.Tensor, true: torch.Tensor) -> None:
    ulp = torch.finfo(want.dtype).eps
    finite = want.isfinite() & true.isfinite()
    if not bool(finite.any()):
        return
    scale = true[finite].abs().clamp(min=1.0)
    ours = ((got[finite].double() - true[finite]).abs() / scale).max()
    eager = ((want[finite].double() - true[finite]).abs() / scale).max()
    assert ours <= 2 * eager + 4 * ulp, (float(ours), float(eager))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers of both signs."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -9
        return torch.randint(low, 9, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def spoiled(x: torch.Tensor) -> torch.Tensor:
    """`x` with nan, infinities and negative zeros strewn in."""
    flat = x.clone().flatten()
    for value, first, step in ((NAN, 3, 17), (INF, 5, 13), (-INF, 1, 7), (-0.0, 4, 11)):
        flat[first::step] = value
    return flat.reshape(x.shape)
