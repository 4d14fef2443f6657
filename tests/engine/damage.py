"""Damaged rule files: four ways to change a text of rules, from single bytes to expressions.

Takes a random generator and a text; gives the changed text. Nothing here knows what makes a rule
right or wrong: the loader has to find that out.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

import yaml

from eqsat.engine.load import RULES

Damage = Callable[[Random, str], str]

_BYTES = [
    *b"()[]{}:,.*&!|>'\"#%@-=?\t\n\r \\0\x00\x7f\xc3\xff",
    *"\N{CYRILLIC SMALL LETTER HA}".encode(),
]
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_TOKENS = (
    *("...", "**how", "**", "- ", "x: ", "'", '"', "float[...]", "const", "-1", "1e999", "0x10"),
    *("None", "not", "and", "in", "==", "<<", "---", "&a", "*a", "|", ">", "!!int", "{}", "[]"),
)
_NUMBERS = (0, 1, -1, 2, 7, -9, 255, 2**31, 2**63, 10**40, 0.5, -0.0, 1e308, True, False, None)
_KEYS = ("x", "when", "f32", "\N{FULLWIDTH LATIN SMALL LETTER X}")
_WORDS = ("float", "int", "num", "any", "bool", "f32", "i64", "c64", "list", "const")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
# Fields that hold expressions, alone or in lists or maps.
_EXPRESSIONS = ("match", "make", "let", "when", "assumes", "gain", "means", "scalar", "as", "args")


@lru_cache(maxsize=4)
def entries(start: str = "- ") -> tuple[str, ...]:
    """Every entry of the built-in rules that starts so, as text."""
    found: list[str] = []
    for path in sorted(RULES.rglob("*.yaml")):
        if path.name != "schedule.yaml" and path.parent.name != "targets":
            chunks = re.split(r"(?m)^(?=- )", path.read_text())
            found += [chunk for chunk in chunks if chunk.startswith(start)]
    return tuple(found)


def change_bytes(random: Random, text: str) -> str:
    """Some bytes replaced, put in or taken out. What is no UTF-8 comes as surrogates."""
    data = bytearray(text.encode(errors="surrogateescape"))
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(data))
        data[place : place + random.randint(0, 3)] = bytes(
            random.choice(_BYTES) for _ in range(random.randint(0, 2))
        )
    return bytes(data).decode(errors="surrogateescape")


def change_tokens(random: Random, text: str) -> str:
    """Words and signs exchanged, doubled, dropped, or replaced by others."""
    tokens = _TOKEN.findall(text)
    for _ in range(random.randint(1, 3)):
        place, other = random.randrange(len(tokens)), random.randrange(len(tokens))
        match random.randrange(4):
            case 0:
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case 1:
                tokens.insert(place, tokens[other])
            case 2:
                tokens[place] = random.choice(_TOKENS)
            case _:
                tokens[place] = ""
    return "".join(tokens)


def change_tree(random: Random, text: str) -> str:
    """Fields and items dropped, doubled, renamed, exchanged, or of another form."""
    tree = _tree(text)
    for _ in range(random.randint(1, 3)):
        holders = [holder for holder in _holders(tree) if len(holder) > 0]
        holder, other = random.choice(holders), random.choice(holders)
        key, other_key = _any_key(random, holder), _any_key(random, other)
        match random.randrange(6):
            case 0:
                del holder[key]
            case 1:
                holder[key], other[other_key] = other[other_key], holder[key]
            case 2:
                holder[key] = copy.deepcopy(other[other_key])
            case 3:
                holder[key] = random.choice(([], {}, "", [holder[key]], {"x": holder[key]}))
            case 4 if isinstance(holder, dict):
                holder[str(random.choice((other_key, *_KEYS)))] = holder.pop(key)
            case _:
                holder[key] = str(random.choice((*_NUMBERS, *_TOKENS)))
        if not tree:
            break
    return _written(tree)


def change_expressions(random: Random, text: str) -> str:
    """Sub-expressions and types exchanged, dropped, or changed in names and numbers."""
    tree = _tree(text)
    places = [place for entry in tree for place in _expressions(entry)]
    if not places:  # a list of decompositions has none
        return change_tokens(random, text)
    for _ in range(random.randint(1, 2)):
        holder, key = random.choice(places)
        if not isinstance(holder[key], str):
            continue
        if holder is tree[0].get("vars"):
            holder[key] = _change_type(random, holder[key])
        else:
            other_holder, other_key = random.choice(places)
            holder[key] = _change_expression(random, holder[key], other_holder[other_key])
    return _written(tree)


DAMAGES: Mapping[str, Damage] = {
    "bytes": change_bytes,
    "tokens": change_tokens,
    "tree": change_tree,
    "expressions": change_expressions,
}


def _tree(text: str) -> list[Any]:
    return list(yaml.load(text, Loader=yaml.BaseLoader))  # BaseLoader makes nothing but texts


def _written(tree: Any) -> str:
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=1000))


def _holders(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [tree, *(found for value in tree.values() for found in _holders(value))]
    if isinstance(tree, list):
        return [tree, *(found for value in tree for found in _holders(value))]
    return []


def _any_key(random: Random, holder: Any) -> Any:
    return (
        random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
    )


def _expressions(entry: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Places of expressions and types, as (holder, key)."""
    found: list[tuple[Any, Any]] = []
    for field in (*_EXPRESSIONS, "vars"):
        value = entry.get(field)
        if isinstance(value, dict):
            found += [(value, key) for key in value]
        elif isinstance(value, list):
            found += [(value, at) for at in range(len(value))]
        elif value is not None:
            found.append((entry, field))
    return found


