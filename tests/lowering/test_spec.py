"""The rules of a legal program, each broken once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eqsat.lowering.guards import Refusal
from eqsat.lowering.index import Axis, Gathered, Index, as_index
from eqsat.lowering.interpret import BadProgram, interpret
from eqsat.lowering.loops import Buffer, Builder, Extern, Nest, Program, Scalar, Store, View
from eqsat.lowering.spec import problems
from eqsat.lowering.values import decided

I = Axis("i", 4)  # noqa: E741
AT = (as_index(I),)
X = Buffer("x", "f32", (4,), (1,), "input")
Y = Buffer("y", "f32", (4,), (1,), "output")


def program(value: Scalar, *, raxes: tuple[Axis, ...] = (), **store: Any) -> Program:
    made = replace(Store("y", AT, value), **store)
    nest = Nest("n", (I,), raxes, (made,))
    return Program(("x",), {"x": X, "y": Y}, (nest,), (View("y", (4,), (1,)),))


def load(builder: Builder) -> Scalar:
    return builder.load(X, AT)


def test_a_legal_program_has_no_problems() -> None:
    assert problems(program(load(Builder()))) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda b: program(b.make("add", (load(b), b.const(1, "i64")), "f32")), "add of"),
        (lambda b: program(b.make("eq", (load(b), load(b)), "f32")), "eq of"),
        (lambda b: program(b.make("where", (load(b), load(b), load(b)), "f32")), "where of"),
        (lambda b: program(b.make("cast", (load(b),), "f64")), "stores f64 into y"),
        (lambda b: program(load(b), index=(*AT, *AT)), "with 2 indices"),
        (lambda b: program(load(b), mode="most"), "unknown mode"),
        (lambda b: program(load(b), buffer="z"), "which is not a buffer"),
        (lambda b: program(b.load(X, (as_index(Axis("k", 4)),))), "axis of another nest"),
        (lambda b: program(load(b), raxes=(Axis("r", 2),)), "without a reduction"),
        (lambda b: program(b.load(replace(X, name="z"), AT)), "from z, which is not"),
    ],
)
def test_every_rule_is_checked(change: Any, text: str) -> None:
    assert any(text in problem for problem in problems(change(Builder())))


def test_an_index_that_nobody_checked_is_seen() -> None:
    ids, flag = Buffer("ids", "i64", (4,), (1,), "input"), Buffer("flag", "bool", (), ())
    builder = Builder()
    place = Index(((Gathered(builder.load(ids, AT), 4, "flag"), 1),))
    made = program(builder.load(X, (place,)))
    made = replace(made, buffers={**made.buffers, "ids": ids, "flag": flag})
    made = replace(made, inputs=("x", "ids"))
    assert problems(made) == ["n goes through an index that nobody found flag true for"]
    fill = Nest("fill", (), (), (Store("flag", (), builder.const(True, "bool")),))
    asked = Extern(
        "ask", Refusal(None), ([View("flag", (), ())], [], {}), {}, (), mutates=("flag",)
    )
    assert problems(replace(made, steps=(fill, asked, *made.steps))) == []
    assert problems(replace(made, steps=(fill, *made.steps, asked))) != []


def test_reading_before_writing_is_seen() -> None:
    temp = Buffer("t", "f32", (4,), (1,))
    made = program(Builder().load(temp, AT))
    made = replace(made, buffers={**made.buffers, "t": temp})
    assert problems(made) == ["n: load from t before it is written"]


def test_the_interpreter_refuses_reads_outside_a_buffer() -> None:
    builder = Builder()
    made = program(builder.load(X, (as_index(I) + 1,)))
    with pytest.raises(BadProgram, match="outside a dim of x"):
        interpret(made, [torch.zeros(4)])


def test_a_mask_guards_a_load() -> None:
    builder = Builder()
    place = builder.make("index", (), "i64", index=AT)
    mask = builder.make("lt", (place, builder.const(3, "i64")), "bool")
    args = (mask, builder.const(7.0, "f32"))
    guarded = builder.make("load", args, "f32", buffer="x", index=(as_index(I) + 1,))
    (got,) = interpret(program(guarded), [torch.arange(4.0)])
    assert got.tolist() == [1.0, 2.0, 3.0, 7.0]


def test_atomic_adds_collide() -> None:
    builder = Builder()
    zero = program(builder.const(0.0, "f32"))
    add = Nest("m", (I,), (), (Store("y", (as_index(1),), load(builder), "add"),))
    (got,) = interpret(replace(zero, steps=(*zero.steps, add)), [torch.ones(4)])
    assert got.tolist() == [0.0, 4.0, 0.0, 0.0]


def test_a_mask_that_holds_nowhere_excuses_a_load() -> None:
    """It is never run; one that may hold is looked at."""
    builder = Builder()
    place = builder.make("index", (), "i64", index=AT)
    for bound, fine in ((0, True), (1, False)):
        mask = builder.make("lt", (place, builder.const(bound, "i64")), "bool")
        args = (mask, builder.const(7.0, "f32"))
        beyond = builder.make("load", args, "f32", buffer="x", index=(as_index(9),))
        assert (list(problems(program(beyond))) == []) == fine


def test_what_bounds_say_of_a_mask() -> None:
    builder = Builder()
    place = builder.make("index", (), "i64", index=AT)  # 0 .. 3

    def holds(op: str, bound: int) -> bool | None:
        return decided(builder.make(op, (place, builder.const(bound, "i64")), "bool"))

    assert [holds("lt", k) for k in (0, 1, 3, 4)] == [False, None, None, True]
    assert [holds("ge", k) for k in (0, 1, 3, 4)] == [True, None, None, False]
    assert [holds("gt", k) for k in (-1, 0, 2, 3)] == [True, None, None, False]
    assert [holds("le", k) for k in (-1, 0, 2, 3)] == [False, None, None, True]
    yes, no = (builder.const(value, "bool") for value in (True, False))
    maybe = builder.make("lt", (place, builder.const(2, "i64")), "bool")
    pairs = [(yes, yes), (maybe, no), (yes, maybe)]
    assert [decided(builder.make("logical_and", pair, "bool")) for pair in pairs] == [
        True,
        False,
        None,
    ]
