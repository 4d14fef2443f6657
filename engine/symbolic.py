"""Comparisons and arithmetic that never guard on a symbolic size.

Takes Python numbers, SymInts and tuples of them; gives True, False or Truth.UNKNOWN where
the answer depends on a symbol.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .world import EvaluateError, Truth

Answer = bool | Truth
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

# torch leaves these without types.
_sym_not: Callable[[Any], Any] = torch.sym_not
_sym_min: Callable[[Any, Any], Any] = torch.sym_min
_sym_max: Callable[[Any, Any], Any] = torch.sym_max

_ORDER: Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "==": (operator.eq, operator.ne),
    "!=": (operator.ne, operator.eq),
    "<": (operator.lt, operator.ge),
    "<=": (operator.le, operator.gt),
    ">": (operator.gt, operator.le),
    ">=": (operator.ge, operator.lt),
}
_BITS = 63  # of a whole number, its sign aside
_REPEATS = 64  # how often a tuple may be repeated: more dims than torch has
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def known(value: Any) -> Answer:
    """A Python bool as it is; a SymBool only where it is statically known."""
    if isinstance(value, torch.SymBool):
        if statically_known_true(value):
            return True
        return False if statically_known_true(_sym_not(value)) else Truth.UNKNOWN
    return value if isinstance(value, Truth) else bool(value)


def compare(op: str, left: Any, right: Any) -> Answer:
    """`left op right` for one of == != < <= > >= in, not in."""
    if left is Truth.FREE or right is Truth.FREE:
        return Truth.FREE
    if op in ("in", "not in"):
        inside = any_of(*(compare("==", left, item) for item in right))
        return inside if op == "in" else negate(inside)
    if isinstance(left, tuple) and isinstance(right, tuple) and op in ("==", "!="):
        equal = len(left) == len(right) and all_of(
            *(compare("==", a, b) for a, b in zip(left, right, strict=True))
        )
        return equal if op == "==" else negate(equal)
    yes, no = _ORDER[op]
    if isinstance(left, _SYMBOLIC) or isinstance(right, _SYMBOLIC):
        if not (_numeric(left) and _numeric(right)):
            return op == "!="
        if statically_known_true(yes(left, right)):
            return True
        return False if statically_known_true(no(left, right)) else Truth.UNKNOWN
    try:
        return bool(yes(left, right))
    except TypeError as error:
        raise EvaluateError(f"cannot compare {left!r} {op} {right!r}") from error


def all_of(*answers: Answer) -> Answer:
    """`and`: False wins, then UNKNOWN; FREE gives way to a real answer."""
    if any(answer is False for answer in answers):
        return False
    if Truth.UNKNOWN in answers:
        return Truth.UNKNOWN
    return Truth.FREE if answers and all(a is Truth.FREE for a in answers) else True


def any_of(*answers: Answer) -> Answer:
    """`or`: True or FREE wins, then UNKNOWN."""
    for winner in (True, Truth.FREE, Truth.UNKNOWN):
        if any(answer is winner for answer in answers):
            return winner
    return False


def negate(answer: Answer) -> Answer:
    return answer if isinstance(answer, Truth) else not answer


def arithmetic(op: str, left: Any, right: Any) -> Any:
    """`left op right` on numbers (tuples concatenate and repeat as Python's do).

    Raises EvaluateError where Python has no answer (division by zero, a string), and where the
    answer is larger than torch takes.
    """
    if left is Truth.FREE or right is Truth.FREE:
        return Truth.FREE
    if _is_huge(op, left, right):
        raise EvaluateError(f"{left!r} {op} {right!r} is too large")
    try:
        answer = _ARITHMETIC[op](left, right)
    except (TypeError, ArithmeticError) as error:
        raise EvaluateError(f"{left!r} {op} {right!r}: {error}") from error
    if isinstance(answer, int) and abs(answer) >> _BITS:
        raise EvaluateError(f"{left!r} {op} {right!r} has more than 64 bits")
    return answer


def _is_huge(op: str, left: Any, right: Any) -> bool:
    """Whether computing the answer alone would take long."""
    if op == "**":
        whole = isinstance(left, int) and isinstance(right, int)
        return whole and right > _BITS and abs(left) > 1
    repeated = [side for side in (left, right) if isinstance(side, (tuple, str))]
    counts = [side for side in (left, right) if isinstance(side, int)]
    return op == "*" and bool(repeated) and any(count > _REPEATS for count in counts)


def smallest(*values: Any) -> Any:
    return _fold(_sym_min, min, values)


def largest(*values: Any) -> Any:
    return _fold(_sym_max, max, values)


def magnitude(value: Any) -> Any:
    return largest(value, arithmetic("-", 0, value)) if isinstance(value, _SYMBOLIC) else abs(value)


def product(sizes: Any) -> Any:
    """The number of elements of a shape."""
    return math.prod(sizes)


def same(left: Any, right: Any) -> bool:
    """Whether two sizes, or tuples of sizes, are statically known to be equal."""
    return compare("==", left, right) is True


def _numeric(value: Any) -> bool:
    return isinstance(value, (int, float, *_SYMBOLIC))


def _fold(
    symbolic: Callable[[Any, Any], Any], plain: Callable[[Any], Any], values: tuple[Any, ...]
) -> Any:
    if len(values) == 1 and isinstance(values[0], tuple):
        values = values[0]
    if not any(isinstance(value, _SYMBOLIC) for value in values):
        return plain(values)
    result = values[0]
    for value in values[1:]:
        result = symbolic(result, value)
    return result


def plain(value: Any) -> Any:
    """A symbolic integer that has turned out to be one number, as that number."""
    if isinstance(value, torch.SymInt):
        number = value.node.maybe_as_int()
        return value if number is None else number
    return value


def same_constant(left: Any, right: Any, float_context: bool) -> bool:
    """Whether two constants mean the same to torch where they stand.

    Next to a float tensor 2 and 2.0 are one constant; elsewhere they promote differently, so
    the kinds must agree too. Any nan equals any nan; -0.0 is not 0.0; True is never 1.
    """
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(
            same_constant(a, b, float_context) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, _SYMBOLIC) or isinstance(right, _SYMBOLIC):
        return _numeric(left) and _numeric(right) and same(left, right)
    if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        return type(left) is type(right) and bool(left == right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) != isinstance(right, float) and not float_context:
        return False
    if left != left or right != right:
        return left != left and right != right
    return left == right and math.copysign(1, left) == math.copysign(1, right)
