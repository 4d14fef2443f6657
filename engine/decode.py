"""The chosen nodes of an e-graph as an FX graph.

Takes an `Encoding` and a node per class; gives a fresh GraphModule with the placeholders,
the output structure and the opaque nodes of the original, in their order. What users and
opaque ops see keeps its strides, and outputs share memory where, and only where, they did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx.node import map_arg
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from .egraph import LEAF
from .encode import Encoding, value_of
from .memory import Storages, dense_order, has_rows, same_layout, shares_memory, storage
from .metadata import SYMBOLIC
from .op import Op
from .values import Values

_COPIED = (
    *("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node"),
    *("seq_nr", "partitioner_tag", "recompute", "ac_graph_id"),
    *("fwd_nn_module_stack", "fwd_source_fn_stack"),
)


class DecodeError(Exception):
    """A choice that cannot be written as a graph; the text says why."""


# What a decoded graph's `meta` holds under this: the node of the e-graph by the FX node's name.
FORMS = "eqsat_forms"


def decode(
    encoding: Encoding,
    chosen: Mapping[int, int],
    rules: Callable[[int], tuple[str, ...]],
    spare: Mapping[int, int] | None = None,
) -> fx.GraphModule:
    """The graph of `chosen` (class to node). `rules` names the rules behind a node, as
    "path:line name". `spare` has nodes for classes that the choice does not need, but an
    original call that must be kept may. Raises DecodeError or EvaluateError."""
    return _Decoder(encoding, chosen, rules, spare or {}).run()


def is_mutation(node: fx.Node) -> bool:
    """Whether an FX node writes into one of its arguments."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    return "mutation" in str(target)


def layout_of(op: Op) -> str:
    """The strides that an op's operands may have. One that `rules/ops` does not vouch for may
    read memory and not only values (a fused RNN kernel takes its weights to be contiguous),
    so its operands keep the strides that were captured."""
    return "traced" if op.entry is None else op.entry.layout


