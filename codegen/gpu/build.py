"""Triton text to machine code, ahead of any launch and without a GPU.

Takes `TritonText`s and a target; gives `Binary`s, from the cache on disk where they are there.
Triton is imported only where something has to be compiled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..cache import cache_dir, digest, write_atomic
from .emit import HEADER, TritonText

ALIGNED = 16  # bytes


@dataclass(frozen=True)
class Target:
    """`backend` is "cuda" or "hip"; `arch` 90 for a compute capability of 9.0, or "gfx942"."""

    backend: str
    arch: int | str

    @property
    def warp(self) -> int:
        return 64 if self.backend == "hip" else 32


@dataclass(frozen=True)
class Binary:
    """`code` is a cubin (or hsaco); `shared` counts bytes of shared memory, `scratch` the hidden
    pointers after the parameters."""

    name: str
    code: bytes
    warps: int
    shared: int
    scratch: int


def build_kernels(
    named: Sequence[tuple[str, TritonText]], target: Target, *, aligned: bool = True
) -> list[Binary]:
    """A binary per (name, text). `aligned`: every pointer is a multiple of `ALIGNED`.

    Raises ImportError without Triton, and what its compiler raises.
    """
    jobs = [(name, text, target, aligned) for name, text in named]
    found = [_cached(*job) for job in jobs]
    missing = [job for job, binary in zip(jobs, found, strict=True) if binary is None]
    if missing:
        with ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1)) as pool:
            made = pool.map(lambda job: _compile(*job), missing)
        remaining = iter(made)
        found = [binary or next(remaining) for binary in found]
    return [binary for binary in found if binary is not None]


def _key(name: str, text: TritonText, target: Target, aligned: bool) -> str:
    parts = (HEADER, text.text, text.types, text.warps, target, aligned, _triton_version())
    helpers = (Path(__file__).parent / "helpers.py").read_text()
    return digest("\n".join(map(repr, (name, helpers, *parts))))


def _triton_version() -> str:
    for package in ("triton", "pytorch-triton", "pytorch-triton-rocm"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def _cached(name: str, text: TritonText, target: Target, aligned: bool) -> Binary | None:
    path = _folder() / f"{_key(name, text, target, aligned)}.json"
    try:
        facts = json.loads(path.read_text())
        return Binary(code=path.with_suffix(".bin").read_bytes(), **facts)
    except (OSError, ValueError, TypeError):
        return None


def _folder() -> Path:
    return cache_dir() / "triton"


def _compile(name: str, text: TritonText, target: Target, aligned: bool) -> Binary:
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, compile  # noqa: PLC0415

    key = _key(name, text, target, aligned)
    path = _folder() / f"{key}.py"
    write_atomic(path, (HEADER + text.text.replace("@NAME@", name)).encode())
    function = getattr(_module(path), name)
    parameters = dict(zip(function.arg_names, text.types, strict=True))
    attributes = {
        (place,): [["tt.divisibility", ALIGNED]]
        for place, kind in enumerate(text.types)
        if aligned and kind.startswith("*")
    }
    source = ASTSource(fn=function, signature=parameters, constexprs={}, attrs=attributes)
    options = {"num_warps": text.warps, "enable_fp_fusion": False, "debug": text.asserts}
    goal = GPUTarget(target.backend, target.arch, target.warp)
    kernel = compile(source, target=goal, options=options)
    binary = _read(name, kernel, len(text.types))
    facts = {key: value for key, value in asdict(binary).items() if key != "code"}
    write_atomic(path.with_suffix(".bin"), binary.code)
    write_atomic(path.with_suffix(".json"), json.dumps(facts).encode())
    return binary


def _read(name: str, kernel: Any, parameters: int) -> Binary:
    facts, code = kernel.metadata, kernel.asm["cubin" if "cubin" in kernel.asm else "hsaco"]
    if any(getattr(facts, size, 0) for size in ("global_scratch_size", "profile_scratch_size")):
        raise RuntimeError(f"kernel {name} wants scratch memory")
    head = re.search(r"\.entry\s+\S+?\(([^)]*)\)", kernel.asm.get("ptx", ""))
    hidden = head.group(1).count(".param") - parameters if head is not None else 2
    return Binary(facts.name, code, facts.num_warps, facts.shared, hidden)


def _module(path: Path) -> Any:
    name = f"eqsat_triton_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
