"""Times the good candidates of a graph and takes the fastest: `options={"cost": "measured"}`.

Takes a `StageResult` with others beside the best by the cost model, the graph as it came, and a
function that compiles one; gives the result to go on with. All run on inputs with the traced
shapes and strides (hints for symbolic sizes), and those whose results differ from the original
graph's are out. The decision lies in the cache folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from .codegen.build import processor
from .codegen.cache import cache_dir, digest, write_atomic
from .engine.products import hint
from .engine.stage import StageResult

CANDIDATES = 4  # other graphs, apart from the best by the model and the original
ROUNDS = 9
ROUND_SECONDS = 0.02  # of one candidate in one round, at most; one call is made anyway
LARGEST_BYTES = 4 << 30  # inputs of a graph above which it is not run for trial
CLEARLY_FASTER = 0.97  # than the choice of the model
Boxed = Callable[[list[Any]], Any]
Build = Callable[[StageResult], Boxed]


@dataclass(frozen=True)
class Entrant:
    how: str
    result: StageResult

    @property
    def name(self) -> str:
        """The same for the same graph in every process."""
        return digest(str(self.result.gm.graph))[:16]


def fastest(
    gm: fx.GraphModule, stage: StageResult, build: Build, key: str
) -> tuple[StageResult, dict[str, Any]]:
    """The result to go on with, and a record for the report. `key` stands for settings, rules
    and versions. Raises what `build` raises for the original graph alone."""
    entrants = _entrants(gm, stage)
    reason = _unfit(gm)
    if len(entrants) < 2 or reason:
        return stage, {"decided": reason or "there is one candidate"}
    path = cache_dir() / "contests" / f"{_key(gm, entrants, key)}.json"
    found = _remembered(path, entrants)
    decided = "remembered"
    if found is None:
        decided = "measured"
        with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = _measure(gm, entrants, build)
        write_atomic(path, json.dumps(found).encode())
    chosen = _choose(entrants, found)
    rows = [
        {"how": one.how, "seconds": found.get(one.name), "chosen": one is chosen}
        for one in entrants
    ]
    return chosen.result, {"decided": decided, "candidates": rows}


def _entrants(gm: fx.GraphModule, stage: StageResult) -> list[Entrant]:
    """The best by the model first, the original last; none twice."""
    plain = replace(stage, gm=gm, checks=(), others=())
    every = [Entrant("cheapest", stage)]
    every += [Entrant(o.how, replace(stage, gm=o.gm, others=())) for o in stage.others]
    every.append(Entrant("original", plain))
    return list({one.name: one for one in reversed(every)}.values())[::-1]


def _unfit(gm: fx.GraphModule) -> str:
    """Why a graph cannot be run for trial; empty where it can."""
    size = 0
    for node in gm.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace not in ("aten", "prims"):
                return f"{target} may have effects, so it is not run for trial"
        elif node.op == "call_function" and isinstance(target, torch._ops.HigherOrderOperator):
            return f"{target} is not run for trial"
        elif node.op == "placeholder":
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                if type(value).__name__ != "FakeTensor" or value.device.type != "cpu":
                    return f"{node.name} cannot be made up"
                size += _elements(value) * value.element_size()
    return "the inputs are too large to be made up" if size > LARGEST_BYTES else ""


def _key(gm: fx.GraphModule, entrants: Sequence[Entrant], key: str) -> str:
    inputs = [_described(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    names = [one.name for one in entrants]
    machine = f"{processor()} {torch.get_num_threads()}"
    return digest(key, repr(inputs), repr(names), machine)[:40]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = [hint(size) for size in (*value.shape, *value.stride())]
        return str(value.dtype), value.device.type, sizes
    return hint(value) if isinstance(value, torch.SymInt) else repr(value)


def _remembered(path: Any, entrants: Sequence[Entrant]) -> dict[str, float | None] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    names = {one.name for one in entrants}
    good = isinstance(found, dict) and found.keys() == names
    return found if good and all(_is_time(value) for value in found.values()) else None


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value > 0)


def _choose(entrants: Sequence[Entrant], seconds: Mapping[str, float | None]) -> Entrant:
    """The fastest; the model's own unless another is clearly faster."""
    timed = [(time, one) for one in entrants if (time := seconds.get(one.name)) is not None]
    if not timed:
        return entrants[-1]
    least, best = min(timed, key=lambda pair: pair[0])
    first = seconds.get(entrants[0].name)
    return entrants[0] if first is not None and least > CLEARLY_FASTER * first else best


def _measure(
    gm: fx.GraphModule, entrants: Sequence[Entrant], build: Build
) -> dict[str, float | None]:
    """Seconds per call of every candidate, None for one that fails or whose results differ."""
    values = [_made_up(node) for node in gm.graph.find_nodes(op="placeholder")]
    runs: dict[str, Boxed] = {}
    original = entrants[-1]
    wanted = _results(build(original.result), values, runs, original.name)
    for one in entrants[:-1]:
        try:
            run = build(one.result)
            if not _alike(_results(run, values, runs, one.name), wanted):
                del runs[one.name]
        except Exception:
            runs.pop(one.name, None)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            times[name].append(_seconds(run, values))
    return {one.name: min(times[one.name]) if one.name in times else None for one in entrants}


def _seconds(run: Boxed, values: Sequence[Any]) -> float:
    count, start = 0, time.perf_counter()
    while True:
        run(list(values))
        count += 1
        spent = time.perf_counter() - start
        if spent > ROUND_SECONDS / 2:
            return spent / count


def _results(run: Boxed, values: Sequence[Any], runs: dict[str, Boxed], name: str) -> list[Any]:
    """What a candidate gives for inputs of its own, as it may write into them."""
    torch.manual_seed(0)
    own = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
    found = tree_leaves(run(own))
    runs[name] = run
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in found]


def _alike(left: Sequence[Any], right: Sequence[Any]) -> bool:
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        half = a.dtype in (torch.float16, torch.bfloat16)
        rtol, scale = (5e-2, 5e-2) if half else (1e-3, 1e-3)
        finite = b[b.isfinite()].abs() if b.is_floating_point() else b.new_zeros(0)
        atol = scale * float(finite.max()) if finite.numel() else scale
        if not torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            return False
    return True


def _made_up(node: fx.Node) -> Any:
    """A value like the one that was traced. Whole numbers are 0, which is an index everywhere;
    vectors are near 1, as variances must be positive; matrices keep the size of what they
    multiply."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return hint(value)
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = ([hint(size) for size in sizes] for sizes in (value.shape, value.stride()))
    made = torch.empty_strided(shape, stride, dtype=value.dtype)
    generator = torch.Generator().manual_seed(len(node.name))
    if value.dtype == torch.bool:
        return made.fill_(True)
    if not (value.is_floating_point() or value.is_complex()):
        return made.zero_()
    if len(shape) < 2:
        return made.copy_(torch.rand(shape, generator=generator) + 0.5)
    drawn = torch.randn(shape, generator=generator)
    return made.copy_(drawn / max(1, shape[-1]) ** 0.5)


def _elements(value: torch.Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= hint(size)
    return count
