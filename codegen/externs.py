"""How each extern call of a program is run: a C shim call, or a call back into Python.

Takes `loops.Extern` steps; gives `Route`s (which C function, on which views) and the C
statements for them. `Operands` collects every strided tensor that extern calls need, in
one table shared by C (entry_runtime.h) and Python (instance.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ..engine.dtypes import dtype_of
from ..lowering.index import Size, row_major
from ..lowering.loops import Buffer, Extern, SizeValue, View
from .numbers import Numbers, plain
from .shims import Shim, dtype_code, shim_for

aten = torch.ops.aten


@dataclass(frozen=True)
class Route:
    """A shim call. `args` follow the schema of `target`; `outs` are the views that an
    out-variant writes to, empty for a shim that gives new tensors."""

    target: Any
    shim: Shim
    args: tuple[Any, ...]
    outs: tuple[View, ...] = ()


@dataclass(frozen=True)
class Operand:
    """A strided tensor: slots of `Numbers` for sizes (then strides) and for the offset.
    `whole` says that it is its buffer as it stands."""

    buffer: int
    dtype: torch.dtype
    rank: int
    geometry: int
    offset: int
    whole: bool
    device: torch.device


class Operands:
    """Interns views as operands."""

    def __init__(self, buffers: Mapping[str, Buffer], numbers: Numbers) -> None:
        self._buffers = buffers
        self._places = {name: slot for slot, name in enumerate(buffers)}
        self._numbers = numbers
        self._memo: dict[View, int] = {}
        self.table: list[Operand] = []

    def slot(self, buffer: str) -> int:
        """The place of a buffer in the pointer table."""
        return self._places[buffer]

    def add(self, view: View) -> int:
        """The index of the operand for `view`."""
        found = self._memo.get(view)
        if found is None:
            buffer = self._buffers[view.buffer]
            numbers = self._numbers
            geometry = numbers.run((*view.shape, *view.stride))
            whole = view.offset == 0 and same_layout(view, buffer)
            operand = Operand(
                self._places[view.buffer],
                dtype_of(buffer.dtype),
                len(view.shape),
                geometry,
                numbers.add(view.offset),
                whole,
                torch.device(buffer.device),
            )
            found = self._memo[view] = len(self.table)
            self.table.append(operand)
        return found

    def whole(self, buffer: str) -> int:
        return self.add(whole_view(self._buffers[buffer]))


def whole_view(buffer: Buffer) -> View:
    return View(buffer.name, buffer.shape, buffer.stride)


def same_layout(view: View, buffer: Buffer) -> bool:
    """Equal shape and strides; the stride of a dim of size 1 does not count."""
    if len(view.shape) != len(buffer.shape) or not all(map(_equal, view.shape, buffer.shape)):
        return False
    strides = zip(view.shape, view.stride, buffer.stride, strict=True)
    return all(size == 1 or _equal(a, b) for size, a, b in strides)


def find_route(extern: Extern, buffers: Mapping[str, Buffer]) -> Route | None:
    """The shim call for `extern`; None where it has to run in Python."""
    into = extern.kwargs.get("out")
    if isinstance(into, View) and not extern.outs:
        return _into_view(extern, into, buffers)
    if extern.mutates or not extern.outs:
        return None
    outs = tuple(whole_view(buffers[name]) for name in extern.outs if name is not None)
    return _route(extern, outs, buffers)


def _into_view(extern: Extern, out: View, buffers: Mapping[str, Buffer]) -> Route | None:
    """The shim call for an op in its out-form, which writes a view."""
    kwargs = {name: value for name, value in extern.kwargs.items() if name != "out"}
    plain_form = extern.target.overloadpacket.default
    made = replace(extern, target=plain_form, kwargs=kwargs, outs=(out.buffer,), mutates=())
    route = _route(made, (out,), buffers)
    return route if route is not None and route.shim.out else None


def _route(extern: Extern, outs: tuple[View, ...], buffers: Mapping[str, Buffer]) -> Route | None:
    if getattr(extern.target, "namespace", "") == "mkldnn":
        return None  # its weights may be packed, which is not strided memory
    opened = _open(extern, outs)
    if opened is None:
        return None
    target, args, outs = opened
    places = {buffers[view.buffer].device for view in (*views_in(args), *outs)}
    if len(places) != 1:
        return None
    shim = shim_for(target, torch.device(places.pop()).type)
    if shim is None or len(extern.outs) != len(target._schema.returns):
        return None
    if shim.out and None in extern.outs:
        return None
    route = Route(target, shim, args, outs if shim.out else ())
    views = [*views_in(args), *route.outs]
    dtypes = [buffers[view.buffer].dtype for view in views]
    dtypes += [buffers[name].dtype for name in extern.outs if name is not None]
    known = all(dtype_code(dtype_of(dtype)) >= 0 for dtype in dtypes)
    return route if known and all(map(_expressible, args, shim.codes)) else None


def emit_call(
    route: Route,
    outs: Sequence[str | None],
    operands: Operands,
    numbers: Numbers,
    *,
    shim: int,
    step: int,
) -> list[str]:
    """C statements of one step. Where the shim reports an error the step is run again in
    Python, which raises what eager raises."""
    writer = _Writer(operands, numbers)
    passed = [text for view in route.outs for text in writer.argument("T", view)]
    for code, value in zip(route.shim.codes, route.args, strict=True):
        passed += writer.argument(code, value)
    kinds = [] if route.shim.out else _result_types(route.target)
    results = [f"r{place}" for place in range(len(kinds))]
    passed += [f"&{name}" for name in results]
    failed = "".join(f"!{name} || " for name in writer.tensors)
    declared = (f"{kind}{name} = 0;" for kind, name in zip(kinds, results, strict=True))
    lines = [*writer.lines, *declared]
    lines.append(f"int failed = {failed}call({', '.join([f'c->shims[{shim}]', *passed])});")
    for name, out, kind in zip(results, outs, kinds, strict=False):
        if kind != _HANDLE:  # a number that is known already
            continue
        if out is None:
            lines.append(f"drop(c, &{name});")
        else:
            lines.append(f"failed = failed || adopt(c, {operands.whole(out)}, {name});")
    lines.append(f"if (failed && c->python(c, {step})) return {step + 1};")
    return lines


_HANDLE = "void *"


def _result_types(target: Any) -> list[str]:
    """The C types of what an op gives: tensors, and numbers beside them."""
    return [_HANDLE if str(r.type) == "Tensor" else "int64_t " for r in target._schema.returns]


# Optional parameters are passed by pointer: the C type pointed to, and its own code.
_BOXED = {"j": ("int64_t ", "i"), "e": ("double ", "d"), "r": ("const char *", "s")}


class _Writer:
    """Turns arguments into C: declarations in `lines`, names of handles in `tensors`."""

    def __init__(self, operands: Operands, numbers: Numbers) -> None:
        self._operands = operands
        self._numbers = numbers
        self.lines: list[str] = []
        self.tensors: list[str] = []

    def argument(self, code: str, value: Any) -> list[str]:
        """The C expressions to pass for one schema parameter."""
        if code in "Tt":
            return [self._tensor(code, value)]
        if code in "IJB":
            return self._list(code, value)
        if code in "jer":
            return [self._boxed(code, value)]
        if code == "S":
            return ["(const double **)nullptr", "(int64_t)0"]
        if code == "s":
            return [f'(const char *)"{value}"']
        return [self._number(code, value)]

    def _tensor(self, code: str, value: Any) -> str:
        if value is None:
            return "(void **)nullptr"
        name = self._name("void *", "", f"operand(c, {self._operands.add(value)})")
        self.tensors.append(name)
        return f"&{name}" if code == "t" else name

    def _list(self, code: str, value: Any) -> list[str]:
        if value is None:
            return ["(const int64_t **)nullptr", "(int64_t)0"]
        kind, item = ("int32_t ", "b") if code == "B" else ("int64_t ", "i")
        texts = [self._number(item, part) for part in value] or ["0"]
        name = self._name(f"const {kind}", "[]", "{" + ", ".join(texts) + "}")
        if code == "J":
            name = f"&{self._name(f'const {kind}*', '', name)}"
        return [name, _long(len(value))]

    def _boxed(self, code: str, value: Any) -> str:
        kind, plain_code = _BOXED[code]
        if value is None:
            return f"({kind}*)nullptr"
        return f"&{self._name(kind, '', *self.argument(plain_code, value))}"

    def _number(self, code: str, value: Any) -> str:
        if isinstance(value, SizeValue):
            size = plain(value.value)
            if not isinstance(size, int):
                text = f"c->numbers[{self._numbers.add(size)}]"
                return f"(double){text}" if code == "d" else text
            value = size
        if code == "d":
            return c_double(float(value))
        return f"(int32_t){int(value)}" if code == "b" else _long(int(value))

    def _name(self, kind: str, suffix: str, text: str) -> str:
        name = f"a{len(self.lines)}"
        self.lines.append(f"{kind}{name}{suffix} = {text};")
        return name


def c_double(value: float) -> str:
    """An exact C literal; inf and nan included."""
    if value != value:
        return '__builtin_nan("")'
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}__builtin_inf()"
    return value.hex()


def _long(value: int) -> str:
    return f"(int64_t){value}"


def _expressible(value: Any, code: str) -> bool:
    """Whether `_Writer` can say this value in C."""
    if code in "Tt":
        return isinstance(value, View) or (code == "t" and value is None)
    if code in "IJB":
        if value is None:
            return code == "J"
        return all(isinstance(item, int | SizeValue) for item in value)
    if code == "S":
        return not value
    if code in "sr":
        return value is None or (isinstance(value, str) and value.isidentifier()) or value == ""
    if value is None:
        return code in "je"
    return isinstance(value, SizeValue | int | (float if code in "de" else int))


def views_in(value: Any) -> list[View]:
    """All views inside lists, tuples and dicts of arguments."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [view for item in value for view in views_in(item)]
    return []


