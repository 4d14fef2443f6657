"""The e-graph as Python keeps it: nodes, classes and what is known about them.

Takes canonical op calls; gives node ids. A class is named by its smallest node id. egglog
holds the same graph and finds matches and congruences; this mirror is what rules are applied
to and what extraction reads. Node ids only grow; `rollback` takes back the youngest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from .metadata import Constants, Metadata
from .op import Op

LEAF = -1
DYNAMIC, FROZEN, CONSTANT = 0, 1, 2


class Ref:
    """A handle for an e-class in rule expressions."""

    __slots__ = ("id",)

    def __init__(self, node: int) -> None:
        self.id = node

    def __repr__(self) -> str:
        return f"e{self.id}"


# Ops whose result keeps its one argument's place among the parameters.
ORDER_KEEPING = frozenset({"view", "permute", "cast", "clone", "alias", "detach"})


@dataclass(frozen=True)
class Constructor:
    """An op with the kinds of its arguments: per parameter "t" (a tensor), "h" (a constant)
    or, for a list that holds tensors, a string of "t" and "h" after "l". `columns` is their
    flat spelling, `name` the constructor in egglog."""

    index: int
    op: Op
    kinds: tuple[str, ...]
    columns: str
    name: str
    tensors: tuple[int, ...]  # columns that hold classes

    def split(self, row: Sequence[Any]) -> list[Any]:
        """Column values as arguments: one entry per parameter, lists for lists."""
        args: list[Any] = []
        at = 0
        for kind in self.kinds:
            if kind[0] == "l":
                args.append(list(row[at : at + len(kind) - 1]))
                at += len(kind) - 1
            else:
                args.append(row[at])
                at += 1
        return args


class EGraph:
    """Nodes as parallel lists indexed by id; `kind` is a constructor index or LEAF."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.constants: Constants = metadata.constants
        self.constructors: list[Constructor] = []
        self.by_op: dict[str, list[Constructor]] = {}
        self.kind: list[int] = []
        self.args: list[tuple[int, ...]] = []
        self.meta: list[int] = []
        self.firing: list[int] = []  # the firing that made the node, or -1
        self.source: list[fx.Node | None] = []
        self.level: list[int] = []  # of the class; valid at canonical ids
        self.position: dict[int, int] = {}
        self.inputs: set[int] = set()
        self.deciding: set[int] = set()  # classes that a comparison reads (`deciding.py`)
        self.users: dict[int, int] = {}
        self.absorbed = 0  # classes that became part of another one
        self.nodes_of: dict[int, list[int]] = {}  # the nodes of each kind, in order
        self.members: list[list[int]] = []  # of the class; valid at canonical ids
        self._refs: list[Ref] = []
        self._parent: list[int] = []
        self._memo: dict[tuple[int, ...], int] = {}
        self._readers: list[list[int]] = []  # nodes that read a class; valid as `members` is
        self._stale: list[int] = []  # classes absorbed since the last `rehash`
        self._moved: set[int] = set()  # kinds of the nodes that were in them
        self._by_kinds: dict[tuple[str, tuple[str, ...]], Constructor] = {}

    def __len__(self) -> int:
        return len(self.kind)

    def find(self, node: int) -> int:
        """The canonical id of a node's class."""
        parent = self._parent
        root = node
        while parent[root] != root:
            root = parent[root]
        while parent[node] != root:
            parent[node], node = root, parent[node]
        return root

    def ref(self, node: int) -> Ref:
        return self._refs[node]

    def leaf(self, meta: int, source: fx.Node | None, level: int = DYNAMIC) -> int:
        """A class of its own: a graph input, an attribute, the result of an opaque node."""
        return self._append(LEAF, (), meta, -1, source, level)

    def constructor(self, op: Op, kinds: tuple[str, ...]) -> Constructor:
        key = (op.name, kinds)
        found = self._by_kinds.get(key)
        if found is None:
            columns = "".join(kind[1:] if kind[0] == "l" else kind for kind in kinds)
            tensors = tuple(at for at, column in enumerate(columns) if column == "t")
            index = len(self.constructors)
            name = f"o.{op.name}/{'.'.join(kinds)}"
            found = Constructor(index, op, kinds, columns, name, tensors)
            self._by_kinds[key] = found
            self.constructors.append(found)
            self.by_op.setdefault(op.name, []).append(found)
        return found

    def row(self, op: Op, args: Sequence[Any]) -> tuple[Constructor, tuple[int, ...]]:
        """An op call as constructor and columns. Tensors in `args` are `Ref`s."""
        constructor, row, _ = self.placed_row(op, args)
        return constructor, row

    def placed_row(
        self, op: Op, args: Sequence[Any]
    ) -> tuple[Constructor, tuple[int, ...], list[Ref | None]]:
        """`row`, and per column the handle that stands there (None for a constant)."""
        kinds: list[str] = []
        row: list[int] = []
        handles: list[Ref | None] = []
        for arg in args:
            is_list = isinstance(arg, list) and any(isinstance(item, Ref) for item in arg)
            items = arg if is_list else [arg]
            refs = [item if isinstance(item, Ref) else None for item in items]
            letters = "".join("h" if ref is None else "t" for ref in refs)
            kinds.append("l" + letters if is_list else letters)
            handles += refs
            row += map(self._column, items)
        if op.commutes and kinds[:2] == ["h", "t"] and self._neutral(op, row, 2):
            kinds[:2], row[:2], handles[:2] = kinds[1::-1], row[1::-1], handles[1::-1]
        return self.constructor(op, tuple(kinds)), tuple(row), handles

    def _column(self, item: Any) -> int:
        return self.find(item.id) if isinstance(item, Ref) else self.constants.intern(item)

    def swapped(self, constructor: Constructor, row: tuple[int, ...]) -> tuple[int, ...] | None:
        """The row with its first two tensors exchanged, where that is the same value."""
        if not constructor.op.commutes or constructor.kinds[:2] != ("t", "t") or row[0] == row[1]:
            return None
        if not self._neutral(constructor.op, row, 2):
            return None
        return (row[1], row[0], *row[2:])

    def _neutral(self, op: Op, row: Sequence[int], start: int) -> bool:
        """Whether the arguments after the operands are defaults (`alpha` is not then)."""
        intern = self.constants.intern
        return all(
            handle == intern(param.default)
            for handle, param in zip(row[start:], op.params[start:], strict=False)
        )

    def add(
        self,
        constructor: Constructor,
        row: tuple[int, ...],
        *,
        meta: int | None = None,
        source: fx.Node | None = None,
        firing: int = -1,
    ) -> int:
        """The node of an op call: the one there is, or a new one.

        `row` holds canonical ids. Without `meta` FakeTensor says what the result is; raises
        EvaluateError where it refuses the call.
        """
        key = (constructor.index, *row)
        found = self._memo.get(key)
        if found is None:
            if meta is None:
                meta = self._result(constructor, row)
            level = min((self.level[row[at]] for at in constructor.tensors), default=CONSTANT)
            found = self._append(constructor.index, row, meta, firing, source, level)
            self._memo[key] = found
            for at in constructor.tensors:
                self._readers[row[at]].append(found)
            self._inherit_position(constructor, row, found)
        return found

    def _inherit_position(self, constructor: Constructor, row: tuple[int, ...], node: int) -> None:
        if constructor.op.name in ORDER_KEEPING and len(constructor.tensors) == 1:
            place = self.position.get(row[constructor.tensors[0]])
            if place is not None:
                self.position[node] = place

    def values(self, node: int) -> list[Any]:
        """A node's arguments: `Ref`s in tensor positions, constants elsewhere."""
        constructor = self.constructors[self.kind[node]]
        return constructor.split(
            [
                self._refs[self.find(item)] if column == "t" else self.constants.value(item)
                for column, item in zip(constructor.columns, self.args[node], strict=True)
            ]
        )

    def children(self, node: int) -> list[int]:
        """Canonical ids of the classes a node reads, repeats included."""
        if self.kind[node] == LEAF:
            return []
        args = self.args[node]
        return [self.find(args[at]) for at in self.constructors[self.kind[node]].tensors]

    def _result(self, constructor: Constructor, row: tuple[int, ...]) -> int:
        metadata = self.metadata
        key = (
            constructor.index,
            *(
                self.meta[item] if column == "t" else item
                for column, item in zip(constructor.columns, row, strict=True)
            ),
        )

        def args() -> list[Any]:
            values, meta, constant = metadata.values, self.meta, self.constants.value
            return constructor.split(
                [
                    values[meta[item]] if column == "t" else constant(item)
                    for column, item in zip(constructor.columns, row, strict=True)
                ]
            )

        return metadata.call(constructor.op, key, args)

    def _append(
        self,
        kind: int,
        args: tuple[int, ...],
        meta: int,
        firing: int,
        source: fx.Node | None,
        level: int,
    ) -> int:
        node = len(self.kind)
        self.kind.append(kind)
        self.args.append(args)
        self.meta.append(meta)
        self.firing.append(firing)
        self.source.append(source)
        self.level.append(level)
        self._refs.append(Ref(node))
        self._parent.append(node)
        self._readers.append([])
        self.members.append([node])
        self.nodes_of.setdefault(kind, []).append(node)
        return node

    def rollback(self, size: int) -> None:
        """Forgets every node from id `size` on; none of them may have been merged."""
        for node in reversed(range(size, len(self.kind))):
            kind, args = self.kind[node], self.args[node]
            self._memo.pop((kind, *args), None)
            self.position.pop(node, None)
            self.nodes_of[kind].pop()
            if kind != LEAF:
                for at in self.constructors[kind].tensors:
                    self._readers[args[at]].pop()
        for column in (self.kind, self.args, self.meta, self.firing, self.source, self.level):
            del column[size:]
        for lists in (self._refs, self._parent, self._readers, self.members):
            del lists[size:]

    def union(self, left: int, right: int) -> bool:
        """Merges two classes; the smaller id stays canonical. False where they were one."""
        left, right = self.find(left), self.find(right)
        if left == right:
            return False
        if right < left:
            left, right = right, left
        self._parent[right] = left
        self.absorbed += 1
        self._stale.append(right)
        self._moved.update(self.kind[node] for node in self.members[right])
        self.members[left] += self.members[right]
        self.level[left] = max(self.level[left], self.level[right])
        place = self.position.get(right)
        if place is not None:
            self.position[left] = min(place, self.position.get(left, place))
        for places in (self.inputs, self.deciding):
            if right in places:
                places.add(left)
        return True

    def same_facts(self, left: int, right: int) -> bool:
        """Whether two nodes agree in shape, dtype and device (strides may differ)."""
        facts = self.metadata.facts
        return facts[self.meta[left]] == facts[self.meta[right]]

    def rehash(self) -> set[int]:
        """Renews the memo after unions, so that calls are looked up by canonical ids. Gives
        the kinds of the nodes that are, or read, in another class since the last time."""
        memo, renewed = self._memo, self._moved
        for old in self._stale:
            readers = self._readers[old]
            for node in readers:
                kind, args = self.kind[node], self.args[node]
                row = list(args)
                for at in self.constructors[kind].tensors:
                    row[at] = self.find(row[at])
                if memo.get((kind, *args)) == node:
                    del memo[(kind, *args)]
                key = (kind, *row)
                memo[key] = min(node, memo.get(key, node))
                self.args[node] = tuple(row)
                renewed.add(kind)
            self._readers[self.find(old)] += readers
        self._stale, self._moved = [], set()
        return renewed
