"""Steps of optimizers: equal to eager's over three steps, in place, without calls of ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim

from eqsat.reports import recording

Make = Callable[..., optim.Optimizer]
COUNT = 3
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda params, **how: optim.SGD(params, lr=0.1, momentum=0.9, **how),
    "adam": lambda params, **how: optim.Adam(params, lr=0.1, weight_decay=0.01, **how),
    "adamw": lambda params, **how: optim.AdamW(params, lr=0.1, amsgrad=True, **how),
    "rmsprop": lambda params, **how: optim.RMSprop(params, lr=0.1, momentum=0.9, **how),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def parameters(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(5 + k % 3, 3, requires_grad=True) for k in range(count)]


def run(make: Make, how: dict[str, Any], compiled: bool) -> tuple[list[torch.Tensor], list[Any]]:
    """The parameters and the state after three steps."""
    params = parameters(COUNT)
    optimizer = make(params, **how)
    step = torch.compile(optimizer.step, backend="eqsat") if compiled else optimizer.step
    places = [param.data_ptr() for param in params]
    for seed in range(3):
        torch.manual_seed(seed)
        for param in params:
            param.grad = torch.randn_like(param)
        step()
    assert places == [param.data_ptr() for param in params]
    return params, [optimizer.state[param] for param in params]


@pytest.mark.parametrize("how", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_steps(name: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    if name == "rmsprop" and "fused" in how:
        pytest.skip("torch has no fused RMSprop")
    with recording() as reports:
        ours = run(OPTIMIZERS[name], how, True)
    torch.testing.assert_close(ours, run(OPTIMIZERS[name], how, False))
    assert [extern.target for report in reports for extern in report.externs] == []
    if "foreach" in how:  # a loop for each parameter, and one for each count of steps
        assert 0 < max(len(report.kernels) for report in reports) <= 2 * COUNT


def test_lists_of_every_kind() -> None:
    def f(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> list[Any]:
        numbers = [0.5, -1.5]
        return [
            torch._foreach_add(xs, ys, alpha=2),
            torch._foreach_mul(xs, numbers),
            torch._foreach_addcmul(xs, ys, ys, numbers),
            torch._foreach_addcdiv(xs, ys, ys, 0.3),
            torch._foreach_maximum(xs, 0.2),
            torch._foreach_minimum(xs, ys),
            torch._foreach_pow(2.0, xs),
            torch._foreach_norm(xs, 2),
            torch._foreach_lerp(xs, ys, 0.3),
            torch._foreach_sqrt(torch._foreach_abs(xs)),
        ]

    xs, ys = ([torch.randn(3), torch.randn(2, 5)] for _ in range(2))
    with recording() as reports:
        ours = torch.compile(f, backend="eqsat", fullgraph=True)(xs, ys)
    torch.testing.assert_close(ours, f(xs, ys))
    assert [extern.target for report in reports for extern in report.externs] == []
