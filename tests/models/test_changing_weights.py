"""Folded expressions of parameters follow the parameters (design section 5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from eqsat.codegen import weights
from eqsat.reports import recording


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU()).eval()
    nn.init.uniform_(model[1].running_mean, -1, 1)
    nn.init.uniform_(model[1].running_var, 0.5, 2)
    return model


def _load(model: nn.Module) -> None:
    model.load_state_dict({k: v * 1.5 + 0.1 for k, v in model.state_dict().items()})


def _step(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(0.05)


def _data_in_place(model: nn.Module) -> None:
    model[0].weight.data.mul_(2)
    model[1].running_var.data.add_(0.5)


def _data_replaced(model: nn.Module) -> None:
    model[0].weight.data = torch.randn_like(model[0].weight)


def _new_parameter(model: nn.Module) -> None:
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))


def _infinite_weight(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = torch.inf


def _negative_variance(model: nn.Module) -> None:
    model[1].running_var.data[2] = -3.0


@pytest.mark.parametrize("change", [_infinite_weight, _negative_variance])
def test_what_a_folded_rule_assumes_is_verified(change: Callable[[nn.Module], None]) -> None:
    model, x = _model(), torch.randn(2, 3, 6, 6)
    x[0, 0, 0, 0] = 0.0
    with torch.no_grad():
        compiled = torch.compile(model, backend="eqsat")
        compiled(x)
        change(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)
        model.load_state_dict(_model().state_dict())
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", [_load, _step, _data_in_place, _data_replaced, _new_parameter])
def test_a_changed_parameter_is_seen(change: Callable[[nn.Module], None]) -> None:
    model, x = _model(), torch.randn(2, 3, 6, 6)
    with torch.no_grad(), recording() as reports:
        compiled = torch.compile(model, backend="eqsat")
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert any(report.folded for report in reports), "conv + batch norm should fold"
        change(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_two_instances_share_the_code_but_not_the_weights() -> None:
    first, second, x = _model(), _model(), torch.randn(2, 3, 6, 6)
    _step(second)
    with torch.no_grad():
        one, two = (torch.compile(m, backend="eqsat") for m in (first, second))
        for _ in range(3):
            torch.testing.assert_close(one(x), first(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(two(x), second(x), rtol=1e-4, atol=1e-5)


def test_folding_can_be_switched_off() -> None:
    model, x = _model(), torch.randn(2, 3, 6, 6)
    with torch.no_grad(), recording() as reports:
        compiled = torch.compile(model, backend="eqsat", options={"fold": False})
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert not any(report.folded for report in reports)


def test_a_returned_constant_is_not_shared() -> None:
    def scaled(weight: torch.Tensor) -> torch.Tensor:
        return weight * 2

    module = nn.Linear(3, 3)
    module.forward = lambda x: (scaled(module.weight), x + 1)  # type: ignore[method-assign]
    with torch.no_grad():
        compiled = torch.compile(module, backend="eqsat")
        first = compiled(torch.ones(2))[0]
        first.zero_()
        torch.testing.assert_close(compiled(torch.ones(2))[0], module.weight * 2)


class Attention(nn.Module):
    """Three products of one input, after something that a pre_grad rule changes."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(x)
        return self.q(x) * self.k(x) + self.v(x)


def test_parameters_are_known_after_a_pre_grad_rule_fired() -> None:
    model, x = Attention().eval(), torch.randn(4, 8)
    with torch.no_grad(), recording() as reports:
        torch.testing.assert_close(torch.compile(model, backend="eqsat")(x), model(x))
    assert reports[-1].folded


@pytest.mark.parametrize("change", [None, _step, lambda model: model[0].weight.data.mul_(2)])
def test_weights_laid_out_for_products_follow_the_parameters(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[nn.Module], None] | None
) -> None:
    rows_win = {(1, 8): 2.0, (8, 1): 1.0}
    monkeypatch.setattr(weights, "_seconds", lambda target, values, stride: rows_win[stride])
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    with torch.no_grad(), recording() as reports:
        compiled = torch.compile(model, backend="eqsat", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
        assert sum(name.startswith("clone") for name in reports[-1].folded["values"]) == 2
        if change is not None:
            change(model)
        torch.testing.assert_close(compiled(x), model(x))
