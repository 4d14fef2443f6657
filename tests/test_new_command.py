"""`eqsat new`: a snippet becomes a rule that loads, is right, and fires on the snippet."""

from __future__ import annotations

import math
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randn

import eqsat
from eqsat.cli import main
from eqsat.engine.workers import can_fork
from eqsat.reports import recording

Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def _conv_norm(x: Tensor, w: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(F.conv2d(x, w, padding=1), m, v, g, b)


def _conv_folded(x: Tensor, w: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    scale = g * torch.rsqrt(v + 1e-5)
    return F.conv2d(x, w * scale[:, None, None, None], b - m * scale, padding=1)


_CONV_INPUTS = (
    *(randn(2, 3, 8, 8), randn(4, 3, 3, 3), randn(4)),
    *(torch.rand(4) + 0.5, randn(4), randn(4)),
)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * w + b


def _gated(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    both = x @ torch.cat([a, b], 1)
    return F.silu(both[:, : a.shape[1]]) * both[:, a.shape[1] :]


FAST: dict[str, Pair] = {
    "silu": (lambda x: F.silu(x), lambda x: x * torch.sigmoid(x), (randn(2, 8),)),
    "cat-of-relu": (
        lambda x, y: torch.cat([F.relu(x), F.relu(y)], -1),
        lambda x, y: F.relu(torch.cat([x, y], -1)),
        (randn(2, 8), randn(2, 5)),
    ),
    "qkv-merge-mine": (
        lambda x, a, b, c: (x @ a, x @ b, x @ c),
        lambda x, a, b, c: torch.split(
            x @ torch.cat([a, b, c], 1), [a.shape[1], b.shape[1], c.shape[1]], 1
        ),
        (randn(5, 6), randn(6, 4), randn(6, 4), randn(6, 4)),
    ),
    "relu-of-scaled": (
        lambda x: F.relu(x * 2.0),
        lambda x: F.relu(x) * 2.0,
        (randn(4, 5),),
    ),
}
SLOW: dict[str, Pair] = {
    "gelu-tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        (randn(2, 8),),
    ),
    "rms-norm": (
        lambda x, w, eps: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w,
        lambda x, w, eps: x * w / torch.sqrt((x * x).mean(-1, keepdim=True) + eps),
        (randn(2, 8), randn(8), 1e-6),
    ),
    "residual": (
        lambda x, y: (x + y) - y * 0.5,
        lambda x, y: x + y * 0.5,
        (randn(2, 8), randn(2, 8)),
    ),
    "where-to-relu": (
        lambda x, zero: torch.where(x > 0, x, zero * x),
        lambda x, zero: torch.where(x <= 0, zero * x, x),
        (randn(4, 5), randn(4, 5)),
    ),
    "layer-norm": (
        lambda x: (x - x.mean(-1, keepdim=True)) * 3.0,
        lambda x: x * 3.0 - x.mean(-1, keepdim=True) * 3.0,
        (randn(4, 6),),
    ),
    "sub-as-add": (lambda x, y: x - y, lambda x, y: x + (-y), (randn(4, 6), randn(4, 6))),
    "exp-product": (
        lambda x, y: torch.exp(x) * torch.exp(y),
        lambda x, y: torch.exp(x + y),
        (randn(4, 6), randn(4, 6)),
    ),
    "sigmoid-open": (lambda x: x.sigmoid(), lambda x: 1 / (1 + torch.exp(-x)), (randn(4, 6),)),
    "tanh-by-sigmoid": (lambda x: x.tanh(), lambda x: 2 * torch.sigmoid(2 * x) - 1, (randn(9),)),
    "attention-open": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v,
        (randn(2, 3, 4, 8), randn(2, 3, 5, 8), randn(2, 3, 5, 8)),
    ),
    "attention-by-hand": (
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        (randn(2, 3, 4, 8), randn(2, 3, 5, 8), randn(2, 3, 5, 8)),
    ),
    "scores-transposed": (
        lambda q, k: torch.softmax(q @ k.transpose(-2, -1), -1),
        lambda q, k: torch.softmax((k @ q.transpose(-2, -1)).transpose(-2, -1), -1),
        (randn(2, 3, 4, 8), randn(2, 3, 5, 8)),
    ),
    "conv-scale": (
        lambda x, w, s: F.conv2d(x, w) * s[:, None, None],
        lambda x, w, s: F.conv2d(x, w * s[:, None, None, None]),
        (randn(2, 3, 8, 8), randn(4, 3, 3, 3), randn(4)),
    ),
    "conv-norm": (_conv_norm, _conv_folded, _CONV_INPUTS),
    "conv-groups": (
        lambda x, w: F.relu(F.conv2d(x * 2.0, w, groups=2)),
        lambda x, w: F.relu(F.conv2d(x, w * 2.0, groups=2)),
        (randn(2, 4, 8, 8), randn(4, 2, 3, 3)),
    ),
    "temperature": (
        lambda x, t: torch.softmax(x / t, -1),
        lambda x, t: torch.softmax(x * (1 / t), -1),
        (randn(4, 6), 0.7),
    ),
    "temperature-over-max": (
        lambda x, t: torch.exp(x / t - (x / t).amax(-1, keepdim=True)),
        lambda x, t: torch.exp((x - x.amax(-1, keepdim=True)) / t),
        (randn(4, 6), 0.7),
    ),
    "layer-norm-open": (
        lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
        _layer_norm,
        (randn(4, 6), randn(6), randn(6)),
    ),
    "residual-norm": (
        lambda x, y, w: F.rms_norm(x + y, (x.shape[-1],), w, 1e-6),
        lambda x, y, w: (x + y) * torch.rsqrt(((x + y) ** 2).mean(-1, keepdim=True) + 1e-6) * w,
        (randn(4, 6), randn(4, 6), randn(6)),
    ),
    "gated-merge": (
        lambda x, a, b: F.silu(x @ a) * (x @ b),
        _gated,
        (randn(4, 6), randn(6, 5), randn(6, 5)),
    ),
    "embedding-scaled": (
        lambda w, i: F.embedding(i, w) * 2.0,
        lambda w, i: F.embedding(i, w * 2.0),
        (randn(10, 6), torch.randint(0, 10, (4, 5))),
    ),
    "relu-of-pool": (
        lambda x: F.relu(F.max_pool2d(x, 2)),
        lambda x: F.max_pool2d(F.relu(x), 2),
        (randn(2, 3, 8, 8),),
    ),
    "unit-length": (
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / (x * x).sum(-1, keepdim=True).sqrt().clamp_min(1e-12),
        (randn(4, 6),),
    ),
    "log-sum-exp": (
        lambda x: torch.log(torch.exp(x).sum(-1)),
        lambda x: torch.logsumexp(x, -1),
        (randn(4, 6),),
    ),
    "masked-mean": (
        lambda x, m: (x * m[..., None]).sum(1) / m.sum(1, keepdim=True),
        lambda x, m: torch.bmm(m[:, None], x)[:, 0] / m.sum(1, keepdim=True),
        (randn(2, 4, 6), torch.rand(2, 4) + 0.1),
    ),
    "square": (lambda x: x * x, lambda x: x**2, (randn(4, 6),)),
    "mean-as-sum": (
        lambda x: x.mean(-1),
        lambda x: x.sum(-1) / x.shape[-1],
        (randn(4, 6),),
    ),
    "matmul-scale": (
        lambda x, w: (x * 2.0) @ w,
        lambda x, w: (x @ w) * 2.0,
        (randn(4, 6), randn(6, 3)),
    ),
    "linear-bias": (
        lambda x, w, b: x @ w + b,
        lambda x, w, b: torch.addmm(b, x, w),
        (randn(4, 6), randn(6, 3), randn(3)),
    ),
    "heads": (
        lambda x: F.relu(x).view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2),
        lambda x: F.relu(x.view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2)),
        (randn(2, 3, 8),),
    ),
    "split-relu": (
        lambda x: [F.relu(part) for part in torch.chunk(x, 2, dim=-1)],
        lambda x: torch.chunk(F.relu(x), 2, dim=-1),
        (randn(4, 6),),
    ),
}


