"""Does the cost model order graphs as the machine does?

    python -m benchmarks.ranking [--device cpu|cuda] [--only PROGRAM] [--rounds N]

For each program: the graph as it came, the cheapest by the model, runners-up and random choices
from the same e-graph, all run and compared with the first. Prints one line of JSON per graph and
per program, then the rank correlations (Spearman, Kendall) of predicted and measured seconds. On
a CPU the graphs run as eqsat compiles them; on CUDA TorchInductor compiles them and a CUDA graph
replays them, so that the GPU's time counts and the host's does not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from eqsat.backend import AtenGraph, compile_rewritten
from eqsat.config import resolve
from eqsat.engine.candidates import runners_up
from eqsat.engine.chaos import disturbed
from eqsat.engine.decode import DecodeError, decode
from eqsat.engine.encode import Encoding
from eqsat.engine.extract import extract
from eqsat.engine.selection import Choice, first_choice
from eqsat.engine.stage import SECOND, StageOptions, StageResult, StageRun
from eqsat.engine.target import load_target
from eqsat.engine.world import EvaluateError
from eqsat.lowering.fold import split_constants
from eqsat.reports import CompileReport
from eqsat.session import Session, open_session

from . import gains

RUNNERS_UP, RANDOM = 4, 3
SPAN = {"cpu": 0.01, "cuda": 0.004}  # seconds of one timing


@dataclass(frozen=True)
class Program:
    """`moving` inputs are activations, the others are frozen parameters."""

    name: str
    function: Callable[..., Any]
    shapes: Sequence[Sequence[int]]
    moving: int = 1


def programs(device: str) -> list[Program]:
    """Sizes that take tens of microseconds to milliseconds."""
    w = 512 if device == "cpu" else 4096
    rows, batch = (64, 2) if device == "cpu" else (512, 64)
    low = ((w, 16), (16, w))
    return [
        Program("q/k/v", gains.qkv, [(rows, w), *[(w, w)] * 3]),
        Program("gate/up", gains.gated, [(rows, w), *[(w, 2 * w)] * 2]),
        Program("LoRA folded", gains.adapted, [(rows, w), (w, w), *low]),
        Program("LoRA apart", gains.adapted_weight, [(rows, w), (w, w), *low], 4),
        Program("matmul order", gains.left_first, [(w, w), (w, w), (w, 16)], 3),
        Program("branches", gains.branches, [(batch, 96, 28, 28), *[(48, 96, 1, 1)] * 3]),
        Program("fire", gains.fire, [(batch, 16, 55, 55), (64, 16, 1, 1), (64, 16, 3, 3)]),
        Program("mean", gains.mean_after, [(8, rows, w // 2), (w, w // 2), (w,)]),
        Program("two layers", gains.two_layers, [(rows, w // 2), (w // 2, w), (w, w // 2)]),
        Program("common factor", gains.two_terms, [(rows, w), *[(w, w)] * 2]),
        Program("sum", gains.sum_of_products, [*[(rows, w)] * 2, *[(w, w)] * 2], 2),
    ]


@dataclass
class Graph:
    program: str
    gm: fx.GraphModule
    predicted: float
    run: Callable[[], Any] | None = None
    seconds: float = float("inf")


def graphs(program: Program, session: Session, device: str) -> Iterator[Graph]:
    """Distinct graphs of a program with their predicted seconds, the original first."""
    with FakeTensorMode():
        values = [torch.empty(tuple(shape), device=device) for shape in program.shapes]
        gm = make_fx(program.function)(*values)
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    frozen = names[program.moving :]
    options = StageOptions(
        profile="fast",
        weights={name: at for at, name in enumerate(names) if name in frozen},
        frozen=frozenset(frozen),
        target=session.target if device == "cpu" else load_target("h200"),
        inference=True,
        lowered=session.lowered,
    )
    run = StageRun(gm, "post_grad", session.book, session.table, options)
    encoding = run.prepare()
    assert isinstance(encoding, Encoding)
    problem, classes = run.problem(encoding)
    members = [node for group in classes.values() for node in group]
    made: dict[str, list[int]] = {}
    for at, node in enumerate(members):
        firing = encoding.graph.firing[node]
        if firing >= 0:
            assert run.applier is not None
            made.setdefault(run.applier.firings[firing].rule.name, []).append(at)
    yield Graph(program.name, gm, first_choice(problem)[1] / SECOND)
    best = extract(problem)
    choices: list[Choice] = [best]
    choices += [one.choice for one in runners_up(problem, best, made, RUNNERS_UP)]
    choices += [disturbed(problem, f"random:{seed}") for seed in range(RANDOM)]
    seen = {str(gm.graph)}
    for choice in choices:
        taken = {o: members[choice.node[at]] for at, o in enumerate(classes) if at in choice.used}
        try:
            new = decode(encoding, taken, lambda _: ())
        except (DecodeError, EvaluateError):
            continue
        if str(new.graph) not in seen:
            seen.add(str(new.graph))
            yield Graph(program.name, new, choice.cost / SECOND)


def compiled(graph: Graph, program: Program, session: Session, device: str) -> Callable[[], Any]:
    """A call of the graph on random values, ready to be timed."""
    generator = torch.Generator(device).manual_seed(0)
    values = [
        torch.randn(tuple(shape), device=device, generator=generator) / max(shape[-1], 1) ** 0.5
        for shape in program.shapes
    ]
    names = [node.name for node in graph.gm.graph.find_nodes(op="placeholder")]
    frozen = frozenset(names[program.moving :])
    if device == "cpu":
        report = CompileReport("inference")
        stage = StageResult(graph.gm, None)  # type: ignore[arg-type]
        weights = {name: at for at, name in enumerate(names) if name in frozen}
        run = compile_rewritten(AtenGraph(graph.gm, weights, frozen, session), stage, report)
        return lambda: run(list(values))
    split = split_constants(graph.gm, frozen)
    module: Any = graph.gm
    if split is not None:
        module = split.main
        values += list(split.constants(*(values[at] for at in split.watched)))
    fast = torch.compile(module, backend="inductor")
    for _ in range(3):
        fast(*values)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        out = fast(*values)

    def replay(inputs: Sequence[torch.Tensor] = values) -> Any:  # the graph holds no reference
        recorded.replay()
        return out

    return replay


def measure(group: Sequence[Graph], device: str, rounds: int) -> None:
    """The least of `rounds` timings of each graph on a CPU, where other work only adds time, and
    the median on a GPU; taken in turns."""
    times: list[list[float]] = [[] for _ in group]
    for _ in range(rounds):
        for place, graph in enumerate(group):
            assert graph.run is not None
            count, start = 0, time.perf_counter()
            while time.perf_counter() - start < SPAN[device]:
                graph.run()
                count += 1
                if device == "cuda":
                    torch.cuda.synchronize()
            times[place].append((time.perf_counter() - start) / count)
    for graph, found in zip(group, times, strict=True):
        graph.seconds = min(found) if device == "cpu" else sorted(found)[len(found) // 2]


def ranks(values: Sequence[float]) -> list[float]:
    """Places from 1; equal values share the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    a, b = (torch.tensor(ranks(values), dtype=torch.float64) for values in (left, right))
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) if len(a) > 1 else float("nan")


