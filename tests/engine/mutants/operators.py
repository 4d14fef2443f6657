"""Mutation operators on expressions of the rule language.

Takes the text of an expression and what its names are; gives (operator, changed text) for
every place where an operator applies. The language is a part of Python's, so Python's `ast`
parses and prints it.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

DTYPES = {"f16": "f32", "bf16": "f32", "f32": "f64", "f64": "f32", "bool": "i64", "i64": "i32"}
_FUNCTIONS = {
    **{"minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin"},
    **{"sum": "mean", "mean": "sum", "eq": "ne", "ne": "eq", "tril": "triu", "triu": "tril"},
    **{"logical_and": "logical_or", "logical_or": "logical_and", "logical_xor": "logical_or"},
    **{"bitwise_and": "bitwise_or", "bitwise_or": "bitwise_xor", "bitwise_xor": "bitwise_or"},
    **{"exp": "expm1", "expm1": "exp", "log": "log1p", "log1p": "log", "sqrt": "rsqrt"},
    **{"rsqrt": "sqrt", "sin": "cos", "cos": "sin", "sigmoid": "tanh", "tanh": "sigmoid"},
    **{"relu": "abs", "abs": "relu", "erf": "tanh", "floor": "ceil", "ceil": "floor"},
    **{"round": "trunc", "trunc": "floor", "softmax": "log_softmax", "log_softmax": "softmax"},
    **{"silu": "sigmoid", "gelu": "silu", "reciprocal": "neg", "neg": "abs", "F.relu": "F.silu"},
    **{"F.silu": "F.gelu", "F.softmax": "F.log_softmax", "torch.rsqrt": "torch.sqrt"},
    **{"torch.exp": "torch.expm1", "min": "max", "max": "min", "clamp_min": "clamp_max"},
}
_STRICTNESS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Add,
    ast.Mod: ast.FloorDiv,
}
_CASTS = ("cast", "to")
_LAYOUT = ("view", "expand", "Tensor.view", "full")  # their numbers are sizes
_STORAGE = ("clone", "contiguous", "alias", "detach")  # change nothing but storage
_COMMUTING = (ast.Add, ast.Mult)
# What these say of a tensor does not depend on its values.
_FACTS = frozenset({"dtype", "shape", "rank", "size", "numel", "promoted"})

Change = tuple[str, ast.AST]


@dataclass(frozen=True)
class Names:
    """What the names of a rule are. `pieces` are those of `let`; `commuting` holds
    ops whose operands may be swapped."""

    tensors: Sequence[str]
    sizes: Sequence[str]
    constants: Sequence[str]
    pieces: Sequence[str] = ()
    commuting: frozenset[str] = field(default_factory=frozenset)


def mutations(text: str, names: Names) -> Iterator[tuple[str, str]]:
    """Every (operator, changed text), in reading order; no text twice."""
    tree = ast.parse(text.strip(), mode="eval").body
    seen = {ast.unparse(tree)}
    for node in _values(tree):
        for operator, changed in _changes(node, names):
            mutant = ast.unparse(_put(tree, node, changed))
            if mutant not in seen:
                seen.add(mutant)
                yield operator, mutant


def _values(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is below it, but for the arguments of facts about tensors and the names
    of functions."""
    yield node
    if isinstance(node, ast.Call):
        below: list[ast.AST] = [] if _is_fact(node) else [*node.args, *node.keywords]
    else:
        below = list(ast.iter_child_nodes(node))
    for child in below:
        yield from _values(child)


def _is_fact(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _FACTS


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """`tree` with `new` in the place of `old`."""

    def put(value: object) -> object:
        if value is old:
            return new
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, ast.AST):
            return type(value)(**{name: put(part) for name, part in ast.iter_fields(value)})
        return value

    result = put(tree)
    assert isinstance(result, ast.AST)
    return result


def _changes(node: ast.AST, names: Names) -> Iterator[Change]:
    if isinstance(node, ast.BinOp):
        yield from _of_binary(node)
    elif isinstance(node, ast.Call) and not _is_fact(node):
        for of_call in _OF_CALLS:
            yield from of_call(node, names)
    elif isinstance(node, ast.UnaryOp):
        yield "wrong-sign", node.operand
    elif isinstance(node, ast.Constant):
        yield from _of_number(node)
    elif isinstance(node, ast.Name):
        yield from _of_name(node, names)
    elif isinstance(node, ast.Tuple):
        yield from _of_tuple(node)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        other = ast.Constant(1 if node.slice.value == 0 else 0)
        yield "wrong-result", ast.Subscript(node.value, other, ast.Load())


