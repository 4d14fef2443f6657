"""Cuts a failing program to few statements that still fail in the same way.

Takes a program and a test; gives a smaller program that passes the test. Statements go away
with all that depends on them, results become inputs, sizes become small, settings plain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from .outcome import trace_values
from .programs import Input, Program, Settings

Test = Callable[[Program], bool]


def shrink(program: Program, fails: Test, seconds: float = 120) -> Program:
    """The smallest program found within the time; `program` itself is one that fails."""
    return _Shrinking(program, fails, time.monotonic() + seconds).run()


class _Shrinking:
    def __init__(self, program: Program, fails: Test, end: float) -> None:
        self.best = program
        self._fails = fails
        self._end = end
        self._seen: set[str] = {program.source()}

    def run(self) -> Program:
        passes = (
            _fewer_calls,
            _early_part,
            _one_output,
            _late_part,
            _without_parts,
            _plain,
            _small_sizes,
        )
        before = None
        while before != self.best and time.monotonic() < self._end:
            before = self.best
            for candidates in passes:
                while self._take_first(candidates(self.best)):
                    pass
        return self.best

    def _take_first(self, candidates: Iterator[Program]) -> bool:
        """Go over to the first candidate that still fails."""
        for candidate in candidates:
            if time.monotonic() > self._end:
                return False
            source = candidate.source()
            if source in self._seen:
                continue
            self._seen.add(source)
            if self._fails(candidate):
                self.best = candidate
                return True
        return False


def _fewer_calls(program: Program) -> Iterator[Program]:
    if len(program.calls) > 1:
        yield from (replace(program, calls=(call,)) for call in program.calls)


def _one_output(program: Program) -> Iterator[Program]:
    """One output alone, or all but one; with only the statements that it needs."""
    if len(program.outputs) <= 1:
        return
    for name in dict.fromkeys(program.outputs):
        yield needed(replace(program, outputs=(name,)))
    for place in range(len(program.outputs)):
        outputs = program.outputs[:place] + program.outputs[place + 1 :]
        yield needed(replace(program, outputs=outputs))


def _early_part(program: Program) -> Iterator[Program]:
    """The first statements alone; what no other of them reads is the output."""
    count = len(program.statements)
    for length in sorted({count // 4, count // 2, count * 3 // 4, count - 1} - {0}):
        early = program.statements[:length]
        read = set().union(*(statement.reads() for statement in early))
        made = dict.fromkeys(name for statement in early for name in statement.targets())
        outputs = tuple(name for name in made if name not in read)
        if outputs:
            yield needed(replace(program, statements=early, outputs=outputs))


def _late_part(program: Program) -> Iterator[Program]:
    """The last statements alone, what came before given as inputs: few first."""
    count = len(program.statements)
    kept = 1
    while kept < count:
        cut = _cut(program, count - kept)
        if cut is not None:
            yield cut
        kept = kept + 1 if kept < 6 else kept * 2
    if count > 1:
        cut = _cut(program, 1)
        if cut is not None:
            yield cut


def _without_parts(program: Program) -> Iterator[Program]:
    """Without a run of statements, and all that depends on them: long runs first."""
    count = len(program.statements)
    length = count // 2
    while length:
        for start in range(0, count, length):
            smaller = _without(program, range(start, min(start + length, count)))
            if smaller is not None:
                yield smaller
        length //= 2


def _plain(program: Program) -> Iterator[Program]:
    """Plain settings, and inputs without a layout or values of their own."""
    for name, default in vars(Settings()).items():
        if getattr(program.settings, name) != default:
            yield program.with_settings(**{name: default})
    for place, entry in enumerate(program.inputs):
        for removed in (".requires_grad_()", *_options_of(entry.text)):
            if removed in entry.text:
                changed = replace(entry, text=entry.text.replace(removed, ""))
                inputs = (*program.inputs[:place], changed, *program.inputs[place + 1 :])
                yield replace(program, inputs=inputs)


def _options_of(text: str) -> list[str]:
    """The texts of the arguments after dtype and seed: the last, then all."""
    parts = text.split(", '")
    if len(parts) < 2:
        return []
    ends = [", '" + parts[-1].split("'")[0] + "'"]
    return [*ends, "".join(", '" + part.split("'")[0] + "'" for part in parts[1:])]


def _small_sizes(program: Program) -> Iterator[Program]:
    for number, call in enumerate(program.calls):
        for place, size in enumerate(call):
            for smaller in sorted({1, 2, 3, size // 2, size - 1}):
                if 0 < smaller < size:
                    changed = (*call[:place], smaller, *call[place + 1 :])
                    calls = (*program.calls[:number], changed, *program.calls[number + 1 :])
                    yield replace(program, calls=calls)


def needed(program: Program) -> Program:
    """Without the statements and inputs that no output depends on, writes in place kept with
    what they write."""
    wanted = set(program.outputs)
    kept = []
    for statement in reversed(program.statements):
        targets = statement.targets()
        if not targets or wanted & {*targets}:
            wanted |= statement.reads() | set(targets)
            kept.append(statement)
    inputs = list(program.inputs)
    for entry in reversed(program.inputs):
        if entry.name not in wanted:
            inputs.remove(entry)
        wanted |= _words(entry.text) if entry in inputs else set()
    return replace(program, statements=tuple(reversed(kept)), inputs=tuple(inputs))


def _words(text: str) -> set[str]:
    return Input("_", text) and {word for word in text.replace("[", " ").replace(".", " ").split()}


def _without(program: Program, places: range) -> Program | None:
    gone: set[str] = set()
    kept = []
    for place, statement in enumerate(program.statements):
        if place in places or statement.reads() & gone:
            gone |= set(statement.targets())
        else:
            gone -= set(statement.targets()) - statement.reads()
            kept.append(statement)
    outputs = tuple(name for name in program.outputs if name not in gone)
    if not outputs:
        return None
    return needed(replace(program, statements=tuple(kept), outputs=outputs))


def _cut(program: Program, start: int) -> Program | None:
    """The statements from `start` on, with random inputs in place of what was computed before,
    of the same shape, dtype and order of dims in memory."""
    if len(program.calls) != 1:
        return None
    late = program.statements[start:]
    early = {name for statement in program.statements[:start] for name in statement.targets()}
    read = set(program.outputs).union(*(statement.reads() for statement in late)) & early
    values = trace_values(program, start)
    if values is None:
        return None
    inputs = list(program.inputs)
    for number, name in enumerate(sorted(read)):
        value = values.get(name)
        if not isinstance(value, torch.Tensor):
            return None
        inputs.append(Input(name, _spelled(value, number, program.settings.backward)))
    return needed(replace(program, statements=late, inputs=tuple(inputs)))


def _spelled(value: torch.Tensor, seed: int, grad: bool) -> str:
    order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), dim))
    backwards = order == list(range(value.dim()))[::-1] and value.dim() > 1
    layout = "transposed" if backwards else "dense"
    values = f"index {int(value.max()) + 1}" if _counts(value) else "tame"
    text = f"tensor({tuple(value.shape)}, {value.dtype}, {seed}, {values!r}, {layout!r})"
    return f"{text}.requires_grad_()" if grad and value.requires_grad else text


def _counts(value: torch.Tensor) -> bool:
    """Whether these may be indices: whole numbers, none of them negative."""
    return value.dtype == torch.int64 and value.numel() > 0 and int(value.min()) >= 0
