"""Graphs as expressions of the rule language.

Takes the same program encoded at two sets of sizes, and what may stand for a number that
differs between the two; gives the text of its outputs, with names for shared parts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .dtypes import DTYPES, word_of
from .egraph import LEAF, EGraph, Ref
from .encode import Encoding
from .evaluate import operator_op
from .op import Op, Param

_ATOM, _POWER, _SIGN, _TERM, _SUM = 5, 4, 3, 2, 1
_OPERATORS = {"**": _POWER, "*": _TERM, "/": _TERM, "+": _SUM, "-": _SUM}
_MOST_FACTORS = 4
_IDENTITIES = frozenset({"view", "expand", "clone"})  # where the sizes stay the same


class SpellError(ValueError):
    """A program that rules cannot say; the text says what and where."""


@dataclass(frozen=True)
class Text:
    """An expression and how tightly it binds."""

    text: str
    strength: int = _ATOM

    def inside(self, least: int) -> str:
        return self.text if self.strength >= least else f"({self.text})"


@dataclass(frozen=True)
class Numbers:
    """Names of sizes and constants with the value that each has in either program."""

    sizes: Mapping[str, tuple[int, int]]
    constants: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def spell(self, pair: tuple[Any, Any]) -> Text:
        """A number that is `pair[0]` in one program and `pair[1]` in the other. Raises
        SpellError where no short expression says it."""
        if type(pair[0]) is type(pair[1]) and repr(pair[0]) == repr(pair[1]):
            return _literal(pair[0])
        if isinstance(pair[0], int) and isinstance(pair[1], int):
            found = self._whole((pair[0], pair[1]))
        else:
            found = self._real((float(pair[0]), float(pair[1])))
        if found is None:
            raise SpellError(f"the number {pair[0]} depends on sizes in a way rules cannot say")
        return found

    def _whole(self, pair: tuple[int, int]) -> Text | None:
        for text, value in self._terms():
            if value == pair:
                return text
        for text, (one, two) in self._terms():
            if not one or not two:
                continue
            if pair[0] % one == pair[1] % two == 0 and pair[0] // one == pair[1] // two:
                return Text(f"{pair[0] // one} * {text.inside(_POWER)}", _TERM)
            if pair[0] and one % pair[0] == two % pair[1] == 0:
                share = one // pair[0]
                if share == two // pair[1]:
                    return Text(f"{text.inside(_TERM)} // {share}", _TERM)
            if pair[0] - one == pair[1] - two:
                sign, gap = ("+", pair[0] - one) if pair[0] > one else ("-", one - pair[0])
                return Text(f"{text.text} {sign} {gap}", _SUM)
        return None

    def _terms(self) -> Iterator[tuple[Text, tuple[int, int]]]:
        """Sizes, then products, sums, differences and quotients of them."""
        sizes = list(self.sizes.items())
        for name, value in sizes:
            yield Text(name), value
        for count in range(2, _MOST_FACTORS + 1):
            for group in itertools.combinations_with_replacement(sizes, count):
                values = [value for _, value in group]
                product = (math.prod(v[0] for v in values), math.prod(v[1] for v in values))
                yield Text(" * ".join(name for name, _ in group), _TERM), product
        for count in range(2, _MOST_FACTORS + 1):
            for group in itertools.combinations_with_replacement(sizes, count):
                values = [value for _, value in group]
                total = (sum(v[0] for v in values), sum(v[1] for v in values))
                yield Text(" + ".join(name for name, _ in group), _SUM), total
        for (left, a), (right, b) in itertools.permutations(sizes, 2):
            yield Text(f"{left} - {right}", _SUM), (a[0] - b[0], a[1] - b[1])
            if all(b):
                yield Text(f"{left} // {right}", _TERM), (a[0] // b[0], a[1] // b[1])

    def _real(self, pair: tuple[float, float]) -> Text | None:
        for name, value in self.constants.items():
            for text, form in _REAL_FORMS:
                if _same(pair, value, form):
                    return Text(text.text.format(name), text.strength)
        for size, whole in self._terms():
            for text, form in _REAL_FORMS:
                if _same(pair, whole, form):
                    return Text(text.text.format(size.inside(_ATOM)), text.strength)
        return None


_REAL_FORMS: Sequence[tuple[Text, Callable[[float], float]]] = (
    (Text("{}"), lambda x: x),
    (Text("-{}", _SIGN), lambda x: -x),
    (Text("{} ** 0.5", _POWER), lambda x: x**0.5),
    (Text("{} ** -0.5", _POWER), lambda x: x**-0.5),
    (Text("1 / {} ** 0.5", _TERM), lambda x: 1 / x**0.5),
    (Text("1 / {}", _TERM), lambda x: 1 / x),
    (Text("1 - {}", _SUM), lambda x: 1 - x),
    (Text("1 + {}", _SUM), lambda x: 1 + x),
    (Text("{} ** 2", _POWER), lambda x: x**2),
    (Text("{} ** -0.25", _POWER), lambda x: x**-0.25),
    (Text("1 / (1 - {})", _TERM), lambda x: 1 / (1 - x)),
    (Text("{}"), lambda x: torch.tensor(x, dtype=torch.float32).item()),  # torch rounds eps
)


def _same(
    pair: tuple[float, float], value: tuple[float, float], form: Callable[[float], float]
) -> bool:
    try:
        return pair == (form(value[0]), form(value[1]))
    except (ArithmeticError, TypeError):
        return False


def _literal(value: Any) -> Text:
    if isinstance(value, torch.dtype):
        if value not in DTYPES.values():
            raise SpellError(f"rules have no word for {value}")
        return Text(word_of(value))
    if isinstance(value, bool) or value is None:
        return Text(repr(value))
    if isinstance(value, int | float):
        return Text(repr(value), _SIGN if math.copysign(1, value) < 0 else _ATOM)
    if isinstance(value, str):
        return Text(repr(value))
    raise SpellError(f"rules cannot say the argument {value!r}")


@dataclass(frozen=True)
class Spelled:
    """`lets` are named parts in order, `roots` the outputs. `used` are the inputs read."""

    roots: tuple[str, ...]
    lets: Mapping[str, str]
    used: frozenset[str]


class Speller:
    """Spells one program that was encoded twice, in step."""

    def __init__(
        self,
        encodings: tuple[Encoding, Encoding],
        names: Mapping[str, str],
        numbers: Numbers,
        torch_level: bool = False,
    ) -> None:
        self.graphs: tuple[EGraph, EGraph] = (encodings[0].graph, encodings[1].graph)
        self.encodings = encodings
        self.names = names
        self.numbers = numbers
        self.operators = {operator_op(sign, torch_level): sign for sign in _OPERATORS}
        self.negation = operator_op("neg", torch_level)
        self.texts: dict[int, Text] = {}
        self.used: set[str] = set()

    def spell(self, let: Callable[[], str] | None = None) -> Spelled:
        """The outputs. Parts that are read twice are named by `let`, where there is one.

        Raises SpellError for what rules cannot say.
        """
        outputs = [_outputs(encoding) for encoding in self.encodings]
        if len(outputs[0]) != len(outputs[1]):
            raise SpellError("it has another number of results at other sizes")
        pairs = list(zip(*outputs, strict=True))
        shared = self._shared([one for one, _ in pairs]) if let is not None else set()
        lets: dict[str, str] = {}
        for place, pair in enumerate(self._order(pairs)):
            self._compare(pair, place)
            text = self._node(pair)
            if pair[0] in shared and let is not None and not text.text.isidentifier():
                name = let()
                lets[name] = text.text
                text = Text(name)
            self.texts[pair[0]] = text
        roots = tuple(self.texts[one].text for one, _ in pairs)
        return Spelled(roots, lets, frozenset(self.used))

    def _order(self, roots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The nodes of both programs in step, operands first."""
        done: dict[int, tuple[int, int]] = {}
        waiting = list(reversed(roots))
        while waiting:
            pair = waiting[-1]
            children = [graph.children(node) for graph, node in zip(self.graphs, pair, strict=True)]
            if len(children[0]) != len(children[1]):
                raise SpellError("it does something else at other sizes")
            missing = [c for c in zip(*children, strict=True) if c[0] not in done]
            if pair[0] in done or not missing:
                waiting.pop()
                done.setdefault(pair[0], pair)
            else:
                waiting += reversed(missing)
        return list(done.values())

    def _shared(self, roots: Sequence[int]) -> set[int]:
        graph = self.graphs[0]
        readers: dict[int, int] = {}
        for node in range(len(graph)):
            for child in graph.children(node):
                readers[child] = readers.get(child, 0) + 1
        for root in roots:
            readers[root] = readers.get(root, 0) + 1
        return {node for node, count in readers.items() if count > 1 and graph.kind[node] != LEAF}

    def _compare(self, pair: tuple[int, int], place: int) -> None:
        kinds = [graph.kind[node] for graph, node in zip(self.graphs, pair, strict=True)]
        if LEAF in kinds and kinds[0] == kinds[1]:
            return
        if LEAF in kinds or _shown(self.graphs[0], kinds[0]) != _shown(self.graphs[1], kinds[1]):
            raise SpellError(f"its op {place + 1} is another one at other sizes")

    def _node(self, pair: tuple[int, int]) -> Text:
        graph = self.graphs[0]
        if graph.kind[pair[0]] == LEAF:
            return self._leaf(graph.source[pair[0]])
        op = graph.constructors[graph.kind[pair[0]]].op
        both = [graph.values(node) for graph, node in zip(self.graphs, pair, strict=True)]
        values = list(zip(*both, strict=True))
        same = self._same_value(op, pair)
        if same is None and op.name == "view":
            values[0] = self._unviewed(values[0])
        return same or self._operator(op, values) or Text(self._call(op, values))

    def _leaf(self, source: fx.Node | None) -> Text:
        if source is None or source.op != "placeholder":
            raise SpellError(_cannot(source))
        name = self.names.get(source.name, "")
        if not name:
            raise SpellError(f"it reads a tensor that is no parameter ({source.name})")
        self.used.add(name)
        return Text(name)

    def _same_value(self, op: Op, pair: tuple[int, int]) -> Text | None:
        """The operand of a view, expand or copy that changes no size, as the same value."""
        if op.name not in _IDENTITIES:
            return None
        for graph, node in zip(self.graphs, pair, strict=True):
            if not graph.same_facts(graph.children(node)[0], node):
                return None
        return self.texts[self.graphs[0].children(pair[0])[0]]

    def _unviewed(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """What a view views, past other views: they are one view to every rule."""
        while True:
            nodes = [value.id for value in pair]
            kinds = [graph.kind[node] for graph, node in zip(self.graphs, nodes, strict=True)]
            if LEAF in kinds or self.graphs[0].constructors[kinds[0]].op.name != "view":
                return pair
            both = [graph.values(node)[0] for graph, node in zip(self.graphs, nodes, strict=True)]
            pair = (both[0], both[1])

    def _operator(self, op: Op, values: Sequence[tuple[Any, Any]]) -> Text | None:
        rest = zip(values[2:], op.params[2:], strict=True)
        if op.name == "getitem":
            return Text(f"{self._argument(values[0]).inside(_ATOM)}[{values[1][0]}]")
        if op.name == self.negation:
            return Text(f"-{self._argument(values[0]).inside(_SIGN)}", _SIGN)
        sign = self.operators.get(op.name)
        if sign is None or any(value[0] != param.default for value, param in rest):
            return None
        strength = _OPERATORS[sign]
        left, right = (self._argument(value) for value in values[:2])
        if sign == "**":
            return Text(f"{left.inside(_ATOM)} ** {right.inside(_ATOM)}", strength)
        return Text(f"{left.inside(strength)} {sign} {right.inside(strength + 1)}", strength)

    def _call(self, op: Op, values: Sequence[tuple[Any, Any]]) -> str:
        parts: list[str] = []
        gap = False
        for param, value in zip(op.params, values, strict=True):
            if param.name == "device" or (not param.required and _is_default(value, param)):
                gap = True
                continue
            text = self._attribute(op, param, value, values[0][0])
            by_name = gap or (param.kind != "tensor" and not param.required) or param.kind == "dim"
            parts.append(f"{param.name}={text}" if by_name else text)
            gap = gap or by_name
        return f"{op.name}({', '.join(parts)})"

    def _attribute(self, op: Op, param: Param, value: tuple[Any, Any], first: Any) -> str:
        """An argument; dims are counted from the end where that says less about the rank."""
        counted = param.kind == "dim" or (param.kind == "dims" and param.reduces)
        if not counted or value[0] is None or value[0] != value[1]:
            return self._argument(value).text
        tensor = first[0] if isinstance(first, list) else first
        meta = self.graphs[0].metadata.values[self.graphs[0].meta[tensor.id]]
        rank = meta.dim() + (op.name == "stack")
        if isinstance(value[0], tuple):
            return _sequence([str(dim - rank) for dim in value[0]])
        return str(value[0] - rank)

    def _argument(self, pair: tuple[Any, Any]) -> Text:
        one, two = pair
        if isinstance(one, Ref):
            return self.texts[one.id]
        if isinstance(one, list | tuple) and isinstance(two, list | tuple):
            if len(one) != len(two):
                raise SpellError("a list in it has another length at other sizes")
            return Text(_sequence([self._argument(p).text for p in zip(one, two, strict=True)]))
        return self.numbers.spell(pair)


def _shown(graph: EGraph, kind: int) -> tuple[str, tuple[str, ...]]:
    constructor = graph.constructors[kind]
    return constructor.op.name, constructor.kinds


def _is_default(value: tuple[Any, Any], param: Param) -> bool:
    return not isinstance(value[0], Ref | list) and all(
        type(one) is type(param.default) and one == param.default for one in value
    )


def _sequence(parts: Sequence[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _outputs(encoding: Encoding) -> list[int]:
    """The nodes of the results. Raises SpellError for an op that is kept as it is."""
    if encoding.opaque:
        raise SpellError(_cannot(encoding.opaque[0]))
    if encoding.output is None:
        raise SpellError("it returns nothing")
    results = encoding.output.args[0]
    listed = results if isinstance(results, list | tuple) else [results]
    found = []
    for node in listed:
        if not isinstance(node, fx.Node) or node not in encoding.classes:
            raise SpellError(f"it returns {node}, which is no tensor")
        found.append(encoding.graph.find(encoding.classes[node]))
    return found


def _cannot(node: fx.Node | None) -> str:
    """Why an FX node has no spelling, with the user's line."""
    if node is None:
        return "a part of it comes from nowhere"
    places = re.findall(r'File "([^"]+)", line (\d+)', str(node.meta.get("stack_trace") or ""))
    where = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    if node.op == "get_attr":
        return f"it reads the constant tensor {node.target}; make it a parameter{where}"
    name = str(node.target)
    if "copy_" in name or name.removesuffix(".default").endswith("_"):
        return f"it writes in place ({name}){where}"
    return f"rules have no op for {name}{where}"
