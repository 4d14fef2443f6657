"""Constants and tensor metadata as small integers.

Takes Python constants, FakeTensors and canonical op calls; gives handles that are equal
exactly when the values are. Results of op calls are asked of FakeTensor once per
(op, argument metadata, attributes) and remembered. No question may add a guard on a
symbolic size: a call that would is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    disable_fake_tensor_cache,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._mode_utils import no_dispatch

from .op import Op
from .ops import OpTable
from .views import own_view, size_expression
from .world import EvaluateError, is_constant

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def constant_key(value: Any) -> Hashable:
    """A key that tells constants apart by type and bits: 1, 1.0 and True differ, so do 0.0
    and -0.0; nan equals itself. Lists count as tuples; a SymInt is its expression."""
    kind = type(value)
    if kind is int or kind is bool or kind is str or value is None:
        return (kind.__name__, value)
    if kind is float:
        return ("float", struct.pack("<d", value))
    if kind is complex:
        return ("complex", struct.pack("<dd", value.real, value.imag))
    if isinstance(value, (tuple, list)):
        return ("tuple", *map(constant_key, value))
    if isinstance(value, SYMBOLIC):
        expr = value.node.expr
        return ("symbol", expr) if expr.free_symbols else constant_key(value.node.pytype(expr))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (kind.__name__, value)


class Constants:
    """Numbers constants from 0; `value` gives the first constant that had the number."""

    def __init__(self) -> None:
        self._index: dict[Hashable, int] = {}
        self._values: list[Any] = []

    def intern(self, value: Any) -> int:
        key = constant_key(value)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self._values)
            self._values.append(tuple(value) if isinstance(value, list) else value)
        return found

    def value(self, handle: int) -> Any:
        return self._values[handle]


def meta_key(value: Any) -> Hashable:
    """Shape, strides, dtype, device and pending signs of a tensor; tuples and numbers by
    content."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return ("object", id(value))
        shape = tuple(map(size_expression, value.shape))
        stride = tuple(map(size_expression, value.stride()))
        return (shape, stride, value.dtype, value.device, *_signs(value))
    if isinstance(value, (tuple, list)):
        return ("tuple", *map(meta_key, value))
    return constant_key(value)


def _signs(value: torch.Tensor) -> tuple[bool, ...]:
    """Whether elements are still to be conjugated, and negated, when they are read; nothing
    where neither is."""
    signs = (value.is_conj(), value.is_neg())
    return signs if any(signs) else ()


def is_plain(value: torch.Tensor) -> bool:
    """Whether size, stride, dtype and device tell all about a tensor but its memory."""
    return value.layout is torch.strided and not _signs(value)


def _fact_key(value: Any) -> Hashable:
    """What must not differ within an e-class: everything but the strides."""
    if isinstance(value, torch.Tensor):
        return (tuple(map(size_expression, value.shape)), value.dtype, value.device)
    if isinstance(value, (tuple, list)):
        return ("tuple", *map(_fact_key, value))
    return constant_key(value)


_STATIC: dict[Hashable, tuple[Any, ...]] = {}
_STATIC_LIMIT = 20_000


def _is_static(value: Any) -> bool:
    """Whether no symbol, and nothing that only its identity tells, is in a value."""
    if isinstance(value, torch.Tensor):
        return is_plain(value) and _is_static((*value.shape, *value.stride()))
    if isinstance(value, (tuple, list)):
        return all(map(_is_static, value))
    return not isinstance(value, SYMBOLIC) and is_constant(value)


