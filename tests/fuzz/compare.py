"""Two outcomes of one program against each other.

Takes what eager did, what another run did, and what eager did under noise; gives complaints.
Floats may differ by a multiple of what the noise makes of them; numbers and bools, nans, signs
of zero and everything else only where noise changes them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .outcome import Outcome, Seen

_SPREAD = 6.0  # how many times the largest change that noise made
_FLOOR_ULPS = 4.0


@dataclass(frozen=True)
class Complaint:
    """`place` names a part of the outcome ("output 1"), `what` the property that differs;
    `error` is the kind of error that the other run ended with."""

    place: str
    what: str
    text: str = ""
    error: str = ""

    def key(self) -> tuple[str, str, str]:
        """What says that two runs differ from eager in the same way."""
        return self.place, self.what, self.error

    def __str__(self) -> str:
        return f"{self.place}: {self.what} {self.text}".rstrip()


Samples = Sequence[Sequence[Outcome]]


def compare(
    eager: Sequence[Outcome], other: Sequence[Outcome], samples: Samples = ()
) -> list[Complaint]:
    """Complaints about `other`. Without samples floats must be the very same."""
    found: list[Complaint] = []
    for number, (a, b) in enumerate(zip(eager, other, strict=True)):
        same_call = [sample[number] for sample in samples if sample[number].error is None]
        found += _compare_call(f"call {number}, ", a, b, same_call)
    return found


def _compare_call(
    call: str, eager: Outcome, other: Outcome, samples: Sequence[Outcome]
) -> Iterator[Complaint]:
    if (eager.error is None) != (other.error is None) or type(eager.error) is not type(other.error):
        text = f"{_told(eager.error)} in eager, but {_told(other.error)}"
        yield Complaint(f"{call}call", "error", text, type(other.error).__name__)
    if eager.error is not None or other.error is not None:
        return
    for place, pair in enumerate(zip(eager.outputs, other.outputs, strict=True)):
        noisy = [sample.outputs[place].value for sample in samples]
        yield from _compare_seen(f"{call}output {place}", *pair, noisy)
    for place, (mine, theirs) in enumerate(zip(eager.relations, other.relations, strict=True)):
        if mine != theirs:
            yield Complaint(f"{call}output {place}", "aliasing", f"{mine} != {theirs}")
    for place, pair in enumerate(zip(eager.inputs, other.inputs, strict=True)):
        noisy = [sample.inputs[place].value for sample in samples]
        yield from _compare_seen(f"{call}input {place}", *pair, noisy)
    for place, (one, two) in enumerate(zip(eager.gradients, other.gradients, strict=True)):
        noisy = [sample.gradients[place] for sample in samples]
        yield from _compare_gradients(f"{call}gradient {place}", one, two, noisy)
    if not torch.equal(eager.generator, other.generator):  # type: ignore[arg-type]
        yield Complaint(f"{call}call", "generator")


def _compare_gradients(place: str, eager: Any, other: Any, noisy: Sequence[Any]) -> Any:
    if (eager is None) != (other is None):
        yield Complaint(place, "presence", f"{eager is not None} != {other is not None}")
    elif eager is not None:
        yield from _compare_seen(place, Seen(eager), Seen(other), noisy)


def _compare_seen(
    place: str, eager: Seen, other: Seen, noisy: Sequence[Any]
) -> Iterator[Complaint]:
    a, b = eager.value, other.value
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        if type(a) is not type(b) or (a != b and a == a):
            yield Complaint(place, "value", f"{a!r} != {b!r}")
        return
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        yield Complaint(
            place, "metadata", f"{a.dtype} {tuple(a.shape)} != {b.dtype} {tuple(b.shape)}"
        )
        return
    strides = zip(a.shape, eager.stride, other.stride, strict=False)
    if a.numel() and any(size > 1 and one != two for size, one, two in strides):
        yield Complaint(place, "strides", f"{a.shape}: {eager.stride} != {other.stride}")
    if eager.requires_grad != other.requires_grad:
        yield Complaint(place, "requires_grad", f"{eager.requires_grad} != {other.requires_grad}")
    wrong = wrong_elements(a, b, [value for value in noisy if _alike(value, a)])
    if wrong.any():
        at = wrong.reshape(-1).nonzero()[0].item()
        one, two = a.reshape(-1)[at].item(), b.reshape(-1)[at].item()
        text = f"{int(wrong.sum())} of {a.numel()} ({a.dtype}), first at {at}: {one} != {two}"
        yield Complaint(place, "values", text)


def _alike(value: Any, like: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == like.shape


def wrong_elements(
    eager: torch.Tensor, other: torch.Tensor, samples: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Which elements of `other` eager could not have given; `samples` are those of noisy runs."""
    if not eager.is_floating_point():
        varies = torch.zeros_like(eager, dtype=torch.bool)
        for sample in samples:
            varies |= sample != eager
        return (eager != other) & ~varies
    a, b = eager.double(), other.double()
    apart = _distance(a, b)
    if not samples:
        return (apart > 0) | (_zeros_differ(a, b))
    spread = torch.zeros_like(a)
    signs_vary = torch.zeros_like(a, dtype=torch.bool)
    for sample in samples:
        there = sample.double()
        spread = torch.maximum(spread, _distance(a, there))
        signs_vary |= _zeros_differ(a, there) | (there != 0)
    floor = a.abs().nan_to_num(posinf=0) * torch.finfo(eager.dtype).eps * _FLOOR_ULPS
    return (apart > _SPREAD * spread + floor) | (_zeros_differ(a, b) & ~signs_vary)


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far apart; 0 for two nans or equal infinities, infinite for one."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf))


def _zeros_differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == 0) & (b == 0) & (a.signbit() != b.signbit())


def _told(error: BaseException | None) -> str:
    if error is None:
        return "no error"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
