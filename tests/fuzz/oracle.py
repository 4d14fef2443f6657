"""Judges a program: does eqsat do what eager does?

Takes a program; gives a `Verdict`. Bits are compared first. Where floats differ, eager runs
again with noise (`noise.py`), a few times, then many times, and with float64 in place of all
float types. What still differs is held against torch's own `aot_eager` backend, its metadata
functions and its traced graph (`announced.py`): where those differ from eager in the same
things, torch's capture and not eqsat is behind it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import eqsat.backend as roof
from eqsat.config import config
from eqsat.lowering.interpret import interpret

from .announced import announced, traced
from .compare import Complaint, compare
from .noise import Noise
from .outcome import (
    Outcome,
    rounded,
    run_compiled,
    run_eager,
    run_wide,
)
from .programs import Program

FEW, MANY = 4, 40
_LIMIT = 8  # recompiles of one function


@dataclass(frozen=True)
class Verdict:
    """`kind`: "same"; "close" (floats differ by rounding); "torch" (torch's capture differs from
    eager by itself); "invalid" (eager itself does not run it twice alike); "differs"."""

    kind: str
    complaints: tuple[Complaint, ...] = ()

    @property
    def fails(self) -> bool:
        return self.kind == "differs"

    def signature(self) -> frozenset[str]:
        return frozenset(complaint.what for complaint in self.complaints)

    def __str__(self) -> str:
        return "\n".join([self.kind, *map(str, self.complaints)])


def judge(program: Program) -> Verdict:
    """Raises what the text of the program itself raises where it is no Python."""
    eager = run_eager(program)
    if any(isinstance(outcome.error, NameError) for outcome in eager):
        return Verdict("invalid")
    if not program.settings.backward and compare(eager, run_eager(program)):
        return Verdict("invalid")
    ours = run_ours(program)
    if not compare(eager, ours):
        return Verdict("same")
    return _judge_closely(program, eager, ours)


def _judge_closely(program: Program, eager: Sequence[Outcome], ours: Sequence[Outcome]) -> Verdict:
    samples: list[list[Outcome]] = []
    complaints: list[Complaint] = []
    for count in (FEW, MANY):
        while len(samples) < count:
            samples.append(run_eager(program, Noise(len(samples))))
        complaints = compare(eager, ours, samples)
        if not complaints:
            return Verdict("close")
    complaints = _worse_than_eager(program, complaints, eager, ours)
    if not complaints:
        return Verdict("close")
    theirs = run_compiled(program, functools.partial(_compiled, program, "aot_eager", {}))
    inherited = compare(eager, theirs, samples)
    known = {complaint.key() for complaint in inherited}
    known |= {(*place, "") for place in _as_announced(program, ours)}
    left = [one for one in complaints if one.key() not in known]
    return Verdict("differs" if left else "torch", tuple(left or complaints))


def _as_announced(program: Program, ours: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Outputs, and what of them is as torch's metadata functions, or its traced graph, though
    not its kernels, give it."""
    for said in (announced(program), traced(program)):
        for call, (outcome, looks) in enumerate(zip(ours, said, strict=True)):
            for place, (seen, look) in enumerate(zip(outcome.outputs, looks, strict=False)):
                if look is None or not isinstance(seen.value, torch.Tensor):
                    continue
                if seen.stride == look.stride:
                    yield f"call {call}, output {place}", "strides"
                if (tuple(seen.value.shape), seen.value.dtype) == (look.shape, look.dtype):
                    yield f"call {call}, output {place}", "metadata"


def _worse_than_eager(
    program: Program,
    complaints: Sequence[Complaint],
    eager: Sequence[Outcome],
    ours: Sequence[Outcome],
) -> list[Complaint]:
    """Without those about floats that are as near to float64's as eager's are."""
    if not any(complaint.what == "values" for complaint in complaints):
        return list(complaints)
    wide = run_wide(program)
    if any(outcome.error is not None for outcome in wide):
        return list(complaints)
    wide = [rounded(*pair) for pair in zip(wide, eager, strict=True)]
    wrong = {(one.place, one.what) for one in compare(wide, ours, [eager])}
    return [one for one in complaints if one.what != "values" or (one.place, "values") in wrong]


def run_ours(program: Program) -> list[Outcome]:
    options = {"extraction": program.settings.extraction}
    compiled = functools.partial(_compiled, program, "eqsat", options)
    interpreted = program.settings.interpreted
    # Every step is checked; only what is built has a first call to check.
    with (
        config.patch(strict=True, verify=not interpreted),
        _interpreted() if interpreted else contextlib.nullcontext(),
    ):
        return run_compiled(program, compiled)


def _compiled(
    program: Program, backend: str, options: dict[str, Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    more = {"options": options} if options else {}
    dynamic = True if program.settings.dynamic else None
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic, **more)
    return compiled  # type: ignore[no-any-return]


class _Interpreted:
    """Stands in for a compiled graph: no text, no kernels, the loop IR run by torch."""

    kernels, externs, source = (), (), ""

    def __init__(self, program: Any) -> None:
        self._boxed_call = True
        self._program = program

    def __call__(self, inputs: list[Any]) -> list[Any]:
        with torch.no_grad():
            outputs = interpret(self._program, inputs)
        inputs.clear()
        return outputs


@contextlib.contextmanager
def _interpreted() -> Iterator[None]:
    def build(program: Any, *_: Any) -> _Interpreted:
        return _Interpreted(program)

    with mock.patch.object(roof, "compile_program", build):
        yield
