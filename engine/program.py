"""A failing example as a short torch program that anybody can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .fill import TensorSpec
from .reference import RecordingWorld
from .trial import Trials


def program_text(trials: Trials, values: Mapping[str, Any], layouts: Mapping[str, Any]) -> str:
    """The inputs, both sides as plain torch calls, and a print. What a side could not make
    is told in a comment."""
    tensors = {
        name: value for name, value in values.items() if isinstance(value, (torch.Tensor, list))
    }
    lines = ["import torch", "from torch import inf, nan"]
    for name, value in tensors.items():
        lines.append(f"{name} = {input_text(value, layouts.get(name))}")
    worlds = [RecordingWorld(trials.table, _flat(tensors), prefix) for prefix in ("l", "r")]
    error = ""
    try:
        left, right = trials.both_sides(values, *worlds)
        ends = [f"left = {_roots(worlds[0], left)}", f"right = {_roots(worlds[1], right)}"]
    except Exception as problem:  # the text of a failure must never fail itself
        ends, error = ["", ""], str(problem).splitlines()[0]
    for world, end in zip(worlds, ends, strict=True):
        lines += world.lines
        lines += [end] if end else []
    lines.append(f"# then: {error}" if error else 'print(left, right, sep="\\n")')
    return "\n".join(lines)


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
    if layout == "expanded" and value.dim() and value.shape[0]:
        return f"{_literal(value[:1])}.expand({list(value.shape)})"
    if value.is_contiguous() and value.numel():
        return _literal(value)
    stored = (
        f"torch.empty_strided({list(value.shape)}, {list(value.stride())}, dtype={value.dtype})"
    )
    return f"{stored}.copy_({_literal(value)})" if value.numel() else stored


def _literal(value: torch.Tensor) -> str:
    return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
