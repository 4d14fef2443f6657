"""Kernels and bytes moved per graph, against Inductor on the same models: docs/kernels.md.

    python -m benchmarks.kernels [MODEL ...] [--write]

Nothing is built or run: both compilers go as far as their loop nests after fusion, each in a
fresh process, and what they made is counted in the same way. A kernel is one fused loop nest.
Its bytes are, for each buffer, what its loads touch (never more than the buffer holds) and
what it stores; an axis that an access does not mention counts once. Calls of ATen ops
(products, convolutions) are counted apart and move no bytes here. Random numbers are drawn as
eager draws them. `--write` writes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

from .graphs import UNet
from .models import Built, LastState, encoder
from .resnet import resnet50

PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
_TEXT = (2, 128)  # batch and length
_WORDS = 8000


def gpt2() -> Built:
    config = transformers.GPT2Config(n_layer=2, vocab_size=_WORDS)
    return LastState(transformers.GPT2LMHeadModel(config)), _text(use_cache=False)


def llama() -> Built:
    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=_WORDS,
    )
    return LastState(transformers.LlamaForCausalLM(config)), _text(use_cache=False)


def vit() -> Built:
    config = transformers.ViTConfig(num_hidden_layers=2)
    return LastState(transformers.ViTModel(config)), {"pixel_values": torch.randn(2, 3, 224, 224)}


def _text(**more: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 2000, _TEXT), **more}


MODELS: Mapping[str, Callable[[], Built]] = {
    "BERT": lambda: encoder(2, *_TEXT, width=768),
    "GPT-2": gpt2,
    "Llama": llama,
    "ViT": vit,
    "ResNet-50": lambda: (resnet50(), {"x": torch.randn(2, 3, 160, 160)}),
    "U-Net": lambda: (UNet(width=16), {"x": torch.randn(2, 3, 64, 64)}),
}
BACKENDS = ("eqsat", "inductor")


@dataclass(frozen=True)
class Count:
    """What one graph became."""

    kind: str  # inference, forward, backward
    kernels: int
    calls: int
    bytes: int


class _Counted(Exception):
    """Raised in place of running what was only counted."""


def _stop(*args: Any, **kwargs: Any) -> Any:
    raise _Counted


# Loads and stores of one kernel: buffer, elements touched, whether stored.
Access = tuple[str, int, bool]


def moved(accesses: Iterable[Access], size: Callable[[str], tuple[int, int]]) -> int:
    """Bytes of a kernel's accesses; `size` gives elements and bytes per element of a buffer."""
    touched: dict[tuple[str, bool], int] = defaultdict(int)
    for name, count, stored in accesses:
        touched[name, stored] += count
    total = 0
    for (name, _), count in touched.items():
        elements, item = size(name)
        total += min(count, elements) * item
    return total


# eqsat


def count_program(kind: str, program: Any) -> Count:
    """The count of a fused loop program."""
    from eqsat.engine.dtypes import dtype_of  # noqa: PLC0415 - each compiler in its process
    from eqsat.lowering.domain import estimate, product  # noqa: PLC0415
    from eqsat.lowering.loops import Nest  # noqa: PLC0415

    def size(name: str) -> tuple[int, int]:
        buffer = program.buffers[name]
        return estimate(product(buffer.shape)), dtype_of(buffer.dtype).itemsize

    nests = [step for step in program.steps if isinstance(step, Nest)]
    total = sum(moved(_accesses(nest), size) for nest in nests)
    return Count(kind, len(nests), len(program.steps) - len(nests), total)


def _accesses(nest: Any) -> list[Access]:
    from eqsat.lowering.domain import estimate, points  # noqa: PLC0415
    from eqsat.lowering.loops import scalars  # noqa: PLC0415

    loads = [scalar for scalar in scalars(nest) if scalar.op == "load"]
    places = [(load.buffer, load.index, False) for load in loads]
    places += [(store.buffer, store.index, True) for store in nest.stores]
    return [(name, estimate(points(_axes(index, nest))), stored) for name, index, stored in places]


def _axes(index: Any, nest: Any) -> set[Any]:
    """The axes an index depends on; a gathered one may touch as much as the nest has points."""
    from eqsat.lowering.index import axes_of  # noqa: PLC0415
    from eqsat.lowering.loops import gathered  # noqa: PLC0415

    if gathered(index):
        return {*nest.axes, *nest.raxes}
    return {axis for part in index for axis in axes_of(part)}


def count_eqsat(run: Callable[[], Any]) -> list[Count]:
    """The graphs that `run` compiles with eqsat."""
    import eqsat.backend  # noqa: PLC0415
    from eqsat.reports import recording  # noqa: PLC0415

    found: list[Count] = []
    with recording() as reports:

        def note(program: Any, *_: Any) -> Callable[..., Any]:
            found.append(count_program(reports[-1].kind, program))
            stop = lambda inputs: _stop()  # noqa: E731
            stop._boxed_call = True  # type: ignore[attr-defined]
            stop.source, stop.kernels, stop.externs = "", (), ()  # type: ignore[attr-defined]
            return stop

        with mock.patch.object(eqsat.backend, "compile_program", note):
            run()
    return found


# Inductor


