"""Cold compile time of one model under one backend, in this fresh process.

    python -m benchmarks.cold MODEL BACKEND

Prints one JSON line: seconds from the first compiled call to its result, with empty caches
in a temporary folder. `compile_seconds` (used by the other benchmarks) starts such processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time


def compile_seconds(model: str, backend: str) -> float:
    """Seconds of the first call of `model` compiled by `backend`, fresh process and caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "EQSAT_CACHE_DIR": os.path.join(folder, "eqsat"),
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
        }
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.cold", model, backend],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise RuntimeError(f"{model} under {backend} failed:\n{result.stderr[-4000:]}")
    return float(json.loads(result.stdout.splitlines()[-1])["seconds"])


def main(model: str, backend: str) -> None:
    import torch  # noqa: PLC0415 - the import is not part of what is timed

    from .models import build  # noqa: PLC0415

    module, inputs = build(model)
    with torch.no_grad():
        module(**inputs)  # kernels of the libraries are loaded for everybody alike
        compiled = torch.compile(module, backend=backend)
        start = time.perf_counter()
        compiled(**inputs)
        seconds = time.perf_counter() - start
    print(json.dumps({"model": model, "backend": backend, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
