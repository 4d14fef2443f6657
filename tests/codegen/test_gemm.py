"""The choice between ATen and oneDNN for matrix products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eqsat.codegen import gemm, shims
from eqsat.codegen.compile import CompileOptions, compile_program
from eqsat.lowering.loops import Extern, View

aten = torch.ops.aten
pytestmark = pytest.mark.skipif(
    not shims.address("aoti_torch_cpu__linear_pointwise"), reason="torch without oneDNN"
)


def product(make: Any, dtype: str, rows: int = 160) -> Any:
    """bias + x @ w.T, returned."""
    x = make.buffer("x", rows, 192, role="input", dtype=dtype)
    w = make.buffer("w", 160, 192, role="input", dtype=dtype)
    b = make.buffer("b", 160, role="input", dtype=dtype)
    y = make.buffer("y", rows, 160, role="extern", dtype=dtype)
    args = (make.view(b), make.view(x), View("w", (192, 160), (1, 192)))
    step = Extern("addmm", aten.addmm.default, args, {}, ("y",))
    return make.program(["x", "w", "b"], [x, w, b, y], [step], [make.view(y)])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("faster", ["aten", "onednn"])
def test_both_choices_are_right(
    make: Any, table: Any, monkeypatch: Any, tmp_path: Path, dtype: str, faster: str
) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    times = (1.0, 2.0) if faster == "aten" else (2.0, 1.0)
    monkeypatch.setattr(gemm, "_time", lambda first, second: times)
    graph = compile_program(product(make, dtype), table)
    info = graph.externs[0]
    assert info.pick is not None and info.pick.chosen == faster
    assert info.path.endswith("addmm_out" if faster == "aten" else "_linear_pointwise")
    kind = torch.float32 if dtype == "f32" else torch.bfloat16
    x, w, b = (torch.randn(*shape, dtype=kind) for shape in ((160, 192), (160, 192), (160,)))
    expected = torch.addmm(b, x, w.T)
    for _ in range(2):
        torch.testing.assert_close(graph([x, w, b])[0], expected)


def test_a_measurement_is_kept(make: Any, table: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gemm, "_settled", lambda times: True)  # however busy the machine is
    before = torch.get_rng_state()
    first = compile_program(product(make, "f32"), table).externs[0].pick
    assert first is not None and (first.m, first.k, first.n) == (160, 192, 160)
    assert first.aten > 0 and first.onednn > 0
    assert torch.equal(before, torch.get_rng_state())
    monkeypatch.setattr(gemm, "_time", None)
    assert compile_program(product(make, "f32"), table).externs[0].pick == first


def test_close_calls_and_small_products_stay_with_aten(make: Any, table: Any) -> None:
    assert gemm.Pick(1, 1, 1, "f32", aten=1.0, onednn=0.95).chosen == "aten"
    assert gemm.Pick(1, 1, 1, "f32", aten=1.0, onednn=0.85).chosen == "onednn"
    assert compile_program(product(make, "f32", rows=4), table).externs[0].pick is None
    off = CompileOptions(measure_gemm=False)
    assert compile_program(product(make, "f32"), table, off).externs[0].pick is None


def test_a_busy_machine_is_not_believed(
    make: Any, table: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQSAT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gemm, "_settled", lambda times: False)
    monkeypatch.setattr(gemm, "LONGEST_SECONDS", 0.0)
    pick = compile_program(product(make, "f32"), table).externs[0].pick
    assert pick is not None and not pick.measured and pick.chosen == "aten"
    assert not list((tmp_path / "gemm").glob("*"))
