"""Encoding: constants by bits, one node per value, opaque nodes alone, symbols kept."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from eqsat.engine.egraph import FROZEN, LEAF
from eqsat.engine.encode import encode
from eqsat.engine.load import builtin_book
from eqsat.engine.metadata import Constants, meta_key
from eqsat.engine.ops import OpTable

aten = torch.ops.aten
TABLE = OpTable(builtin_book().ops)


def trace(function, *args, symbolic=False):
    return make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*args)


def named(gm, encoding, target):
    return [encoding.classes[n] for n in gm.graph.nodes if n.target is target]


def test_constants_are_told_apart_by_type_and_bits():
    constants = Constants()
    values = [1, 1.0, True, 0.0, -0.0, None, "1", (1,), (1.0,), torch.float32, 1 + 0j]
    assert len({constants.intern(value) for value in values}) == len(values)
    assert constants.intern(float("nan")) == constants.intern(float("nan"))
    assert constants.intern([1, 2]) == constants.intern((1, 2))
    assert constants.value(constants.intern(-0.0)) == 0


def test_metadata_tells_shapes_strides_and_dtypes_apart():
    keys = {
        meta_key(torch.empty(2, 3)),
        meta_key(torch.empty(3, 2).t()),
        meta_key(torch.empty(2, 3, dtype=torch.float16)),
        meta_key(torch.empty(2, 3, 1)),
    }
    assert len(keys) == 4


def test_equal_calls_are_one_node():
    gm = trace(lambda x: torch.exp(x) + torch.exp(x), torch.randn(3))
    encoding = encode(gm, TABLE)
    first, second = named(gm, encoding, aten.exp.default)
    assert first == second
    assert len(encoding.graph) == 3


def test_calls_that_differ_in_a_zero_sign_stay_apart():
    gm = trace(lambda x: (x + 0.0, x + -0.0), torch.randn(3))
    first, second = named(gm, encode(gm, TABLE), aten.add.Tensor)
    assert first != second


def test_random_ops_are_never_one():
    gm = trace(lambda x: torch.rand_like(x) + torch.rand_like(x), torch.randn(3))
    encoding = encode(gm, TABLE)
    assert len(encoding.opaque) == 2
    first, second = (encoding.classes[node] for node in encoding.opaque)
    assert first != second
    assert encoding.graph.kind[first] == LEAF
    assert encoding.children(second) == [first]  # its predecessor


def test_lists_of_tensors_are_columns():
    gm = trace(lambda x, y: torch.cat([x, y, x]), torch.randn(3), torch.randn(3))
    encoding = encode(gm, TABLE)
    (node,) = named(gm, encoding, aten.cat.default)
    x, y = (encoding.classes[n] for n in gm.graph.nodes if n.op == "placeholder")
    assert encoding.graph.children(node) == [x, y, x]
    first, _ = encoding.graph.values(node)
    assert [ref.id for ref in first] == [x, y, x]


def test_weights_have_a_place_that_views_keep():
    gm = trace(lambda w, x: (x @ w.t(), w + 1), torch.randn(4, 3), torch.randn(2, 3))
    w = next(node for node in gm.graph.nodes if node.op == "placeholder")
    encoding = encode(gm, TABLE, weights={w.name: 7}, frozen=frozenset({w.name}))
    graph = encoding.graph
    (turned,) = named(gm, encoding, aten.t.default)
    (added,) = named(gm, encoding, aten.add.Tensor)
    (product,) = named(gm, encoding, aten.mm.default)
    assert graph.position[turned] == 7
    assert added not in graph.position
    assert graph.level[added] == FROZEN
    assert graph.level[product] != FROZEN


def test_symbolic_sizes_are_constants_by_expression():
    def function(x):
        return x.view(x.shape[0] * 4), x.reshape(4 * x.shape[0])

    gm = trace(function, torch.randn(5, 4), symbolic=True)
    encoding = encode(gm, TABLE)
    first, second = named(gm, encoding, aten.view.default)
    assert first == second


def test_a_size_that_depends_on_data_needs_the_op_that_gives_it():
    gm = trace(lambda x: torch.nonzero(x) + 1, torch.randn(5))
    encoding = encode(gm, TABLE)
    assert [node.target for node in encoding.opaque] == [aten.nonzero.default]


def test_a_graph_without_tensors_is_left_alone():
    gm = torch.fx.symbolic_trace(lambda x: x)
    assert encode(gm, TABLE) is None
