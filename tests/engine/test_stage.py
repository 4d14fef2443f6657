"""A whole stage: results equal eager, outputs keep strides and memory, failures fall back."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.rule import RuleBook
from eqsat.engine.stage import StageOptions, StageWarning, run_stage

aten = torch.ops.aten
BOOK = builtin_book()
TABLE = OpTable(BOOK.ops)
LOWERED = {
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "relu", "exp"), "pointwise"),
    **dict.fromkeys(("clone", "cast"), "pointwise"),
    **dict.fromkeys(("view", "permute", "expand", "slice", "select"), "view"),
    **dict.fromkeys(("sum", "amax", "mean"), "reduction"),
    "cat": "indexed",
}


def rules(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_book([path], TABLE)


def trace(function, *args, symbolic=False):
    return make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*args)


def apply(gm, book, **options):
    return run_stage(gm, "post_grad", book, TABLE, StageOptions(lowered=LOWERED, **options))


def targets(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def check(gm, new, *args):
    """Same values, dtypes, strides, and the same aliasing of outputs with inputs."""
    old_args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    new_args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    old, fresh = gm(*old_args), new(*new_args)
    flat_old = old if isinstance(old, (tuple, list)) else [old]
    flat_new = fresh if isinstance(fresh, (tuple, list)) else [fresh]
    for left, right in zip(flat_old, flat_new, strict=True):
        torch.testing.assert_close(left, right, equal_nan=True)
        if isinstance(left, torch.Tensor):
            assert left.stride() == right.stride()
    assert shares(flat_old, old_args) == shares(flat_new, new_args)


def shares(outputs, inputs):
    places = [*inputs, *outputs]
    first = {}
    found = []
    for place, value in enumerate(places):
        if isinstance(value, torch.Tensor) and value.numel():
            found.append(first.setdefault(value.untyped_storage()._cdata, place))
    return found


DOUBLE_NEGATION = """
- rule: neg-neg-drop
  doc: Two negations cancel.
  vars:
    x: num[...]
  match: -(-x)
  make: x
  numerics: exact
"""


def test_a_rule_fires_and_is_reported(tmp_path):
    gm = trace(lambda x: torch.neg(-x) * 2, torch.randn(3, 4))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    assert result.report.status == "changed"
    (fired,) = result.report.firings
    assert (fired.rule, fired.count, fired.kept) == ("neg-neg-drop", 1, 1)
    assert fired.where.endswith("mine.yaml:2")
    assert targets(result.gm) == [aten.mul.Tensor]
    assert result.report.cost_after < result.report.cost_before
    check(gm, result.gm, torch.randn(3, 4))


def test_an_output_never_becomes_an_input(tmp_path):
    gm = trace(lambda x: torch.neg(-x), torch.randn(3, 4))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    check(gm, result.gm, torch.randn(3, 4))


def test_two_outputs_do_not_start_to_share_memory(tmp_path):
    def function(x):
        y = x * 2
        return y, torch.neg(-y)

    gm = trace(function, torch.randn(3, 4))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    check(gm, result.gm, torch.randn(3, 4))


def test_views_of_a_remade_result_are_views_of_it():
    """Slices are no calls that rules know; what they are slices of is made anew."""

    def function(x):
        y = x[:, None]
        z = torch.nn.functional.silu((y @ y.mT).contiguous())
        return z, z[:-1], x @ x.mT, x @ y.mT

    outputs = torch.compile(function, backend="eqsat")(torch.randn(2, 1))
    assert shares(outputs, ()) == [0, 0, 2, 3]


def test_output_strides_are_kept(tmp_path):
    book = rules(
        tmp_path,
        """
- rule: copy-drop
  doc: A copy has the values of what it copies.
  vars:
    x: any[...]
  match: clone(x, **how)
  make: x
  numerics: exact
""",
    )

    def function(x):
        y = (x * 2).permute(2, 0, 1).clone(memory_format=torch.contiguous_format)
        return y, y[:, :2].clone(), y.transpose(0, 1).clone()

    gm = trace(function, torch.randn(2, 3, 4))
    result = apply(gm, book)
    check(gm, result.gm, torch.randn(2, 3, 4))


def test_nothing_fired_gives_the_same_graph(tmp_path):
    gm = trace(lambda x: x + 1, torch.randn(3))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    assert result.gm is gm
    assert result.report.status == "unchanged"


def test_a_wrong_rule_is_disabled_by_name(tmp_path):
    book = rules(
        tmp_path,
        """
