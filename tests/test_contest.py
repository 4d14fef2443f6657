"""`cost="measured"`: good candidates are timed, wrong ones are out, the choice is remembered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eqsat.codegen.cache import cache_dir, fresh_cache
from eqsat.config import OptionError, resolve
from eqsat.reports import CompileReport, recording


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, 48) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x) for part in self.parts)
        return torch.softmax(q * k, -1) + v


def run(
    model: nn.Module, x: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, list[CompileReport]]:
    torch._dynamo.reset()
    with recording() as reports:
        made = torch.compile(
            model, backend="eqsat", options={"cost": "measured", "strict": True, **options}
        )
        return made(x), reports


def contests(reports: list[CompileReport]) -> list[dict[str, Any]]:
    return [report.contest for report in reports if report.contest]


def test_candidates_are_timed_and_the_choice_is_remembered() -> None:
    model, x = Heads().eval(), torch.randn(16, 32)
    with fresh_cache(), torch.no_grad():
        result, reports = run(model, x)
        torch.testing.assert_close(result, model(x))
        (first,) = contests(reports)
        assert first["decided"] == "measured"
        assert sum(one["chosen"] for one in first["candidates"]) == 1
        assert len(first["candidates"]) >= 3
        assert first["candidates"][-1]["how"] == "original"
        assert all(one["seconds"] > 0 for one in first["candidates"])
        (again,) = contests(run(model, x)[1])
        assert again["decided"] == "remembered"
        assert again["candidates"] == first["candidates"]


def test_the_fastest_is_taken() -> None:
    model, x = Heads().eval(), torch.randn(16, 32)
    with fresh_cache(), torch.no_grad():
        run(model, x)
        (path,) = (cache_dir() / "contests").iterdir()
        times = json.loads(path.read_text())
        for slow in times:
            times[slow] = 1.0
        *_, original = times
        times[original] = 0.5
        path.write_text(json.dumps(times))
        result, reports = run(model, x)
        (found,) = contests(reports)
        assert [one["how"] for one in found["candidates"] if one["chosen"]] == ["original"]
        torch.testing.assert_close(result, model(x))


@pytest.mark.parametrize("text", ["{", '{"a": 1.0}'])
def test_a_bad_decision_is_measured_anew(text: str) -> None:
    model, x = Heads().eval(), torch.randn(16, 32)
    with fresh_cache(), torch.no_grad():
        run(model, x)
        (path,) = (cache_dir() / "contests").iterdir()
        path.write_text(text)
        assert contests(run(model, x)[1])[0]["decided"] == "measured"


def test_training_and_the_random_stream() -> None:
    torch.manual_seed(0)
    model, x = Heads(), torch.randn(16, 32)
    state = torch.random.get_rng_state()
    result, reports = run(model, x)
    assert torch.equal(torch.random.get_rng_state(), state)
    result.square().sum().backward()
    compiled = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    for ours, theirs in zip(compiled, [p.grad for p in model.parameters()], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert any(report.kind == "forward" for report in reports)


def test_symbolic_sizes_use_hints() -> None:
    model = Heads().eval()
    torch._dynamo.reset()
    options = {"cost": "measured", "strict": True}
    with torch.no_grad():
        made = torch.compile(model, backend="eqsat", dynamic=True, options=options)
        for rows in (16, 24):
            x = torch.randn(rows, 32)
            torch.testing.assert_close(made(x), model(x))


def test_a_bad_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"did you mean 'measured'"):
        resolve(None, {"cost": "mesured"})