class Metadata:
    """Numbers metadata from 0 and answers what an op call would give.

    `mode` is the graph's own fake mode, so that symbolic sizes stay those of the graph.
    """

    def __init__(self, table: OpTable, mode: FakeTensorMode, constants: Constants) -> None:
        self.table = table
        self.mode = mode
        self.constants = constants
        self.values: list[Any] = []
        self.facts: list[Hashable] = []
        self._index: dict[Hashable, int] = {}
        self._calls: dict[Hashable, int | str] = {}
        self._may_guard = False

    def intern(self, value: Any) -> int:
        """The number of a FakeTensor's (or tuple's, or number's) metadata."""
        key = meta_key(value)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self.values)
            self.values.append(value)
            self.facts.append(_fact_key(value))
        return found

    def call(self, op: Op, key: Hashable, args: Callable[[], Sequence[Any]]) -> int:
        """The metadata of `op` called on `args()` (fake tensors in tensor positions).

        `key` stands for the op and its arguments. Raises EvaluateError where the op refuses
        them, or where the answer would need a guard.
        """
        found = self._calls.get(key)
        if found is None:
            try:
                found = self.intern(self._result(op, args()))
            except Exception as error:
                found = f"{op.name}: {type(error).__name__}: {str(error).strip()[:200]}"
            self._calls[key] = found
        if isinstance(found, str):
            raise EvaluateError(found)
        return found

    def _result(self, op: Op, args: Sequence[Any]) -> Any:
        """A value like the result of `op`. Results of calls without symbols are remembered
        over graphs, as the first call of a FakeTensor op takes milliseconds."""
        key = (op.name, op.overloads, torch.get_default_dtype(), *map(meta_key, args))
        known = _STATIC.get(key)
        if known is not None:
            size, stride, dtype, device = known
            return self.fresh(size, stride, dtype, device)
        value = self.run(op, args)
        if isinstance(value, torch.Tensor) and is_plain(value):
            plain = (tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
            if _is_static(plain[:2]) and all(map(_is_static, args)):
                if len(_STATIC) >= _STATIC_LIMIT:
                    _STATIC.clear()
                _STATIC[key] = plain
        return value

    def fresh(
        self, size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        """A fake tensor with memory of its own. Raises where symbolic sizes need a guard."""
        with ExitStack() as stack:
            stack.enter_context(no_dispatch())  # the mode that is active would only take its time
            if self.mode.shape_env is not None:
                stack.enter_context(_no_new_guards(self.mode.shape_env))
            memory = torch.empty_strided(size, stride, dtype=dtype, device="meta")
            return FakeTensor(self.mode, memory, device)

    def run(self, op: Op, args: Sequence[Any]) -> Any:
        """Calls `op` under the fake mode, without grad, refusing new guards."""
        target, positional, keywords = self.table.call(op, args)
        return self.apply(target, positional, keywords)

    def apply(self, target: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Calls `target` as `run` does. A view that the strides do not allow is a reshape."""
        try:
            return self.try_apply(target, args, kwargs)
        except (RuntimeError, ValueError):
            if target is not torch.ops.aten.view.default:
                raise
            return self.try_apply(torch.ops.aten.reshape.default, args, kwargs)

    def try_apply(self, target: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Calls `target` once. Raises what it raises, and where it would need a guard."""
        own = None if kwargs else own_view(self.mode, target, args)
        if own is not None:
            return own
        try:
            return self._apply_once(target, args, kwargs)
        except RuntimeError as error:
            cached = getattr(self.mode, "cache_enabled", False)
            if not cached or "Guard attempted" not in str(error):
                raise
        self.mode.cache_enabled = False  # writing the cache entry may be what needs the guard
        try:
            return self._apply_once(target, args, kwargs)
        finally:
            self.mode.cache_enabled = True

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Inside, a call may add guards on symbolic sizes, as tracing does. Raises
        EvaluateError where it is too late for that."""
        if self.mode.shape_env is not None and self.mode.shape_env.frozen:
            raise EvaluateError("needs a guard on a symbolic size, too late for one")
        self._may_guard = True
        try:
            yield
        finally:
            self._may_guard = False

    def _apply_once(self, target: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self.mode)
            if not all(map(_is_static, args)):  # its cache costs more than it saves then
                stack.enter_context(disable_fake_tensor_cache(self.mode))
            if self.mode.shape_env is not None and not self._may_guard:
                stack.enter_context(_no_new_guards(self.mode.shape_env))
            return target(*args, **kwargs)


def _no_new_guards(shape_env: ShapeEnv) -> AbstractContextManager[None]:
    """Inside, a call that would specialise a symbolic size raises a RuntimeError that says
    "Guard attempted", and leaves no guard behind."""
    refuse = getattr(shape_env, "error_on_new_guards", None)  # torch 2.13 and newer
    return refuse_guards(shape_env) if refuse is None else refuse()


@contextmanager
def refuse_guards(shape_env: ShapeEnv) -> Iterator[None]:
    """What `error_on_new_guards` does, where torch has only the question whether the guards
    are frozen, asked before each new one."""

    def refuse(expression: Any, value: Any) -> None:
        raise RuntimeError(f"Guard attempted: {expression} == {value}")

    before = shape_env.__dict__.get("_check_frozen")
    shape_env._check_frozen = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if before is None:
            del shape_env._check_frozen
        else:
            shape_env._check_frozen = before  # type: ignore[method-assign]


def fake_mode(values: Sequence[Any]) -> FakeTensorMode | None:
    """The fake mode of the first FakeTensor among `values`, looking into tuples."""
    for value in values:
        if isinstance(value, FakeTensor):
            return value.fake_mode
        if isinstance(value, (tuple, list)):
            found = fake_mode(value)
            if found is not None:
                return found
    return None