def _round_trip(tmp_path: Path, name: str, pair: Pair) -> None:
    before, after, inputs = pair
    made = eqsat.new_rule(before, after, inputs, name=name)
    assert made.ok, f"{made.text}\n{made.problems}"
    path = tmp_path / "mine.yaml"
    path.write_text(made.text)
    assert eqsat.check(str(path), examples=10)
    assert name in _fired(before, inputs, path), made.text


def _fired(fn: Callable[..., Any], inputs: tuple[Any, ...], path: Path) -> set[str]:
    """The rules that fire in `fn` with all but the first input as parameters, by short name."""
    module = _Module(fn, inputs)
    torch._dynamo.reset()
    with recording() as reports, torch.no_grad(), eqsat.options(rules=[path], numerics="fast"):
        found = torch.compile(module, backend="eqsat")(inputs[0])
    torch.testing.assert_close(found, module(inputs[0]), rtol=1e-4, atol=1e-5)
    stages = [stage for report in reports for stage in report.stages]
    return {fired.rule.rpartition(":")[2] for stage in stages for fired in stage.firings}


def _held(x: Any) -> Any:
    floats = isinstance(x, Tensor) and x.is_floating_point()
    return torch.nn.Parameter(x, requires_grad=False) if floats else x


class _Module(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.fn = fn
        self.rest = [_held(x) for x in inputs[1:]]
        for at, x in enumerate(self.rest):
            if isinstance(x, torch.nn.Parameter):
                self.register_parameter(f"p{at}", x)
            elif isinstance(x, Tensor):
                self.register_buffer(f"p{at}", x)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.fn(x, *self.rest)
        return tuple(found) if isinstance(found, list) else found


@pytest.mark.parametrize("name", FAST)
def test_a_snippet_becomes_a_rule_that_fires(tmp_path: Path, name: str) -> None:
    _round_trip(tmp_path, name, FAST[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_many_snippets_become_rules_that_fire(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _round_trip(tmp_path, name, SLOW[name])


def test_sizes_and_constants_are_general() -> None:
    text = str(
        eqsat.new_rule(
            lambda x, t: F.relu(x * t) + t,
            lambda x, t: F.relu(x * t) - (-t),
            (randn(3, 7), 0.7),
            name="constant",
        )
    )
    assert "x: float[...]" in text and "t: const" in text
    assert "match: relu(x * t) + t" in text


def test_parameters_that_could_be_swapped_are_ordered() -> None:
    made = eqsat.new_rule(*FAST["qkv-merge-mine"], name="merge")
    assert "- before(a, b)" in made.text and "- before(b, c)" in made.text


def test_what_built_in_rules_do_already_is_told() -> None:
    made = eqsat.new_rule(
        lambda x: F.relu(x.transpose(0, 1)).transpose(0, 1),
        lambda x: F.relu(x),
        (randn(4, 6),),
        name="double-transpose",
    )
    assert made.ok
    (warning,) = (text for text in made.warnings if "already equal" in text)
    assert "permute-through-unary/relu" in warning and "did the same" in warning


def test_a_right_side_that_holds_the_left_side_is_told() -> None:
    made = eqsat.new_rule(
        lambda q, k: torch.softmax(q, -1) @ k,
        lambda q, k: torch.softmax(q, -1) @ (k * 1.0),
        (randn(5, 8), randn(8, 7)),
        name="endless",
    )
    assert not made.ok and "runs away" in made.problems[0]


def test_what_is_tried_is_told_and_what_is_needed_is_found() -> None:
    told: list[str] = []
    made = eqsat.new_rule(
        lambda x, t: torch.softmax(x / t, -1),
        lambda x, t: torch.softmax(x * (1 / t), -1),
        (randn(4, 6), 0.7),
        name="temperature",
        tell=told.append,
    )
    assert made.ok and "- t != 0" in made.text
    assert any("division by zero" in text for text in told) and "with t != 0: holds" in told


def test_a_wrong_snippet_is_told_and_not_right() -> None:
    made = eqsat.new_rule(lambda x: x + x, lambda x: x * 3, (randn(4),), name="wrong")
    assert not made.ok and "import torch" in "".join(made.problems)


SNIPPETS = {
    "def before(x=torch.randn(3)):\n    return x if x.sum() > 0 else -x": "before: Data-dependent",
    "def before(x=torch.randn(3)):\n    return x.add_(1)": "writes in place",
    "def before(x=torch.randn(3)):\n    return torch.nonzero(x)": "no op for",
    "def before(x=torch.randn(3)):\n    return x": "before",
    "def before(x):\n    return x + 1": "parameter 'x' of before has no example",
    "def before(y=torch.randn(3)):\n    return y + 1": "need the same parameters",
    "def before(x=torch.randn(3)): return oops": "before: ",
    "1 / 0": "cannot be run: ZeroDivisionError",
}


@pytest.mark.parametrize("text", SNIPPETS)
def test_a_snippet_that_rules_cannot_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(f"import torch\ndef after(x):\n    return x * 2\n{text}\n")
    out = tmp_path / "mine.yaml"
    assert main(["new", "mine", "--from", str(path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert SNIPPETS[text] in error and "Traceback" not in error
    assert not out.exists()


def test_new_from_a_file_writes_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(
        "import torch\n"
        'def before(x: "float[m, n]", y: "float[n]"):\n    return torch.relu(x * y)\n'
        "def after(x, y):\n    return torch.clamp_min(y * x, 0)\n"
    )
    out = tmp_path / "mine.yaml"
    assert main(["new", "mine", "--from", str(path), "--out", str(out)]) == 0
    assert "float[..., n]" in out.read_text() or "float[...]" in out.read_text()
    assert main(["new", "mine", "--from", str(path), "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err


def test_the_template_is_a_right_rule(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    assert main(["new", "mine", "--out", str(out)]) == 0
    assert eqsat.check(str(out), examples=10)
    assert main(["new", "Not_A_Name", "--out", str(tmp_path / "b.yaml")]) == 2


def test_a_class_of_fewer_roundings_is_found() -> None:
    made = eqsat.new_rule(
        lambda x: (x + 1.0) - 1.0,
        lambda x: x * 1.0,
        (randn(3, 4),),
        name="there-and-back",
        examples=20,
    )
    assert made.ok and made.numerics == "fewer_roundings"


@pytest.mark.skipif(not can_fork(), reason="needs processes that fork")
def test_a_crash_of_torch_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)  # as a wild pointer would

    monkeypatch.setattr("eqsat.measured.check_rule", die)
    made = eqsat.new_rule(
        lambda x: F.relu(x) * 2, lambda x: F.relu(x * 2), (randn(4),), name="deadly", examples=5
    )
    assert not made.ok and "SIGSEGV" in made.problems[0]
