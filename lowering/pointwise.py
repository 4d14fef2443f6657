"""Pointwise ops from their meaning in rules/ops: no Python per op.

Takes the `scalar:` expression of an op and its arguments; gives one scalar. Arguments are read
at their own dtype and cast where an operation needs them: arithmetic happens in the dtype of
the result (f32 for half types), comparisons in the dtype in which the operands meet, logic in
bool. Two forms choose while lowering, by the arguments of the call:

    pick(attribute, word=a, default=b)   a where the attribute is that word; yes and no for bools
    given(argument, a, b)                a where the argument is not None, else b

`narrow(x)` rounds to the dtype in which the operands meet, as eager does to a Python number
for some ops on half types; `exact(x)` is the opposite: an argument of one element keeps the
digits that its own dtype has, and `trunc_div` by it is not rounded in between. `largest(x)` is
the largest finite number of the dtype in which the operands meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

from ..engine.dtypes import dtype_of
from ..engine.expr import Binary, Call, Expr, Literal, Name, Negative, children
from .index import as_index
from .loops import Builder, Scalar
from .promotion import FLOATS, HALVES, INTS, opmath
from .work import Declined, is_size

COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
TESTS = frozenset(("isnan", "isinf", "signbit"))
LOGIC = frozenset(("logical_and", "logical_or", "logical_not", "logical_xor"))
BITS: Mapping[str, str] = {
    "bit_and": "logical_and",
    "bit_or": "logical_or",
    "bit_xor": "logical_xor",
    "bit_not": "logical_not",
}
OPERATORS: Mapping[str, str] = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_div",
    "%": "remainder",
    "**": "pow",
}
DIVISIONS = frozenset(("floor_div", "trunc_div", "remainder", "fmod"))
UNLIKE_OPMATH = frozenset(("floor_div", "nextafter"))
WHOLE = frozenset(("floor", "ceil", "round", "trunc"))


class Meaning:
    """Evaluates one `scalar:` expression.

    `values` maps argument names to scalars, numbers (plain or symbolic), words and None;
    `dtype` is where the operands meet, in which arithmetic is done. `known` holds the scalar
    ops that the target can spell; None is all of them. `single` names the arguments that are
    tensors of one element.
    """

    def __init__(
        self,
        builder: Builder,
        values: Mapping[str, Any],
        dtype: str,
        known: Container[str] | None = None,
        single: Container[str] = (),
    ) -> None:
        self._builder = builder
        self._known = known
        self._values = values
        self._single = single
        self._meet = dtype
        self._dtype = opmath(dtype)

    def of(self, expr: Expr) -> Scalar:
        """Raises Declined where the call is not covered."""
        match expr:
            case Name(id=name):
                return self._argument(self._values[name])
            case Literal(value=literal):
                return self._argument(literal)
            case Negative(value=Literal(value=number)) if isinstance(number, int | float):
                return self._argument(-number)
            case Negative(value=Name(id=name)) if isinstance(self._values[name], int | float):
                return self._argument(-self._values[name])
            case Negative(value=part):
                return self._apply("neg", [self.of(part)])
            case Binary(op=op, left=left, right=right):
                return self._apply(OPERATORS[op], [self.of(left), self.of(right)])
            case Call():
                return self._call(expr)
        raise Declined

    def _call(self, call: Call) -> Scalar:
        if call.fn == "pick":
            return self.of(self._picked(call))
        if call.fn == "given":
            argument, then, otherwise = call.args
            assert isinstance(argument, Name)
            return self.of(otherwise if self._values[argument.id] is None else then)
        if call.fn == "narrow":
            return self._narrow(self.of(call.args[0]))
        if call.fn == "largest":
            return self._largest()
        if call.fn == "exact":
            return self._exact(call.args[0])
        if call.fn == "trunc_div" and self._meet in HALVES:
            return self._half_trunc_div(*call.args)
        if call.fn == "where":
            condition = self._bool(self.of(call.args[0]))
            if condition.op == "const":  # the other branch may not exist in this dtype
                return self._numeric(self.of(call.args[1 if condition.value else 2]))
        return self._apply(call.fn, [self.of(arg) for arg in call.args])

    def _picked(self, call: Call) -> Expr:
        (attribute,) = call.args
        assert isinstance(attribute, Name)
        value = self._values[attribute.id]
        options = dict(call.kwargs)
        word = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        chosen = options.get(word, options.get("default"))
        if chosen is None:
            raise Declined
        return chosen

    def _argument(self, value: Any) -> Scalar:
        if isinstance(value, Scalar):  # read; operands of another dtype meet before opmath
            mixed = self._meet in HALVES and value.dtype not in (self._meet, "bool")
            return self._builder.cast(value, self._meet) if mixed else value
        if isinstance(value, bool | int | float):
            return self._number(value)
        if is_size(value):
            size = self._builder.make("index", (), "i64", index=(as_index(value),))
            return self._numeric(size)
        raise Declined

    def _narrow(self, scalar: Scalar) -> Scalar:
        if self._meet not in HALVES or scalar.dtype != self._dtype:
            return scalar
        if scalar.op == "const":
            rounded = torch.tensor(scalar.value, dtype=dtype_of(self._meet))
            return self._builder.const(rounded.item(), self._dtype)
        return self._numeric(self._builder.cast(scalar, self._meet))

    def _exact(self, expr: Expr) -> Scalar:
        if self._is_single(expr):
            assert isinstance(expr, Name)
            value = self._values[expr.id]
            return self._numeric(value) if isinstance(value, Scalar) else self._argument(value)
        return self.of(expr)

    def _is_single(self, expr: Expr) -> bool:
        if not isinstance(expr, Name):
            return False
        return expr.id in self._single or isinstance(self._values[expr.id], bool | int | float)

    def _half_trunc_div(self, dividend: Expr, divisor: Expr) -> Scalar:
        """Eager rounds the quotient of half numbers first, but not that by a single number."""
        parts = (self._numeric(self.of(dividend)), self._numeric(self.of(divisor)))
        quotient = self._builder.make("div", parts, self._dtype)
        exact = isinstance(divisor, Call) and divisor.fn == "exact"
        if not (exact and any(map(self._is_single, children(divisor)))):
            quotient = self._narrow(quotient)
        return self._builder.make("trunc", (quotient,), self._dtype)

    def _largest(self) -> Scalar:
        if self._meet not in FLOATS:
            raise Declined
        return self._number(torch.finfo(dtype_of(self._meet)).max)

    def _number(self, value: bool | int | float) -> Scalar:
        if self._dtype in FLOATS:
            return self._builder.const(float(value), self._dtype)
        if self._dtype == "bool":
            return self._builder.const(bool(value), "bool")
        if isinstance(value, float) and not math.isfinite(value):
            raise Declined
        return self._builder.const(int(value), self._dtype)

    def _numeric(self, scalar: Scalar) -> Scalar:
        return self._builder.cast(scalar, self._dtype)

    def _bool(self, scalar: Scalar) -> Scalar:
        return self._builder.cast(scalar, "bool")

    def _apply(self, op: str, args: list[Scalar]) -> Scalar:
        make = self._builder.make
        if self._known is not None and op not in self._known:
            raise Declined
        if op == "where":
            condition = self._bool(args[0])
            return make("where", (condition, *map(self._numeric, args[1:])), self._dtype)
        if op in LOGIC or (op in BITS and self._dtype == "bool"):
            return make(BITS.get(op, op), tuple(map(self._bool, args)), "bool")
        if op in COMPARISONS:
            return make(op, tuple(map(self._numeric, args)), "bool")
        if op in TESTS:
            return self._test(op, self._numeric(args[0]))
        return self._arithmetic(op, args)

    def _test(self, op: str, arg: Scalar) -> Scalar:
        if arg.dtype in FLOATS:
            return self._builder.make(op, (arg,), "bool")
        if op == "signbit" and arg.dtype in INTS:
            zero = self._builder.const(0, arg.dtype)
            return self._builder.make("lt", (arg, zero), "bool")
        return self._builder.const(False, "bool")

    def _fused(self, x: Scalar, y: Scalar, z: Scalar) -> Scalar:
        """x * y + z: rounded once, where it is a product that needs to be."""
        factor = y.value if y.op == "const" else None
        if self._dtype in FLOATS and factor not in (1, -1):
            return self._builder.make("fma", tuple(map(self._numeric, (x, y, z))), self._dtype)
        if factor is not None and factor < 0 and self._dtype != "bool":
            opposite = self._builder.const(-factor, y.dtype)
            return self._arithmetic("sub", [z, self._arithmetic("mul", [x, opposite])])
        return self._arithmetic("add", [z, self._arithmetic("mul", [x, y])])

    def _arithmetic(self, op: str, args: list[Scalar]) -> Scalar:
        make = self._builder.make
        if op == "fma":
            return self._fused(*args)
        if op == "mul" and any(_is_one(arg) for arg in args):  # alpha, scale, value
            return self._numeric(args[1 if _is_one(args[0]) else 0])
        if self._dtype == "bool":  # as torch: arithmetic on 0 and 1, any non-zero is True
            parts = tuple(self._builder.cast(self._bool(arg), "u8") for arg in args)
            return self._bool(make(op, parts, "u8"))
        parts = tuple(map(self._numeric, args))
        if self._dtype in INTS:
            if op in WHOLE:
                return parts[0]
            if op in DIVISIONS:
                return self._int_division(op, parts)
            if op == "pow":
                return self._int_power(parts)
        elif self._meet in HALVES and op in UNLIKE_OPMATH:
            raise Declined  # eager works on the half numbers themselves
        elif op == "pow" and parts[1].op == "const":
            return self._power(parts[0], float(parts[1].value), parts)
        return make(op, parts, self._dtype)

    def _int_division(self, op: str, parts: tuple[Scalar, ...]) -> Scalar:
        """Eager raises on division by zero, so only a known divisor will do."""
        if parts[1].op != "const" or parts[1].value == 0:
            raise Declined
        return self._builder.make(op, parts, self._dtype)

    def _int_power(self, parts: tuple[Scalar, ...]) -> Scalar:
        base, exponent = parts
        if exponent.op != "const" or not 0 <= exponent.value <= 64:
            raise Declined
        result: Scalar | None = None
        left, square = int(exponent.value), base
        while left:  # by squaring: wrapping products may be taken in any order
            if left & 1:
                result = square if result is None else self._product(result, square)
            left >>= 1
            square = self._product(square, square) if left else square
        return result if result is not None else self._number(1)

    def _product(self, a: Scalar, b: Scalar) -> Scalar:
        return self._builder.make("mul", (a, b), self._dtype)

    def _power(self, base: Scalar, exponent: float, parts: tuple[Scalar, ...]) -> Scalar:
        """The exponents for which eager does not call pow."""
        made = _POWERS.get(exponent)
        if made is None or (self._meet == "f16" and exponent in (0.5, -0.5)):
            return self._builder.make("pow", parts, self._dtype)
        return made(self, base)

    def power_of(self, op: str, *args: Scalar) -> Scalar:
        return self._builder.make(op, args, self._dtype)

    def rounded(self, scalar: Scalar) -> Scalar:
        """A factor of a power between two steps, which bf16 keeps as bf16."""
        return self._narrow(scalar) if self._meet == "bf16" else scalar

    def one(self) -> Scalar:
        return self._number(1.0)


def _is_one(scalar: Scalar) -> bool:
    return scalar.op == "const" and scalar.value == 1


def _square(meaning: Meaning, x: Scalar) -> Scalar:
    return meaning.power_of("mul", x, x)


_POWERS: Mapping[float, Callable[[Meaning, Scalar], Scalar]] = {
    0.0: lambda meaning, x: meaning.one(),
    1.0: lambda meaning, x: x,
    2.0: _square,
    3.0: lambda meaning, x: meaning.power_of("mul", meaning.rounded(_square(meaning, x)), x),
    0.5: lambda meaning, x: meaning.power_of("sqrt", x),
    -0.5: lambda meaning, x: meaning.power_of("rsqrt", x),
    -1.0: lambda meaning, x: meaning.power_of("reciprocal", x),
    -2.0: lambda meaning, x: meaning.power_of("reciprocal", meaning.rounded(_square(meaning, x))),
}
