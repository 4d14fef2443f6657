"""A rewrite as two torch functions: what `eqsat new --from SNIPPET.py` reads.

Takes a Python file that defines `before` and `after` with the same parameters; gives them
with example inputs, which stand as defaults, as type annotations (`x: "float[2, 8]"`), or as
`inputs = (...)` in the file.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .engine.dtypes import DTYPES
from .engine.expr import Literal, Name, Span
from .engine.rule import TensorType
from .engine.source import RuleErrors
from .engine.type_syntax import parse_type

_MODULE = "eqsat_snippet"
_FIRST_SIZE = 3  # letters of an annotation are 3, 4, 5, ...


class SnippetError(ValueError):
    """A snippet that does not say what is needed; the text says what to write."""


@dataclass(frozen=True)
class Snippet:
    """`inputs` maps every parameter of `before` to an example value."""

    before: Callable[..., Any]
    after: Callable[..., Any]
    inputs: Mapping[str, Any]


def read_snippet(path: Path) -> Snippet:
    """The snippet of a file. Raises SnippetError."""
    if not path.is_file():
        raise SnippetError(f"no such file: {path}")
    try:
        names = _run_module(path)
    except Exception as error:
        raise SnippetError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    missing = [name for name in ("before", "after") if not callable(names.get(name))]
    if missing:
        raise SnippetError(f"{path} defines no function {' and no function '.join(missing)}")
    return make_snippet(names["before"], names["after"], names.get("inputs"))


def _run_module(path: Path) -> dict[str, Any]:
    """The names of a file run as a module, which Dynamo has to find in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise SnippetError(f"{path} is no Python file")
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def make_snippet(before: Callable[..., Any], after: Callable[..., Any], inputs: Any) -> Snippet:
    """A snippet of functions. `inputs` is a tuple in the order of the parameters, a dict by
    name, a function that gives one of these, or None where the parameters tell.

    Raises SnippetError where an example is missing or the parameters differ.
    """
    parameters = inspect.signature(before, eval_str=False).parameters
    others = list(inspect.signature(after).parameters)
    if list(parameters) != others:
        raise SnippetError(
            f"before({', '.join(parameters)}) and after({', '.join(others)}) need the same"
            " parameters in the same order"
        )
    if callable(inputs) and not isinstance(inputs, torch.Tensor):
        inputs = inputs()
    given = _given(inputs, list(parameters))
    sizes: dict[str, int] = {}
    return Snippet(
        before,
        after,
        {name: _example(name, entry, given, sizes) for name, entry in parameters.items()},
    )


def _given(inputs: Any, names: Sequence[str]) -> dict[str, Any]:
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        given = dict(inputs)
    else:
        values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(values) > len(names):
            message = f"inputs holds {len(values)} values for {len(names)} parameters"
            raise SnippetError(message)
        given = dict(zip(names, values, strict=False))
    for name in given:
        if name not in names:
            raise SnippetError(f"inputs names '{name}', which is no parameter of before")
    return given


def _example(
    name: str, entry: inspect.Parameter, given: Mapping[str, Any], sizes: dict[str, int]
) -> Any:
    if name in given:
        return given[name]
    if entry.default is not inspect.Parameter.empty:
        return entry.default
    if isinstance(entry.annotation, str) and "[" in entry.annotation:
        return _from_type(name, entry.annotation.strip("'\""), sizes)
    raise SnippetError(
        f"parameter '{name}' of before has no example: give it a default"
        f' ({name}=torch.randn(2, 8)), an annotation ({name}: "float[2, 8]"), or write'
        " inputs = (...)"
    )


def _from_type(name: str, text: str, sizes: dict[str, int]) -> torch.Tensor:
    """Random data of a type as rules write it; the same letter is the same size."""
    try:
        kind = parse_type(text, Span(f"parameter '{name}'", 1, 1))
    except RuleErrors as errors:
        raise SnippetError(str(errors)) from errors
    if not isinstance(kind, TensorType) or kind.is_list:
        raise SnippetError(f"parameter '{name}': '{text}' is not the type of a tensor")
    shape = [2, 5] if kind.lead is not None else []
    for dim in kind.dims:
        if isinstance(dim, Literal) and isinstance(dim.value, int):
            shape.append(dim.value)
        elif isinstance(dim, Name):
            shape.append(sizes.setdefault(dim.id, _FIRST_SIZE + len(sizes)))
        else:
            raise SnippetError(f"parameter '{name}': sizes are numbers or letters in '{text}'")
    word = "f32" if "f32" in kind.dtypes else "i64" if "i64" in kind.dtypes else kind.dtypes[0]
    values = torch.randn(shape) * 4
    return values > 0 if word == "bool" else values.to(DTYPES[word])
