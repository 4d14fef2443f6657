"""A function as the rules of one stage see it: traced by the compiler's own front end.

Takes a function and example inputs; gives an FX graph of fake values. Nothing is optimised,
and nothing is computed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx.experimental import _config as symbol_config

from .engine.encode import value_of
from .engine.stage import StageOptions, run_stage
from .session import Session


class CaptureError(ValueError):
    """A function that cannot be traced as one graph; the text says what and where."""


@dataclass(frozen=True)
class Captured:
    """`gm` holds fake values; `inputs` maps its placeholders to parameters of the function."""

    gm: fx.GraphModule
    inputs: Mapping[str, str]


def capture_graph(
    fn: Callable[..., Any],
    inputs: Mapping[str, Any],
    stage: str,
    session: Session,
    *,
    symbolic: bool = False,
    earlier: bool = True,
) -> Captured:
    """The graph of `fn(**inputs)` before `stage`, which is "pre_grad" or "post_grad".

    Tensors become placeholders, everything else is part of the program. `symbolic` makes
    every size a symbol of its own, unless the function needs two of them to be equal.
    `earlier` applies the rules of earlier stages. Raises CaptureError for control flow on
    values and whatever else Dynamo cannot trace.
    """
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    if symbolic:
        tensors = {name: _marked(x) for name, x in tensors.items()}
    fixed = {name: x for name, x in inputs.items() if name not in tensors}
    front = _FrontEnd(session, stage, earlier)
    torch._dynamo.reset()
    try:
        with torch.no_grad(), _settings(), contextlib.suppress(_Traced):
            call = functools.partial(fn, **fixed)
            torch.compile(call, backend=front, fullgraph=True)(**tensors)
    except Exception as error:
        raise CaptureError(_plain(error)) from error
    finally:
        torch._dynamo.reset()
    if front.found is None:
        raise CaptureError("it calls no torch function on its inputs")
    return front.found


class _Traced(BaseException):
    """Ends the run of a function once its graph is known."""


@contextlib.contextmanager
def _settings() -> Any:
    with (
        symbol_config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        torch._dynamo.config.patch(automatic_dynamic_shapes=False),
    ):
        yield


def _marked(x: torch.Tensor) -> torch.Tensor:
    """The tensor, with sizes that Dynamo takes as symbols."""
    other = x.detach()
    for dim in range(other.dim()):
        torch._dynamo.maybe_mark_dynamic(other, dim)
    return other


def _plain(error: Exception) -> str:
    """The first sentence of Dynamo's message, and the line of the user's code."""
    text = str(error).strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    places = re.findall(r'File "([^"]+)", line (\d+)', text.partition("from user code")[2])
    where = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    return f"{first}{where}"


class _FrontEnd:
    """A Dynamo backend that keeps the graph and computes nothing."""

    def __init__(self, session: Session, stage: str, earlier: bool) -> None:
        self.session = session
        self.stage = stage
        self.earlier = earlier
        self.found: Captured | None = None

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        parameters = [_parameter(node) for node in gm.graph.find_nodes(op="placeholder")]
        if self.stage == "pre_grad":
            self._keep(gm, parameters)
            return _stop
        session = self.session
        if self.earlier:
            options = StageOptions(session.settings.numerics, lowered=session.lowered)
            gm = run_stage(gm, "pre_grad", session.book, session.table, options).gm

        def keep(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            self._keep(gm, parameters)
            return make_boxed_func(_stop)

        aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=keep,
            inference_compiler=keep,
            decompositions=dict(session.decompositions),
            keep_inference_input_mutations=True,
        )
        return _stop

    def _keep(self, gm: fx.GraphModule, parameters: Sequence[str]) -> None:
        nodes = gm.graph.find_nodes(op="placeholder")
        pairs = zip(nodes, parameters, strict=True)
        self.found = Captured(
            gm,
            {
                node.name: parameter
                for node, parameter in pairs
                if isinstance(value_of(node), torch.Tensor)
            },
        )


def _stop(*_: Any) -> Any:
    raise _Traced


def _parameter(node: fx.Node) -> str:
    """The parameter of the traced function that a Dynamo placeholder is, "" for another."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    return str(getattr(source, "index", ""))
