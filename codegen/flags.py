"""The g++ flags every kernel file is compiled with.

Takes nothing; gives the list. No member of -ffast-math that would break nan, inf or -0.0 is
among them: `omp simd reduction` itself allows sums to be reordered. Contraction is off, so
that chains of multiplications and additions round as eager's do.
"""

from __future__ import annotations

import platform
from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def _all_flags() -> tuple[str, ...]:
    flags = ["-std=c++17", "-O2", "-march=native"]
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if is_x86 and "AVX512" in torch.backends.cpu.get_cpu_capability():
        # gcc may pick 256 bits for a processor that it does not know.
        flags.append("-mprefer-vector-width=512")
    # At -O2 gcc's own cost model refuses loops whose length is unknown, and the steps that join
    # the lanes of a reduction.
    flags.append("-fvect-cost-model=dynamic")
    flags += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv"]
    return (*flags, "-fopenmp", "-fPIC")


def compile_flags() -> list[str]:
    """Flags for compiling one kernel file; the include folder and -shared are not among them."""
    return list(_all_flags())
