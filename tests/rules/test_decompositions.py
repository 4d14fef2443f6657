"""The ops that matter most become loops: by a rule, a lowering, or a decomposition of torch.

`decompositions.txt` lists them. Each is called in a small program, many of them in one graph,
forward and backward, and compared with eager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from eqsat.engine.expr import Call, walk
from eqsat.engine.load import builtin_book
from eqsat.engine.rule import Rule
from eqsat.reports import CompileReport, recording
from eqsat.tests.rules.decomposition_calls import CALLS

NAMES = Path(__file__).with_name("decompositions.txt").read_text().split()
# What stays a call of ATen, and why.
_PRODUCT = "a product of matrices: oneDNN and MKL are quicker"
_DRAW = "random numbers: the same stream as eager's"
REASONS: Mapping[str, str] = {
    "_scaled_dot_product_flash_attention_for_cpu.default": "attention by blocks is quicker",
    "addmm.default": _PRODUCT,
    "addmv.default": _PRODUCT,
    "baddbmm.default": _PRODUCT,
    "bmm.default": _PRODUCT,
    "mm.default": _PRODUCT,
    "convolution_backward.default": "a product of matrices: oneDNN is quicker",
    "bernoulli.p": _DRAW,
    "exponential_.default": _DRAW,
    "normal_.default": _DRAW,
    "rand_like.default": _DRAW,
    "randint_like.default": _DRAW,
    "randn_like.default": _DRAW,
    "uniform_.default": _DRAW,
    "binary_cross_entropy.default": "it refuses inputs beyond 0 and 1; a rule for numerics='fast'",
    "grid_sampler_2d.default": "torch's decomposition rounds half numbers otherwise",
}
BATCH = 30
# No kernel on the CPU computes it, where rms_norm is traced through.
ON_GPU = "_fused_rms_norm_backward.default"
# They hold no numbers to compare.
UNDEFINED = ("empty_like.default", "empty_permuted.default")


def overload(name: str) -> torch._ops.OpOverload:
    base, kind = name.split(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, base), kind)
    return found


def program(names: Sequence[str]) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
    """All these ops, one after the other, each on arguments of its own."""
    ops = tuple(map(overload, names))

    def run(arguments: Sequence[Sequence[Any]]) -> list[Any]:
        return [op(*given) for op, given in zip(ops, arguments, strict=True)]

    return run


def outcome(
    function: Callable[..., Any], names: Sequence[str], backward: bool
) -> tuple[list[list[torch.Tensor]], list[torch.Tensor | None]]:
    """Results by op, and gradients of all inputs that ask for one."""
    torch.manual_seed(3)
    arguments = [CALLS[name]() for name in names]
    inputs = [x for x in pytree.tree_leaves(arguments) if _asks(x)]
    if not backward:
        arguments = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)
    torch.manual_seed(4)
    results = [
        [x for x in pytree.tree_leaves(one) if isinstance(x, torch.Tensor)]
        for one in function(arguments)
    ]
    if not backward:
        return results, []
    reached = [x for one in results for x in one if x.requires_grad]
    slopes = [
        torch.linspace(0.5, 1.5, max(x.numel(), 1))[: x.numel()].view(x.shape) for x in reached
    ]
    gradients = torch.autograd.grad(reached, inputs, slopes, allow_unused=True)
    return [[x.detach() for x in one] for one in results], list(gradients)


def _asks(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def batches() -> Iterator[tuple[str, ...]]:
    here = [name for name in NAMES if name != ON_GPU]
    for start in range(0, len(here), BATCH):
        yield tuple(here[start : start + BATCH])


def called(reports: Sequence[CompileReport]) -> set[str]:
    """The ATen overloads that are called, by the names of the list."""
    return {extern.target.removeprefix("aten.") for one in reports for extern in one.externs}


def test_every_op_of_the_list_has_a_call() -> None:
    assert sorted(CALLS) == NAMES
    assert len(NAMES) == 149
    assert set(REASONS) <= set(NAMES)


def test_what_has_no_kernel_on_the_cpu_has_rules() -> None:
    fns = {node.fn for rule in builtin_book().rules for node in _calls(rule)}
    assert ON_GPU.removesuffix(".default") in fns


def _calls(rule: Rule) -> Iterator[Call]:
    return (node for e in rule.match.values() for node in walk(e) if isinstance(node, Call))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("names", list(batches()), ids=lambda names: names[0])
def test_ops_are_generated_and_right(
    names: tuple[str, ...], backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSAT_STRICT", "1")
    torch._dynamo.reset()
    run = program(names)
    compiled = torch.compile(run, backend="eqsat", fullgraph=True)
    with recording() as reports:
        ours, our_gradients = outcome(compiled, names, backward)
    assert any(report.kernels for report in reports)
    theirs, their_gradients = outcome(run, names, backward)
    for name, mine, yours in zip(names, ours, theirs, strict=True):
        if name in UNDEFINED:
            continue
        for one, other in zip(mine, yours, strict=True):
            torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
            assert one.stride() == other.stride(), name
    for one, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(one, other)
    stay = {name for name in called(reports) if name in names}
    assert stay <= set(REASONS), f"calls of ATen without a reason: {sorted(stay - set(REASONS))}"
