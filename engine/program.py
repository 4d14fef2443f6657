"""A failing example as a short torch program that anybody can run.

Takes trials, the values of an example and what went wrong with it; gives the text of a program
that computes both sides by plain torch calls, prints them, and ends in an assertion that fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .distribution import DRAWS, ELEMENTS, critical_gap
from .fill import TensorSpec
from .halves import HALF_MULTIPLIER, HALF_TYPES
from .reference import RecordingWorld, WideRecordingWorld
from .trial import Trials

VALUES, GRADIENTS, ALIASING, DISTRIBUTION = "values", "gradients", "aliasing", "distribution"
ROUNDING = "rounding"  # errors of half types are too large
COMPILED = ("compiled left", "compiled right")  # generated code for a side is wrong
_SHORT = 24  # elements that are always written out
_HEAD = ("import torch", "from torch import inf, nan")


def program_text(
    trials: Trials, values: Mapping[str, Any], layouts: Mapping[str, Any], kind: str = VALUES
) -> str:
    """The inputs, both sides as plain torch calls, and what does not hold for them. What a
    side could not make is told in a comment. `kind` is what differs: one of the constants."""
    if kind == GRADIENTS:
        values = trials.widened(values)
    tensors = {
        name: value for name, value in values.items() if isinstance(value, (torch.Tensor, list))
    }
    lines = list(_HEAD)
    for name, value in tensors.items():
        lines.append(f"{name} = {input_text(value, layouts.get(name))}")
    if kind == GRADIENTS:
        lines += [f"{name}.requires_grad_()" for name in _differentiable(tensors)]
    record = WideRecordingWorld if kind == GRADIENTS else RecordingWorld
    worlds = [record(trials.table, _flat(tensors), prefix) for prefix in ("l", "r")]
    error = ""
    try:
        left, right = trials.both_sides(values, *worlds)
        ends = [f"left = {_roots(worlds[0], left)}", f"right = {_roots(worlds[1], right)}"]
    except Exception as problem:  # the text of a failure must never fail itself
        ends, error = ["", ""], str(problem).splitlines()[0]
    for world, end in zip(worlds, ends, strict=True):
        lines += world.lines
        lines += [end] if end else []
    if error:
        return "\n".join([*lines, f"# then: {error}"])
    if kind in COMPILED:
        side = COMPILED.index(kind)
        inputs = lines[: len(_HEAD) + len(tensors)]
        return "\n".join(_compiled_lines(inputs, worlds[side].lines, ends[side], list(tensors)))
    if kind == DISTRIBUTION:
        inputs = lines[: len(_HEAD) + len(tensors)]
        sides = [(world.lines, end) for world, end in zip(worlds, ends, strict=True)]
        return "\n".join([*inputs, *_distribution_lines(sides, list(left.values()))])
    lines.append('print(left, right, sep="\\n")')
    lines += _last_lines(trials, values, tensors, list(left.values()), kind)
    text = "\n".join(lines)
    if kind == VALUES and not _fails(text):
        text += "\n# Kernels of this machine hide the difference: it shows where sums are added"
        text += "\n# in the order of their index and other functions are rounded once."
    return text


def _last_lines(
    trials: Trials,
    values: Mapping[str, Any],
    tensors: Mapping[str, Any],
    left: Sequence[Any],
    kind: str,
) -> list[str]:
    """What does not hold for the two sides, as assertions."""
    match kind:
        case "gradients":
            return _gradient_lines(_differentiable(tensors), left)
        case "aliasing":
            return _aliasing_lines(tensors, len(left))
        case "rounding":
            return _rounding_lines(trials, values, tensors, left)
        case "values":
            return _value_lines(trials, values, left)
    return []


def _differentiable(tensors: Mapping[str, Any]) -> list[str]:
    return [name for name, value in tensors.items() if _is_differentiable(value)]


def _value_lines(trials: Trials, values: Mapping[str, Any], left: Sequence[Any]) -> list[str]:
    """Closeness to a tolerance that the failure exceeds; equal zeros where signs count."""
    kind, numerics = trials.rule.numerics.float_class, trials.rule.numerics
    lines = []
    for place, root in enumerate(left):
        if not isinstance(root, torch.Tensor):
            continue
        at = "" if len(left) == 1 else f"[{place}]"
        rtol, atol = numerics.rtol, numerics.atol
        if kind != "approximate":
            rtol, atol = 0.0, trials.tolerance(values, root.dtype)
        lines.append(
            f"torch.testing.assert_close(right{at}, left{at}, rtol={rtol:g}, atol={atol:g},"
            " equal_nan=True)"
        )
        if kind == "exact" and root.is_floating_point():
            lines.append(
                f"assert torch.where(left{at} == 0, left{at}.signbit() == right{at}.signbit(),"
                ' True).all(), "zeros of another sign"'
            )
    return lines


def _rounding_lines(
    trials: Trials, values: Mapping[str, Any], tensors: Mapping[str, Any], left: Sequence[Any]
) -> list[str]:
    """The left side in float64, and the errors of both sides against it."""
    wide = trials.wide_environment(values)
    truth = WideRecordingWorld(trials.table, _flat({name: wide[name] for name in tensors}), "w")
    roots = trials.side_of(wide, truth)
    lines = [f"{name} = {_widening(name, value)}" for name, value in tensors.items()]
    lines += [*truth.lines, f"wide = {_roots(truth, roots)}"]
    lines += [
        "def error(side, wide):",
        "    apart = (side.double() - wide)[wide.isfinite() & side.isfinite()]",
        "    return apart.square().mean().sqrt().item()",
    ]
    for place, root in enumerate(left):
        if isinstance(root, torch.Tensor) and root.dtype in HALF_TYPES:
            at = "" if len(left) == 1 else f"[{place}]"
            lines += [
                f"errors = error(left{at}, wide{at}), error(right{at}, wide{at})",
                f"assert errors[1] <= {HALF_MULTIPLIER:g} * errors[0], errors",
            ]
    return lines


def _widening(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"[item.double() if item.is_floating_point() else item for item in {name}]"
    return f"{name}.double()" if value.is_floating_point() else name


def _distribution_lines(
    sides: Sequence[tuple[Sequence[str], str]], left: Sequence[Any]
) -> list[str]:
    """Both sides as functions, drawn many times; the test of Kolmogorov and Smirnov."""
    lines = []
    for body, end in sides:
        name, _, result = end.partition(" = ")
        lines += [f"def {name}():", *(f"    {line}" for line in body), f"    return {result}"]
    lines += [
        "def draw(side):",
        f"    rows = [side().double().flatten()[:{ELEMENTS}] for _ in range({DRAWS})]",
        "    rows = torch.stack(rows)",
        "    mix = torch.cos(torch.arange(rows.shape[1], dtype=torch.float64) + 1)",
        "    columns = torch.cat([rows, (rows * mix).sum(1, keepdim=True)], 1).T",
        "    return columns.contiguous().sort().values",
    ]
    for place, root in enumerate(left):
        if isinstance(root, torch.Tensor) and root.numel():
            at = "" if len(left) == 1 else f"[{place}]"
            columns = min(root.numel(), ELEMENTS) + 1
            lines += [
                "torch.manual_seed(0)",
                f"drawn = draw(lambda: left(){at}), draw(lambda: right(){at})",
                "points = torch.cat(drawn, 1).contiguous()",
                "below = [torch.searchsorted(one, points, right=True) for one in drawn]",
                f"apart = (below[0] - below[1]).abs().max().item() / {DRAWS}",
                f"assert apart <= {critical_gap(columns):.4g}, apart",
            ]
    return lines


def _gradient_lines(names: Sequence[str], left: Sequence[Any]) -> list[str]:
    """Gradients of a fixed mix of the elements. The 0 times inputs keeps a side that does not
    depend on an input differentiable."""
    wanted = ", ".join(names)
    nothing = " + ".join(f"0 * {name}.sum()" for name in names)
    lines = [
        "def grads(side):",
        "    mix = torch.arange(side.numel(), dtype=side.dtype).view(side.shape).cos()",
        f"    total = (side * mix).sum() + {nothing}",
        f"    return torch.autograd.grad(total, [{wanted}], retain_graph=True)",
    ]
    for place, root in enumerate(left):
        if isinstance(root, torch.Tensor) and root.is_floating_point():
            at = "" if len(left) == 1 else f"[{place}]"
            call = f"grads(right{at}), grads(left{at}), rtol=1e-8, atol=1e-8"
            lines.append(f"torch.testing.assert_close({call})")
    return lines


def _aliasing_lines(tensors: Mapping[str, Any], count: int) -> list[str]:
    """Whether results lie in the memory of an input, and where there."""
    lines = [
        "def place(t, x):",
        "    shared = t.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()",
        "    return (t.stride(), t.storage_offset()) if shared else None",
    ]
    for name, tensor in tensors.items():
        for at in [""] if count == 1 else [f"[{place}]" for place in range(count)]:
            if isinstance(tensor, torch.Tensor):
                same = f"place(left{at}, {name}) == place(right{at}, {name})"
                lines.append(f"assert {same}, 'not the same part of {name}'")
    return lines


def _compiled_lines(
    inputs: Sequence[str], body: Sequence[str], end: str, names: Sequence[str]
) -> list[str]:
    """One side in eager mode and compiled as it stands, without any rule."""
    arguments = ", ".join(names)
    return [
        inputs[0],
        "import eqsat",
        *inputs[1:],
        f"def side({arguments}):",
        *(f"    {line}" for line in body),
        f"    return {end.partition(' = ')[2]}",
        f"expected = side({arguments})",
        'compiled = torch.compile(side, backend="eqsat", options={"disable": ["*"]})',
        f"found = compiled({arguments})",
        'print(expected, found, sep="\\n")',
        "torch.testing.assert_close(found, expected, equal_nan=True)",
    ]


def _fails(text: str) -> bool:
    """Whether a program ends in an exception, as it should."""
    try:
        exec(compile(text, "<example>", "exec"), {"print": lambda *_, **__: None})
    except Exception:
        return True
    return False


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _flat(tensors: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tensors.items():
        if isinstance(value, list):
            flat.update({f"{name}[{place}]": item for place, item in enumerate(value)})
        else:
            flat[name] = value
    return flat


def _roots(world: RecordingWorld, roots: Mapping[str, Any]) -> str:
    texts = [world.text(root) for root in roots.values()]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def input_text(value: Any, spec: TensorSpec | tuple[TensorSpec, ...] | None) -> str:
    """A tensor as torch code, its layout included."""
    if isinstance(value, list):
        specs = spec if isinstance(spec, tuple) else (None,) * len(value)
        parts = (input_text(item, one) for item, one in zip(value, specs, strict=True))
        return f"[{', '.join(parts)}]"
    layout = spec.layout if isinstance(spec, TensorSpec) else "contiguous"
    if layout == "expanded" and value.dim() and value.shape[0] and value.stride(0) == 0:
        return f"{_literal(value[:1])}.expand({list(value.shape)})"
    if value.is_contiguous() and value.numel():
        return _literal(value)
    stored = (
        f"torch.empty_strided({list(value.shape)}, {list(value.stride())}, dtype={value.dtype})"
    )
    return f"{stored}.copy_({_literal(value)})" if value.numel() else stored


def _literal(value: torch.Tensor) -> str:
    """The elements; of a large tensor with one value in most places, only the others."""
    value = value.detach()
    flat = value.flatten()
    if value.numel() > _SHORT and not value.is_complex():
        common = flat.mode().values if value.dtype is not torch.bool else flat[0]
        others = (flat != common).nonzero().flatten().tolist()
        if len(others) * 4 < value.numel() and not math.isnan(float(common)):
            filled = f"torch.full({list(value.shape)}, {common.item()!r}, dtype={value.dtype})"
            if not others:
                return filled
            places = f"torch.tensor({others})"
            numbers = f"torch.tensor({flat[others].tolist()}, dtype={value.dtype})"
            return f"{filled}.put_({places}, {numbers})"
    return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