def kendall(left: Sequence[float], right: Sequence[float]) -> float:
    """tau-b."""
    pairs = [(i, j) for i in range(len(left)) for j in range(i)]
    a, b = ([_sign(values[i] - values[j]) for i, j in pairs] for values in (left, right))
    scale = (sum(map(abs, a)) * sum(map(abs, b))) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / scale if scale else float("nan")


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _agreement(what: str, group: Sequence[Graph]) -> dict[str, Any]:
    predicted, seconds = [g.predicted for g in group], [g.seconds for g in group]
    return {
        "program": what,
        "graphs": len(group),
        "spearman": round(spearman(predicted, seconds), 3),
        "kendall": round(kendall(predicted, seconds), 3),
        "regret": round(min(group, key=lambda g: g.predicted).seconds / min(seconds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="part of a program's name")
    parser.add_argument("--rounds", type=int, default=9)
    threads = "on a CPU; with several, a busy neighbour turns each barrier into milliseconds"
    parser.add_argument("--threads", type=int, default=1, help=threads)
    arguments = parser.parse_args()
    device = arguments.device
    torch.set_num_threads(arguments.threads)
    session = open_session(resolve(None, {"numerics": "fast"}), print)
    every: list[Graph] = []
    with torch.no_grad():
        wanted: list[torch.Tensor] = []
        for program in programs(device):
            if arguments.only and arguments.only not in program.name:
                continue
            group = []
            for graph in graphs(program, session, device):
                graph.run = compiled(graph, program, session, device)
                right = [value.clone() for value in tree_leaves(graph.run())]
                wanted = right if not group else wanted
                for a, b in zip(right, wanted, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
                group.append(graph)
            measure(group, device, arguments.rounds)
            for graph in group:
                row = {
                    "program": graph.program,
                    "nodes": len(graph.gm.graph.nodes),
                    "predicted_us": round(graph.predicted * 1e6, 2),
                    "measured_us": round(graph.seconds * 1e6, 2),
                }
                print(json.dumps(row), flush=True)
            print(json.dumps(_agreement(program.name, group)), flush=True)
            every += group
            torch._dynamo.reset()
    print(json.dumps(_agreement("all", every)))


if __name__ == "__main__":
    main()
