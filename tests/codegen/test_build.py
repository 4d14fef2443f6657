"""The compiler driver and its cache."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from eqsat.codegen import build as building
from eqsat.codegen import cache as caching
from eqsat.codegen.build import BuildError, CompilerMissing, Unit, build_library, find_compiler
from eqsat.codegen.cache import cache_dir, digest, write_atomic

FLAGS = ["-O1", "-std=c++17", "-fPIC"]


def unit(text: str, comment: str = "") -> Unit:
    return Unit(text, f"// {comment}\n{text}")


def test_units_are_linked_into_one_library(cache: Path) -> None:
    units = [
        unit('extern "C" int one() { return 1; }'),
        unit('extern "C" int one(); extern "C" int two() { return 2 * one(); }'),
    ]
    library = build_library(units, FLAGS)
    assert library.is_relative_to(cache)
    assert ctypes.CDLL(str(library)).two() == 2


def test_comments_do_not_defeat_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" int three() { return 3; }'
    first = build_library([unit(text, "one origin")], FLAGS)

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(building, "_run", refuse)
    assert build_library([unit(text, "another origin")], FLAGS) == first
    with pytest.raises(AssertionError):
        build_library([unit(text)], [*FLAGS, "-O2"])


def test_another_process_hits_the_cache(cache: Path) -> None:
    text = 'extern "C" int four() { return 4; }'
    library = build_library([unit(text)], FLAGS)
    stamp = library.stat().st_mtime_ns
    script = (
        "import subprocess\n"
        "from eqsat.codegen import build\n"
        f"unit = build.Unit({text!r}, {text!r})\n"
        "build.find_compiler()\n"
        "subprocess.run = None\n"
        f"print(build.build_library([unit], {FLAGS!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == str(library), done.stderr
    assert library.stat().st_mtime_ns == stamp


def test_compiler_errors_carry_message_and_source() -> None:
    with pytest.raises(BuildError, match="oops") as caught:
        build_library([unit('extern "C" int five() { return oops; }')], FLAGS)
    assert caught.value.source.read_text().endswith("return oops; }")


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CompilerMissing, match=r"g\+\+"):
        build_library([unit("int six;")], FLAGS)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(CompilerMissing, match="no-such-compiler"):
        find_compiler()


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_compiler()
    monkeypatch.setenv("CXX", f"{plain.command[0]} -DSEVEN=7")
    assert find_compiler().command[1:] == ("-DSEVEN=7",)
    library = build_library([unit('extern "C" int seven() { return SEVEN; }')], FLAGS)
    assert ctypes.CDLL(str(library)).seven() == 7


def test_unwritable_cache_is_replaced_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(blocked / "cache"))
    caching._usable.cache_clear()
    with pytest.warns(UserWarning, match="EQSAT_CACHE_DIR"):
        folder = cache_dir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache_dir() == folder
    assert build_library([unit("int eight;")], FLAGS).is_relative_to(folder)


def test_writes_are_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.bin"
    pieces = [bytes([i]) * 100_000 for i in range(4)]

    def work(piece: bytes) -> None:
        for _ in range(20):
            write_atomic(target, piece)

    threads = [threading.Thread(target=work, args=(piece,)) for piece in pieces]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if target.exists():
            assert target.read_bytes() in pieces
    assert os.listdir(target.parent) == ["file.bin"]


def test_digest_keeps_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