- rule: sum-wrong
  doc: Not true.
  vars:
    x: float[...]
  match: exp(x)
  make: sum(x)
  numerics: exact
""",
    )
    gm = trace(lambda x: torch.exp(x), torch.randn(3, 4))
    with pytest.warns(StageWarning, match=r"sum-wrong .*mine.yaml:2"):
        result = apply(gm, book)
    assert result.gm is gm
    (disabled,) = result.report.disabled
    assert disabled.rule == "sum-wrong"
    assert "f32" in disabled.reason or "float32" in disabled.reason


def test_a_failure_falls_back_and_strict_raises(tmp_path, monkeypatch):
    gm = trace(lambda x: torch.neg(-x), torch.randn(3))
    book = rules(tmp_path, DOUBLE_NEGATION)

    def fail(*args, **kwargs):
        raise RuntimeError("broken")

    monkeypatch.setattr("eqsat.engine.stage.decode", fail)
    monkeypatch.delenv("EQSAT_STRICT", raising=False)
    with pytest.warns(StageWarning, match="broken"):
        result = apply(gm, book)
    assert result.gm is gm
    assert result.report.status == "failed"
    monkeypatch.setenv("EQSAT_STRICT", "1")
    with pytest.raises(RuntimeError, match="broken"):
        apply(gm, book)


def test_random_ops_keep_their_number_and_order(tmp_path):
    def function(x):
        a = torch.rand_like(x)
        b = torch.rand_like(x)
        return torch.neg(-(a - b)), torch.neg(-x) + b

    gm = trace(function, torch.randn(3, 4))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    assert result.report.status == "changed"
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    torch.manual_seed(1)
    want = gm(x)
    torch.manual_seed(1)
    got = result.gm(x)
    for left, right in zip(want, got, strict=True):
        assert torch.equal(left, right)


def test_a_write_stays_after_every_read(tmp_path):
    def function(x):
        y = torch.neg(-x) * 3
        aten.copy_.default(x, y + 1)
        return y

    gm = trace(function, torch.randn(4))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    first, second = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(gm(first), result.gm(second))
    assert torch.equal(first, second)


def test_writes_between_random_ops_keep_their_place(tmp_path):
    def function(x, y):
        a = torch.rand_like(y)
        aten.copy_.default(x, torch.neg(-x) + a)
        aten.copy_.default(y, torch.rand_like(y))
        return torch.neg(-a)

    gm = trace(function, torch.zeros(4), torch.zeros(4))
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    assert result.report.status == "changed"
    runs = []
    for graph in (gm, result.gm):
        torch.manual_seed(3)
        x, y = torch.arange(4.0), torch.zeros(4)
        runs.append((graph(x, y), x, y))
    for left, right in zip(*runs, strict=True):
        assert torch.equal(left, right)


def test_symbolic_sizes_stay_symbolic(tmp_path):
    gm = trace(lambda x: torch.neg(-x).view(-1, 2) + x.shape[0], torch.randn(6, 4), symbolic=True)
    result = apply(gm, rules(tmp_path, DOUBLE_NEGATION))
    assert result.report.status == "changed"
    for rows in (2, 6, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(gm(x), result.gm(x))


def test_provenance_and_stack_traces_travel(tmp_path):
    book = rules(
        tmp_path,
        """
- rule: double-from-sum
  doc: A sum of equals is a product.
  vars:
    x: float[...]
  match: sub(x, neg(x))
  make: x * 2
  numerics: exact