# Composite matrix products become the plain ones that eager would end up calling.


_Opened = tuple[Any, tuple[Any, ...], tuple[View, ...]]


def _open(extern: Extern, outs: tuple[View, ...]) -> _Opened | None:
    """(target, arguments in schema order, views written) after opening composite ops."""
    target = extern.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    args = _bind(target, extern)
    if args is None:
        return None
    if target is aten.linear.default and outs:
        return _open_linear(outs[0], *args)
    if target is aten.matmul.default and outs:
        return _open_matmul(outs[0], *args)
    return target, args, outs


def _bind(target: Any, extern: Extern) -> tuple[Any, ...] | None:
    """All arguments in schema order with defaults filled."""
    bound: list[Any] = []
    for position, parameter in enumerate(target._schema.arguments):
        if position < len(extern.args):
            bound.append(extern.args[position])
        elif parameter.name in extern.kwargs:
            bound.append(extern.kwargs[parameter.name])
        elif parameter.has_default_value():
            bound.append(parameter.default_value)
        else:
            return None
    return tuple(bound)


def _open_linear(out: View, x: Any, weight: Any, bias: Any) -> _Opened | None:
    if not isinstance(x, View) or not isinstance(weight, View) or len(weight.shape) != 2:
        return None
    flat, flat_out = _rows(x), _rows(out)
    if flat is None or flat_out is None or len(x.shape) < 2:
        return None
    if bias is None:
        return aten.mm.default, (flat, _transposed(weight)), (flat_out,)
    # Eager adds the bias inside the product only for 2-d and contiguous 3-d inputs.
    contiguous = len(x.shape) == 3 and all(map(_equal, x.stride, row_major(x.shape)))
    if len(x.shape) != 2 and not contiguous:
        return None
    return aten.addmm.default, (bias, flat, _transposed(weight), 1, 1), (flat_out,)


