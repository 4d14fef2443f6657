"""`eqsat calibrate`: what it writes is a target that later compiles use, and can be removed."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from eqsat import backend, calibrate_command, calibration
from eqsat.cli import main
from eqsat.codegen.cache import fresh_cache
from eqsat.config import resolve
from eqsat.engine.target import Target, load_target, read_target
from eqsat.machine import calibrated_target, calibration_path
from eqsat.session import open_session

FASTER = replace(load_target("cpu"), bandwidth=9.5e10)


@pytest.fixture
def measured(monkeypatch):
    """A calibration that takes no time."""
    monkeypatch.setattr(calibrate_command, "calibrate", lambda device: FASTER)


def test_everything_is_measured_and_positive():
    found = calibration.calibrate("cpu")
    for field in fields(Target):
        value = getattr(found, field.name)
        if isinstance(value, float):
            assert value > 0, field.name
    assert all(rate > 1e8 for rate in found.flops.values())
    assert found.cache_bandwidth >= found.bandwidth


def test_a_calibration_is_used_and_removed(measured, capsys):
    with fresh_cache():
        before = open_session(resolve(None, None), pytest.fail)
        assert main(["calibrate"]) == 0
        assert "bandwidth" in capsys.readouterr().out
        session = open_session(resolve(None, None), pytest.fail)
        assert session.target.bandwidth == 9.5e10
        assert session.key != before.key
        assert main(["calibrate", "--remove"]) == 0
        assert open_session(resolve(None, None), pytest.fail).key == before.key


def test_a_file_of_ones_own(measured, tmp_path):
    with fresh_cache():
        assert main(["calibrate", "--write", str(tmp_path / "mine.yaml")]) == 0
        assert not calibration_path("cpu").exists()
    assert read_target(tmp_path / "mine.yaml") == FASTER


@pytest.mark.parametrize("keep", [0, 40, 200])
def test_a_damaged_file_costs_a_warning(measured, keep):
    with fresh_cache():
        assert main(["calibrate"]) == 0
        path = calibration_path("cpu")
        path.write_text(path.read_text()[:keep])
        told = []
        assert calibrated_target("cpu", told.append) is None
        (text,) = told
        assert path.name in text and "eqsat calibrate" in text
        assert open_session(resolve(None, None), told.append).target == load_target("cpu")


def test_another_device_is_refused(measured):
    with fresh_cache():
        path = calibration_path("cpu")
        path.parent.mkdir(parents=True)
        path.write_text(calibration.target_text(replace(FASTER, device="cuda"), "x"))
        told = []
        assert calibrated_target("cpu", told.append) is None
        assert "not for 'cpu'" in told[0]


def test_no_gpu_is_said(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["calibrate", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_each_graph_has_the_target_of_its_device(monkeypatch):
    """Costs of a graph on a GPU are those of the GPU."""
    cpu = open_session(resolve(None, None), pytest.fail)
    with fresh_cache():
        gpu = open_session(resolve(None, None), pytest.fail, "cuda")
        assert gpu.target == load_target("generic" if not torch.cuda.is_available() else "h200")
        path = calibration_path("cuda")
        path.parent.mkdir(parents=True)
        mine = replace(FASTER, device="cuda")
        path.write_text(calibration.target_text(mine, "x"))
        assert open_session(resolve(None, None), pytest.fail, "cuda").target == mine
    assert cpu.target.device == "cpu" and gpu.key != cpu.key
    assert gpu.lowered["gelu"] == cpu.lowered["gelu"] == "pointwise"
    assert gpu.lowered["permute"] == cpu.lowered["permute"] == "view"


def test_the_device_of_a_graph():
    def graph(*devices):
        gm = torch.fx.symbolic_trace(lambda *x: x)
        for node, device in zip(gm.graph.nodes, devices, strict=False):
            node.meta["example_value"] = torch.empty(2, device=device)
        return gm

    assert backend._device(graph("cpu")) == "cpu"
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert backend._device(graph("cuda")) == "cuda"
