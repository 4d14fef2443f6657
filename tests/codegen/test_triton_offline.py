"""Kernels compile for a Hopper GPU, which need not be there, and keep their values in registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def test_kernels_compile_without_a_gpu() -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "eqsat.tests.codegen.offline"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    stacks = json.loads(done.stdout.splitlines()[-1])
    assert len(stacks) >= 10 and not any(stacks.values()), stacks
