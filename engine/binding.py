"""Checks a match of a rule: types of variables, sizes, then conditions.

Takes a rule and the handles its variables matched; gives the environment for the right side,
or the first thing that failed, with its values (`engine/why.py` shows it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .attributes import Attributes
from .dtypes import word_of
from .evaluate import DEVICE, holds
from .expr import Expr, Literal, Name, Negative
from .ops import OpTable
from .rule import ConstType, Rule, TensorType, VarType
from .symbolic import compare, plain
from .world import EvaluateError, Facts, is_number


@dataclass(frozen=True)
class Failure:
    """The first thing that failed: a condition's text (or `x: float[m, n]`), and why."""

    condition: str
    reason: str

    def __str__(self) -> str:
        return f"{self.condition} ({self.reason})" if self.reason else self.condition


class _Mismatch(Exception):
    pass


def bind_vars(
    rule: Rule,
    values: Mapping[str, Any],
    world: Facts,
    table: OpTable,
    known: Mapping[Expr, Any] | None = None,
) -> dict[str, Any] | Failure:
    """The environment of a match: variables, size letters, `...` leads (under "...name").

    `values` holds a handle, a list of handles, or a constant per variable, and may hold
    `**how` dicts. Sizes must be statically known to be equal.
    """
    env = bind_types(rule, values, world)
    if isinstance(env, Failure):
        return env
    for condition in rule.when:
        good, reason = holds(condition.expr, env, world, table, known)
        if not good:
            return Failure(condition.text, reason)
    return env


def bind_types(rule: Rule, values: Mapping[str, Any], world: Facts) -> dict[str, Any] | Failure:
    """`bind_vars` without the conditions."""
    env: dict[str, Any] = dict(values)
    later: list[tuple[str, Expr, Any]] = []
    for name, kind in rule.vars.items():
        if name not in values:
            continue
        try:
            if isinstance(kind, TensorType):
                _bind_tensors(kind, name, values[name], world, env, later)
            else:
                _check_constant(kind, values[name])
        except (_Mismatch, EvaluateError) as error:
            return Failure(f"{name}: {type_text(kind)}", str(error))
    for name, expr, length in later:
        try:
            wanted = Attributes(env, world).value(expr)
        except EvaluateError as error:
            return Failure(f"{name}: {type_text(rule.vars[name])}", str(error))
        if compare("==", wanted, length) is not True:
            return Failure(f"{name}: {type_text(rule.vars[name])}", f"size {length}, not {wanted}")
    return env


def _bind_tensors(
    kind: TensorType,
    name: str,
    value: Any,
    world: Facts,
    env: dict[str, Any],
    later: list[tuple[str, Expr, Any]],
) -> None:
    if kind.is_list:
        if not isinstance(value, (list, tuple)):
            raise _Mismatch("not a list of tensors")
        for item in value:
            _bind_tensor(kind, name, item, world, env, later)
    else:
        _bind_tensor(kind, name, value, world, env, later)


def _bind_tensor(
    kind: TensorType,
    name: str,
    value: Any,
    world: Facts,
    env: dict[str, Any],
    later: list[tuple[str, Expr, Any]],
) -> None:
    meta = world.meta(value)
    if not isinstance(meta, torch.Tensor):
        raise _Mismatch(f"{meta!r} is not a tensor")
    if meta.layout is not torch.strided or meta.is_quantized:
        raise _Mismatch("not a dense tensor")
    word = word_of(meta.dtype)
    if word not in kind.dtypes:
        raise _Mismatch(f"dtype {word}")
    shape = tuple(map(plain, meta.shape))
    fixed = len(kind.dims)
    open_rank = kind.lead is not None or kind.any_sizes
    if len(shape) < fixed or (not open_rank and len(shape) > fixed):
        raise _Mismatch(f"rank {len(shape)}")
    env.setdefault(DEVICE, meta.device)
    if kind.any_sizes:
        return
    start = len(shape) - fixed
    if kind.lead is not None:
        _bind_size(f"...{kind.lead}", shape[:start], env)
    for expr, length in zip(kind.dims, shape[start:], strict=True):
        if isinstance(expr, Name):
            _bind_size(expr.id, length, env)
        elif isinstance(expr, Literal):
            if compare("==", expr.value, length) is not True:
                raise _Mismatch(f"size {length}, not {expr.value}")
        else:
            later.append((name, expr, length))


def _bind_size(letter: str, length: Any, env: dict[str, Any]) -> None:
    if letter not in env:
        env[letter] = length
    elif compare("==", env[letter], length) is not True:
        raise _Mismatch(f"{letter} is {env[letter]} elsewhere, {length} here")


def _check_constant(kind: ConstType, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        raise _Mismatch("a tensor, not a constant")
    good = {
        "any": lambda: is_number(value),
        "int": lambda: isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool),
        "float": lambda: isinstance(value, (float, torch.SymFloat)),
        "bool": lambda: isinstance(value, bool),
        "dtype": lambda: isinstance(value, torch.dtype),
        "dims": lambda: value is None or isinstance(value, (int, tuple)),
    }[kind.kind]()
    if not good:
        raise _Mismatch(f"{value!r}")


def type_text(kind: VarType) -> str:
    """A type as rules write it, near enough to recognise it."""
    if isinstance(kind, ConstType):
        if kind.kind in ("dtype", "dims"):
            return kind.kind
        return "const" if kind.kind == "any" else f"const:{kind.kind}"
    if kind.any_sizes:
        return f"list[{dtype_text(kind.dtypes)}]"
    dims = [] if kind.lead is None else [f"...{kind.lead}"]
    dims += [_size_text(expr) for expr in kind.dims]
    text = f"{dtype_text(kind.dtypes)}[{', '.join(dims)}]"
    return f"list[{text}]" if kind.is_list else text


def dtype_text(words: tuple[str, ...]) -> str:
    """The class word for a set of dtypes, or the dtypes themselves."""
    from_words = {
        ("f16", "bf16", "f32", "f64"): "float",
        ("i8", "i16", "i32", "i64", "u8"): "int",
        ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8"): "num",
    }
    if words in from_words:
        return from_words[words]
    return "any" if "c64" in words else "/".join(words)


def _size_text(expr: Expr) -> str:
    match expr:
        case Name(id=name):
            return name
        case Literal(value=value):
            return str(value)
        case Negative(value=inner):
            return f"-{_size_text(inner)}"
    left, op, right = (getattr(expr, part) for part in ("left", "op", "right"))
    return f"{_size_text(left)} {op} {_size_text(right)}"
