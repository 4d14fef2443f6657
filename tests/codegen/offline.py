"""Compiles kernels for a GPU that is not there: `python -m eqsat.tests.codegen.offline`.

Prints one line of JSON: per kernel the bytes of stack that a thread needs, which are registers
spilled to memory. A process of its own, as Triton's interpreter and its compiler exclude each
other.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton

from eqsat.codegen.cache import fresh_cache
from eqsat.codegen.gpu.build import Target, build_kernels
from eqsat.codegen.gpu.emit import emit_nest
from eqsat.tests.codegen import test_cpp, test_scan_kernels
from eqsat.tests.codegen.drafts import scalar_table

NAMES = (
    *("bias_gelu", "bf16_rounds_each_step", "softmax_rows", "softmax_one_long_row"),
    *("softmax_columns", "layer_norm_bf16", "argmax_all", "transposed_copy", "embedding"),
    *("scatter_add_last_dim", "max_pool", "rows_of_unknown_length", "extremes_and_places"),
)
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def main() -> None:
    cases = {**test_cpp.CASES, **test_scan_kernels.CASES}
    table, texts = scalar_table(), []
    for name in NAMES:
        draft = cases[name]()
        texts.append((f"k_{name}", emit_nest(draft.nest, draft.buffers, table)))
    with fresh_cache():
        binaries = build_kernels(texts, Target("cuda", 90))
        again = build_kernels(texts, Target("cuda", 90))
    assert again == binaries, "what the cache gives"
    print(json.dumps({binary.name: _stack(binary.code) for binary in binaries}))


def _stack(code: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [str(TOOL), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.findall(r"STACK:(\d+)", done.stdout + done.stderr)[0])


if __name__ == "__main__":
    main()
