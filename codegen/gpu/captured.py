"""`mode="reduce-overhead"`: a compiled graph recorded once as a CUDA graph, then replayed.

Takes a boxed callable that runs on one GPU; gives one that replays. Inputs that keep their place
(parameters, what the graph writes) are recorded with their addresses, and recorded anew where one
has moved; others are copied to where the recording reads them. Results are copied out of the
recording's memory, so that they stay what they are however long the caller keeps them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...lowering.loops import Program

Run = Callable[[list[Any]], list[Any]]
Tell = Callable[[str], None]
MOST = 8  # recordings of one graph: sets of sizes and addresses


class Refused(Exception):
    """A call that cannot be recorded, and why."""


def reason_against(program: Program) -> str | None:
    """Why a program cannot be recorded; None where nothing speaks against it."""
    for buffer in program.buffers.values():
        if buffer.device == "cpu":
            return f"{buffer.name} is on the CPU"
    if len({buffer.device for buffer in program.buffers.values()}) != 1:
        return "it runs on more than one device"
    return None


class CapturedGraph:
    """Boxed; safe to call from several threads. `static` are the places of inputs that keep their
    addresses. `tell` hears why a call is not replayed."""

    def __init__(self, run: Run, static: Sequence[int], tell: Tell) -> None:
        self._boxed_call = True
        self._run = run
        self._static = tuple(static)
        self._tell = tell
        self._lock = threading.Lock()
        self._seen: set[Any] = set()
        self._known: dict[Any, _Recording] = {}
        self._refused = False

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the graph. The first call of a kind runs as it is, the second is recorded."""
        if self._refused or torch.cuda.is_current_stream_capturing():
            return self._run(inputs)
        with self._lock:
            key = self._key(inputs)
            recording = self._known.get(key)
            if recording is None and key in self._seen:
                recording = self._record(key, inputs)
            self._seen.add(key)
        if recording is None:
            return self._run(inputs)
        with recording.lock:
            results = recording.replay(inputs)
        inputs.clear()
        return results

    def _key(self, inputs: Sequence[Any]) -> Any:
        """Sizes, addresses of what keeps its place, and the stream: two may run at once."""
        places = [inputs[place].data_ptr() for place in self._static]
        shapes = [x.shape if isinstance(x, torch.Tensor) else x for x in inputs]
        return (torch.cuda.current_stream().cuda_stream, *places, *shapes)

    def _record(self, key: Any, inputs: Sequence[Any]) -> _Recording | None:
        try:
            if len(self._known) >= MOST:
                raise Refused(f"{MOST} recordings of it exist: inputs keep changing")
            recording = self._known[key] = _record(self._run, inputs, frozenset(self._static))
        except (Refused, RuntimeError) as error:
            self._refused = True
            self._tell(str(error).split("\n")[0])
            return None
        return recording


@dataclass(frozen=True)
class _Recording:
    """`fed` are the places of inputs that are copied in, `memory` where to; `results` lie in the
    recording's memory, or in that of the input at the place that `own` names."""

    graph: torch.cuda.CUDAGraph
    fed: tuple[int, ...]
    memory: tuple[torch.Tensor, ...]
    results: tuple[Any, ...]
    own: tuple[int | None, ...]
    lock: threading.Lock

    def replay(self, inputs: Sequence[Any]) -> list[Any]:
        if self.fed:
            torch._foreach_copy_(list(self.memory), [inputs[place] for place in self.fed])
        self.graph.replay()
        copies: dict[int, torch.UntypedStorage] = {}
        return [
            inputs[place] if place is not None else _copied(result, copies)
            for result, place in zip(self.results, self.own, strict=True)
        ]


def _record(run: Run, inputs: Sequence[Any], static: frozenset[int]) -> _Recording:
    """Run once under recording. Raises Refused, and RuntimeError for what CUDA cannot record."""
    tensors = [place for place, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    fed = tuple(place for place in tensors if place not in static)
    memory = tuple(_like(inputs[place]) for place in fed)
    given = list(inputs)
    for at, held in zip(fed, memory, strict=True):
        given[at] = held.copy_(inputs[at])
    graph = torch.cuda.CUDAGraph()
    kept = list(given)
    with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = run(given)
    own = tuple(_place_of(result, kept) for result in results)
    given_memory = {_storage(x) for x in kept if isinstance(x, torch.Tensor)}
    for result, place in zip(results, own, strict=True):
        if place is None and _storage(result) in given_memory:
            raise Refused("a result is a view of an input")
    return _Recording(graph, fed, memory, tuple(results), own, threading.Lock())


def _like(x: torch.Tensor) -> torch.Tensor:
    if x.device.type != "cuda":
        raise Refused("an input is on the CPU")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _place_of(result: Any, inputs: Sequence[Any]) -> int | None:
    return next((place for place, x in enumerate(inputs) if x is result), None)


def _storage(value: Any) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _copied(value: Any, copies: dict[int, torch.UntypedStorage]) -> Any:
    """`value` in memory of its own; results that share memory go on sharing it."""
    if not isinstance(value, torch.Tensor):
        return value
    place = _storage(value)
    if place not in copies:
        copies[place] = value.untyped_storage().clone()  # type: ignore[no-untyped-call]
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    return made.set_(copies[place], value.storage_offset(), value.shape, value.stride())
