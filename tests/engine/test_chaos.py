"""Whichever member of a class is extracted, the results are eager's."""

import operator

import pytest
import torch
from torch import nn

import eqsat
from eqsat.engine.chaos import extraction_of
from eqsat.reports import recording
from eqsat.session import open_session

FEW = ["worst", "random:1"]
MANY = [f"random:{seed}" for seed in range(2, 12)]


class Attention(nn.Module):
    """Softmax attention by hand over three projections of the same rows."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        q, k, v = (f(x).view(2, 5, 4, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2.0, -1)
        return self.norm(x + (weights @ v).transpose(1, 2).reshape(2, 5, 16))


def convolutions():
    block = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*block, nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(64, 5))


class Arithmetic(nn.Module):
    def forward(self, x, y):
        z = (x * 2 + y * 3) - (-y) * x.square()
        masked = torch.where(x > 0, z, torch.zeros_like(z)).sum(-1, keepdim=True)
        joined = torch.cat([z, masked.expand(-1, 3)], 1)
        return joined[:, 1:], torch.exp(-joined.t()).clamp(max=4.0), (x > y).to(torch.int64) * 4


class Written(nn.Module):
    """Writes in place, and draws random numbers between."""

    def forward(self, x, y):
        noise = torch.rand_like(x)
        x.mul_(2).add_(y)
        z = (x + noise) * 1.0
        y[:, 0] = z[:, 1]
        return z - -y, torch.rand(3) + 0


PROGRAMS = {
    "attention": lambda: (Attention().eval(), [torch.randn(2, 5, 16)]),
    "convolutions": lambda: (convolutions().eval(), [torch.randn(2, 3, 8, 8)]),
    "arithmetic": lambda: (Arithmetic(), [torch.randn(4, 6), torch.randn(4, 6)]),
    "written": lambda: (Written(), [torch.randn(4, 6), torch.randn(4, 6)]),
}
LARGE = ["bert 12", "gpt2 12", "vit 12", "t5 12+12", "mobilenet", "inception", "unet", "dlrm"]


def compare(model, inputs, extraction, *, grad=False):
    """Results, written inputs and gradients are eager's; no rule and no stage gave up."""
    torch._dynamo.reset()
    results = []
    options = {"extraction": extraction, "strict": True}
    with torch.set_grad_enabled(grad), recording() as reports:
        for run in (model, torch.compile(model, backend="eqsat", options=options)):
            torch.manual_seed(0)
            given = [value.clone() for value in inputs]
            out = run(*given)
            outs = out if isinstance(out, tuple) else (out,)
            if grad:
                model.zero_grad()
                sum(o.square().mean() for o in outs if o.requires_grad).backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            results.append([*outs, *given, *(g.clone() for g in grads)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    return [stage for report in reports for stage in report.stages]


@pytest.mark.parametrize("extraction", FEW)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_member_gives_eagers_results(name, extraction):
    torch.manual_seed(1)
    model, inputs = PROGRAMS[name]()
    stages = compare(model, inputs, extraction)
    assert any(stage.status == "changed" for stage in stages)


@pytest.mark.parametrize("extraction", FEW)
def test_any_member_gives_eagers_gradients(extraction):
    torch.manual_seed(1)
    compare(Attention(), [torch.randn(2, 5, 16)], extraction, grad=True)


@pytest.mark.slow
@pytest.mark.parametrize("extraction", MANY)
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_member_of_many(name, extraction):
    torch.manual_seed(1)
    model, inputs = PROGRAMS[name]()
    compare(model, inputs, extraction)
    if name in ("attention", "convolutions"):
        compare(model.train(), inputs, extraction, grad=True)


@pytest.mark.slow
@pytest.mark.parametrize("extraction", FEW)
@pytest.mark.parametrize("name", LARGE)
def test_any_member_of_whole_models(name, extraction):
    graphs = pytest.importorskip("eqsat.benchmarks.graphs")
    model, inputs = graphs.build(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eqsat", options={"extraction": extraction})
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs), model(**inputs), rtol=1e-3, atol=1e-4)


def test_the_worst_choice_costs_more_than_the_cheapest():
    torch.manual_seed(1)
    model, inputs = PROGRAMS["attention"]()
    costs = {}
    for extraction in ("cheapest", "worst"):
        (stage,) = [
            stage
            for stage in compare(model, inputs, extraction)
            if stage.stage == "post_grad" and stage.status == "changed"
        ]
        costs[extraction] = stage.cost_after
    assert operator.lt(*costs.values())


def test_what_the_setting_takes(monkeypatch):
    assert extraction_of("random") == extraction_of("0") == "random:0"
    assert extraction_of("random:7") == extraction_of("7") == "random:7"
    for wrong in ("best", "random:x", "worst:1", ""):
        with pytest.raises(ValueError, match="expected cheapest"):
            extraction_of(wrong)
    monkeypatch.setenv("EQSAT_CHAOS", "worst")
    assert eqsat.config.extraction == "worst"


def test_another_extraction_is_another_key(monkeypatch):
    def key():
        return open_session(eqsat.config.snapshot(), pytest.fail).key

    monkeypatch.delenv("EQSAT_CHAOS", raising=False)
    keys = {key()}
    for value in ("worst", "random:0", "random:1"):
        monkeypatch.setenv("EQSAT_CHAOS", value)
        keys.add(key())
    assert len(keys) == 4