def _open_matmul(out: View, a: Any, b: Any) -> _Opened | None:
    if not isinstance(a, View) or not isinstance(b, View) or min(len(a.shape), len(b.shape)) < 2:
        return None
    if len(b.shape) == 2:
        flat, flat_out = _rows(a), _rows(out)
        if flat is None or flat_out is None:
            return None
        return aten.mm.default, (flat, b), (flat_out,)
    if len(a.shape) != len(b.shape) or not all(map(_equal, a.shape[:-2], b.shape[:-2])):
        return None
    batches = [_batches(view) for view in (a, b, out)]
    if any(view is None for view in batches):
        return None
    left, right, result = batches
    assert result is not None
    return aten.bmm.default, (left, right), (result,)


def _transposed(view: View) -> View:
    return View(view.buffer, view.shape[::-1], view.stride[::-1], view.offset)


def _rows(view: View) -> View | None:
    """`view` with all dims but the last as one, where its strides allow it."""
    return _merged(view, keep=1)


def _batches(view: View) -> View | None:
    """`view` with all dims but the last two as one, where its strides allow it."""
    return _merged(view, keep=2)


def _merged(view: View, keep: int) -> View | None:
    front = list(zip(view.shape[:-keep], view.stride[:-keep], strict=True))
    count: Size = 1
    step: Size | None = None
    for size, stride in reversed(front):
        if size == 1:
            continue
        if step is not None and not _equal(stride, plain(step * count)):
            return None
        step = stride if step is None else step
        count = plain(count * size)
    if step is None:
        step = _equal_or_one(view, keep)
    shape = (count, *view.shape[-keep:])
    return View(view.buffer, shape, (step, *view.stride[-keep:]), view.offset)


def _equal_or_one(view: View, keep: int) -> Size:
    """A stride for a merged dim of size 1: what a contiguous tensor would have."""
    return plain(view.shape[-keep] * view.stride[-keep])


def _equal(a: Size, b: Size) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(sympy.expand(sympy.sympify(a) - b) == 0)
