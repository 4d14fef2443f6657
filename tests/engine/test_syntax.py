"""The expression language: what parses, to what, and where each part stands."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat.engine.document import Scalar, read_entries
from eqsat.engine.expr import (
    Binary,
    Call,
    Compare,
    Field,
    Item,
    Literal,
    Logic,
    Name,
    Negative,
    Not,
    Sequence,
    Span,
    walk,
)
from eqsat.engine.rule import ConstType, TensorType
from eqsat.engine.source import Problems, RuleErrors, did_you_mean
from eqsat.engine.syntax import DEPTH, LARGEST, NODES, parse, parse_signature
from eqsat.engine.type_syntax import parse_type

AT = Span("rules/x.yaml", 7, 12)
X, Y = Name("x"), Name("y")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("x", X),
        ("1e-5", Literal(1e-5)),
        ("-inf", Literal(-math.inf)),
        ("-3", Literal(-3)),
        ("-x", Negative(X)),
        ("'tanh'", Literal("tanh")),
        ("None", Literal(None)),
        ("x + y * 2", Binary("+", X, Binary("*", Y, Literal(2)))),
        ("-x ** 2", Negative(Binary("**", X, Literal(2)))),
        ("x // y % 2", Binary("%", Binary("//", X, Y), Literal(2))),
        ("mm(x, y)", Call("mm", (X, Y))),
        ("F.linear(x, y)", Call("F.linear", (X, Y))),
        ("sum.dim_IntList(x, dim=(2, 3))", Call(
            "sum.dim_IntList", (X,), (("dim", Sequence((Literal(2), Literal(3)))),)
        )),
        ("cat([x, y], dim=-1)", Call("cat", (Sequence((X, Y)),), (("dim", Literal(-1)),))),
        ("conv(x, **how, groups=1)", Call("conv", (X,), (("groups", Literal(1)),), "how")),
        ("topk(x, y)[1]", Item(Call("topk", (X, Y)), Literal(1))),
        ("topk(x, y)[i]", Item(Call("topk", (X, Y)), Name("i"))),
        ("shape(x)[-1]", Item(Call("shape", (X,)), Literal(-1))),
        ("how.groups == 1", Compare(Field("how", "groups"), ("==",), (Literal(1),))),
        ("0 <= x < y", Compare(Literal(0), ("<=", "<"), (X, Y))),
        ("x in (1, y)", Compare(X, ("in",), (Sequence((Literal(1), Y)),))),
        ("not x", Not(X)),
        ("x and not y", Logic("and", (X, Not(Y)))),
    ],
)  # fmt: skip
def test_parses(text: str, tree: object) -> None:
    assert parse(text, AT) == tree


def test_nan_is_a_number() -> None:
    tree = parse("nan", AT)
    assert isinstance(tree, Literal) and isinstance(tree.value, float) and math.isnan(tree.value)


def test_spans_point_at_tokens() -> None:
    tree = parse("mm(x, softmax(yy, dim=-1))", AT)
    assert [(node.span.col, node.span.length) for node in walk(tree)] == [
        (12, 2),  # mm
        (15, 1),  # x
        (18, 7),  # softmax
        (26, 2),  # yy
        (34, 2),  # -1
    ]


def test_spans_count_letters_not_bytes() -> None:
    tree = parse("f('größe', x)", AT)
    assert isinstance(tree, Call)
    assert tree.args[1].span.col == AT.col + len("f('größe', ")


SCALARS = """\
- rule: a
  plain: mm(x, sofmax(y))
  quoted: 'mm(x, ''s'', sofmax(y))'
  double: "mm(x, \\"s\\", sofmax(y))"
  folded: >
    mm(x,
       sofmax(y))
  literal: |
    mm(
      sofmax(y))
  spread: mm(x,
    sofmax(y))
"""


@pytest.mark.parametrize("key", ["plain", "quoted", "double", "folded", "literal", "spread"])
def test_places_in_every_kind_of_scalar(key: str) -> None:
    entry = read_entries("a.yaml", SCALARS, Problems())[0]
    value = next(value for name, value in entry.fields.pairs if name.text == key)
    assert isinstance(value, Scalar)
    tree = parse(value.text, value)
    span = next(n.span for n in walk(tree) if isinstance(n, Call) and n.fn == "sofmax")
    line = SCALARS.split("\n")[span.line - 1]
    assert line[span.col - 1 : span.col - 1 + span.length] == "sofmax"


def test_types() -> None:
    floats = ("f16", "bf16", "f32", "f64")
    assert parse_type("float[...]", AT) == TensorType(floats, (), "")
    assert parse_type("float[...a, n]", AT) == TensorType(floats, (Name("n"),), "a")
    assert parse_type("f32[]", AT) == TensorType(("f32",), ())
    two = Binary("*", Literal(2), Name("m"))
    assert parse_type("float[m, 2 * m]", AT) == TensorType(floats, (Name("m"), two))
    assert parse_type("list[float[n]]", AT) == TensorType(floats, (Name("n"),), None, True)
    assert parse_type("const", AT) == ConstType("any")
    assert parse_type("const:int", AT) == ConstType("int")
    assert parse_type("dims", AT) == ConstType("dims")


def test_type_spans() -> None:
    kind = parse_type("list[num[..., n, 2 * m]]", AT)
    assert isinstance(kind, TensorType)
    assert [dim.span.col - AT.col for dim in kind.dims] == [14, 17]


def test_signature() -> None:
    pairs = parse_signature("x, dim, keepdim=False, **how", AT)
    assert pairs == (("x", None), ("dim", None), ("keepdim", Literal(False)), ("**how", None))
    assert parse_signature("", AT) == ()


@given(st.text(alphabet="xy01.,()[]{}+-*/%=<>!&|'\" \n#:$?andotif", max_size=30))
def test_never_a_traceback(text: str) -> None:
    for reader in (parse, parse_type, parse_signature):
        try:
            reader(text, AT)
        except RuleErrors as errors:
            assert str(errors)


@given(st.text(max_size=60))
def test_any_file_is_read_without_a_traceback(text: str) -> None:
    problems = Problems()
    entries = read_entries("a.yaml", "- rule: x\n  doc: " + text, problems)
    assert entries or problems.failed
    assert all(map(str, problems.sorted("error")))


def test_did_you_mean() -> None:
    words = ["softmax", "tan", "tanh", "cat"]
    assert did_you_mean("sofmax", words) == "softmax"
    assert did_you_mean("tahn", words) == "tanh"
    assert did_you_mean("zzz", words) is None


def test_depth_size_and_numbers_are_bounded() -> None:
    """What walks an expression later needs no bound of its own."""
    deep = f"{'relu(' * DEPTH}x{')' * DEPTH}"
    long = f"relu({', '.join(['x'] * (NODES - 2))})"
    for text in (deep, long, str(LARGEST)):
        parse(text, AT)
    wide = " + ".join(["x"] * NODES)
    for text in (
        f"relu({deep})",
        wide,
        f"relu({long})",
        str(LARGEST + 1),
        "1" * 5000,
        "(" * 300 + ")" * 300,
    ):
        with pytest.raises(RuleErrors, match=r"too large|64 bits"):
            parse(text, AT)


def test_every_refused_part_is_told() -> None:
    with pytest.raises(RuleErrors) as raised:
        parse("f(x @ y) + (x if y else z) + x[0:1]", AT)
    columns = [found.span.col - AT.col for found in raised.value.diagnostics]
    assert columns == [2, 12, 31]
