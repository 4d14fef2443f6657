"""Every pointwise row of rules/ops against eager, special values included."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import eqsat
from eqsat.engine.load import load_book
from eqsat.engine.ops import OpTable
from eqsat.lowering.interpret import interpret
from eqsat.lowering.loops import Extern, Program
from eqsat.lowering.lower import lower
from eqsat.lowering.spec import problems

BOOK = load_book([str(Path(eqsat.__path__[0]) / "rules" / "ops")])
TABLE = OpTable(BOOK.ops)
ROWS = {entry.name: entry for entry in BOOK.ops if entry.scalar is not None}
OVERLOADS = [(name, overload) for name, entry in ROWS.items() for overload in entry.aten]

MODE = FakeTensorMode()
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
REALS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 0.3, -0.7, 6.0, 20.5, -25.0, 1e4]
SPECIAL = [math.inf, -math.inf, math.nan]
WHOLE = [0, 1, -1, 2, -3, 5, 7, 100, 127, -128]
CHOICES: dict[str, list[Any]] = {
    "alpha": [1, 2],
    "approximate": ["none", "tanh"],
    "rounding_mode": [None, "trunc", "floor"],
    "eps": [None, 0.1],
    "is_result": [False, True],
    "self_is_result": [False],
    "nan": [None, 1.5],
    "posinf": [None, 3.0],
    "neginf": [None],
    "min": [-1],
    "max": [2],
    "min_val": [-1],
    "max_val": [1],
    "scale": [1.0],
    "input_scale": [1.0],
    "beta": [1],
    "lambd": [0.5],
    "negative_slope": [0.1],
    "non_blocking": [False],
}
# How far eager's own vectorised kernels are from torch's scalar functions, in units of the
# last place; where they are wrong outright the value is left out.
ULPS = 40.0
CANCELS = {"gelu_backward": 1e4}  # a difference of near equals, times a large gradient
STEP = {torch.float32: 2**-23, torch.float64: 2**-52, torch.float16: 2**-10, torch.bfloat16: 2**-7}
# Eager gives nan for gelu(inf) in its vectorised path; for nan, some gradients depend on
# whether an element falls into the vectorised loop or its tail.
FINITE_ONLY = {
    "gelu",
    "hardtanh_backward",
    "hardshrink_backward",
    "softshrink_backward",
    "logit_backward",
}


def values(dtype: torch.dtype, place: int) -> torch.Tensor:
    """All pairs of interesting values, as the first, second, third... operand."""
    if dtype.is_floating_point:
        base = torch.tensor([*REALS, *SPECIAL], dtype=dtype)
    elif dtype is torch.bool:
        base = torch.tensor([True, False])
    else:
        base = torch.tensor([abs(v) if dtype is torch.uint8 else v for v in WHOLE], dtype=dtype)
    count = len(base)
    if place < 2:
        pairs = base.repeat_interleave(count) if place == 0 else base.repeat(count)
        return pairs
    generator = torch.Generator().manual_seed(place)
    return base[torch.randint(0, count, (count * count,), generator=generator)]


def graph_of(target: Any, args: list[Any], kwargs: dict[str, Any]) -> fx.GraphModule:
    """A graph of one call; tensors become inputs, in order."""
    graph = fx.Graph()

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = MODE.from_tensor(value)
        return node

    call_args = [place(value) for value in args]
    call_kwargs = {name: place(value) for name, value in kwargs.items()}
    node = graph.call_function(target, tuple(call_args), call_kwargs)

    def fake(value: Any) -> Any:
        return value.meta["val"] if isinstance(value, fx.Node) else value

    with MODE:
        node.meta["val"] = target(
            *map(fake, call_args), **{name: fake(value) for name, value in call_kwargs.items()}
        )
    graph.output((node,))
    return fx.GraphModule({}, graph)


def calls(target: Any, dtype: torch.dtype) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    options: list[list[Any]] = []
    place = 0
    for argument in target._schema.arguments:
        if "Tensor" in str(argument.type):
            masks = argument.name in ("condition", "mask")
            operand = values(torch.bool if masks else dtype, place)
            alone = argument.name == "value" and "fill" in target.name()
            options.append([operand[1] if alone else operand])
            place += 1
        elif argument.name in CHOICES:
            options.append(CHOICES[argument.name])
        else:
            options.append([2, -0.3] if dtype.is_floating_point else [2, -3])
    tensors = [o[0] for o in options if isinstance(o[0], torch.Tensor) and o[0].dim()]
    longest = max(map(len, tensors), default=0)
    for option in options:
        if isinstance(option[0], torch.Tensor) and option[0].dim() and len(option[0]) < longest:
            option[0] = option[0].repeat(longest)[:longest]
    for choice in itertools.product(*options):
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument, value in zip(target._schema.arguments, choice, strict=True):
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        yield args, kwargs


def accepted(target: Any, args: list[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Eager's result, None where eager (or its fake form) refuses these dtypes."""
    if "shift__" in target.name() and args[0].dtype is torch.bool:
        return None
    try:
        result = target(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None
    assert isinstance(result, torch.Tensor)
    return result


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in units of the last place of the result (or of 1)."""
    if not expected.dtype.is_floating_point:
        return 0.0 if torch.equal(got, expected) else math.inf
    unlike = ~((got == expected) | (got.isnan() & expected.isnan()))
    if not bool(unlike.any()):
        return 0.0
    real, wanted = got[unlike].double(), expected[unlike].double()
    error = (real - wanted).abs() / wanted.abs().clamp_min(1.0)
    return float(error.nan_to_num(math.inf, math.inf).max()) / STEP[expected.dtype]


@pytest.mark.parametrize(("name", "overload"), OVERLOADS, ids=[o for _, o in OVERLOADS])
def test_row_equals_eager(name: str, overload: str) -> None:
    packet, kind = overload.split(".")
    target = getattr(getattr(torch.ops.aten, packet), kind)
    covered = 0
    for dtype in DTYPES:
        for args, kwargs in calls(target, dtype):
            expected = accepted(target, args, kwargs)
            if expected is None or (overload == "pow.Tensor_Scalar" and dtype is torch.bool):
                continue  # fake and eager disagree about bool ** True
            gm = graph_of(target, args, kwargs)
            program = lower(gm, TABLE, {})
            assert problems(program) == []
            covered += native(program)
            inputs = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            (got,) = interpret(program, inputs)
            assert got.dtype == expected.dtype and got.shape == expected.shape
            if name in FINITE_ONLY:
                finite = inputs[-1].isfinite()
                got, expected = got[finite], expected[finite]
            limit = CANCELS.get(name, ULPS)
            assert distance(got, expected) <= limit, (dtype, args, kwargs, got, expected)
    assert covered


def native(program: Program) -> bool:
    return not any(isinstance(step, Extern) for step in program.steps)


@pytest.mark.parametrize("dtype", FLOATS)
def test_negative_zero_survives(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0], dtype=dtype)
    for target in (torch.ops.aten.neg.default, torch.ops.aten.relu.default):
        (got,) = interpret(lower(graph_of(target, [x], {}), TABLE, {}), [x])
        assert torch.equal(torch.signbit(got), torch.signbit(target(x)))


def test_unknown_scalar_op_is_an_extern() -> None:
    x = torch.ones(3)
    gm = graph_of(torch.ops.aten.lgamma.default, [x], {})
    program = lower(gm, TABLE, {"add": None})  # type: ignore[dict-item]
    assert not native(program)
    assert torch.equal(interpret(program, [x])[0], torch.lgamma(x))


def test_integer_division_by_a_tensor_stays_with_eager() -> None:
    x = torch.tensor([4, 6])
    target = torch.ops.aten.div.Tensor_mode
    by_tensor = lower(graph_of(target, [x, x], {"rounding_mode": "floor"}), TABLE, {})
    assert not native(by_tensor)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        interpret(by_tensor, [x, torch.zeros(2, dtype=torch.int64)])
