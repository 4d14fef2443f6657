"""Calls that some versions of torch know wrong metadata of, guards that must not be added, and
draws that must not be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from eqsat.engine import repaired
from eqsat.engine.draws import loses_draws
from eqsat.engine.metadata import refuse_guards

aten = torch.ops.aten


def test_norms_over_dims_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repaired.repaired_calls() == {} or not repaired.knows_negative_dims()
    monkeypatch.setattr(repaired, "knows_negative_dims", lambda: False)
    table = dict(repaired.repaired_calls())

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x, 3, (-1, 0)) + torch.linalg.vector_norm(x, 3)

    x = torch.randn(2, 3, 1)
    graph = make_fx(program, decomposition_table=table)(x)
    dims = [
        node.args[2:3]
        for node in graph.graph.nodes
        if node.target is aten.linalg_vector_norm.default
    ]
    assert [list(*dim) for dim in dims] == [[2, 0], []]
    torch.testing.assert_close(graph(x), program(x))


def test_a_refused_guard_leaves_nothing_behind() -> None:
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    x = mode.from_tensor(torch.empty(4, 6))
    before = list(shape_env.guards)
    with pytest.raises(RuntimeError, match="Guard attempted"), refuse_guards(shape_env):
        bool(x.shape[0] > 3)
    with refuse_guards(shape_env):
        assert x.shape[0] * 2 == x.shape[0] + x.shape[0]  # known without one
    assert shape_env.guards == before
    assert bool(x.shape[0] > 3) and len(shape_env.guards) == len(before) + 1


def _graph(function: Callable[..., Any]) -> fx.GraphModule:
    return fx.symbolic_trace(function)


def test_which_forms_lose_draws() -> None:
    read = _graph(lambda x: torch.full_like(torch.rand_like(x), 3) + x)
    other = _graph(lambda x: torch.rand_like(x) * x)
    unread = _graph(lambda x: (torch.rand_like(x), x + 3)[1])
    method = _graph(lambda x: x.clone().uniform_(-1, 2).sin())
    assert loses_draws(read, unread) and loses_draws(method, unread)
    assert not loses_draws(read, other) and not loses_draws(unread, unread)
    assert not loses_draws(unread, read)
