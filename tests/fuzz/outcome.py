"""Runs programs and writes down all that a caller can see of it.

Takes a program and a way to compile its function (None: eager); gives an `Outcome` per call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .programs import Program

SEED = 17
Function = Callable[..., Any]


@dataclass(frozen=True)
class Seen:
    """A result, or an input afterwards. `value` is a copy; of an input it is all the memory
    behind it."""

    value: Any
    stride: tuple[int, ...] = ()
    requires_grad: bool = False


@dataclass
class Outcome:
    """What one call did. `relations` holds, per output, which inputs and earlier outputs share
    its memory: ("is", name), or ("shares", name, distance in bytes)."""

    error: BaseException | None = None
    outputs: list[Seen] = field(default_factory=list)
    relations: list[tuple[Any, ...]] = field(default_factory=list)
    inputs: list[Seen] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    generator: torch.Tensor | None = None


def run_eager(program: Program, mode: AbstractContextManager[Any] | None = None) -> list[Outcome]:
    """The outcome of each call, under `mode` where one is given."""
    return _run(program, program.source(), lambda function: function, mode)


def run_wide(program: Program) -> list[Outcome]:
    """The same with float64 in place of every other float type, on the same inputs."""
    function = program.function()
    for name in ("float32", "float16", "bfloat16"):
        function = function.replace(f"torch.{name}", "torch.float64")
    for name in (".float()", ".half()", ".bfloat16()"):
        function = function.replace(name, ".double()")
    source = program.source().replace(program.function(), f"{_WIDE_TENSOR}{function}")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _run(program, source, lambda function: function)
    finally:
        torch.set_default_dtype(before)


# Inputs keep the digits of their own dtype: what is computed in float64 is what eager was given.
_WIDE_TENSOR = """
def tensor(shape, dtype, *rest, narrow_tensor=tensor):
    wide = torch.float64 if dtype.is_floating_point else dtype
    return narrow_tensor(shape, wide, *rest, digits=dtype)


"""


def run_compiled(program: Program, compiled: Callable[[Function], Function]) -> list[Outcome]:
    torch._dynamo.reset()
    return _run(program, program.source(), compiled)


def _run(
    program: Program,
    source: str,
    compiled: Callable[[Function], Function],
    mode: AbstractContextManager[Any] | None = None,
) -> list[Outcome]:
    names = names_of(source)
    function = compiled(names["f"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            _call(function, names["inputs"](*sizes), program, mode or nullcontext())
            for sizes in program.calls
        ]


def _call(
    function: Function, inputs: list[Any], program: Program, mode: AbstractContextManager[Any]
) -> Outcome:
    outcome = Outcome()
    torch.manual_seed(SEED)
    try:
        with mode:
            with getattr(torch, program.settings.grad_mode)():
                results = function(*inputs)
            outcome.relations = _relations(inputs, results)
            if program.settings.backward:
                _backward(results)
    except Exception as error:
        outcome.error = error
        return outcome
    outcome.generator = torch.random.get_rng_state()
    outcome.outputs = [_seen(value) for value in results]
    outcome.inputs = [Seen(_memory(value)) for value in inputs]
    leaves = [value for value in inputs if isinstance(value, torch.Tensor)]
    outcome.gradients = [value.grad for value in leaves if value.is_leaf]
    return outcome


def _seen(value: Any) -> Seen:
    if not isinstance(value, torch.Tensor):
        return Seen(value)
    return Seen(value.detach().clone(), value.stride(), value.requires_grad)


def _memory(value: Any) -> Any:
    """All that an input's storage holds: what lies between its elements must stay."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.detach().untyped_storage()
    return torch.empty(0, dtype=value.dtype).set_(storage).clone()  # type: ignore[call-overload]


def _backward(results: Sequence[Any]) -> None:
    """Gradients of a sum of the outputs, each weighted differently from place to place."""
    tensors = [
        value for value in results if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    distinct = list({id(value): value for value in tensors}.values())
    weights = [_cotangent(value) for value in distinct]
    if distinct:
        torch.autograd.backward(distinct, weights)


def _cotangent(value: torch.Tensor) -> torch.Tensor:
    places = torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)
    return (torch.cos(places * 1.7) + 0.25).to(value.dtype)


def _relations(inputs: Sequence[Any], results: Sequence[Any]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    known = {f"input {k}": value for k, value in enumerate(inputs)}
    for place, value in enumerate(results):
        pairs = ((name, _relation(value, other)) for name, other in known.items())
        found.append(tuple((name, relation) for name, relation in pairs if relation is not None))
        known[f"output {place}"] = value
    return found


def _relation(one: Any, other: Any) -> Any:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    if one is other:
        return "is"
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata
    if not same or not one.numel() or not other.numel():
        return None
    return one.data_ptr() - other.data_ptr()


def names_of(source: str) -> dict[str, Any]:
    """What the text of a program defines."""
    names: dict[str, Any] = {}
    exec(compile(source, "<program>", "exec"), names)
    return names


def rounded(outcome: Outcome, like: Outcome) -> Outcome:
    """`outcome` with the dtypes of another one of the same program."""
    gradients = zip(outcome.gradients, like.gradients, strict=True)
    return replace(
        outcome,
        outputs=list(map(_rounded, outcome.outputs, like.outputs)),
        inputs=list(map(_rounded, outcome.inputs, like.inputs)),
        gradients=[_cast(*pair) for pair in gradients],
    )


def _rounded(seen: Seen, like: Seen) -> Seen:
    return replace(seen, value=_cast(seen.value, like.value))


def _cast(value: Any, like: Any) -> Any:
    both = isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor)
    return value.to(like.dtype) if both else value


def trace_values(program: Program, count: int) -> dict[str, Any] | None:
    """What each variable holds in eager after the first `count` statements of the first call;
    None where they do not run."""
    names = names_of(program.source())
    inputs = names["inputs"](*program.calls[0])
    values = dict(zip((entry.name for entry in program.inputs), inputs, strict=True))
    env = {**names, **values}
    torch.manual_seed(SEED)
    try:
        with warnings.catch_warnings(), getattr(torch, program.settings.grad_mode)():
            warnings.simplefilter("ignore")
            for statement in program.statements[:count]:
                exec(statement.text, env)
    except Exception:
        return None
    return env