def _change_type(random: Random, text: str) -> str:
    word, bracket, inside = text.partition("[")
    dims = [dim.strip() for dim in inside.removesuffix("]").split(",")] if bracket else []
    match random.randrange(4):
        case 0:
            word = random.choice(_WORDS)
        case 1 if dims:
            dims[random.randrange(len(dims))] = random.choice(("...", "n", "2 * n", "3", "0", "m"))
        case 2 if dims:
            dims.pop(random.randrange(len(dims)))
        case _:
            dims.append(random.choice(("n", "k", "4")))
    return f"{word}[{', '.join(dims)}]" if dims or bracket else word


def _change_expression(random: Random, text: str, other: Any) -> str:
    try:
        tree = ast.parse(text, mode="eval")
        donor = ast.parse(other if isinstance(other, str) else "x", mode="eval")
    except SyntaxError:
        return text
    change = _Change(random, [node for node in ast.walk(donor) if isinstance(node, ast.expr)])
    return ast.unparse(ast.fix_missing_locations(change.once(tree)))


class _Change(ast.NodeTransformer):
    """Changes one node of an expression."""

    def __init__(self, random: Random, donors: list[ast.expr]) -> None:
        self.random = random
        self.donors = donors
        self.chosen: ast.AST | None = None

    def once(self, tree: ast.Expression) -> ast.Expression:
        self.chosen = self.random.choice(
            [n for n in ast.walk(tree.body) if isinstance(n, ast.expr)]
        )
        changed = self.visit(tree)
        assert isinstance(changed, ast.Expression)
        return changed

    def visit(self, node: ast.AST) -> ast.AST:
        return self._changed(node) if node is self.chosen else self.generic_visit(node)

    def _changed(self, node: Any) -> ast.AST:
        random = self.random
        if random.random() < 0.3:
            return copy.deepcopy(random.choice(self.donors))
        match node:
            case ast.Call(args=args, keywords=keywords):
                match random.randrange(5):
                    case 0 if args:
                        args.pop(random.randrange(len(args)))
                    case 1 if args:
                        args.append(copy.deepcopy(random.choice(args)))
                    case 2 if keywords:
                        keywords.pop(random.randrange(len(keywords)))
                    case 3 if args:
                        random.shuffle(args)
                    case _:
                        node.func = ast.parse(random.choice(_functions()), mode="eval").body
            case ast.BinOp():
                node.op = random.choice(_OPERATORS)()
                if random.random() < 0.3:
                    node.left, node.right = node.right, node.left
            case ast.Compare(ops=ops):
                ops[random.randrange(len(ops))] = random.choice(_COMPARISONS)()
            case ast.Constant():
                node.value = random.choice(_NUMBERS)
            case ast.Tuple(elts=elts) | ast.List(elts=elts) if elts:
                elts.pop(random.randrange(len(elts)))
            case _:
                return ast.Constant(random.choice(_NUMBERS))
        return node


@lru_cache(maxsize=1)
def _functions() -> tuple[str, ...]:
    """What the built-in rules call."""
    words = {word for entry in entries() for word in re.findall(r"\b([A-Za-z_][\w.]*)\(", entry)}
    return tuple(sorted(word for word in words if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", word)))
