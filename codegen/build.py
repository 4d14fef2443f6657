"""C and C++ text to shared objects, in parallel and cached on disk.

Takes translation units and compiler flags; gives the path of a library. Objects and
libraries are named by a hash of everything they depend on: text, flags, compiler, processor
(for -march=native) and the headers beside this file. Comments are not part of `Unit.text`.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from ..version import VERSION
from .cache import cache_dir, digest, write_atomic

HEADERS = Path(__file__).parent
_CANDIDATES = ("g++", "clang++", "c++")


class CompilerMissing(Exception):
    """No C++ compiler can be found; the message says where it was looked for."""


class BuildError(Exception):
    """The compiler refused a source. `source` is the path of that file."""

    def __init__(self, message: str, source: Path) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source


@dataclass(frozen=True)
class Unit:
    """One translation unit. `text` decides the cache key; `shown` is what gets written and
    compiled, the same code with comments."""

    text: str
    shown: str


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The compiler named by CXX, else the first of g++, clang++, c++ on PATH.

    Raises CompilerMissing.
    """
    named = os.environ.get("CXX")
    choices = [tuple(shlex.split(named))] if named else [(name,) for name in _CANDIDATES]
    for command in choices:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return _identify((path, *command[1:]), os.stat(path).st_mtime_ns)
    looked = f"CXX={named}" if named else f"{', '.join(_CANDIDATES)} on PATH"
    raise CompilerMissing(f"no C++ compiler found (looked for {looked})")


def build_library(units: Sequence[Unit], flags: Sequence[str]) -> Path:
    """Compile `units` (in threads) and link them into one shared library.

    Raises CompilerMissing, BuildError, OSError.
    """
    compiler = find_compiler()
    keys = [_key(compiler, flags, unit.text) for unit in units]
    library = cache_dir() / "lib" / f"{digest(*keys, *_link_flags(flags))[:40]}.so"
    if library.exists():
        return library
    if len(units) == 1:
        objects = [_compile(compiler, flags, units[0], keys[0])]
    else:
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            objects = list(
                pool.map(
                    lambda pair: _compile(compiler, flags, *pair), zip(units, keys, strict=True)
                )
            )
    _run([*compiler.command, *map(str, objects), *_link_flags(flags)], library, objects[0])
    return library


def build_extension(source: Path, flags: Sequence[str]) -> Path:
    """Compile one C file into a shared library (a CPython extension).

    Raises CompilerMissing, BuildError, OSError.
    """
    compiler = find_compiler()
    text = source.read_text()
    key = _key(compiler, flags, text, platform.python_version(), platform.machine())
    library = cache_dir() / "ext" / f"{key}.so"
    if not library.exists():
        _run([*compiler.command, "-x", "c", str(source), *flags, "-shared"], library, source)
    return library


def _compile(compiler: Compiler, flags: Sequence[str], unit: Unit, key: str) -> Path:
    target = cache_dir() / "obj" / f"{key}.o"
    if target.exists():
        return target
    source = cache_dir() / "src" / f"{key}.cpp"
    write_atomic(source, unit.shown.encode())
    wanted = [flag for flag in flags if flag != "-shared"]
    command = [*compiler.command, "-c", str(source), f"-I{HEADERS}", *wanted]
    _run(command, target, source)
    return target


def _run(command: Sequence[str], target: Path, source: Path) -> None:
    """Run the compiler into a temporary file, then move it to `target` in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
    os.close(handle)
    try:
        done = subprocess.run([*command, "-o", temporary], capture_output=True, text=True)
        if done.returncode:
            raise BuildError(done.stderr.strip() or f"{command[0]} failed", source)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _link_flags(flags: Sequence[str]) -> list[str]:
    """Flags for linking. Where torch brings its own OpenMP runtime, kernels use that one:
    one thread pool instead of two, and `torch.set_num_threads` counts for both."""
    shared = [*flags, *([] if "-shared" in flags else ["-shared"])]
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if "-fopenmp" not in flags or len(bundled) != 1:
        return shared
    return [str(bundled[0]) if flag == "-fopenmp" else flag for flag in shared]


def _key(compiler: Compiler, flags: Sequence[str], *parts: str) -> str:
    native = processor() if "-march=native" in flags else ""
    versions = (VERSION, torch.__version__)
    shared = (*versions, compiler.version, *compiler.command, *flags, native, _header_text())
    return digest(*shared, *parts)[:40]


@lru_cache(maxsize=16)
def _identify(command: tuple[str, ...], changed: int) -> Compiler:
    """`changed` (the file's time stamp) makes an upgraded compiler count as another one."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    return Compiler(command, f"{done.stdout}{done.returncode} {changed}")


@lru_cache(maxsize=1)
def _header_text() -> str:
    return "".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor's model and features: with -march=native, machines that share a cache
    folder must not share objects."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = {line.split(":")[0].strip(): line for line in reversed(lines)}
    return "".join(first.get(name, "") for name in ("model name", "flags", "Features"))