""",
    )
    gm = trace(lambda x: torch.relu(x) - (-torch.relu(x)), torch.randn(3))
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f"line of {node.name}"
    result = apply(gm, book)
    (made,) = [node for node in result.gm.graph.nodes if node.target is aten.mul.Tensor]
    (rule,) = made.meta["eqsat_rules"]
    assert rule.endswith("mine.yaml:2 double-from-sum")
    assert made.meta["stack_trace"].startswith("line of")
    assert made.meta["val"].shape == (3,)


def encoder(layers):
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, activation="gelu", dropout=0.0)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).train()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).view(2, 5, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-2, -1) * 8**-0.5, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(2, 5, 16)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (encoder(2), torch.randn(2, 6, 32)),
        (Attention(), torch.randn(2, 5, 16)),
    ],
    ids=["encoder", "attention"],
)
def test_the_whole_library_keeps_models_right(model, x):
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = list(held)

    def function(values, x):
        return functional_call(model, dict(zip(names, values, strict=True)), (x,))

    values = [value.detach() for value in held.values()]
    with torch.no_grad():
        gm = make_fx(function, tracing_mode="fake")(values, x)
    inputs = [node.name for node in gm.graph.nodes if node.op == "placeholder"][: len(values)]
    weights = {name: place for place, name in enumerate(inputs)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", StageWarning)
        result = apply(gm, BOOK, weights=weights, frozen=frozenset(weights), inference=True)
    assert result.report.firings
    with torch.no_grad():
        want = torch.fx.Interpreter(gm).run(*values, x, enable_io_processing=False)
        got = torch.fx.Interpreter(result.gm).run(*values, x, enable_io_processing=False)
    for left, right in zip(want, got, strict=True):
        torch.testing.assert_close(left, right)
        assert left.stride() == right.stride()


def test_a_frozen_batch_norm_goes_into_the_convolution():
    def function(x, w, b, gain, shift, mean, var):
        y = aten.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        norm = aten._native_batch_norm_legit_no_training(y, gain, shift, mean, var, 0.1, 1e-5)
        return torch.relu(norm[0])

    args = [torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)]
    args += [torch.randn(4), torch.randn(4), torch.randn(4), torch.randn(4), torch.rand(4) + 0.5]
    gm = trace(function, *args)
    inputs = [node.name for node in gm.graph.nodes if node.op == "placeholder"][1:]
    weights = {name: place for place, name in enumerate(inputs)}
    result = apply(gm, BOOK, weights=weights, frozen=frozenset(weights), inference=True)
    assert any(fired.rule == "conv-bn-fold" and fired.kept for fired in result.report.firings)
    torch.testing.assert_close(gm(*args), result.gm(*args), rtol=1e-4, atol=1e-4)


def test_no_rules_is_no_work():
    gm = trace(lambda x: x + 1, torch.randn(3))
    result = apply(gm, RuleBook())
    assert result.gm is gm
    assert result.report.status == "skipped"
    assert result.report.as_json()["stage"] == "post_grad"


def test_one_name_of_attributes_means_the_same_attributes():
    """`**how` in two calls: convolutions of other strides are no siblings."""

    def siblings(x, first, second):
        one = aten.convolution.default(x, first, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        two = aten.convolution.default(x, second, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
        return one, two

    args = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 1, 1), torch.randn(4, 3, 1, 1)
    gm = trace(siblings, *args)
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    result = apply(gm, BOOK, weights={names[1]: 1, names[2]: 2})
    assert "conv-merge" not in {fired.rule for fired in result.report.firings}
    assert result.report.disabled == ()


@pytest.mark.parametrize("book", [BOOK, RuleBook()], ids=["all rules", "a rule that finds nothing"])
def test_equal_calls_are_one_call(book, tmp_path):
    book = book if book.rules else rules(tmp_path, DOUBLE_NEGATION)
    x, y = torch.randn(6, 7), torch.randn(7, 5)
    gm = trace(lambda x, y: (x @ y + (x @ y).exp(), x @ y), x, y)
    assert targets(gm).count(aten.mm.default) == 3
    new = apply(gm, book).gm
    assert targets(new).count(aten.mm.default) == 1
    check(gm, new, x, y)


def test_equal_draws_are_two_draws():
    x = torch.randn(4)
    gm = trace(lambda x: x + torch.rand(4) - torch.rand(4), x)
    drawn = targets(gm).count(aten.rand.default)
    assert drawn == 2 and targets(apply(gm, BOOK).gm).count(aten.rand.default) == drawn
