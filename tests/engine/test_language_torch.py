"""Rules of stage pre_grad: the names that Dynamo records, and graphs that write in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eqsat.tests.engine.proof import prove, rule_text

X = {"x": "float[...]"}
XY = {"x": "float[...]", "y": "float[...]"}
MN = {"x": "float[m, n]"}


def some(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed + sum(size)))


A, B, YES = some(4, 6), some(4, 6, seed=1), some(4, 6) > 0
TABLE = some(40, 6)


def twice(x):
    return x.neg().neg()


CALLS = {
    "operators": (XY, "(x - y) / y * y", "x - y", lambda x, y: (x - y) / y * y, [A, B]),
    "number-first": (X, "1.0 / torch.exp(x)", "torch.exp(-x)", lambda x: 1.0 / x.exp(), [A]),
    "power": (X, "torch.sqrt(x ** 2)", "torch.abs(x)", lambda x: torch.sqrt(x**2), [A]),
    "remainder": (X, "(-(-x)) % 2.0", "x % 2.0", lambda x: twice(x) % 2.0, [A]),
    "floor": (X, "(-(-x)) // 2.0", "x // 2.0", lambda x: twice(x) // 2.0, [A]),
    "comparison": (X, "torch.gt(-(-x), 0)", "operator.gt(x, 0)", lambda x: twice(x) > 0, [A]),
    "bits": (
        {"x": "bool[...]", "y": "bool[...]"},
        "operator.and_(x, operator.invert(operator.invert(y)))",
        "operator.and_(x, y)",
        lambda x, y: x & ~(~y),
        [YES, ~YES],
    ),
    "abs": (X, "Tensor.abs(-x)", "torch.abs(x)", lambda x: abs(-x), [A]),
    "abs-as-python-calls-it": (
        X,
        "Tensor.abs(-x)",
        "torch.abs(x)",
        lambda x: (-x).__abs__(),
        [A],
    ),
    "matmul": (
        {"x": "float[m, k]", "w": "float[k, n]"},
        "torch.matmul(-x, -w)",
        "operator.matmul(x, w)",
        lambda x, w: (-x) @ (-w),
        [A, some(6, 6)],
    ),
    ".T": (
        {"x": "float[m, k]", "w": "float[n, k]"},
        "torch.matmul(x, Tensor.t(w))",
        "F.linear(x, w)",
        lambda x, w: x @ w.T,
        [A, some(5, 6)],
    ),
    ".mT": (
        {"x": "float[m, k]", "w": "float[n, k]"},
        "torch.matmul(x, Tensor.transpose(w, 0, 1))",
        "F.linear(x, w)",
        lambda x, w: x @ w.mT,
        [A, some(5, 6)],
    ),
    "view": (
        MN,
        "Tensor.view(Tensor.view(x, n, m), (m, n))",
        "x * 1.0",
        lambda x: x.view(6, 4).view(4, -1) + 1,
        [A],
    ),
    "dims-from-either-end": (
        X,
        "F.softmax(-(-x), dim=-1)",
        "F.softmax(x, dim=-1)",
        lambda x: torch.softmax(twice(x), 1),
        [A],
    ),
    "method-or-function": (
        MN,
        "Tensor.sum(-(-x), 1)",
        "torch.sum(x, 1)",
        lambda x: torch.sum(twice(x), dim=-1),
        [A],
    ),
    "list": (
        {"a": "float[m, n]", "b": "float[m, n]"},
        "-torch.cat([-a, -b], 1)",
        "torch.cat([a, b], 1)",
        lambda a, b: -torch.cat([-a, -b], dim=1),
        [A, B],
    ),
    "einsum": (
        {"a": "float[m, k]", "b": "float[k, n]"},
        "torch.einsum('ik,kj->ij', -a, -b)",
        "torch.einsum('ik,kj->ij', a, b)",
        lambda a, b: torch.einsum("ik,kj->ij", -a, -b),
        [A, some(6, 5)],
    ),
    "masked-fill": (
        {"x": "float[...]", "m": "bool[...]"},
        "Tensor.masked_fill(Tensor.masked_fill(x, m, -inf), m, -inf)",
        "Tensor.masked_fill(x, m, -inf)",
        lambda x, m: x.masked_fill(m, float("-inf")).masked_fill(m, float("-inf")),
        [A, YES],
    ),
    "cast-methods": (
        X,
        "Tensor.float(Tensor.double(x))",
        "x * 1.0",
        lambda x: x.double().float() + 1,
        [A],
    ),
    "undeclared-function": (
        X,
        "F.leaky_relu(-(-x), 0.1)",
        "F.leaky_relu(x, 0.1)",
        lambda x: F.leaky_relu(twice(x), 0.1),
        [A],
    ),
    "undeclared-builtin": (
        X,
        "torch.expm1(torch.log1p(x))",
        "x * 1.0",
        lambda x: x.log1p().expm1() + 1,
        [A.abs()],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_matched_and_made(name, tmp_path):
    variables, match, make, program, inputs = CALLS[name]
    text = rule_text(variables, match, make, stage="pre_grad")
    proof = prove(tmp_path, text, program, *inputs)
    assert set(proof.used) == {"r"}, (name, proof)


LINEAR = {"w": "float[n, k]", "b": "float[n]"}
NORM = {"w": "float[k]", "b": "float[k]"}
MODULES = {
    "linear": (nn.Linear(6, 5), LINEAR, "F.linear(x, w, b)", A),
    "layer-norm": (nn.LayerNorm(6), NORM, "F.layer_norm(x, (k,), w, b, **how)", A),
    "rms-norm": (nn.RMSNorm(6), {"w": "float[k]"}, "F.rms_norm(x, (k,), w, **how)", A),
    "dropout": (nn.Dropout(0.5), {"p": "const"}, "F.dropout(x, p, False)", A),
    "batch-norm": (
        nn.BatchNorm1d(6),
        {"m": "float[c]", "v": "float[c]", "w": "float[c]", "b": "float[c]"},
        "F.batch_norm(x, m, v, w, b, **how)",
        A,
    ),
    "convolution": (
        nn.Conv2d(2, 4, 3, padding=1),
        {"w": "float[o, c, i, j]", "b": "float[o]"},
        "F.conv2d(x, w, b, **how)",
        some(1, 2, 5, 5),
    ),
    "transposed": (
        nn.ConvTranspose2d(2, 4, 3),
        {"w": "float[c, o, i, j]", "b": "float[o]"},
        "F.conv_transpose2d(x, w, b, **how)",
        some(1, 2, 5, 5),
    ),
    "max-pool": (nn.MaxPool2d(2), {}, "F.max_pool2d(x, **how)", some(1, 2, 4, 4)),
    "gelu": (nn.GELU("tanh"), {}, "F.gelu(x, **how)", A),
    "elu": (nn.ELU(), {}, "F.elu(x, **how)", A),
    "softplus": (nn.Softplus(), {}, "F.softplus(x, **how)", A),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_known_by_its_function(name, tmp_path):
    module, variables, call, x = MODULES[name]
    match = call.replace("(x", "(-(-x)", 1)
    text = rule_text({**X, **variables}, match, call, stage="pre_grad")
    proof = prove(tmp_path, text, lambda x: module.eval()(twice(x)), x)
    assert set(proof.used) == {"r"}, (name, proof)


def test_embedding_and_attention_are_known_by_their_functions(tmp_path):
    table = nn.Embedding(40, 6)
    call = "F.embedding(i, w, **how)"
    variables = {"i": "int[...]", "w": "float[v, d]"}
    text = rule_text(variables, f"-(-{call})", call, stage="pre_grad")
    assert prove(tmp_path, text, lambda i: twice(table(i)), torch.tensor([1, 2])).used["r"]

    attention = nn.MultiheadAttention(8, 2).eval()
    call = "F.multi_head_attention_forward(q, q, q, **how)[0]"
    text = rule_text({"q": "float[...]"}, call.replace("q", "-(-q)"), call, stage="pre_grad")

    def program(x):
        return attention(twice(x), twice(x), twice(x), need_weights=False)[0]

    assert prove(tmp_path, text, program, some(3, 2, 8)).used == {"r": 1}


def test_dropout_draws_each_time(tmp_path):
    text = rule_text(X, "F.relu(F.relu(x))", "F.relu(x)", stage="pre_grad")

    def program(x):
        first, second = F.dropout(x, 0.5, True), F.dropout(x, 0.5, True)
        return (first != second).any(), F.relu(F.relu(x))

    assert prove(tmp_path, text, program, some(40, 40).abs() + 1).used == {"r": 1}


# Graphs that write: `relu(relu(x))` stands for what a rule may rewrite.

RELU = rule_text(X, "F.relu(F.relu(x))", "F.relu(x)", "exact", stage="pre_grad")


def relu2(x):
    return F.relu(F.relu(x))


def write_input(x, y):
    before = relu2(x)
    x.add_(1)
    flat = x.view(-1)
    flat[0] = 5
    return before + relu2(y), relu2(x), flat


def write_intermediate(x, y):
    t = y * 2
    u = t.t()
    before = relu2(u)
    t.mul_(-3)
    return before, relu2(u), relu2(x)


def write_behind_detach(x, y):
    d = x.detach()
    before = relu2(d)
    x.add_(-1)
    return before, relu2(d), relu2(y), d


def write_by_operator(x, y):
    x += 1
    F.relu(y, inplace=True)
    return relu2(x), relu2(y), relu2(x * y)


def write_to_out(x, y):
    torch.add(x, 1, out=y)
    return relu2(y), relu2(x)


def write_statistics(x, y):
    mean, var = y[0], y[1].abs()
    first = F.batch_norm(x, mean, var, None, None, True)
    second = F.batch_norm(x, mean, var, None, None, True)
    return relu2(first) + relu2(second), mean + 0, var + 0


def write_into_a_slice(x, y):
    cache = torch.zeros(8, 6)
    cache[:4] = relu2(x)
    cache[4:].copy_(y)
    return cache, relu2(cache.t())


def share_outputs(x, y):
    base = relu2(x)
    view = base.t()
    y.copy_(view.t())
    return base, view, y


WRITERS = {
    write_input: 1,
    write_intermediate: 1,
    write_behind_detach: 1,
    write_by_operator: 1,
    write_to_out: 1,
    write_statistics: 2,
    write_into_a_slice: 1,
    share_outputs: 1,
}


@pytest.mark.parametrize("program", WRITERS, ids=lambda program: program.__name__)
def test_what_no_call_writes_is_rewritten(program, tmp_path):
    proof = prove(tmp_path, RELU, program, A, B)
    assert proof.used == {"r": WRITERS[program]}


def test_outputs_share_memory_as_they_did(tmp_path):
    prove(tmp_path, RELU, share_outputs, A, B)
    compiled = torch.compile(share_outputs, backend="eqsat", options={"strict": True})
    base, view, _ = compiled(A.clone(), B.clone())
    assert base.untyped_storage()._cdata == view.untyped_storage()._cdata


def test_regions_under_another_mode_are_left_alone(tmp_path):
    def program(x):
        z = relu2(x).t()
        with torch.no_grad():
            still = relu2(z * 2)
        with torch.autocast("cpu", enabled=False):
            own = relu2(z * 3)
        return relu2(z + still) * own

    proof = prove(tmp_path, RELU, program, A.clone().requires_grad_())
    assert proof.used == {"r": 2}


def test_writes_beside_gradients(tmp_path):
    def program(x, y):
        hidden = relu2(x) * 2
        hidden.mul_(3)
        with torch.no_grad():
            y.add_(1)
        return relu2(hidden.exp()), y

    assert prove(tmp_path, RELU, program, A.clone().requires_grad_(), B).used == {"r": 2}