class _Decoder:
    def __init__(
        self,
        encoding: Encoding,
        chosen: Mapping[int, int],
        rules: Callable[[int], tuple[str, ...]],
        spare: Mapping[int, int],
    ) -> None:
        self.encoding = encoding
        self.graph = encoding.graph
        self.metadata = encoding.graph.metadata
        self.chosen = chosen
        self.spare = spare
        self.rules = rules
        self.new = fx.Graph()
        self.env: dict[fx.Node, fx.Node] = {}  # originals that are kept as they are
        self.made: dict[int, fx.Node] = {}  # classes
        self.forms: dict[fx.Node, int] = {}  # the node of the e-graph that each stands for
        self.faithful: dict[fx.Node, fx.Node] = {}
        self.based: dict[fx.Node, fx.Node] = {}  # originals, in memory that outputs share
        self.sizes: dict[Any, fx.Node] = {}
        nodes = encoding.gm.graph.nodes
        before = any("example_value" in node.meta and "val" not in node.meta for node in nodes)
        self.key = "example_value" if before else "val"
        self.values = Values(self.graph, self.made, self.key)
        self.sink: set[fx.Node] = set()
        self.written: set[int | None] = set()  # storages that an op has written by now
        self.unlent: set[fx.Node] = set()  # operands whose forms were not looked at yet
        self.lent: dict[int | None, list[fx.Node]] = {}  # operands by the memory of their forms
        self.late: dict[int, list[int]] = {}  # classes by the last opaque node that they need
        self.settled = -1  # those before this place are made

    def run(self) -> fx.GraphModule:
        nodes = list(self.encoding.gm.graph.nodes)
        self.unlent = self._operands_of_the_fixed(nodes)
        for node in nodes:
            if node.op in ("placeholder", "get_attr"):
                self.env[node] = self.new.node_copy(node)
                self._note_sizes(node)
        for node in nodes:
            if self.encoding.is_opaque(node):
                self._opaque(node)
            elif node.op == "output":
                self._output(node)
            elif node in self.encoding.classes:
                owner = self.graph.find(self.encoding.classes[node])
                if owner in self.chosen:
                    self._class(owner)
                    if self.encoding.modes and node in self.encoding.roots:
                        self._faithful(node)  # before another mode begins
        self.new.eliminate_dead_code(self._must_stay)
        gm = _make_graph_module(self.encoding.gm, self.new)
        gm.meta = {**self.encoding.gm.meta, FORMS: self._named_forms()}
        return gm

    def _named_forms(self) -> dict[str, int]:
        return {node.name: self.forms[node] for node in self.new.nodes if node in self.forms}

    def _must_stay(self, node: fx.Node) -> bool:
        return node.op in ("placeholder", "output") or node in self.sink

    def _settle(self, place: int) -> None:
        """Makes every class that needs no opaque node from `place` on, before a write there,
        so that none of them reads what was written."""
        if not self.late:
            latest: dict[int, int] = {}
            for owner in sorted(self.chosen):
                self.late.setdefault(self._latest(owner, latest), []).append(owner)
        since, self.settled = self.settled, max(self.settled, place)
        ready = [owner for at in range(since, place) for owner in self.late.get(at, ())]
        for owner in sorted(ready):
            self._class(owner)

    def _operands_of_the_fixed(self, nodes: list[fx.Node]) -> set[fx.Node]:
        """What opaque nodes and the output read, of what rules may give another form."""
        fixed = [node for node in nodes if node.op == "output" or self.encoding.is_opaque(node)]
        read = {arg for node in fixed for arg in node.all_input_nodes}
        return {arg for arg in read if arg in self.encoding.classes}

    def _keep_from(self, place: int | None) -> None:
        """Copies what stands in memory that is written next, but did not in the original, as
        a form of `clone(x)` is x."""
        ready = [arg for arg in self.unlent if self._owner(arg) in self.made]
        self.unlent.difference_update(ready)
        for arg in ready:
            lender = storage(self.made[self._owner(arg)].meta[self.key])
            self.lent.setdefault(lender, []).append(arg)
        lent = [arg for arg in self.lent.pop(place, []) if storage(value_of(arg)) != place]
        if place is not None and lent:
            pairs = Storages(self.env, self.key)
            for arg in sorted(lent):
                if arg not in self.env:
                    self._base(arg, pairs)

    def _latest(self, owner: int, latest: dict[int, int]) -> int:
        """The place of the last opaque node that a class needs, -1 where it needs none."""
        stack = [owner]
        while stack:
            current = stack[-1]
            children = self.encoding.children(self.chosen[current])
            missing = [child for child in children if child not in latest]
            if current in latest or not missing:
                stack.pop()
                source = self.graph.source[self.chosen[current]]
                is_leaf = self.graph.kind[self.chosen[current]] == LEAF
                own = self.encoding.places.get(source, -1) if is_leaf and source else -1
                latest[current] = max([own, *(latest[child] for child in children)])
            elif len(stack) > len(self.graph):
                raise DecodeError("the choice has a cycle")
            else:
                stack += missing
        return latest[owner]

    # Sizes

    def _note_sizes(self, node: fx.Node) -> None:
        value = value_of(node)
        if isinstance(value, SYMBOLIC):
            self.sizes.setdefault(value.node.expr, self.env[node])

    def _size(self, value: Any) -> Any:
        """A number for the new graph, or the node that computes an expression."""
        expr = value.node.expr
        if not expr.free_symbols:
            return value.node.pytype(expr)
        if expr not in self.sizes:
            self.sizes[expr] = self._make_size(expr)
        return self.sizes[expr]

    def _sizes(self, value: Any) -> Any:
        """A number, or a whole shape, for the new graph."""
        return self._with_sizes(tuple(value) if isinstance(value, torch.Size) else value)

    def _make_size(self, expr: Any) -> fx.Node:
        found = self._read_size(expr)
        if found is not None:
            return found
        if isinstance(expr, sympy.Symbol):
            raise DecodeError(f"nothing in the graph gives the size {expr}")
        tracer = fx.proxy.GraphAppendingTracer(self.new)
        values = {}
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol not in self.sizes:
                self.sizes[symbol] = self._make_size(symbol)
            values[symbol] = fx.Proxy(self.sizes[symbol], tracer)
        last = next(iter(reversed(self.new.nodes)), None)
        result = sympy_interp(PythonReferenceAnalysis, values, expr)
        self._value_new(last)
        if not isinstance(result, fx.Proxy):
            raise DecodeError(f"the size {expr} is not an expression of sizes in the graph")
        return result.node

    def _value_new(self, last: fx.Node | None) -> None:
        """Gives the nodes after `last` their (symbolic) values."""
        nodes = list(self.new.nodes)
        start = nodes.index(last) + 1 if last is not None else 0
        for node in nodes[start:]:
            args = map_arg(node.args, lambda arg: arg.meta[self.key])
            node.meta[self.key] = node.target(*args, **node.kwargs)

    def _read_size(self, expr: Any) -> fx.Node | None:
        """A dim of a graph input that has this size."""
        for node in self.encoding.gm.graph.nodes:
            value = value_of(node) if node.op == "placeholder" else None
            if not isinstance(value, torch.Tensor):
                continue
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr == expr:
                    made = self.new.call_function(
                        torch.ops.aten.sym_size.int, (self.env[node], dim)
                    )
                    made.meta[self.key] = size
                    return made
        return None

    # Classes

    def _class(self, owner: int) -> fx.Node:
        """The new node of a class; makes what it needs first, without recursion."""
        stack = [owner]
        while stack:
            current = stack[-1]
            if current in self.made:
                stack.pop()
                continue
            node = self.chosen.get(current, self.spare.get(current))
            if node is None:
                raise DecodeError(f"no node was chosen for e{current}")
            missing = [child for child in self._needs(node) if child not in self.made]
            if missing:
                if len(stack) > len(self.graph):
                    raise DecodeError("the choice has a cycle")
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.made[current] = (
                self._leaf(node) if self.graph.kind[node] == LEAF else self._call(current, node)
            )
        return self.made[owner]

    def _needs(self, node: int) -> list[int]:
        if self.graph.kind[node] == LEAF and self.graph.source[node] in self.env:
            return []
        return self.encoding.children(node)

    def _leaf(self, node: int) -> fx.Node:
        source = self.graph.source[node]
        if source is None:
            raise DecodeError(f"e{node} has no origin")
        return self.env[source] if source in self.env else self._opaque(source)

    def _opaque(self, source: fx.Node) -> fx.Node:
        """A node that is copied as it is, after its predecessors in order."""
        if source in self.env:
            return self.env[source]
        for before in self.encoding.opaque[: self.encoding.places[source]]:
            if before not in self.env:
                self._opaque_now(before)
        return self._opaque_now(source)

    def _opaque_now(self, source: fx.Node) -> fx.Node:
        if is_mutation(source):
            self._settle(self.encoding.places[source])
            for arg in source.all_input_nodes[:1]:
                self._keep_from(storage(value_of(arg)))
                self.written.add(storage(value_of(arg)))
        exact = not (is_mutation(source) and "copy_" in str(source.target))
        mapped = {arg: self._operand(arg, exact) for arg in source.all_input_nodes}
        copied = self.new.node_copy(source, lambda arg: mapped[arg])
        if not is_mutation(source):
            self.values.renew(source, copied)
        self.env[source] = copied
        self.sink.add(copied)
        self._note_sizes(source)
        return copied

    def _operand(self, node: fx.Node, exact: bool) -> Any:
        if node in self.env:
            return self.env[node]
        if node in self.based:
            return self.based[node]
        value = value_of(node)
        if isinstance(value, (*SYMBOLIC, torch.Size)):
            return self._sizes(value)
        return self._faithful(node) if exact else self._class(self._owner(node))

    def _owner(self, node: fx.Node) -> int:
        return self.graph.find(self.encoding.classes[node])

    def _call(self, owner: int, node: int) -> fx.Node:
        graph = self.graph
        source = graph.source[node]
        constructor = graph.constructors[graph.kind[node]]
        if source is not None and self._has_operands(source, node):
            made = self._copy(source, layout_of(constructor.op))
        else:
            values: list[Any] = [
                self.made[graph.find(item)] if column == "t" else graph.constants.value(item)
                for column, item in zip(constructor.columns, graph.args[node], strict=True)
            ]
            call = self.metadata.table.call(constructor.op, constructor.split(values))
            made = self._emit(*call)
            self._describe(made, source or graph.source[owner], node)
        for arg in made.all_input_nodes if self.written else ():
            if storage(arg.meta[self.key]) in self.written:
                raise DecodeError(f"{made.name} would read memory that was written before")
        if source is not None and self.values.same_arguments(source, made):
            made.meta[self.key] = value_of(source)
            return made
        origin = owner if source is None else node
        made.meta[self.key] = self.values.of_call(origin, node, made)
        return made

    def _has_operands(self, source: fx.Node, node: int) -> bool:
        """Whether all tensors of the original call are among what the node reads (a canonical
        call may read less: `full_like` reads only sizes)."""
        reads = set(self.graph.children(node))
        return all(
            self._owner(arg) in reads
            for arg in source.all_input_nodes
            if arg in self.encoding.classes and not isinstance(value_of(arg), SYMBOLIC)
        )

    def _copy(self, source: fx.Node, layout: str) -> fx.Node:
        """The original call on the new forms of its operands, with strides that it can take."""
        mapped: dict[fx.Node, Any] = {}
        for arg in source.all_input_nodes:
            value = value_of(arg)
            if isinstance(value, (*SYMBOLIC, torch.Size)):
                mapped[arg] = self._sizes(value)
            elif arg in self.encoding.classes:
                made = self.made[self._owner(arg)]
                fits = layout == "any" or (layout == "rows" and has_rows(made.meta[self.key]))
                mapped[arg] = made if fits else self._faithful(arg)
            else:
                mapped[arg] = self.env[arg]
        return self.new.node_copy(source, lambda arg: mapped[arg])

    def _emit(self, target: Any, args: Any, kwargs: Any) -> fx.Node:
        """A call node; symbolic sizes in its arguments become the nodes that compute them."""
        args, kwargs = self._with_sizes(args), self._with_sizes(kwargs)
        if isinstance(target, str):
            return self.new.call_method(target, args, kwargs)
        return self.new.call_function(target, args, kwargs)

    def _with_sizes(self, value: Any) -> Any:
        if isinstance(value, SYMBOLIC):
            return self._size(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._with_sizes(item) for item in value)
        if isinstance(value, dict):
            return {key: self._with_sizes(item) for key, item in value.items()}
        return value

    def _describe(self, made: fx.Node, origin: fx.Node | None, node: int) -> None:
        if origin is not None:
            for name in _COPIED:
                if name in origin.meta:
                    made.meta[name] = origin.meta[name]
        self.forms[made] = node
        rules = self.rules(node)
        if rules:
            made.meta["eqsat_rules"] = rules
        elif origin is not None and "eqsat_rules" in origin.meta:
            made.meta["eqsat_rules"] = origin.meta["eqsat_rules"]

    # Strides and aliasing

    def _faithful(self, node: fx.Node) -> fx.Node:
        """The new node of an original one, with its strides."""
        if node in self.env:
            return self.env[node]
        found = self.faithful.get(node)
        if found is None:
            found = self._class(self._owner(node))
            if not same_layout(value_of(node), found.meta[self.key]):
                found = self._laid_out(found, node)
            self.faithful[node] = found
        return found

    def _laid_out(self, made: fx.Node, node: fx.Node) -> fx.Node:
        """A copy of `made` with the strides of `node`, or `node` itself once more."""
        value = value_of(node)
        if not isinstance(value, torch.Tensor):
            return self._again(node)
        order = dense_order(value)
        if order is None:
            return self._again(node)
        if order != sorted(order):
            made = self._aten(torch.ops.aten.permute.default, (made, order), node)
        clone = torch.ops.aten.clone.default
        copied = self._aten(clone, (made,), node, memory_format=torch.contiguous_format)
        if order != sorted(order):
            back = [order.index(dim) for dim in range(len(order))]
            copied = self._aten(torch.ops.aten.permute.default, (copied, back), node)
        if not same_layout(value, copied.meta[self.key]):
            return self._again(node)
        return copied

    def _again(self, node: fx.Node) -> fx.Node:
        """The original call on arguments that look as they did."""
        mapped = {arg: self._operand(arg, True) for arg in node.all_input_nodes}
        copied = self.new.node_copy(node, lambda arg: mapped[arg])
        copied.meta[self.key] = self.values.run(copied)
        if not same_layout(value_of(node), copied.meta[self.key]):
            raise DecodeError(f"the strides of {node.name} cannot be kept")
        return copied

    def _aten(self, target: Any, args: Any, origin: fx.Node, **kwargs: Any) -> fx.Node:
        made = self.new.call_function(target, args, kwargs)
        made.meta[self.key] = self.values.run(made)
        for name in _COPIED:
            if name in origin.meta:
                made.meta[name] = origin.meta[name]
        return made

    def _output(self, node: fx.Node) -> None:
        pairs = Storages({**self.env, **self.based}, self.key)
        counts = Counter(storage(value_of(arg)) for arg in node.all_input_nodes)
        mapped: dict[fx.Node, Any] = {}
        for arg in node.all_input_nodes:
            made = self._operand(arg, True)
            if isinstance(made, fx.Node) and arg not in self.env:
                place = storage(value_of(arg))
                if place is not None and counts[place] > 1:
                    self._base(arg, pairs)  # before its views, whatever their order
                made = self._own_memory(arg, made, pairs)
            mapped[arg] = made
        args = map_arg(node.args, lambda arg: mapped[arg])
        made = self.new.create_node("output", "output", args, {}, node.name)
        made.meta = dict(node.meta)

    def _own_memory(self, node: fx.Node, made: fx.Node, pairs: Storages) -> fx.Node:
        """`made`, or another form of it that shares memory with what `node` shared it with."""
        if node in self.based or pairs.agree(value_of(node), made.meta[self.key]):
            return self.based.get(node, made)
        shared = pairs.shared(value_of(node))
        made = self._base(node, pairs) if shared else self._laid_out(made, node)
        if not pairs.agree(value_of(node), made.meta[self.key]):  # no plain copy looks like it
            made = self._base(node, pairs)
        if not pairs.agree(value_of(node), made.meta[self.key]):
            raise DecodeError(f"the memory of {node.name} cannot be kept apart")
        return made

    def _base(self, node: fx.Node, pairs: Storages) -> fx.Node:
        """`node`, made by the views that the original makes, from the memory that they are of."""
        if node in self.env:
            return self.env[node]
        if node in self.based:
            return self.based[node]
        bases = [
            arg for arg in node.all_input_nodes if shares_memory(value_of(arg), value_of(node))
        ]
        if bases:
            mapped = {
                arg: self._base(arg, pairs) if arg in bases else self._operand(arg, True)
                for arg in node.all_input_nodes
            }
            made = self.new.node_copy(node, lambda arg: mapped[arg])
            made.meta[self.key] = self.values.run(made)
        else:
            made = self._faithful(node)
            if not pairs.agree(value_of(node), made.meta[self.key]):
                made = self._laid_out(made, node)
            pairs.agree(value_of(node), made.meta[self.key])
        self.based[node] = made
        return made
