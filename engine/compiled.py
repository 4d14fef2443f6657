"""Whether generated code computes what the sides of rules mean.

Takes rules and a function that compiles an ATen graph (this floor knows no code generator);
gives the failures per rule. The sides of many rules are traced into one graph, as the time of
a C++ compiler hardly depends on how much it is given; a graph that cannot be compiled is split
until the rule is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from .compare import too_far_apart
from .draw import Search, Structure
from .evaluate import TensorWorld
from .ops import OpTable
from .program import COMPILED, program_text
from .repair import put
from .rule import Rule
from .trial import Rejected, Trials

# Compiles a graph of ATen calls with meta["val"]; the result takes a list of tensors, which it
# may empty, and gives the list of outputs.
Compile = Callable[[fx.GraphModule], Callable[[list[Any]], Sequence[Any]]]

_ATTEMPTS = 400
_STRUCTURES = 2  # per rule
_TOGETHER = 24  # structures in one graph
_SEEDS = (0, 1, 2)
_FILLINGS = ("normal", "marked", "special")


@dataclass(frozen=True)
class _Sample:
    """An example whose sides are compiled; `values` are those it is traced with."""

    trials: Trials
    structure: Structure
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.trials.rule.name

    def tensors(self, values: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of an example in a fixed order."""
        found: list[torch.Tensor] = []
        for name in self.structure.tensors:
            value = values[name]
            found += value if isinstance(value, list) else [value]
        return found

    def results(self, tensors: Iterator[torch.Tensor]) -> list[torch.Tensor]:
        """The results of the left side, then those of the right side."""
        values = dict(self.values)
        for name, value in self.values.items():
            if name in self.structure.tensors:
                several = isinstance(value, list)
                values[name] = [next(tensors) for _ in value] if several else next(tensors)
        world = TensorWorld(self.trials.table)
        sides = self.trials.both_sides(values, world, world)
        roots = [root for side in sides for root in side.values()]
        return [root for root in roots if isinstance(root, torch.Tensor)]


def compiled_failures(
    rules: Sequence[tuple[Rule, OpTable]], compile_graph: Compile, seed: int = 0
) -> dict[str, str]:
    """What is wrong with the compiled sides, by name of rule. Rules that draw random numbers,
    and rules of which no example is found, are left out."""
    samples: list[_Sample] = []
    for rule, table in rules:
        if rule.numerics.float_class != "random":
            samples += _samples(rule, table, seed)
    failures: dict[str, str] = {}
    for start in range(0, len(samples), _TOGETHER):
        _check(samples[start : start + _TOGETHER], compile_graph, failures)
    return failures


def _samples(rule: Rule, table: OpTable, seed: int) -> list[_Sample]:
    random = Random(f"{seed} {rule.name}")
    found = Search(rule, table, random).collect(4 * _STRUCTURES, _ATTEMPTS)
    trials, samples = Trials(rule, table), []
    for structure in random.sample(found, len(found)):
        try:
            sample = _Sample(trials, structure, trials.smooth_values(structure))
            results = sample.results(iter(sample.tensors(sample.values)))
        except Rejected:
            continue
        if any(result.numel() for result in results) and not _is_complex(results):
            samples.append(sample)
    return samples[:_STRUCTURES]


def _is_complex(results: Sequence[torch.Tensor]) -> bool:
    """Generated code has no complex numbers: graphs with them run in eager mode."""
    return any(result.is_complex() for result in results)


def _check(samples: Sequence[_Sample], compile_graph: Compile, failures: dict[str, str]) -> None:
    try:
        run = compile_graph(_trace(samples))
    except Exception as error:  # whatever the compiler raises is what is looked for
        if len(samples) > 1:
            middle = len(samples) // 2
            _check(samples[:middle], compile_graph, failures)
            _check(samples[middle:], compile_graph, failures)
        else:
            text = f"a side cannot be compiled: {type(error).__name__}: {error}"
            failures.setdefault(
                samples[0].name, _told(text, samples[0], samples[0].values, COMPILED[1])
            )
        return
    for filling in _FILLINGS:
        for seed in _SEEDS:
            _compare(samples, run, filling, seed, failures)


def _trace(samples: Sequence[_Sample]) -> fx.GraphModule:
    """All results of all samples as one functional graph of ATen calls."""

    def sides(*tensors: torch.Tensor) -> list[torch.Tensor]:
        waiting = iter(tensors)
        return [result for sample in samples for result in sample.results(waiting)]

    inputs = [tensor for sample in samples for tensor in sample.tensors(sample.values)]
    return make_fx(torch.func.functionalize(sides), tracing_mode="fake")(*inputs)


def _compare(
    samples: Sequence[_Sample],
    run: Callable[[list[Any]], Sequence[Any]],
    filling: str,
    seed: int,
    failures: dict[str, str],
) -> None:
    drawn = [_values(sample, filling, seed) for sample in samples]
    inputs = [
        tensor
        for sample, values in zip(samples, drawn, strict=True)
        for tensor in sample.tensors(values)
    ]
    outputs = iter(run([tensor.clone() if _is_dense(tensor) else tensor for tensor in inputs]))
    for sample, values in zip(samples, drawn, strict=True):
        expected = sample.results(iter(sample.tensors(values)))
        found = [next(outputs) for _ in expected]
        count = len(expected) // 2
        for place, (one, two) in enumerate(zip(expected, found, strict=True)):
            reason = too_far_apart(one, two)
            if reason is not None and sample.name not in failures:
                kind = COMPILED[place >= count]
                text = f"the {kind} side is wrong: {reason}"
                failures[sample.name] = _told(text, sample, values, kind)


def _values(sample: _Sample, filling: str, seed: int) -> Mapping[str, Any]:
    """Values of one filling, or those of the sample where the sides cannot take them (an index
    may lie outside)."""
    names = {name: (filling, seed + at) for at, name in enumerate(sample.structure.tensors)}
    try:
        drawn = sample.trials.values(sample.structure, names)
        values = {
            name: _laid_out(_without_tiny(value), sample.values[name])
            for name, value in drawn.items()
        }
        sample.results(iter(sample.tensors(values)))
    except Rejected:
        return sample.values
    return values


def _laid_out(value: Any, traced: Any) -> Any:
    """A drawn tensor with the strides that the compiled graph was traced with: of a tensor that
    repeats its elements, `put` makes one that does not. Raises Rejected."""
    if isinstance(value, list):
        return [_laid_out(item, one) for item, one in zip(value, traced, strict=True)]
    if not isinstance(value, torch.Tensor) or value.stride() == traced.stride():
        return value
    if 0 in traced.stride():
        raise Rejected("the traced tensor repeats its elements")
    return put(traced, value)


def _without_tiny(value: Any) -> Any:
    """Numbers whose squares vanish become 0: kernels that add up wider still see them."""
    if isinstance(value, list):
        return [_without_tiny(item) for item in value]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    tiny = value.abs() <= torch.finfo(value.dtype).tiny
    return put(value, torch.where(tiny & (value != 0), 0.0, value)) if bool(tiny.any()) else value


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.storage_offset() == 0


def _told(text: str, sample: _Sample, values: Mapping[str, Any], kind: str) -> str:
    program = program_text(sample.trials, values, sample.structure.tensors, kind)
    return f"{text}\n{program}"
