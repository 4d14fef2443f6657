"""What a compile imports: egglog's engine alone, and none of the tools for authors."""

import subprocess
import sys

from eqsat.engine.native import Engine

HEAVY = ("black", "graphviz", "hypothesis", "rich")


def test_the_engine_runs_programs():
    engine = Engine()
    program = engine.parse_program("(sort T) (constructor a () T) (a) (check (= (a) (a)))")
    engine.run_program(*program)


def test_the_backend_imports_no_tools():
    code = (
        "import sys, torch._dynamo, torch._functorch.aot_autograd\n"
        "before = set(sys.modules)\n"
        "import eqsat.backend\n"
        f"print(sorted(set({HEAVY}) & (set(sys.modules) - before)))\n"
        "import egglog.bindings\n"
        "from eqsat.engine.native import Engine\n"
        "assert egglog.bindings.EGraph is Engine\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
