"""Every construct of the rule language in a rule of its own, in a real compile: the rule fires,
what it makes is used, and the results are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eqsat.tests.engine.proof import prove, rule_text

X = {"x": "float[...]"}
XY = {"x": "float[...]", "y": "float[...]"}
MN = {"x": "float[m, n]"}
IMAGE = {"x": "float[n, c, h, w]", "k": "float[o, i, a, b]"}
TWICE = "-(-x)"


def some(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed + sum(size)))


A, B, POSITIVE = some(4, 6), some(4, 6, seed=1), some(4, 6).abs() + 0.5


def twice(x):
    return x.neg().neg()


def loglike(x):
    return torch.exp(torch.log(x))


# Name: variables, match, make, program, inputs
SPELLINGS = {
    "overload-by-arguments": (
        MN,
        "sum(exp(log(x)), 1)",
        "sum(x, 1)",
        lambda x: loglike(x).sum(1),
        [POSITIVE],
    ),
    "overload-written-out": (
        MN,
        "sum.dim_IntList(exp(log(x)), (1,))",
        "sum(x, 1)",
        lambda x: loglike(x).sum(1),
        [POSITIVE],
    ),
    "add.Tensor": (XY, "add.Tensor(-x, -y)", "-add.Tensor(x, y)", lambda x, y: -x + -y, [A, B]),
    "add.Scalar": (X, "add.Scalar(add.Scalar(x, 1), 2)", "x + 3", lambda x: (x + 1) + 2, [A]),
    "keyword-and-position": (
        MN,
        "sum(-(-x), -1, True)",
        "sum(x, dim=1, keepdim=True)",
        lambda x: twice(x).sum(dim=1, keepdim=True),
        [A],
    ),
    "attribute-of-an-operator": (
        XY,
        "add(x, y, alpha=2) - y",
        "x + y",
        lambda x, y: torch.add(x, y, alpha=2) - y,
        [A, B],
    ),
    "results-by-number": (
        {"x": "float[..., n]", "w": "float[n]", "b": "float[n]", "e": "const"},
        "-(-native_layer_norm(x, (n,), w, b, e)[0])",
        "native_layer_norm(x, (n,), w, b, e)[0]",
        lambda x, w, b: twice(F.layer_norm(x, (6,), w, b)),
        [A, some(6), some(6, seed=2)],
    ),
    "max.dim": (MN, "max(x + x, 1)[1]", "max(x, 1)[1]", lambda x: (x + x).max(1)[1], [A]),
    "topk": (
        {"x": "float[m, n]", "k": "const:int"},
        "topk(x + x, k)[1]",
        "topk(x, k)[1]",
        lambda x: (x + x).topk(3)[1],
        [A],
    ),
    "split": (
        {"x": "float[m, n]", "k": "const:int"},
        "cat([split(x, k, dim=1)[0], split(x, k, dim=1)[1]], 1)",
        "x * 1.0",
        lambda x: torch.cat([x.split(3, 1)[0], x.split(3, 1)[1]], 1) + 1,
        [A],
    ),
    "var_mean": (
        MN,
        {"v": "var_mean(-(-x), 1)[0]", "u": "var_mean(-(-x), 1)[1]"},
        {"v": "var_mean(x, 1)[0]", "u": "var_mean(x, 1)[1]"},
        lambda x: torch.var_mean(twice(x), 1),
        [A],
    ),
    "a-list": (
        {"a": "float[m, n]", "b": "float[m, p]"},
        "exp(cat([log(a), log(b)], 1))",
        "cat([a, b], 1)",
        lambda a, b: torch.exp(torch.cat([torch.log(a), torch.log(b)], 1)),
        [POSITIVE, POSITIVE[:, :3]],
    ),
    "tensors-one-by-one": (
        {"a": "float[m, n]", "b": "float[m, p]"},
        "exp(cat(log(a), log(b), dim=1))",
        "cat(a, b, dim=1)",
        lambda a, b: torch.exp(torch.cat([torch.log(a), torch.log(b)], 1)),
        [POSITIVE, POSITIVE[:, :3]],
    ),
    "stack": (
        {"a": "float[m, n]", "b": "float[m, n]"},
        "-stack([-a, -b], 1)",
        "stack([a, b], 1)",
        lambda a, b: -torch.stack([-a, -b], 1),
        [A, B],
    ),
    "list-variable": (
        {"xs": "list[float[...]]"},
        "-(-cat(xs, 1))",
        "cat(xs, 1)",
        lambda a, b: twice(torch.cat([a, b, a], 1)) * 2,
        [A, B],
    ),
    "each": (
        {"xs": "list[float[...]]", "d": "const:int"},
        "exp(log(cat(xs, d)))",
        "cat(each(abs, xs), d)",
        lambda a, b: torch.exp(torch.log(torch.cat([a, b], 1))) * 2,
        [POSITIVE, POSITIVE],
    ),
    "a-list-of-any-sizes": (
        {"xs": "list[float]", "d": "const:int"},
        "exp(log(cat(xs, d)))",
        "cat(cat(head(xs, -1), d), abs(xs[-1]), dim=d)",
        lambda a, b: torch.exp(torch.log(torch.cat([a, b, a], 1))) * 2,
        [POSITIVE, POSITIVE[:, :3]],
    ),
    "a-result-by-a-variable": (
        {"x": "float[...]", "n": "const:int", "d": "const:int", "i": "const:int"},
        "exp(log(split(x, n, d)[i]))",
        "slice(x, d, n * i, n * (i + 1))",
        lambda x: torch.exp(torch.log(x.split(2, 1)[1])) * 2,
        [POSITIVE],
    ),
    "dims-variable": (
        {"x": "float[...]", "d": "dims"},
        "sum(-(-x), d)",
        "sum(x, d)",
        lambda x: twice(x).sum((0, 2)),
        [some(2, 3, 4)],
    ),
    "one-dim-as-a-number": (
        {"x": "float[...]", "d": "const:int"},
        "sum(-(-x), d)",
        "sum(x, d)",
        lambda x: twice(x).sum(1),
        [A],
    ),
    "the-dim-of-a-vector": (
        {"x": "float[...]", "d": "const:int"},
        "sum(-(-x), d)",
        "sum(x, d)",
        lambda x: twice(x).sum(0),
        [some(5)],
    ),
    "computed-dims": (
        {"x": "float[...]", "p": "dims", "q": "dims"},
        "permute(permute(x, p), q)",
        "permute(x, composed(p, q))",
        lambda x: x.permute(2, 0, 1).permute(1, 0, 2) + 1,
        [some(2, 3, 4)],
    ),
    "dtype-variable": (
        {"x": "float[...]", "t": "dtype"},
        "cast(cast(x, t), dtype(x))",
        "x * 1.0",
        lambda x: x.double().float() + 1,
        [A],
    ),
    "kinds-of-constants": (
        {"x": "float[...]", "a": "const:int", "b": "const:float"},
        "x * a * b",
        "x * (a * b)",
        lambda x: x * 2 * 2.5,
        [A],
    ),
    "a-constant-flag": (
        {"x": "float[m, n]", "k": "const:bool"},
        "sum(-(-x), 1, k)",
        "sum(x, 1, k)",
        lambda x: twice(x).sum(1, True),
        [A],
    ),
    "minus-infinity": (
        {"x": "float[a, n]", "m": "bool[a, n]"},
        "where(m, where(m, x, 3.0), -inf)",
        "where(m, x, -inf)",
        lambda x: torch.where(x > 0, torch.where(x > 0, x, 3.0), float("-inf")),
        [A],
    ),
    "both-infinities": (
        X,
        "clamp(clamp(x, -inf, inf), -inf, inf)",
        "clamp(x, -inf, inf)",
        lambda x: x.clamp(float("-inf"), float("inf")).clamp(float("-inf"), float("inf")),
        [A],
    ),
    "a-number-among-tensors": (
        {"x": "float[a, n]", "m": "bool[a, n]"},
        "where(m, x, 0.0) * 1.0",
        "where(m, x, 0.0)",
        lambda x: torch.where(x > 0, x, 0.0) * 1.0,
        [A],
    ),
    "two-leads": (
        {"x": "float[...a]", "y": "float[...b]"},
        "(-x) * (-y)",
        "x * y",
        lambda x, y: (-x) * (-y),
        [A, some(6)],
    ),
    "a-product-of-sizes": (
        {"x": "float[n, m]", "y": "float[n*m]"},
        "view(-x, n * m) + y",
        "y - view(x, n * m)",
        lambda x, y: (-x).view(24) + y,
        [A, some(24)],
    ),
    "a-sum-of-sizes": (
        {"x": "float[n]", "z": "float[m]", "y": "float[n + m]"},
        "cat(-x, -z, dim=0) * y",
        "-cat(x, z, dim=0) * y",
        lambda x, z, y: torch.cat([-x, -z]) * y,
        [some(3), some(4), some(7)],
    ),
    "a-bare-variable": (X, "x * 1.0", "x", lambda x: (x * 1.0).exp(), [A]),
    "whole-numbers-beside-floats": (
        X,
        "exp(log(x * 2.0 + 1.0))",
        "x * 2 + 1",
        lambda x: loglike(x * 2 + 1),
        [POSITIVE],
    ),
    "ones": (
        MN,
        "where(ones((m, n), bool), x, -x)",
        "x * 1.0",
        lambda x: torch.where(torch.ones(4, 6, dtype=torch.bool), x, -x) + 1,
        [A],
    ),
    "zeros": (
        {"x": "int[m, n]"},
        "x + zeros((m, n), i64)",
        "x * 1",
        lambda x: x + torch.zeros(4, 6, dtype=torch.long),
        [(A * 9).long()],
    ),
    "full-like": (
        X,
        "x * full_like(x, 2)",
        "x + x",
        lambda x: x * torch.full_like(x, 2),
        [A],
    ),
    "new-ones": (
        MN,
        "x * new_ones(x, (m, n))",
        "x * 1.0",
        lambda x: x * x.new_ones(4, 6) + 1,
        [A],
    ),
    "how": (
        IMAGE,
        "-conv2d(x, -k, None, **how)",
        "conv2d(x, k, None, **how)",
        lambda x, k: -F.conv2d(x, -k, None, 2, 1),
        [some(1, 4, 6, 6), some(8, 4, 3, 3)],
    ),
    "one-stride-for-all-dims": (
        IMAGE,
        "-conv2d(x, -k, None, stride=2, padding=1)",
        "conv2d(x, k, None, stride=2, padding=1)",
        lambda x, k: -F.conv2d(x, -k, None, 2, 1),
        [some(1, 4, 6, 6), some(8, 4, 3, 3)],
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_matched_and_made(name, tmp_path):
    variables, match, make, program, inputs = SPELLINGS[name]
    proof = prove(tmp_path, rule_text(variables, match, make), program, *inputs)
    assert set(proof.used) == {"r"}, (name, proof)


def test_let_names_pieces_in_order(tmp_path):
    text = rule_text(XY, "exp(x) * exp(y)", "exp(t)", let="{s: x + y, t: s}")
    assert prove(tmp_path, text, lambda x, y: torch.exp(x) * torch.exp(y), A, B).used["r"] == 1


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        (("m // 2 == 2 and n % 4 == 2", "m ** 2 == 16"), True),
        (("min(m, n) == 4", "max(m, n) == 6 and abs(m - n) == 2", "len(shape(x)) == 2"), True),
        (("0 < m < n <= 6", "m in (3, 4, 5)", "n not in (1, 2)", "not m == n"), True),
        (("0 < n < m",), False),
        (("contiguous(x)", "strides(x) == (n, 1)", "is_input(x)"), True),
        (("not contiguous(x)",), False),
        (("is_weight(x) or is_frozen(x)",), False),
        (("dtype(x) in (f16, bf16)",), False),
        (("users(-(-x)) == 1",), True),
        (("users(-(-x)) > 1",), False),
    ],
)
def test_conditions(conditions, holds, tmp_path):
    text = rule_text(MN, TWICE, "x", when=conditions)
    assert prove(tmp_path, text, lambda x: twice(x).exp(), A).fired == ({"r": 1} if holds else {})


def test_a_condition_may_name_what_the_left_side_makes_through_an_alias(tmp_path):
    made = "unsqueeze(-(-x), 0)"
    text = rule_text(MN, f"exp({made})", "exp(unsqueeze(x, 0))", when=(f"users({made}) == 1",))
    assert prove(tmp_path, text, lambda x: torch.exp(twice(x).unsqueeze(0)), A).used == {"r": 1}


@pytest.mark.parametrize(
    "decides",
    [
        lambda x: x.view(-1) > 0,
        lambda x: x.t().argmax(0),
        lambda x: x.topk(2)[1],
        lambda x: x.to(torch.int32),
        torch.round,
    ],
)
def test_feeds_comparison_sees_what_decides(decides, tmp_path):
    text = rule_text(X, TWICE, "x", when=("not feeds_comparison(-(-x))",))
    assert prove(tmp_path, text, lambda x: decides(twice(x)), A * 3).fired == {}
    assert prove(tmp_path, text, lambda x: twice(x).exp(), A).used == {"r": 1}


def test_families_multiply_pair_and_turn_around(tmp_path):
    text = rule_text(X, "f(g(-(-x)))", "f(g(x))", family="{f: [relu, tanh], g: [exp, sin]}")
    used = prove(tmp_path, text, lambda x: torch.tanh(twice(x).exp()), A).used
    assert used == {"r/tanh-exp": 1}
    paired = rule_text(X, "f(g(x))", "x", family="[{f: exp, g: log}, {f: log, g: exp}]")
    assert set(prove(tmp_path, paired, lambda x: loglike(x) * 2, POSITIVE).used) == {"r/exp-log"}
    right = "f(log_softmax(x, -1))"
    back = rule_text(X, "softmax(x, -1)", right, family="{f: [exp]}", both_ways="true")
    used = prove(tmp_path, back, lambda x: torch.exp(torch.log_softmax(x, -1)), A).used
    assert set(used) == {"r/exp/back"}


@pytest.mark.parametrize(("groups", "fires"), [(2, True), (1, False)])
def test_an_entry_of_how_is_read_and_another_overridden(groups, fires, tmp_path):
    text = rule_text(
        IMAGE,
        "conv2d(constant_pad_nd(x, (1, 1, 1, 1), 0), k, None, **how)",
        "conv2d(x, k, None, **how, padding=(1, 1))",
        when=("how.groups == 2", "how.padding == (0, 0)"),
    )

    def program(x, k):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), k, groups=groups)

    used = prove(tmp_path, text, program, some(1, 4, 6, 6), some(8, 4 // groups, 3, 3)).used
    assert used == ({"r": 1} if fires else {})


@pytest.mark.parametrize("order", [(False, False, True), (True, True, False), (True, False, True)])
def test_operands_of_commuting_ops_match_in_every_order(order, tmp_path):
    text = rule_text(
        XY,
        "x * ((erf(y) + 1.0) * 0.5)",
        "x - y",
        "{approximate: {rtol: 9, atol: 9}}",
    )

    def program(x, y):
        one = 1.0 + torch.erf(y) if order[0] else torch.erf(y) + 1.0
        half = 0.5 * one if order[1] else one * 0.5
        return half * x if order[2] else x * half

    proof = prove(tmp_path, text, program, A, B, numerics="fast", tolerance=9)
    assert proof.used == {"r": 1}


def test_interchangeable_roots_are_ordered_by_before(tmp_path):
    text = rule_text(
        {"x": "float[m, k]", "a": "float[n, k]", "b": "float[n, k]"},
        {"p": "mm(x, permute(a, (1, 0)))", "q": "mm(x, permute(b, (1, 0)))"},
        {
            "p": "slice(w, dim=1, start=0, end=n)",
            "q": "slice(w, dim=1, start=n, end=2 * n)",
        },
        when=("before(a, b)",),
        let='{w: "mm(x, permute(cat(a, b, dim=0), (1, 0)))"}',
    )
    first, second = (torch.nn.Linear(6, 5, bias=False) for _ in range(2))
    proof = prove(tmp_path, text, lambda x: (first(x), second(x)), A)
    assert proof.fired == {"r": 1}