def count_inductor(run: Callable[[], Any]) -> list[Count]:
    """The graphs that `run` compiles with Inductor."""
    from torch._inductor import async_compile, config, graph  # noqa: PLC0415

    found: list[Count] = []
    schedule = graph.GraphLowering._update_scheduler

    def note(lowered: Any) -> None:
        schedule(lowered)
        kind = "inference" if lowered.is_inference else "forward"
        found.append(_count_schedule("backward" if lowered.is_backward else kind, lowered))

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(graph.GraphLowering, "_update_scheduler", note))
        compiler = async_compile.AsyncCompile
        patches.enter_context(mock.patch.object(compiler, "cpp_pybinding", lambda *_: _stop))
        patches.enter_context(config.patch(fx_graph_cache=False, fallback_random=True))
        run()
    return found


def _count_schedule(kind: str, lowered: Any) -> Count:
    from torch._inductor import scheduler as schedule  # noqa: PLC0415

    def size(name: str) -> tuple[int, int]:
        elements = int(lowered.sizevars.optimization_hint(lowered.get_numel(name), fallback=64))
        return elements, lowered.get_dtype(name).itemsize

    kernels, calls, total = 0, 0, 0
    for node in lowered.scheduler.nodes:
        if isinstance(node, schedule.FusedSchedulerNode | schedule.SchedulerNode):
            kernels += 1
            total += moved(_node_accesses(node, lowered), size)
        elif not isinstance(node, schedule.NopKernelSchedulerNode):
            calls += type(node.node).__name__ != "MultiOutput"
    return Count(kind, kernels, calls, total)


def _node_accesses(node: Any, lowered: Any) -> list[Access]:
    """Loads and stores of all parts of a fused node, without what stays inside."""
    from torch._inductor.dependencies import MemoryDep  # noqa: PLC0415

    parts = node.get_nodes()
    users = lowered.scheduler.name_to_buf
    inside = {
        name
        for name in node.get_buffer_names()
        if all(user.node in parts for user in users[name].users) and users[name].users
    }
    accesses: dict[tuple[str, str, bool], int] = {}
    for part in parts:
        for stored, found in ((False, part.read_writes.reads), (True, part.read_writes.writes)):
            for one in found:
                name = lowered.scheduler.mutation_real_name.get(one.name, one.name)
                if one.name not in inside and isinstance(one, MemoryDep):
                    accesses[name, str(one.index), stored] = _elements(one, lowered)
    written = {name for name, _, stored in accesses if stored}
    return [
        (name, count, stored)
        for (name, _, stored), count in accesses.items()
        if stored or name not in written or name not in node.get_buffer_names()
    ]


def _elements(one: Any, lowered: Any) -> int:
    mentioned = one.index.free_symbols
    total = 1
    for var, size in zip(one.var_names, one.size, strict=True):
        if one.is_indirect() or var in mentioned:
            total *= int(lowered.sizevars.optimization_hint(size, fallback=64))
    return total


# Both


def count(name: str, backend: str) -> list[Count]:
    """All graphs of a model under one backend; for a fresh process."""
    found: list[Count] = []
    counter = {"eqsat": count_eqsat, "inductor": count_inductor}[backend]
    for training in (False, True):
        torch.manual_seed(0)
        torch._dynamo.reset()
        module, inputs = MODELS[name]()
        compiled = torch.compile(module.train(training), backend=backend)

        def run(compiled: Any = compiled, inputs: Any = inputs) -> None:
            try:
                compiled(**inputs)
            except _Counted:
                return

        with torch.set_grad_enabled(training), _backward_at_once():
            found += counter(run)
    return found


def _backward_at_once() -> Any:
    from torch._functorch import config  # noqa: PLC0415

    return config.patch(force_non_lazy_backward_lowering=True)


def measure(name: str, backend: str) -> list[Count]:
    """`count` in a fresh process. Raises RuntimeError where that fails."""
    command = [sys.executable, "-m", "benchmarks.kernels", name, "--count", backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} with {backend}:\n{done.stderr}")
    return [Count(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def page(results: Mapping[str, Mapping[str, Sequence[Count]]]) -> str:
    """docs/kernels.md for the counts by model and backend."""
    rows = []
    for name, found in results.items():
        theirs = {one.kind: one for one in found["inductor"]}
        for ours in found["eqsat"]:
            other = theirs[ours.kind]
            rows.append(
                f"| {name} | {ours.kind} | {ours.kernels} | {other.kernels} | {ours.calls} "
                f"| {other.calls} | {ours.bytes / 1e6:.1f} | {other.bytes / 1e6:.1f} "
                f"| {ours.bytes / other.bytes:.2f} |"
            )
    return "\n".join((_HEAD, *rows)) + "\n"


_HEAD = """# Kernels and bytes

Written by `python -m benchmarks.kernels --write`: what eqsat and Inductor (torch {torch}) make of
the same models on the CPU (two layers of each transformer, random weights). A kernel is one loop
nest after fusion. MB are what kernels load and store: for each buffer of a kernel the elements that
its loads touch, never more than the buffer has, and those that it stores. Calls are ATen ops
(products, convolutions, attention, random numbers); what they move is not counted. Random
numbers are drawn as eager draws them under both.

| model | graph | kernels | Inductor | calls | Inductor | MB | Inductor | MB / Inductor |
|---|---|---|---|---|---|---|---|---|""".format(torch=torch.__version__.partition("+")[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    parser.add_argument("--count", choices=BACKENDS, help="one model, in this process, as JSON")
    parser.add_argument("--write", action="store_true", help="write docs/kernels.md")
    arguments = parser.parse_args()
    models = arguments.models or list(MODELS)
    if arguments.count:
        for name in models:
            print(json.dumps([asdict(one) for one in count(name, arguments.count)]))
        return
    results = {name: {backend: measure(name, backend) for backend in BACKENDS} for name in models}
    text = page(results)
    print(text)
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
