"""An FX graph as an e-graph.

Takes a GraphModule whose nodes carry fake values; gives an `Encoding`: the e-graph, the class
of every tensor node, the nodes that must stay as they are and the roots of extraction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._sympy.symbol import SymT, symbol_is_type

from .egraph import DYNAMIC, FROZEN, LEAF, EGraph, Ref
from .metadata import SYMBOLIC, Constants, Metadata, fake_mode
from .op import Bound
from .ops import OpTable

if TYPE_CHECKING:
    from .effects import Effects

Bind = Callable[[Any, tuple[Any, ...], dict[str, Any]], Bound | None]


@dataclass
class Encoding:
    """`classes` maps tensor-valued FX nodes to e-graph nodes. `opaque` nodes keep their order
    and identity; `roots` are the tensor nodes that
    outputs and opaque nodes read, in order. `definers` are the opaque nodes that give a
    symbol its value (`x.item()`). With `modes` (no_grad, autocast) some nodes run under another
    mode than the first."""

    gm: fx.GraphModule
    graph: EGraph
    classes: dict[fx.Node, int] = field(default_factory=dict)
    opaque: list[fx.Node] = field(default_factory=list)
    roots: list[fx.Node] = field(default_factory=list)
    definers: dict[Any, fx.Node] = field(default_factory=dict)
    output: fx.Node | None = None
    modes: bool = False

    def is_opaque(self, node: fx.Node) -> bool:
        return node in self.places

    @property
    def places(self) -> dict[fx.Node, int]:
        """The place of each opaque node among them."""
        if len(self._places) != len(self.opaque):
            self._places.update((node, place) for place, node in enumerate(self.opaque))
        return self._places

    _places: dict[fx.Node, int] = field(default_factory=dict)

    def needs(self, source: fx.Node) -> list[int]:
        """The classes that an opaque node needs: its operands and its predecessor."""
        graph = self.graph
        found = [
            self.classes[node]
            for node in source.all_input_nodes
            if node in self.classes and node.op not in ("placeholder", "get_attr")
        ]
        place = self.places[source]
        if place:
            found.append(self.classes[self.opaque[place - 1]])
        return list(dict.fromkeys(map(graph.find, found)))

    def children(self, node: int) -> list[int]:
        """The classes that a node of the e-graph needs, those that define the symbols in its
        attributes included."""
        graph = self.graph
        source = graph.source[node]
        if graph.kind[node] == LEAF:
            return self.needs(source) if source in self.places and source is not None else []
        found = graph.children(node)
        if self.definers:
            found += [graph.find(self.classes[d]) for d in self._defining(node)]
        return list(dict.fromkeys(found))

    def _defining(self, node: int) -> list[fx.Node]:
        graph = self.graph
        columns = graph.constructors[graph.kind[node]].columns
        symbols: set[Any] = set()
        for column, item in zip(columns, graph.args[node], strict=True):
            if column == "h":
                symbols |= _symbols(graph.constants.value(item))
        return [self.definers[s] for s in sorted(symbols & self.definers.keys(), key=str)]


def value_of(node: fx.Node) -> Any:
    """The fake value that a node carries: `val` after AOTAutograd, `example_value` before."""
    meta = node.meta
    return meta["val"] if "val" in meta else meta.get("example_value")


def encode(
    gm: fx.GraphModule,
    table: OpTable,
    *,
    weights: Mapping[str, int] | None = None,
    frozen: frozenset[str] = frozenset(),
    bind: Bind | None = None,
    effects: Effects | None = None,
) -> Encoding | None:
    """Encodes `gm`; None where it has no tensor with a fake value.

    `weights` gives the position of each placeholder that is a parameter, `frozen` names the
    placeholders that keep their value between calls. `bind` replaces `table.bind`. `effects`
    names the nodes that stay as they are, in a graph that is not functional.
    """
    mode = fake_mode([value_of(node) for node in gm.graph.nodes])
    if mode is None:
        return None
    graph = EGraph(Metadata(table, mode, Constants()))
    encoding = Encoding(gm, graph, modes=effects is not None and effects.modes)
    binder = bind or table.bind
    kept = frozenset() if effects is None else effects.kept
    for node in gm.graph.nodes:
        if node.op == "output":
            encoding.output = node
        elif node.op in ("placeholder", "get_attr"):
            _leaf(encoding, node, weights or {}, frozen)
        else:
            _call(encoding, node, _keep if node in kept else binder)
    _find_roots(encoding)
    for node, index in encoding.classes.items():
        graph.users[index] = graph.users.get(index, 0) + len(node.users)
    return encoding


def _leaf(
    encoding: Encoding, node: fx.Node, weights: Mapping[str, int], frozen: frozenset[str]
) -> None:
    value = value_of(node)
    if isinstance(value, SYMBOLIC):
        return  # sizes are constants here, and made anew when the graph is written
    if not isinstance(value, torch.Tensor):
        return
    graph = encoding.graph
    level = FROZEN if node.name in frozen else DYNAMIC
    index = graph.leaf(graph.metadata.intern(value), node, level)
    encoding.classes[node] = index
    if node.op == "placeholder":
        graph.inputs.add(index)
    if node.name in weights:
        graph.position[index] = weights[node.name]


def _call(encoding: Encoding, node: fx.Node, bind: Bind) -> None:
    value = value_of(node)
    if isinstance(value, (*SYMBOLIC, torch.Size)) and not _defines(node, value):
        return  # sizes are constants here, and made anew when the graph is written
    graph = encoding.graph
    bound = None
    if node.op != "call_module" and has_tensor(value) and not _fresh_sizes(node):
        bound = bind(node.target, node.args, node.kwargs)
    args = None if bound is None else [_argument(encoding, arg) for arg in bound.args]
    if bound is None or args is None or _UNKNOWN in args:
        encoding.opaque.append(node)
        encoding.classes[node] = graph.leaf(graph.metadata.intern(value), node)
        for symbol in _symbols(value):
            if symbol_is_unbacked(symbol):
                encoding.definers.setdefault(symbol, node)
        return
    constructor, row = graph.row(bound.op, args)
    meta = graph.metadata.intern(value)
    index = graph.add(constructor, row, meta=meta, source=node)
    if graph.metadata.facts[graph.meta[index]] != graph.metadata.facts[meta]:
        encoding.opaque.append(node)
        index = graph.leaf(meta, node)
    encoding.classes[node] = index


def _keep(*_: Any) -> None:
    """Binds nothing: the call stays as it is."""


_UNKNOWN = object()


def _argument(encoding: Encoding, arg: Any) -> Any:
    """A canonical argument with `Ref`s for tensor nodes and symbolic numbers for size nodes."""
    if isinstance(arg, fx.Node):
        index = encoding.classes.get(arg)
        if index is not None:
            return encoding.graph.ref(encoding.graph.find(index))
        value = value_of(arg)
        return value if isinstance(value, (*SYMBOLIC, int, float, torch.Size)) else _UNKNOWN
    if isinstance(arg, (list, tuple)):
        items = [_argument(encoding, item) for item in arg]
        if any(item is _UNKNOWN for item in items):
            return _UNKNOWN
        return items if any(isinstance(item, Ref) for item in items) else tuple(items)
    return arg


def _defines(node: fx.Node, value: Any) -> bool:
    """Whether a number comes from data (`x.item()`) or from a size that depends on data."""
    reads = any(has_tensor(value_of(arg)) for arg in node.all_input_nodes)
    return reads and any(map(symbol_is_unbacked, _symbols(value)))


def symbol_is_unbacked(symbol: Any) -> bool:
    return bool(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)))


def _fresh_sizes(node: fx.Node) -> bool:
    """Whether the result's size depends on data: a second call would get another symbol."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def _symbols(value: Any) -> set[Any]:
    if isinstance(value, SYMBOLIC):
        return set(value.node.expr.free_symbols)
    if isinstance(value, torch.Tensor):
        return _symbols(tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_symbols, value))
    return set()


def has_tensor(value: Any) -> bool:
    """Whether a fake value is a tensor, or holds one."""
    if isinstance(value, (list, tuple)):
        return any(map(has_tensor, value))
    return isinstance(value, torch.Tensor)


def _find_roots(encoding: Encoding) -> None:
    seen: set[fx.Node] = set()
    keep = [*encoding.opaque, *([encoding.output] if encoding.output is not None else [])]
    for reader in keep:
        for node in reader.all_input_nodes:
            if node in encoding.classes and node not in seen:
                seen.add(node)
                encoding.roots.append(node)