def _of_binary(node: ast.BinOp) -> Iterator[Change]:
    if not isinstance(node.op, _COMMUTING):
        yield "swapped-operands", ast.BinOp(node.right, node.op, node.left)
    other = _BINARY.get(type(node.op))
    if other is not None:
        yield "wrong-operator", ast.BinOp(node.left, other(), node.right)
    yield "dropped-term", node.left
    yield "dropped-term", node.right


def _of_number(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if isinstance(value, int):
        yield "off-by-one", ast.Constant(value + 1)
        if value > 0:
            yield "off-by-one", ast.Constant(value - 1)
        return
    yield "wrong-constant", ast.Constant(value * 1.01 if value else 1.0)
    yield "wrong-constant", ast.Constant(value * 2.0 if value else -1.0)
    if value:
        yield "wrong-sign", ast.UnaryOp(ast.USub(), node)


def _of_name(node: ast.Name, names: Names) -> Iterator[Change]:
    if node.id in DTYPES:
        yield "wrong-dtype", ast.Name(DTYPES[node.id])
    for operator, group in (
        ("wrong-variable", names.tensors),
        ("wrong-size", names.sizes),
        ("wrong-attribute", names.constants),
    ):
        if node.id in group:
            place = list(group).index(node.id)
            other = group[(place + 1) % len(group)]
            if other != node.id:
                yield operator, ast.Name(other)


def _of_tuple(node: ast.Tuple) -> Iterator[Change]:
    items = node.elts
    for place in range(len(items) - 1):
        swapped = [*items[:place], items[place + 1], items[place], *items[place + 2 :]]
        yield "wrong-order", ast.Tuple(swapped, ast.Load())


def _fn(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _of_function(node: ast.Call, names: Names) -> Iterator[Change]:
    fn = _fn(node)
    for operator, table in (("wrong-function", _FUNCTIONS), ("wrong-strictness", _STRICTNESS)):
        if fn in table:
            yield operator, _call(node, fn=table[fn])


def _of_arguments(node: ast.Call, names: Names) -> Iterator[Change]:
    """Two neighbouring operands swapped; an op with one operand dropped."""
    fn = _fn(node)
    operands = [place for place, arg in enumerate(node.args) if _is_tensor(arg, names)]
    if fn == "cat" and len(node.args) > 1:
        yield "swapped-operands", _call(node, args=[*node.args[1:], node.args[0]])
    elif fn not in names.commuting and fn != "before":
        for first, second in itertools.pairwise(operands):
            args = list(node.args)
            args[first], args[second] = args[second], args[first]
            yield "swapped-operands", _call(node, args=args)
    if len(operands) == 1 and operands[0] == 0 and fn not in _STORAGE:
        operator = "dropped-cast" if fn in _CASTS else "dropped-op"
        yield operator, node.args[0]


def _of_keywords(node: ast.Call, names: Names) -> Iterator[Change]:
    for place, keyword in enumerate(node.keywords):
        rest = [*node.keywords[:place], *node.keywords[place + 1 :]]
        dropped = _call(node, keywords=rest)
        if keyword.arg is None:
            yield "dropped-attributes", dropped
            continue
        if keyword.arg == "keepdim":
            yield "missing-keepdim", dropped
            continue
        yield "default-attribute", dropped
        value = keyword.value
        if keyword.arg == "correction" and isinstance(value, ast.Constant):
            yield "biased-variance", _keyword(node, place, ast.Constant(1 - value.value))
        elif isinstance(value, ast.Constant) and isinstance(value.value, bool):
            yield "flipped-flag", _keyword(node, place, ast.Constant(not value.value))
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            other = "none" if value.value == "tanh" else "tanh"
            yield "wrong-attribute", _keyword(node, place, ast.Constant(other))


def _of_dims(node: ast.Call, names: Names) -> Iterator[Change]:
    """A negative dim moved to its neighbour; positive numbers are off-by-one's."""
    for place, keyword in enumerate(node.keywords):
        if keyword.arg == "dim" and isinstance(keyword.value, ast.UnaryOp):
            yield "wrong-dim", _keyword(node, place, ast.Constant(-2))
            yield "wrong-dim", _keyword(node, place, ast.Constant(0))
    for place, arg in enumerate(node.args):
        if place and ast.unparse(arg) == "-1":
            args = [*node.args[:place], ast.Constant(-2), *node.args[place + 1 :]]
            yield "wrong-dim", _call(node, args=args)


def _of_slices(node: ast.Call, names: Names) -> Iterator[Change]:
    """A bound of a slice that is no number, one off."""
    if _fn(node) not in ("slice", "torch.narrow", "slice_scatter"):
        return
    for place, arg in enumerate(node.args[2:], start=2):
        if not isinstance(arg, ast.Constant):
            moved = ast.BinOp(arg, ast.Add(), ast.Constant(1))
            yield (
                "off-by-one",
                _call(node, args=[*node.args[:place], moved, *node.args[place + 1 :]]),
            )
    for place, keyword in enumerate(node.keywords):
        if keyword.arg in ("start", "end") and not isinstance(keyword.value, ast.Constant):
            moved = ast.BinOp(keyword.value, ast.Add(), ast.Constant(1))
            yield "off-by-one", _keyword(node, place, moved)


def _of_roots(node: ast.Call, names: Names) -> Iterator[Change]:
    """The small addend that keeps a root from dividing by zero, moved out of it."""
    match node:
        case ast.Call(args=[ast.BinOp(left=left, op=ast.Add(), right=right)]) if _fn(node) in (
            "rsqrt",
            "sqrt",
        ):
            yield "moved-eps", ast.BinOp(_call(node, args=[left]), ast.Add(), right)


def _of_casts(node: ast.Call, names: Names) -> Iterator[Change]:
    """Computing in the dtype of the inputs, and results in another dtype."""
    if _fn(node) not in _CASTS or len(node.args) != 2:
        return
    match node.args[1]:
        case ast.Call(func=ast.Name(id="promoted"), args=[first, *_]):
            yield "wrong-dtype", _call(node, args=[node.args[0], first])
        case ast.Call(func=ast.Name(id="dtype")):
            yield "wrong-dtype", _call(node, args=[node.args[0], ast.Name("f32")])
        case ast.Name():
            yield "wrong-dtype", _call(node, args=[node.args[0], ast.Name("f16")])


def _of_convolutions(node: ast.Call, names: Names) -> Iterator[Change]:
    """One of the attributes that `**how` takes along, set to something else."""
    if _fn(node) == "convolution" and any(keyword.arg is None for keyword in node.keywords):
        for text in ("stride=(2, 2)", "padding=(1, 1)", "dilation=(2, 2)", "groups=2"):
            keyword = ast.parse(f"f({text})", mode="eval").body
            assert isinstance(keyword, ast.Call)
            yield "wrong-attribute", _call(node, keywords=[*node.keywords, *keyword.keywords])


_OF_CALLS: tuple[Callable[[ast.Call, Names], Iterator[Change]], ...] = (
    _of_function,
    _of_arguments,
    _of_keywords,
    _of_dims,
    _of_slices,
    _of_roots,
    _of_casts,
    _of_convolutions,
)


def _is_tensor(node: ast.AST, names: Names) -> bool:
    """Whether an argument is a tensor, or the result of an op."""
    if isinstance(node, ast.Name):
        return node.id in (*names.tensors, *names.pieces)
    return (
        not _is_fact(node)
        and isinstance(node, (ast.Call, ast.BinOp, ast.Subscript))
        and any(
            isinstance(part, ast.Name) and part.id in (*names.tensors, *names.pieces)
            for part in ast.walk(node)
        )
    )


def _call(
    node: ast.Call,
    fn: str | None = None,
    args: list[ast.expr] | None = None,
    keywords: list[ast.keyword] | None = None,
) -> ast.Call:
    func = node.func if fn is None else ast.parse(fn, mode="eval").body
    return ast.Call(
        func, node.args if args is None else args, node.keywords if keywords is None else keywords
    )


def _keyword(node: ast.Call, place: int, value: ast.expr) -> ast.Call:
    keywords = list(node.keywords)
    keywords[place] = ast.keyword(keywords[place].arg, value)
    return _call(node, keywords=keywords)
