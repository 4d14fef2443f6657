"""`options={"target": ...}`: a file of the user decides costs and loops."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import eqsat
from eqsat.config import resolve
from eqsat.engine.source import RuleErrors
from eqsat.engine.target import load_target, named_target, read_target
from eqsat.reports import recording
from eqsat.session import open_session


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("base: cpu\nlaunch: 1.0e-6\nloops:\n  parallel_work: 10\n  tile: 16\n")
    return path


def test_what_a_file_leaves_out_is_that_of_its_base(mine: Path) -> None:
    target, base = read_target(mine), load_target("cpu")
    assert (target.launch, target.loops.parallel_work, target.loops.tile) == (1e-6, 10, 16)
    assert (target.bandwidth, target.flops, target.name) == (base.bandwidth, base.flops, "cpu")
    assert target.loops.stretch == base.loops.stretch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: cpu\nloops: {tiel: 3}\n", "'loops' has no 'tiel'"),
        ("base: cpu\nloops: {tile: 0}\n", "'tile' is a whole number above 0"),
        ("base: cpu\nloops: {tile: 2.5}\n", "'tile' is a whole number above 0"),
        ("base: cpu\nloops: 3\n", "'loops' is a map"),
        ("base: gpu\n", "no built-in target is called 'gpu'"),
        ("launch: 1\n", "a target has no 'name'"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(RuleErrors) as error:
        read_target(path)
    place, _, rest = message.partition(": error: ")
    assert (rest or place) in str(error.value)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        session = open_session(
            resolve(None, {"target": str(path), "strict": False}),
            lambda t: warnings.warn(t, stacklevel=1),
        )
    assert session.target == open_session(resolve(None, None), pytest.fail).target
    assert sum("is not used" in str(warning.message) for warning in seen) == 1


def test_names_and_files(mine: Path) -> None:
    assert named_target("h200").device == "cuda"
    assert named_target(str(mine)) == read_target(mine)
    with pytest.raises(RuleErrors):
        named_target(str(mine.with_name("none.yaml")))


def test_a_target_shapes_loops_and_keys(mine: Path) -> None:
    """A kernel too small for threads gets them; the key of the compile is another one."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    x = torch.randn(10, 601)[:, :600]
    found = []
    for options in ({}, {"target": str(mine)}, {"target": mine}):
        torch._dynamo.reset()
        with recording() as reports:
            got = torch.compile(program, backend="eqsat", options=options)(x)
        torch.testing.assert_close(got, program(x))
        found.append(("omp parallel" in reports[-1].source, reports[-1].key))
    assert [parallel for parallel, _ in found] == [False, True, True]
    assert found[0][1] != found[1][1] == found[2][1]
    with eqsat.options(target=str(mine)):
        assert open_session(eqsat.config.snapshot(), pytest.fail).target.loops.tile == 16
    mine.write_text(mine.read_text().replace("tile: 16", "tile: 32"))
    changed = open_session(resolve(None, {"target": str(mine)}), pytest.fail)
    assert changed.target.loops.tile == 32 and changed.key != found[1][1]
