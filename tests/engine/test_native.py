"""What a compile imports: egglog's engine alone, and none of the tools for authors."""

import multiprocessing
import subprocess
import sys

import pytest
import torch

from eqsat.engine.native import engine_class

HEAVY = ("black", "graphviz", "hypothesis", "rich")


def test_the_engine_runs_programs():
    engine = engine_class()()
    program = engine.parse_program("(sort T) (constructor a () T) (a) (check (= (a) (a)))")
    engine.run_program(*program)


def test_the_backend_imports_no_tools():
    code = (
        "import sys, torch._dynamo, torch._functorch.aot_autograd\n"
        "before = set(sys.modules)\n"
        "import eqsat.backend\n"
        f"print(sorted(set({HEAVY}) & (set(sys.modules) - before)))\n"
        "import egglog.bindings\n"
        "from eqsat.engine.native import engine_class\n"
        "assert egglog.bindings.EGraph is engine_class()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def rewritten(x):
    return torch.nn.functional.silu(x @ x.t()).relu() * 2.0 + torch.softmax(x, -1).sum()


def compile_and_send(pipe, depth):
    """Compiles in a forked process, then in one forked off that."""
    torch._dynamo.reset()
    torch.set_num_threads(1)  # the threads of torch's own kernels do not survive a fork either
    x = torch.randn(6, 6)
    found = torch.compile(rewritten, backend="eqsat", options={"strict": True})(x)
    torch.testing.assert_close(found, rewritten(x))
    if depth:
        in_fork(depth - 1)
    pipe.send("fine")


def in_fork(depth):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=compile_and_send, args=(theirs, depth)
    )
    process.start()
    theirs.close()
    try:
        assert ours.poll(120), "the forked process hangs"
        assert ours.recv() == "fine"
    finally:
        process.kill()
        process.join()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork"
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA cannot be used after a fork")
def test_a_process_may_fork_after_a_compile():
    """egglog's threads do not survive the fork; the compile must not wait for them."""
    torch.compile(rewritten, backend="eqsat")(torch.randn(6, 6))
    in_fork(1)
