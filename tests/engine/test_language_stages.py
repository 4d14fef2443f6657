"""When a rule is there at all: stages, numerics classes under each profile, assumptions,
devices, gradients, symbolic sizes. And the table of what conditions may call."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

from eqsat.engine import facts, shapes
from eqsat.engine.load import builtin_book, load_book
from eqsat.engine.ops import OpTable
from eqsat.engine.profile import select
from eqsat.engine.target import load_target
from eqsat.engine.targeting import suits
from eqsat.tests.engine.proof import prove, rule_text

X = {"x": "float[...]"}
MN = {"x": "float[m, n]"}
TWICE = "-(-x)"
TABLE = OpTable(builtin_book().ops)


def some(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


A = some(4, 6)


def twice(x):
    return x.neg().neg()


def book_of(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text)
    return load_book([path], TABLE)


@pytest.mark.parametrize("stage", ["joint", "post_grad"])
def test_stages_after_autograd(stage, tmp_path):
    text = rule_text(X, TWICE, "x", "exact", stage=stage)
    assert prove(tmp_path, text, lambda x: twice(x).exp(), A.clone().requires_grad_()).used["r"]


def test_stage_pre_grad(tmp_path):
    match, make = "torch.neg(torch.neg(x))", "x * 1.0"
    text = rule_text(X, match, make, "exact", stage="pre_grad")
    assert prove(tmp_path, text, lambda x: twice(x).exp(), A.clone().requires_grad_()).used["r"]


def test_stage_trace_replaces_what_autograd_records(tmp_path):
    text = rule_text(
        {"g": "float[...]", "y": "float[...]"},
        "tanh_backward(g, y)",
        "g * (1 - y * y)",
        stage="trace",
    )
    watch = rule_text(
        {"g": "float[...]", "y": "float[...]"}, "g * (1 - y * y)", "g - g * (y * y)"
    ).replace("rule: r", "rule: seen")
    proof = prove(tmp_path, text + watch, torch.tanh, A.clone().requires_grad_())
    assert proof.fired == {"seen": 1}


def test_a_rule_without_gradients_is_kept_out_of_graphs_that_are_differentiated(tmp_path):
    joint = rule_text(X, TWICE, "x", stage="joint", grad="false")
    assert not prove(tmp_path, joint, lambda x: twice(x).exp(), A.clone().requires_grad_()).fired
    early = rule_text(X, TWICE, "x * 1.0", stage="pre_grad", grad="false")
    early = early.replace(TWICE, "torch.neg(torch.neg(x))")
    assert not prove(tmp_path, early, lambda x: twice(x).exp(), A.clone().requires_grad_()).fired
    assert prove(tmp_path, early, lambda x: twice(x).exp(), A).used == {"r": 1}
    after = rule_text(X, TWICE, "x", grad="false")
    assert prove(tmp_path, after, lambda x: twice(x).exp(), A).used == {"r": 1}


CLASSES = {
    "exact": ("bitwise", "default", "fast"),
    "signed_zero": ("fast",),
    "fewer_roundings": ("default", "fast"),
    "reassociate": ("default", "fast"),
    "{approximate: {rtol: 1.0e-3, atol: 1.0e-5}}": ("fast",),
    "random": ("fast",),
}


@pytest.mark.parametrize("numerics", CLASSES)
def test_classes_and_profiles(numerics, tmp_path):
    book = book_of(tmp_path, rule_text(X, TWICE, "x", numerics))
    allowed = [p for p in ("bitwise", "default", "fast") if select(book, p).rules]
    assert tuple(allowed) == CLASSES[numerics]


def test_a_class_by_kind_leaves_the_kinds_that_a_profile_allows(tmp_path):
    text = rule_text({"x": "num[...]"}, TWICE, "x", "{int: exact, float: reassociate}")
    whole = torch.randint(-3, 3, (4, 4))
    assert prove(tmp_path, text, lambda x: twice(x) * 2, whole, numerics="bitwise").used
    assert not prove(tmp_path, text, lambda x: twice(x) * 2, A, numerics="bitwise").fired


ASSUMPTIONS = {
    "no_overflow": ("default", "fast"),
    "finite": ("fast",),
    "no_nan": ("fast",),
    "no_signed_zero": ("fast",),
    "x > 0": ("fast",),
}


@pytest.mark.parametrize("assumption", ASSUMPTIONS)
def test_assumptions_and_profiles(assumption, tmp_path):
    text = rule_text(X, TWICE, "x", "exact", assumes=f"[{assumption}]", witness="{x: nan}")
    book = book_of(tmp_path, text)
    allowed = [p for p in ("bitwise", "default", "fast") if select(book, p).rules]
    assert tuple(allowed) == ASSUMPTIONS[assumption]


@pytest.mark.parametrize(("factor", "fires"), [(2.0, True), (-2.0, False)])
def test_an_assumption_about_a_constant_is_proved_where_the_rule_fires(factor, fires, tmp_path):
    text = rule_text(
        {"x": "float[...]", "c": "const"}, "sqrt(x * x) * c", "abs(x) * c", assumes="[c > 0]"
    )
    used = prove(tmp_path, text, lambda x: torch.sqrt(x * x) * factor, A).used
    assert used == ({"r": 1} if fires else {})


def test_indices_in_range_are_what_eager_asks_for_too(tmp_path):
    text = rule_text(
        {"x": "float[n, m]", "i": "int[k]"},
        "index_select(-x, 0, i)",
        "-index_select(x, 0, i)",
        "exact",
        assumes="[0 <= i < n]",
    )
    program, index = lambda x, i: torch.index_select(-x, 0, i) * 2, torch.tensor([0, 3])
    assert prove(tmp_path, text, program, some(40, 6), index).used == {"r": 1}


@pytest.mark.parametrize(
    ("device", "fitting"),
    [
        ("cpu", {"cpu"}),
        ("cuda", {"h200"}),
        ('device == "cpu" and bandwidth < 1e12', {"cpu"}),
        ('name in ("h200", "other")', {"h200"}),
        ("flops(bf16) >= 4 * flops(f32)", {"h200"}),
        ("launch > 0", {"cpu", "h200"}),
    ],
)
def test_target_predicates(device, fitting, tmp_path):
    (rule,) = book_of(tmp_path, rule_text(X, TWICE, "x", "exact", device=f"'{device}'")).rules
    assert {name for name in ("cpu", "h200") if suits(rule, load_target(name))} == fitting


def test_a_target_predicate_decides_in_a_compile(tmp_path):
    here = rule_text(X, TWICE, "x", "exact", device='device == "cpu"')
    assert prove(tmp_path, here, lambda x: twice(x).exp(), A).used == {"r": 1}
    elsewhere = rule_text(X, TWICE, "x", "exact", device="bandwidth > 1e20")
    assert not prove(tmp_path, elsewhere, lambda x: twice(x).exp(), A).fired


def test_a_predicate_reads_the_target_that_it_is_given(tmp_path):
    text = rule_text(X, TWICE, "x", "exact", device="launch < 1e-6")
    (rule,) = book_of(tmp_path, text).rules
    target = load_target("cpu")
    assert suits(rule, replace(target, launch=1e-7))
    assert not suits(rule, replace(target, launch=1e-5))


@pytest.mark.parametrize(
    ("conditions", "fires"),
    [
        ((), True),
        (("m * 2 > m and (m + n) * 1 == n + m",), True),
        (("m > 100 or m == 7",), False),
        (("m % 2 == 0",), False),
    ],
)
def test_symbolic_sizes_fire_where_a_condition_is_statically_known(conditions, fires, tmp_path):
    text = rule_text(MN, TWICE, "x", when=conditions)
    used = prove(tmp_path, text, lambda x: twice(x).exp(), A, dynamic=True).used
    assert used == ({"r": 1} if fires else {})


def test_symbolic_sizes_stand_in_shapes(tmp_path):
    text = rule_text(MN, "view(neg(view(-x, (n, m))), (m, n))", "x * 1.0")

    def program(x):
        return (-((-x).view(x.shape[1], x.shape[0]))).view(x.shape) + 1

    assert prove(tmp_path, text, program, A, dynamic=True).used == {"r": 1}


def test_every_predicate_is_in_the_table():
    rows = facts.describe_predicates()
    names = [name for name, _, _ in rows]
    assert len(set(names)) == len(names)
    assert {*facts.PREDICATES, "min", "max", "abs", "len"} == set(names)
    for name, signature, doc in rows:
        assert signature.startswith(f"{name}(") and signature.endswith(")")
        assert "world" not in signature and doc.endswith(".") and "\n" not in doc
    written = dict((name, signature) for name, signature, _ in rows)
    assert written["size"] == "size(x, dim)" and written["promoted"] == "promoted(*xs)"
    assert all(inspect.getdoc(function) for function in shapes.SHAPE_FUNCTIONS)
