"""Tasks in forked processes: what crashes or hangs is told, the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from eqsat.engine.workers import Lost, can_fork, run_all

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs processes that fork")
LIMIT = 60.0


def double(number: int) -> int:
    return 2 * number


def doubled_or_dead(number: int) -> int:
    if number == 1:
        print("about to die", file=sys.stderr, flush=True)
        torch.ops.eqsat_workers_test.die(torch.arange(3.0))
    return 2 * number


@pytest.fixture
def deadly_op():
    """An op that ends its process as a wild pointer would."""
    with torch.library._scoped_library("eqsat_workers_test", "DEF") as library:
        library.define("die(Tensor x) -> Tensor")
        library.impl("die", lambda x: os.kill(os.getpid(), signal.SIGSEGV), "CPU")
        yield


@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_results_keep_the_order_of_the_tasks(jobs: int) -> None:
    tasks = list(range(7))

    def slow_first(number: int) -> int:
        time.sleep(0.05 * (number == 0))
        return double(number)

    assert list(run_all(slow_first, tasks, jobs, LIMIT)) == [double(task) for task in tasks]


def test_a_crash_is_told_and_the_others_go_on(deadly_op: None) -> None:
    results = list(run_all(doubled_or_dead, [0, 1, 2, 3], 2, LIMIT))
    assert [results[at] for at in (0, 2, 3)] == [0, 4, 6]
    lost = results[1]
    assert isinstance(lost, Lost)
    assert "SIGSEGV" in lost.reason and "about to die" in lost.reason
    assert "eqsat_workers_test.die" in lost.program and "import torch" in lost.program


def test_a_hang_is_stopped() -> None:
    def sleepy(number: int) -> int:
        time.sleep(600 * (number == 1))
        return double(number)

    results = list(run_all(sleepy, [0, 1, 2], 2, 1.5))
    assert (results[0], results[2]) == (0, 4)
    assert isinstance(results[1], Lost) and "stopped after 1.5 seconds" in results[1].reason


def test_errors_of_tasks_are_not_swallowed() -> None:
    def fail(number: int) -> int:
        raise ValueError(f"task {number}")

    (lost,) = run_all(fail, [5], 1, LIMIT)
    assert isinstance(lost, Lost) and "ValueError: task 5" in lost.reason
    with pytest.raises(ValueError, match="task 5"):
        list(run_all(fail, [5], 0, LIMIT))


def test_ctrl_c_stops_a_check() -> None:
    command = [sys.executable, "-m", "eqsat", "check", "rules/algebra", "--examples", "2000"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        time.sleep(6)
        assert process.poll() is None, "the check is over already"
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "stopped" in text
    with pytest.raises(ProcessLookupError):  # nobody of its group is left
        os.killpg(process.pid, 0)
