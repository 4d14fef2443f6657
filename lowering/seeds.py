"""Where the seeds of a graph's random numbers come from.

Each is one i64 that a call draws from torch's default generator of the device at the place of the
random op. What a checkpoint draws twice saves its seed in a tensor as large as the generator's
state, which stands in for that: neither is taken for the other where only one of the forward and
the backward could be compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from .loops import Buffer, View
from .values import Stored
from .work import Work

RECORDED, REPEATED = run_and_save_rng_state, run_with_rng_state


def note_repeated(gm: fx.GraphModule) -> None:
    """Enter the metadata of what a backward draws again; the partitioner does not."""
    for node in gm.graph.find_nodes(op="call_function", target=REPEATED):
        if "val" not in node.meta:
            node.meta["val"] = _repeated(node)


def _repeated(node: fx.Node) -> Any:
    state, op, args = node.args[0], node.args[1], node.args[2:]
    assert isinstance(state, fx.Node) and isinstance(op, torch._ops.OpOverload)
    with state.meta["val"].fake_mode:
        given = fx.map_arg((args, node.kwargs), lambda arg: arg.meta["val"])
        return op(*given[0], **given[1])


def shared_seed(work: Work, node: fx.Node) -> tuple[Buffer, int]:
    """The seed of all draws of the graph on the device at hand, and the number of this one."""
    seed = work.seeds.get(work.device)
    if seed is None:
        seed = work.seeds[work.device] = fresh_seed(work, node)
    work.draws += 1
    return seed, work.draws


def fresh_seed(work: Work, node: fx.Node) -> Buffer:
    seed = work.buffer(f"{node.name}_seed", "i64", (), role="extern")
    work.extern(
        node,
        target=torch.ops.aten.randint.low,
        args=(-(1 << 63), (1 << 63) - 1, []),
        kwargs={"dtype": torch.int64, "device": torch.device(work.device)},
        outs=(seed.name,),
        ordered=True,
    )
    return seed


def sealed_state(work: Work, node: fx.Node, seed: Buffer) -> Stored:
    """What a forward saves of `seed`, as the state of the generator."""
    state = work.buffer(f"{node.name}_state", "u8", (_state_bytes(),), role="extern")
    given = (View(seed.name, (), ()),)
    work.extern(node, target=Seal(), args=given, kwargs={}, outs=(state.name,))
    return Stored(state)


def opened_seed(work: Work, node: fx.Node, state: fx.Node) -> Buffer:
    """The seed in what a forward has saved."""
    seed = work.buffer(f"{node.name}_seed", "i64", (), role="extern")
    given = (work.view(state, work.env[state], state.meta["val"]),)
    work.extern(node, target=Unseal(), args=given, kwargs={}, outs=(seed.name,))
    return seed


@dataclass(frozen=True)
class Seal:
    """A seed, an i64, as a u8 tensor as long as the state of the CPU's generator. The first word
    of a state is a seed, the second says whether the generator has been seeded; here it has not,
    so that torch refuses to take this for a state."""

    def __call__(self, seed: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(_state_bytes() // 8, dtype=torch.int64)
        state[0] = seed
        return state.view(torch.uint8)

    def __str__(self) -> str:
        return "a seed as a state"


@dataclass(frozen=True)
class Unseal:
    """The seed in what `Seal` gave. Raises RuntimeError for the state of a generator."""

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        words = state[:16].clone().view(torch.int64)
        if int(words[1]) != 0:
            raise RuntimeError(
                "the forward of this graph ran unoptimised, so its random numbers cannot be made"
                ' again with numerics="fast"; use numerics="default"'
            )
        return words[0].clone()

    def __str__(self) -> str:
        return "the seed in a state"


@cache
def _state_bytes() -> int:
    return torch.get_rng_state().numel()
