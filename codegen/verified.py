"""A compiled graph whose first call is checked.

Takes a `CompiledGraph`, its program before fusion, and a plain way to run the graph. The first
call runs in `lockstep` on copies of whatever the graph writes, then as it will run from now on, and
the two must agree. Where they do not, that call and all later ones run plainly, after one
warning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..lowering.dependence import make_node
from ..lowering.externs import UNFILLED, Bounded, Fresh, Placed
from ..lowering.interpret import BadProgram
from ..lowering.loops import Extern, Nest, Program, View
from ..lowering.verify import VerifyError, refuse
from ..lowering.work import laid_out
from .compile import CompiledGraph
from .lockstep import Lockstep

Run = Callable[[list[Any]], list[Any]]
OnFailure = Callable[[VerifyError], None]

_FIRST_CALL = "the first call"
# How much results may differ where calls that round differently led up to them.
_NEAR = 0.02
_FEW = 0.02


class VerifiedGraph:
    """Boxed. `lowered` and `members` as in `Lockstep`. `plain` runs the graph as it was before
    lowering, also boxed; `on_failure` hears of what is wrong, and may raise."""

    def __init__(
        self,
        compiled: CompiledGraph,
        lowered: Program,
        members: Mapping[str, frozenset[str]],
        plain: Run,
        on_failure: OnFailure,
    ) -> None:
        self._boxed_call = True
        self._compiled: Run = compiled
        if compiled.parts is None:
            raise ValueError("the graph was compiled without `verify`")
        self._lockstep = Lockstep(compiled.parts, lowered, members)
        self._plain = plain
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._run: Run = self._first
        self._pending = True

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self._run(inputs)

    def _first(self, inputs: list[Any]) -> list[Any]:
        with self._lock:
            pending, self._pending = self._pending, False
        if not pending:  # another thread checks, or this call is inside the one that is checked
            return self._compiled(inputs)
        with torch.no_grad():
            if _repeatable(self._lockstep.parts.program):
                return self._check(inputs)
            outputs, wrong = self._lockstep.run(inputs)
        inputs.clear()
        self._conclude(wrong)
        return outputs

    def _check(self, inputs: list[Any]) -> list[Any]:
        """Both runs, the first one on copies."""
        copies = _separate(inputs, _written(self._lockstep.parts.program))
        kept = list(inputs)
        wrong: list[str] = []
        expected: list[Any] | None = None
        try:
            with _same_draws():
                expected, wrong = self._lockstep.run(copies)
        except BadProgram as error:  # the compiled graph may refuse these inputs as well
            wrong = [str(error)]
        except Exception:  # an extern that refuses them does so again
            return self._compiled(inputs)
        if wrong:
            self._conclude(wrong)
            return self._plain(inputs)
        outputs = self._compiled(inputs)
        places = [place for place, value in enumerate(copies) if value is not kept[place]]
        pairs = [*zip(outputs, expected or (), strict=True)]
        pairs += [(kept[place], copies[place]) for place in places]
        unfilled = _unfilled(self._lockstep.parts.program)
        filled = [(number, pair) for number, pair in enumerate(pairs) if number not in unfilled]
        self._conclude([text for number, pair in filled for text in _apart(number, *pair)])
        return outputs

    def _conclude(self, wrong: Sequence[str]) -> None:
        self._run = self._plain if wrong else self._compiled
        try:
            refuse(_FIRST_CALL, wrong)
        except VerifyError as error:
            self._on_failure(error)


def _repeatable(program: Program) -> bool:
    """Whether running every extern twice does no harm."""
    return all(isinstance(step, Nest) or _is_aten(step.target) for step in program.steps)


def _is_aten(target: Any) -> bool:
    if isinstance(target, Bounded | Fresh | Placed):
        target = target.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    return target is laid_out


def _written(program: Program) -> set[int]:
    """The places of inputs that the graph writes."""
    names: set[str] = set()
    for step in program.steps:
        names |= make_node(0, step, 0, 0, 0).writes
    return {place for place, name in enumerate(program.inputs) if name in names}


def _unfilled(program: Program) -> set[int]:
    """The places of results that are new memory in which nobody has written anything."""
    made: set[str | None] = set()
    written: set[str] = set()
    for step in program.steps:
        if isinstance(step, Extern) and step.target in UNFILLED:
            made |= set(step.outs)
        else:
            written |= make_node(0, step, 0, 0, 0).writes
    names = made - written
    return {
        place
        for place, view in enumerate(program.outputs)
        if isinstance(view, View) and view.buffer in names
    }


def _separate(inputs: Sequence[Any], written: set[int]) -> list[Any]:
    """`inputs` with copies of the memory that is written, shared as it was."""
    copies: dict[int, torch.UntypedStorage] = {}
    for place in sorted(written):
        memory = inputs[place].untyped_storage()
        copies[memory.data_ptr()] = memory.clone()
    return [_over(value, copies) for value in inputs]


def _over(value: Any, copies: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not copies:
        return value
    memory = copies.get(value.untyped_storage().data_ptr())
    if memory is None:
        return value
    made: torch.Tensor = torch.empty(0, dtype=value.dtype)
    return made.set_(memory, value.storage_offset(), value.shape, value.stride())


@contextmanager
def _same_draws() -> Iterator[None]:
    """What runs inside draws the random numbers that come next, and gives them back."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _apart(number: int, got: Any, wanted: Any) -> list[str]:
    """What differs between two results. Products may have been computed by another library, so
    the two are not compared bit by bit; each kernel has been."""
    if not isinstance(got, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return [] if got == wanted or got is wanted else [f"result {number} is {got}, not {wanted}"]
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return [f"result {number} is {got.dtype} {list(got.shape)}, not {list(wanted.shape)}"]
    if got.layout is not torch.strided or not got.numel():
        return []
    one, other = got.detach(), wanted.detach()
    differ = one != other
    if one.dtype.is_floating_point or one.dtype.is_complex:
        one, other = one.to(torch.complex128), other.to(torch.complex128)
        finite = other.isfinite()
        scale = other[finite].abs().max() if bool(finite.any()) else 0.0
        differ = ~(torch.isclose(one, other, rtol=_NEAR, atol=_NEAR * float(scale), equal_nan=True))
    count = int(differ.sum())
    if count <= _FEW * differ.numel():
        return []
    return [f"result {number} of the entry differs from that of its steps in {count} elements"]
