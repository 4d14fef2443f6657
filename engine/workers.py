"""Runs tasks in forked processes, any of which may crash or hang.

Takes tasks and a function; gives a result per task, in their order, or a `Lost` that says how
its process ended. A task that ended so runs once more, to find out which call of torch it was
in. Where processes cannot be forked, everything runs in this one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from .last_call import LastCall, read_text

Task = TypeVar("Task")
Result = TypeVar("Result")

_SHOWN = 3  # lines of what a process said before it ended


@dataclass(frozen=True)
class Lost:
    """A task without a result: how its process ended, and its last call of torch as a program
    ("" where that is not known)."""

    reason: str
    program: str = ""


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def run_all(
    work: Callable[[Task], Result], tasks: Sequence[Task], jobs: int, limit: float
) -> Iterator[Result | Lost]:
    """The results of `work` in the order of `tasks`, with `jobs` processes at a time (0: in this
    one) and at most `limit` seconds per task. What a process writes to stderr is shown only
    where it ends too early. Results must be picklable; tasks need not."""
    if jobs and can_fork():
        return _Pool(work, tasks, limit).run(jobs)
    return map(work, tasks)


@dataclass
class _Pool:
    work: Callable[[Any], Any]
    tasks: Sequence[Any]
    limit: float
    workers: list[_Worker] = field(default_factory=list)
    done: dict[int, Any] = field(default_factory=dict)

    def run(self, jobs: int) -> Iterator[Any]:
        waiting = list(range(len(self.tasks)))[::-1]
        try:
            for place in range(len(self.tasks)):
                while place not in self.done:
                    while waiting and len(self.workers) < jobs:
                        self.workers.append(_Worker(self, waiting.pop()))
                    self._collect(waiting)
                yield self.done.pop(place)
        finally:
            for worker in self.workers:
                worker.end()

    def _collect(self, waiting: list[int]) -> None:
        """Takes what comes next; a worker that is done goes on with a task that waits."""
        first = min(worker.deadline for worker in self.workers)
        wait([worker.pipe for worker in self.workers], max(first - time.monotonic(), 0))
        for worker in list(self.workers):
            outcome = worker.outcome()
            if outcome is None:
                continue
            if isinstance(outcome, Lost):
                outcome = Lost(outcome.reason, self._last_call(worker.place))
            self.done[worker.place] = outcome
            if waiting and worker.alive:
                worker.begin(waiting.pop())
            else:
                worker.end()
                self.workers.remove(worker)

    def _last_call(self, place: int) -> str:
        """Runs a task again, writing down each call of torch; gives the one it did not survive,
        or "" where it does."""
        with tempfile.TemporaryFile() as file:
            worker = _Worker(self, place, LastCall(file))
            try:
                while (outcome := worker.outcome()) is None:
                    wait([worker.pipe], max(worker.deadline - time.monotonic(), 0))
            finally:
                worker.end()
            return read_text(file) if isinstance(outcome, Lost) else ""


class _Worker:
    """A process that does one task after the other."""

    def __init__(self, pool: _Pool, place: int, watch: LastCall | None = None) -> None:
        self._limit = pool.limit
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        self.alive = True
        self.pipe, theirs = multiprocessing.Pipe()
        others = [self.pipe, *(worker.pipe for worker in pool.workers)]
        context = multiprocessing.get_context("fork")
        self._process = context.Process(
            target=_serve, args=(pool, theirs, others, self._said.fileno(), watch), daemon=True
        )
        with warnings.catch_warnings():  # newer Pythons warn of forks beside threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self.begin(place)

    def begin(self, place: int) -> None:
        self.place = place
        self.deadline = time.monotonic() + self._limit
        with contextlib.suppress(OSError):  # it is gone: `outcome` says so
            self.pipe.send(place)

    def outcome(self) -> Any:
        """The result of the task, or a `Lost`; None as long as it takes."""
        if self.pipe.poll():
            try:
                return self.pipe.recv()
            except (EOFError, OSError):
                self.alive = False
                self._process.join()
                return Lost(self._end_in_words())
        if time.monotonic() < self.deadline:
            return None
        self.alive = False
        return Lost(f"was stopped after {self._limit:g} seconds")

    def _end_in_words(self) -> str:
        code = self._process.exitcode or 0
        how = f"with signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        lines = read_text(self._said).strip().splitlines()[-_SHOWN:]
        return "\n".join([f"crashed the process {how}", *lines])

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()
        self._said.close()


def _serve(
    pool: _Pool, pipe: Connection, others: Sequence[Connection], said: int, watch: LastCall | None
) -> None:
    """What a worker does until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    for other in others:
        other.close()
    os.dup2(said, 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - a notebook's goes elsewhere
    torch.set_num_threads(1)
    while True:
        try:
            place = pipe.recv()
        except EOFError:
            return
        with watch or contextlib.nullcontext():
            result = pool.work(pool.tasks[place])
        pipe.send(result)
