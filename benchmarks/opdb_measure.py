"""Samples by eager and one compiler: which differ, and which of them became generated code.

Takes samples of one op, of several dtypes; gives an `Outcome` per dtype. All are compiled in
one function; one that does not compile or run is cut in half until the sample is found.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eqsat import backend
from eqsat.codegen.externs import views_in
from eqsat.lowering.guards import Refusal
from eqsat.lowering.loops import Extern, Nest, Program, Step, scalars
from eqsat.reports import StageInput, watching

from .opdb_compare import Mismatch, compare

SEED = 0
_DOUBLE = dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)
_PLACE = re.compile(r"l_tensors_(\d+)_\d+_")


@dataclass(frozen=True)
class Sample:
    """One call of an op: its tensors apart from the rest, which is fixed. `number` counts the
    samples of one dtype."""

    dtype: str
    number: int
    op: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[Any, ...]  # None where a tensor goes
    places: tuple[int, ...]  # of the tensors among the leaves
    spec: pytree.TreeSpec

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.op(*args, **kwargs)

    def fresh(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in self.tensors]

    def fresh_double(self) -> list[torch.Tensor]:
        return [tensor.to(_DOUBLE.get(tensor.dtype, tensor.dtype)) for tensor in self.tensors]


def run_all(samples: Sequence[Sample], inputs: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
    return [sample(tensors) for sample, tensors in zip(samples, inputs, strict=True)]


@dataclass
class Outcome:
    """What became of the samples of one op and dtype. `failures` holds (sample, kind, message).
    `lowered` counts samples by what their ATen graph became: "generated" code alone, a "view"
    (no code), "extern" calls of ATen ops alone, generated code beside them ("mixed"), or "none"
    (Dynamo left the op to Python); empty for a compiler that does not tell."""

    op: str
    dtype: str
    backend: str = "eqsat"
    samples: int = 0
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    lowered: dict[str, int] = field(default_factory=dict)


def measure(op: str, samples: Sequence[Sample], name: str) -> list[Outcome]:
    """One outcome per dtype of the samples, under the compiler `name`."""
    outcomes: dict[str, Outcome] = {}
    for sample in samples:
        outcome = outcomes.setdefault(sample.dtype, Outcome(op, sample.dtype, name))
        outcome.samples += 1
    has_values = "empty" not in op  # those give memory that nothing was written to
    comparison = _Comparison(name, values=has_values)
    comparison.run(samples)
    for sample, kind, message in comparison.failures:
        outcomes[sample.dtype].failures.append((sample.number, kind, message))
    for sample, word in comparison.lowered:
        counts = outcomes[sample.dtype].lowered
        counts[word] = counts.get(word, 0) + 1
    return list(outcomes.values())


class _Comparison:
    def __init__(self, name: str, *, values: bool) -> None:
        self._backend = name
        self._options: Any = {"strict": True} if name == "eqsat" else None
        self._values = values
        self.failures: list[tuple[Sample, str, str]] = []
        self.lowered: list[tuple[Sample, str]] = []

    def run(self, samples: Sequence[Sample]) -> None:
        refused = {id(sample) for sample in samples if self._eager([sample])[1] is not None}
        self._halve([sample for sample in samples if id(sample) not in refused])
        for sample in samples:
            if id(sample) in refused:
                self._compare_refusal(sample)

    def _halve(self, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        wanted, _ = self._eager(samples)
        found, raised, words = self._compiled(samples)
        if raised is not None and len(samples) > 1:
            middle = len(samples) // 2
            self._halve(samples[:middle])
            self._halve(samples[middle:])
            return
        self.lowered += zip(samples, words, strict=True)
        if raised is not None:
            self._note(samples[0], raised)
            return
        for sample, want, got in zip(samples, wanted, found, strict=True):
            try:
                compare(want, got, functools.partial(_in_double, sample), values=self._values)
            except Exception as error:
                self._note(sample, error)

    def _compare_refusal(self, sample: Sample) -> None:
        """Eager raises on the sample; a compiler that does not has lost the error."""
        _, refusal = self._eager([sample])
        _, raised, words = self._compiled([sample])
        self.lowered += zip([sample], words, strict=True)
        if raised is None:
            text = f"eager raises {type(refusal).__name__}: {refusal}"
            self._note(sample, Mismatch("missing error", text))

    def _note(self, sample: Sample, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, Mismatch):
            kind, message = error.kind, str(error)
        elif isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
            kind = "does not compile"
        else:
            kind = "raises"
        self.failures.append((sample, kind, message.strip()[:600]))

    def _eager(self, samples: Sequence[Sample]) -> tuple[list[Any], Exception | None]:
        inputs = [sample.fresh() for sample in samples]
        torch.manual_seed(SEED)
        try:
            return run_all(samples, inputs), None
        except Exception as error:
            return [], error

    def _compiled(self, samples: Sequence[Sample]) -> tuple[list[Any], Exception | None, list[str]]:
        """Results, what was raised, and a word per sample for what became of it."""
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda tensors: run_all(samples, tensors),
            backend=self._backend,
            dynamic=False,
            options=self._options,
        )
        inputs = [sample.fresh() for sample in samples]
        with _Witness() as witness:
            torch.manual_seed(SEED)
            try:
                found, raised = compiled(inputs), None
            except Exception as error:
                found, raised = [], error
        words = witness.words(samples) if self._backend == "eqsat" else []
        return found, raised, words or [""] * len(samples)


def _in_double(sample: Sample) -> Any:
    return sample(sample.fresh_double())


class _Witness:
    """Sees the graphs and programs that are compiled inside its `with` block."""

    def __init__(self) -> None:
        self._captured: list[str] = []  # inputs of the last graph that Dynamo gave
        self._programs: list[tuple[list[str], Program]] = []

    def __enter__(self) -> _Witness:
        self._lower = backend.lower
        self._watching = watching(self._note)
        self._watching.__enter__()
        vars(backend)["lower"] = self._keep
        return self

    def __exit__(self, *error: Any) -> None:
        vars(backend)["lower"] = self._lower
        self._watching.__exit__(*error)

    def _note(self, stage: StageInput) -> None:
        if stage.stage == "pre_grad":
            nodes = stage.gm.graph.find_nodes(op="placeholder")
            self._captured = [node.name for node in nodes]

    def _keep(self, *args: Any, **options: Any) -> Program:
        program = self._lower(*args, **options)
        self._programs.append((self._captured, program))
        return program

    def words(self, samples: Sequence[Sample]) -> list[str]:
        """What became of each sample. Steps that read no input of any sample are those of the
        samples without tensors."""
        if not self._programs:
            return ["none"] * len(samples)
        used: dict[int, set[str]] = collections.defaultdict(set)
        for captured, program in self._programs:
            for place, kind in _steps_by_sample(captured, program):
                used[place].add(kind)
        bare = used.pop(-1, set())
        for place, sample in enumerate(samples):
            if not sample.tensors:
                used[place] |= bare
        return [_word(used[place]) for place in range(len(samples))]


def _word(kinds: set[str]) -> str:
    if kinds == {"nest", "extern"}:
        return "mixed"
    return {"nest": "generated", "extern": "extern"}.get(next(iter(kinds), ""), "view")


def _steps_by_sample(captured: Sequence[str], program: Program) -> Iterator[tuple[int, str]]:
    """(place of a sample, "nest" or "extern") for each step that works on what it was given; -1
    for steps that read nothing of any sample."""
    of: dict[str, frozenset[int]] = {}
    for name, source in zip(captured, program.inputs, strict=False):
        found = _PLACE.fullmatch(name)
        if found and isinstance(source, str):
            of[source] = frozenset((int(found[1]),))
    for step in program.steps:
        reads, writes = _reads(step), _writes(step)
        places = frozenset[int]().union(*(of.get(name, frozenset()) for name in reads))
        for name in writes:
            of[name] = of.get(name, frozenset()) | places
        if isinstance(step, Extern) and isinstance(step.target, Refusal):
            continue  # does nothing but raise
        kind = "nest" if isinstance(step, Nest) else "extern"
        yield from ((place, kind) for place in places or (-1,))


def _reads(step: Step) -> Iterable[str]:
    if isinstance(step, Nest):
        loads = {scalar.buffer for scalar in scalars(step) if scalar.buffer is not None}
        return loads | {store.buffer for store in step.stores if store.mode != "set"}
    return {view.buffer for view in views_in([step.args, list(step.kwargs.values())])}


def _writes(step: Step) -> Iterable[str]:
    if isinstance(step, Nest):
        return {store.buffer for store in step.stores}
    return {name for name in (*step.outs, *step.mutates) if name is not None}
