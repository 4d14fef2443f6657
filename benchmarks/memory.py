"""Peak memory of a call, against eager and Inductor on the same models: docs/memory.md.

    python -m benchmarks.memory [MODEL ...] [--write]

Each backend runs in a fresh process. A peak is the most bytes that torch's CPU allocator has
handed out and not got back at some moment of the call, told by the profiler's records of every
allocation, plus what the compiled graphs hold from one call to the next (arenas, folded weights).
Parameters and inputs are not counted. Of a training step the forward's peak goes up to the loss,
the backward's includes what the forward saved and the gradients of all parameters. What libraries
allocate by themselves (oneDNN, MKL) is seen by nobody. The models are those of
`benchmarks.kernels`. `--write` writes the table into the page.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from .kernels import MODELS

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"
BEGIN, END = "<!-- peaks: begin -->", "<!-- peaks: end -->"
BACKENDS = ("eqsat", "inductor", "eager")
Call = Callable[[], object]


@dataclass(frozen=True)
class Peak:
    """What one call needs. `held` bytes of `peak` stay allocated between calls; `arena` bytes
    are where eqsat's plans put temporaries."""

    kind: str  # inference, forward, backward
    peak: int
    held: int
    arena: int


def highest(changes: Iterable[int]) -> int:
    """The highest level that changes in bytes lead to, from 0."""
    level = most = 0
    for change in changes:
        level += change
        most = max(most, level)
    return most


def changes_of(call: Call) -> tuple[list[int], object]:
    """The bytes that each allocation and each release changed while `call` ran, in order, and
    what it gave."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        result = call()
    kineto = profile.profiler
    assert kineto is not None
    events = [one for one in kineto.kineto_results.events() if one.name() == "[memory]"]
    events.sort(key=lambda one: one.start_ns())
    return [one.nbytes() for one in events], result


def storages() -> dict[int, int]:
    """Bytes by address of the memory behind all tensors that Python knows."""
    gc.collect()
    found: dict[int, int] = {}
    for one in gc.get_objects():
        plain = type(one) in (torch.Tensor, torch.nn.Parameter)
        if plain and one.device.type == "cpu" and one.layout is torch.strided:
            memory = one.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
    return found


def arena_bytes() -> int:
    """Bytes of the memory that the graphs compiled by eqsat share for temporaries."""
    from eqsat.codegen.arenas import ARENAS  # noqa: PLC0415 - each backend in its process

    return ARENAS.idle_bytes()


def held_by(call: Call) -> int:
    """Bytes that are still there after calls, whose results are gone."""
    before = storages()
    for _ in range(2):
        call()
    return sum(size for at, size in storages().items() if at not in before)


def measure(name: str, backend: str) -> list[Peak]:
    """The peaks of a model under one backend; for a fresh process."""
    return [*_inference(name, backend), *_training(name, backend)]


def _inference(name: str, backend: str) -> list[Peak]:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    model = _compiled(module.eval(), backend)
    with torch.no_grad():
        held = held_by(lambda: model(**inputs) is None)
        arena = arena_bytes() if backend == "eqsat" else 0
        changes, _ = changes_of(lambda: model(**inputs))
    return [Peak("inference", held + highest(changes), held, arena)]


def _training(name: str, backend: str) -> list[Peak]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    gc.collect()
    module, inputs = MODELS[name]()
    model = _compiled(module.train(), backend)

    def loss() -> torch.Tensor:
        total: torch.Tensor = model(**inputs).square().mean()
        return total

    def step() -> None:
        loss().backward()  # type: ignore[no-untyped-call]
        module.zero_grad(set_to_none=True)

    held = held_by(step)
    arena = arena_bytes() if backend == "eqsat" else 0
    forward, result = changes_of(loss)
    assert isinstance(result, torch.Tensor)
    backward, _ = changes_of(result.backward)
    saved = sum(forward)
    return [
        Peak("forward", held + highest(forward), held, arena),
        Peak("backward", held + saved + highest(backward), held, arena),
    ]


def _compiled(module: torch.nn.Module, backend: str) -> Callable[..., torch.Tensor]:
    if backend == "eager":
        return module
    options = {"strict": True} if backend == "eqsat" else {}  # no measuring of a fallback
    return torch.compile(module, backend=backend, options=options)


def measured_apart(name: str, backend: str) -> list[Peak]:
    """`measure` in a fresh process. Raises RuntimeError where that fails."""
    command = [sys.executable, "-m", "benchmarks.memory", name, "--measure", backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} with {backend}:\n{done.stderr}")
    return [Peak(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def table(results: Mapping[str, Mapping[str, Sequence[Peak]]]) -> str:
    """The peaks by model and backend, as Markdown."""
    head = (
        "| model | call | MB | held | arenas | Inductor | eager | MB / Inductor | MB / eager |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    rows = [
        _row(name, ours, theirs, eager)
        for name, found in results.items()
        for ours, theirs, eager in zip(*(found[one] for one in BACKENDS), strict=True)
    ]
    return "\n".join((*head, *rows))


def _row(name: str, ours: Peak, theirs: Peak, eager: Peak) -> str:
    sizes = (ours.peak, ours.held, ours.arena, theirs.peak, eager.peak)
    cells = [f"{size / 1e6:.1f}" for size in sizes]
    ratios = [f"{ours.peak / other.peak:.2f}" for other in (theirs, eager)]
    return f"| {' | '.join((name, ours.kind, *cells, *ratios))} |"


def filled(page: str, text: str) -> str:
    """`page` with `text` between its marks. Raises ValueError where it does not have both."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must hold '{BEGIN}' and '{END}'")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--measure", choices=BACKENDS, help="one model, in this process, as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/memory.md")
    arguments = parser.parse_args()
    models = arguments.models or list(MODELS)
    if arguments.measure:
        for name in models:
            print(json.dumps([asdict(one) for one in measure(name, arguments.measure)]))
        return
    results = {name: {one: measured_apart(name, one) for one in BACKENDS} for name in models}
    text = table(results)
    print(text)
    if arguments.write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
