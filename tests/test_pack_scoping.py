"""Compiles with different rules in one process stay apart, and no edit of a rule is missed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import eqsat
from eqsat import session as session_module
from eqsat.codegen import build
from eqsat.engine.target import load_target
from eqsat.reports import recording
from eqsat.tests.pack_files import (
    fresh,  # noqa: F401 - a fixture for every test
    marker,
    names,
    opened,
    tanh,
    write,
)

Program = Callable[..., torch.Tensor]


def compiled(program: Program, *paths: str, dynamic: bool | None = None, **more: Any) -> Program:
    options = {"rules": list(paths), **more}
    return torch.compile(program, backend="eqsat", options=options, dynamic=dynamic)


def test_interleaved_compiles_of_one_function(tmp_path: Path) -> None:
    """Each keeps its rules through new shapes, new dtypes, and compiles of the others."""
    two, three = (write(tmp_path / f"{n}.yaml", marker(n)) for n in (2, 3))
    programs = {
        2.0: compiled(tanh, two),
        3.0: compiled(tanh, three, dynamic=False),
        4.0: compiled(tanh, two, three, disable=["2:*", "3:*"]),
        None: compiled(tanh),
    }
    programs[2.5] = compiled(tanh, two, three, disable=["*"], enable=["2:*"], fold=False)
    factors = {2.0: 2.0, 3.0: 3.0, 2.5: 2.0}
    with torch._dynamo.config.patch(recompile_limit=64):
        for shape, dtype in (((5,), torch.float32), ((4, 3), torch.float32), ((5,), torch.float64)):
            x = torch.randn(shape, dtype=dtype)
            for key, program in programs.items():
                expected = x * factors[key] if key in factors else torch.tanh(x)
                torch.testing.assert_close(program(x), expected)


@pytest.mark.parametrize("stage", ["pre_grad", "trace", "joint", "post_grad"])
def test_every_stage_is_scoped(tmp_path: Path, stage: str) -> None:
    op = "torch.tanh" if stage == "pre_grad" else "tanh"
    paths = [write(tmp_path / f"{n}.yaml", marker(n, op=op, stage=stage)) for n in (2, 3)]
    programs = [compiled(tanh, path) for path in paths]
    for size in (3, 4, 3):
        x = torch.randn(size, 2, requires_grad=True)
        for factor, program in zip((2, 3), programs, strict=True):
            torch.testing.assert_close(program(x), x * factor)
        torch.testing.assert_close(compiled(tanh)(x), torch.tanh(x))


def test_graph_breaks_keep_the_rules(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(x)
        torch._dynamo.graph_break()
        return torch.tanh(first + 1)

    one = compiled(broken, write(tmp_path / "a.yaml", marker(2)))
    other = compiled(broken, write(tmp_path / "b.yaml", marker(3)))
    for size in (4, 5):
        x = torch.randn(size)
        torch.testing.assert_close(one(x), (x * 2 + 1) * 2)
        torch.testing.assert_close(other(x), (x * 3 + 1) * 3)


def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_backward_compiled_later_has_the_rules_of_its_forward(
    tmp_path: Path, dynamic: bool, elsewhere: bool
) -> None:
    """The gradient of a sine holds a cosine, which the rules turn into a multiple."""
    path = write(tmp_path / "mine.yaml", marker(2, op="cos"))
    x = torch.randn(6, requires_grad=True)
    with eqsat.options(rules=[path]), recording() as first:
        loss = torch.compile(sine, backend="eqsat", dynamic=dynamic)(x).sum()
    write(tmp_path / "mine.yaml", marker(7, op="cos"))
    with eqsat.options(numerics="bitwise", disable=["*"]), recording() as later:
        compiled(torch.sinh)(torch.randn(3))
        if elsewhere:
            with ThreadPoolExecutor(1) as pool:
                (gradient,) = pool.submit(torch.autograd.grad, loss, x).result()
        else:
            (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, x.detach() * 2)
    keys = {report.kind: report.key for report in (*first, *later)}
    assert keys["backward"] == keys["forward"] != keys["inference"]
    assert dynamic or "backward" in {report.kind for report in later}  # it was compiled here


def test_threads_have_their_own_with_blocks(tmp_path: Path) -> None:
    paths = {n: write(tmp_path / f"{n}.yaml", marker(n)) for n in (2, 3, 4)}
    inside = threading.Barrier(len(paths) + 1)

    def work(factor: int) -> bool:
        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)

        x = torch.randn(8, generator=torch.Generator().manual_seed(factor))
        with eqsat.options(rules=[paths[factor]]):
            inside.wait(60)
            ours = [pack.paths for pack in eqsat.config.rules]
            right = torch.allclose(torch.compile(program, backend="eqsat")(x), x * factor)
            inside.wait(60)
        return right and ours == [(paths[factor],)]

    with ThreadPoolExecutor(len(paths)) as pool:
        waiting = [pool.submit(work, factor) for factor in paths]
        inside.wait(60)
        x = torch.randn(5)
        torch.testing.assert_close(compiled(tanh)(x), torch.tanh(x))
        inside.wait(60)
        assert all(one.result() for one in waiting)


@torch.library.custom_op("eqsat_packs::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_ops_of_a_pack_are_known_to_its_compiles_only(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return halve(x) + 1

    def externs(*paths: str) -> list[str]:
        torch._dynamo.reset()
        with recording() as reports:
            torch.testing.assert_close(compiled(program, *paths)(x), program(x))
        return [extern.target for report in reports for extern in report.externs]

    x = torch.randn(9)
    text = (
        "- op: halve\n  doc: Half of it.\n  aten: [eqsat_packs.halve.default]\n"
        "  args: x\n  scalar: x * 0.5\n"
    )
    path = write(tmp_path / "halve.yaml", text)
    assert externs() == ["eqsat_packs.halve.default"]
    assert externs(path) == []
    assert externs() == ["eqsat_packs.halve.default"]


# Edits


def test_an_edit_of_one_character_counts_even_with_the_same_time_and_size(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "mine.yaml", marker(2)))
    before = path.stat()
    program = compiled(tanh, str(path))
    x = torch.randn(5)
    for factor in (2, 3, 2, 4):
        path.write_text(marker(factor))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (path.stat().st_mtime_ns, path.stat().st_size) == (
            before.st_mtime_ns,
            before.st_size,
        )
        torch._dynamo.reset()
        torch.testing.assert_close(program(x), x * factor)


def test_a_moved_rule_is_shown_at_its_new_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    lines = []
    for blank in (0, 4):
        write(path, "\n" * blank + marker(2))
        (rule,) = [rule for rule in opened(rules=[path]).book.rules if rule.name == "mine:marker"]
        lines.append(rule.span.line)
    assert lines == [2, 6]


def test_what_the_key_of_a_session_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = marker(2, assumes="[no_overflow]")
    path = write(tmp_path / "here" / "mine.yaml", text)
    moved = write(tmp_path / "there" / "mine.yaml", "# A comment.\n" + text)
    keys = {opened(rules=[path]).key}
    assert keys == {opened(rules=[path]).key, opened(rules=[moved]).key}

    def differs(**options: Any) -> None:
        key = opened(**{"rules": [path], **options}).key
        assert key not in keys, options
        keys.add(key)

    differs(rules=[])
    differs(numerics="bitwise")
    differs(numerics="fast")
    differs(disable=["silu-split"])
    differs(disable=["silu-split"], enable=["silu-split"])
    differs(fold=False)
    differs(mode="max-autotune")
    for number in range(text.index("vars"), len(text)):
        if text[number] == "2":
            write(Path(path), f"{text[:number]}3{text[number + 1 :]}")
            differs()
    write(Path(path), text.replace("[no_overflow]", "[finite]"))
    differs()
    write(Path(path), text)
    target = load_target("cpu")
    with monkeypatch.context() as patch:
        faster = replace(target, bandwidth=target.bandwidth * 2)
        patch.setattr(session_module, "machine_target", lambda device, warn: faster)
        differs()
    schedule = session_module.load_schedule()
    with monkeypatch.context() as patch:
        fewer = replace(schedule, stages={**schedule.stages, "joint": ()})
        patch.setattr(session_module, "load_schedule", lambda: fewer)
        differs()
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "VERSION", "0.0.0")
        differs()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.9")
        differs()
    assert opened(rules=[path]).key in keys


def test_versions_are_part_of_every_kernel_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = build.Compiler(("c++",), "1")
    keys = {build._key(compiler, ("-O2",), "text")}
    with monkeypatch.context() as patch:
        patch.setattr(build, "VERSION", "0.0.0")
        keys.add(build._key(compiler, ("-O2",), "text"))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9.9")
        keys.add(build._key(compiler, ("-O2",), "text"))
    keys.add(build._key(compiler, ("-O2",), "texu"))
    assert len(keys) == 4


def test_equal_text_in_another_place_shares_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(cache))

    def built() -> set[str]:
        return {path.name for kind in ("obj", "lib") for path in (cache / kind).iterdir()}

    x = torch.randn(7)
    write(tmp_path / "here" / "mine.yaml", marker(11))
    compiled(tanh, str(tmp_path / "here"))(x)
    first = built()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    torch._dynamo.reset()
    compiled(tanh, str(tmp_path / "there"))(x)
    assert built() == first
    write(tmp_path / "there" / "mine.yaml", marker(12))
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(tanh, str(tmp_path / "there"))(x), x * 12)
    assert built() > first


def test_tables_are_shared_by_equal_sessions_and_forgotten_in_time(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", marker(2))
    first = opened(rules=[path])
    assert opened(rules=[path], strict=True, fold=False).table is first.table
    assert opened().table is not first.table
    for number in range(session_module.KEPT):
        assert "other:marker" in names(
            opened(rules=[write(tmp_path / "other.yaml", marker(number))])
        )
    assert opened(rules=[path]).table is not first.table
