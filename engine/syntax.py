"""The expression language of rule files: text to `Expr`.

Takes a text and its place; gives frozen trees in which every node knows its span. Python's
`ast` does the reading, a whitelist decides what belongs to the language. Comparisons and
`and`/`or`/`not` parse everywhere; `load` refuses them outside conditions. Depth, size and
numbers are bounded, so that nothing that walks an expression later needs a bound of its own.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .expr import (
    Binary,
    Call,
    Compare,
    Expr,
    Field,
    Item,
    Literal,
    Logic,
    Name,
    Negative,
    Not,
    Sequence,
    Span,
)
from .rule import DTYPE_WORDS
from .source import Diagnostic, LinePlace, Place, RuleErrors, fail, look_alikes

DEPTH = 60  # how deep an expression may be nested
NODES = 1000  # and how many parts it may have
LARGEST = 2**63 - 1  # torch's whole numbers have 64 bits
FLOAT_WORDS = {"inf": math.inf, "nan": math.nan}
DTYPES = DTYPE_WORDS["any"]

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.And: "and",
    ast.Or: "or",
}

# What people write from habit, and what to write instead.
_REFUSED: dict[type[ast.AST], tuple[str, str | None]] = {
    ast.IfExp: ("'x if c else y' is not part of the rule language", "write where(c, x, y)"),
    ast.Lambda: ("lambda is not part of the rule language", None),
    ast.ListComp: ("comprehensions are not part of the rule language", "each(op, xs) maps"),
    ast.GeneratorExp: ("comprehensions are not part of the rule language", "each(op, xs) maps"),
    ast.NamedExpr: ("':=' is not part of the rule language", "name pieces in 'let'"),
    ast.Dict: ("braces are not part of the rule language", None),
    ast.Set: ("braces are not part of the rule language", None),
    ast.JoinedStr: ("f-strings are not part of the rule language", None),
    ast.Starred: ("'*xs' is not part of the rule language", "pass the list itself"),
    ast.MatMult: ("'@' is not part of the rule language", "write matmul(x, y)"),
    ast.BitAnd: ("'&' is not part of the rule language", "'and' in conditions, bitwise_and(x, y)"),
    ast.BitOr: ("'|' is not part of the rule language", "'or' in conditions, bitwise_or(x, y)"),
    ast.BitXor: ("'^' is not part of the rule language", "a power is '**'"),
    ast.LShift: ("'<<' is not part of the rule language", None),
    ast.RShift: ("'>>' is not part of the rule language", None),
    ast.Invert: ("'~' is not part of the rule language", "'not' in conditions, or an op"),
    ast.Is: ("'is' is not part of the rule language", "write =="),
    ast.IsNot: ("'is not' is not part of the rule language", "write !="),
    ast.Slice: ("slices are not part of the rule language", "write slice(x, dim=, start=, end=)"),
    ast.Await: ("'await' is not part of the rule language", None),
    ast.Yield: ("'yield' is not part of the rule language", None),
}

_HABITS = (
    ("&&", "'&&' is not part of the rule language", "write 'and'"),
    ("||", "'||' is not part of the rule language", "write 'or'"),
    ("?", "'?' is not part of the rule language", "write where(c, x, y)"),
    ("!", "'!' is not part of the rule language", "write 'not' or '!='"),
    ("$", "'$' is for templates only", "write the name alone"),
    ("->", "'->' is not part of an expression", "the right side goes to 'make'"),
    (";", "';' is not part of an expression", None),
)
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
# Python reads `1and` as `1 and`, with a warning that no rule author should see.
_GLUED = re.compile(r"(?<![\w.])\d[\d_.]*(?:and|or|in|is|if|else|not|for)\b")
_BRACKET = re.compile(r"[()\[\]{}]")


def parse(text: str, place: Span | Place) -> Expr:
    """The expression in `text`, which stands at `place`.

    Raises RuleErrors (E2xx) with the offending token's span where `text` is not one.
    """
    where = LinePlace(place) if isinstance(place, Span) else place
    if (
        text.isidentifier()
        and text.isascii()
        and not keyword.iskeyword(text)
        and text not in FLOAT_WORDS
    ):
        return Name(text, span=where.at(0, len(text)))  # most texts are a size letter
    return _Reader(text, where).read()


def parse_signature(text: str, place: Span | Place) -> tuple[tuple[str, Expr | None], ...]:
    """The arguments of an op: `x, dim, keepdim=False, **how` to (name, default) pairs.

    The default is None where the argument is required; `**how` gives the pair
    ("**how", None). Raises RuleErrors.
    """
    where = LinePlace(place) if isinstance(place, Span) else place
    reader = _Reader(text, where, wrap=("args(", "\n)"))
    call = reader.read()
    if not isinstance(call, Call):
        raise fail(where.at(0, len(text)), "E206", "not a list of arguments")
    pairs: list[tuple[str, Expr | None]] = []
    for arg in call.args:
        if not isinstance(arg, Name):
            raise fail(arg.span, "E206", "an argument is a name, or name=default")
        pairs.append((arg.id, None))
    for _, value in call.kwargs:
        _check_default(value)
    pairs.extend(call.kwargs)
    if call.how:
        pairs.append((f"**{call.how}", None))
    return tuple(pairs)


def _check_default(value: Expr) -> None:
    """Nothing is bound where a default is read."""
    match value:
        case Literal() | Negative(value=Literal()):
            return
        case Name(id=word) if word in DTYPES:
            return
        case Sequence(items=items):
            for item in items:
                _check_default(item)
            return
    raise fail(value.span, "E206", "a default is a constant: None, 0, 1.5, 'text', f32, (0, 1)")


def _parts(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, not more than decide whether there are too many."""
    return itertools.islice(ast.walk(tree), 4 * NODES)


def _blank(found: re.Match[str]) -> str:
    return "_" * len(found.group())


class _Reader:
    """Reads one text. The text is wrapped in brackets, so that it may span several lines."""

    def __init__(self, text: str, place: Place, wrap: tuple[str, str] = ("(", "\n)")) -> None:
        self.text = text
        self.place = place
        self.wrap = wrap
        self.lines = text.split("\n")
        self.plain = len(self.lines) == 1 and text.isascii()
        self.errors: list[Diagnostic] = []
        self.depth = 0

    def read(self) -> Expr:
        if not self.text.strip() and self.wrap[0] == "(":
            raise fail(self.place.at(0, 1), "E201", "empty expression")
        self._check_letters()
        self._check_brackets()
        glued = _GLUED.search(self._without_strings())
        if glued is not None:
            span = self.place.at(glued.start(), len(glued.group()))
            raise fail(span, "E203", "this is not an expression", "a space after the number")
        try:
            tree = ast.parse(f"{self.wrap[0]}{self.text}{self.wrap[1]}", mode="eval")
        except SyntaxError as error:
            if "too many" in error.msg or "Exceeds the limit" in error.msg:  # brackets, digits
                raise self._too_large() from None
            self._explain(error)
        except (ValueError, RecursionError, MemoryError):
            raise self._too_large() from None
        # A part takes a letter at least, so that few texts have to be counted.
        if (
            len(self.text) > NODES
            and sum(isinstance(node, ast.expr) for node in _parts(tree)) > NODES
        ):
            raise self._too_large()
        expr = self.convert(tree.body)
        if self.errors:
            raise RuleErrors(self.errors)
        return expr

    def _too_large(self) -> RuleErrors:
        return fail(
            self.place.at(0, 1), "E205", "this expression is too large", "name parts of it in 'let'"
        )

    def _offset(self, line: int, column: int) -> int:
        """The offset in `text` of a place that `ast` gave (columns count bytes)."""
        if self.plain and line == 1:
            return max(0, column - len(self.wrap[0]))
        if line > len(self.lines):
            return len(self.text)
        if line == 1:
            column = max(0, column - len(self.wrap[0]))
        here = self.lines[line - 1]
        if not here.isascii():
            column = len(here.encode()[:column].decode(errors="ignore"))
        return sum(len(text) + 1 for text in self.lines[: line - 1]) + column

    def span(self, node: Any) -> Span:
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno, node.end_col_offset)
        length = end - start if self.plain else len(self.text[start:end].split("\n")[0])
        return self.place.at(start, max(1, length))

    def refuse(self, node: Any, message: str, hint: str | None = None) -> NoReturn:
        raise fail(self.span(node), "E202", message, hint)

    def _check_letters(self) -> None:
        """Python would read a name of look-alike letters as another name."""
        strange = re.search(r"[^\W\d]*[^\x00-\x7f]\w*", self._without_strings())
        if strange is not None:
            span = self.place.at(strange.start(), len(strange.group()))
            hint = look_alikes(strange.group())[0]
            raise fail(span, "E207", "an expression is written in ASCII letters", hint)

    def _check_brackets(self) -> None:
        """Own check: `ast` would report the bracket that this class added."""
        text = self._without_strings()
        opened: list[int] = []
        pairs = {")": "(", "]": "[", "}": "{"}
        for found in _BRACKET.finditer(text):
            offset, letter = found.start(), found.group()
            if letter not in pairs:
                opened.append(offset)
            elif not opened or text[opened.pop()] != pairs[letter]:
                raise fail(self.place.at(offset, 1), "E204", f"'{letter}' closes nothing")
        if opened:
            letter = text[opened[-1]]
            raise fail(self.place.at(opened[-1], 1), "E204", f"'{letter}' is never closed")

    def _without_strings(self) -> str:
        """The text with strings and comments blanked, at the same offsets."""
        if not re.search(r"['\"#]", self.text):
            return self.text
        return re.sub(r"#.*", _blank, _STRING.sub(_blank, self.text))

    def _explain(self, error: SyntaxError) -> NoReturn:
        text = self._without_strings()
        for habit, message, hint in _HABITS:
            offset = text.find(habit)
            if offset >= 0 and not (habit == "!" and text[offset : offset + 2] == "!="):
                raise fail(self.place.at(offset, len(habit)), "E202", message, hint) from None
        flat, inner = text, None
        while flat != inner:  # blank what stands in brackets, where '=' names an argument
            flat, inner = re.sub(r"\([^()]*\)", _blank, flat), flat
        single = re.search(r"(?<![=!<>:])=(?!=)", flat)
        if single:
            span = self.place.at(single.start(), 1)
            raise fail(span, "E202", "'=' does not compare", "write ==") from None
        offset = self._offset(error.lineno or 1, (error.offset or 1) - 1)
        # The parser blames what follows; at the very end the last token is to blame.
        offset = min(offset, max(0, len(self.text.rstrip()) - 1))
        hint = "an operator or a comma is missing" if "forgot a comma" in error.msg else None
        raise fail(self.place.at(offset, 1), "E203", "this is not an expression", hint) from None

    def convert(self, node: ast.AST) -> Expr:
        """The expression of a node. What is refused goes to `errors`, and the parts beside it
        are read on."""
        if self.depth > DEPTH:
            raise self._too_large()
        self.depth += 1
        try:
            return self._converted(node)
        except RuleErrors as refused:
            self.errors.extend(found for found in refused.diagnostics if found not in self.errors)
            return Literal(None)
        finally:
            self.depth -= 1

    def _converted(self, node: ast.AST) -> Expr:
        handler = _HANDLERS.get(type(node))
        if handler is None:
            message, hint = _REFUSED.get(
                type(node), ("this is not part of the rule language", None)
            )
            self.refuse(node, message, hint)
        return handler(self, node)

    def operator(self, node: ast.AST, around: ast.AST) -> str:
        text = _OPERATORS.get(type(node))
        if text is None:
            message, hint = _REFUSED.get(type(node), ("unknown operator", None))
            self.refuse(around, message, hint)
        return text


def _name(reader: _Reader, node: Any) -> Expr:
    span = reader.span(node)
    if node.id in FLOAT_WORDS:
        return Literal(FLOAT_WORDS[node.id], span=span)
    return Name(node.id, span=span)


def _constant(reader: _Reader, node: Any) -> Expr:
    value = node.value
    if value is not None and not isinstance(value, bool | int | float | str):
        reader.refuse(node, f"'{ast.unparse(node)}' is not part of the rule language")
    if isinstance(value, int) and value > LARGEST:
        reader.refuse(node, "this number has more than 64 bits")
    return Literal(value, span=reader.span(node))


def _sequence(reader: _Reader, node: Any) -> Expr:
    return Sequence(tuple(reader.convert(item) for item in node.elts), span=reader.span(node))


def _dotted(reader: _Reader, node: Any) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name() | ast.Attribute() as base, attr=attr):
            return f"{_dotted(reader, base)}.{attr}"
        case ast.Attribute(value=base, attr=attr):
            reader.refuse(base, f"'.{attr}' cannot be called on a value", f"write {attr}(x, ...)")
    reader.refuse(node, "only an op's name can be called")


def _call(reader: _Reader, node: Any) -> Expr:
    kwargs: list[tuple[str, Expr]] = []
    how: str | None = None
    for given in node.keywords:
        if given.arg is not None:
            if given.arg in dict(kwargs):
                reader.refuse(given, f"keyword '{given.arg}' is given twice")
            kwargs.append((given.arg, reader.convert(given.value)))
        elif not isinstance(given.value, ast.Name):
            reader.refuse(given.value, "'**' takes the name of the remaining attributes")
        elif how is not None:
            reader.refuse(given.value, "'**' can stand only once in a call")
        else:
            how = given.value.id
    args = tuple(reader.convert(arg) for arg in node.args)
    return Call(_dotted(reader, node.func), args, tuple(kwargs), how, span=reader.span(node.func))


def _binary(reader: _Reader, node: Any) -> Expr:
    return Binary(
        reader.operator(node.op, node),
        reader.convert(node.left),
        reader.convert(node.right),
        span=reader.span(node),
    )


def _unary(reader: _Reader, node: Any) -> Expr:
    span = reader.span(node)
    if isinstance(node.op, ast.Not):
        return Not(reader.convert(node.operand), span=span)
    if isinstance(node.op, ast.UAdd):
        reader.refuse(node, "unary '+' is not part of the rule language")
    if not isinstance(node.op, ast.USub):
        message, hint = _REFUSED[type(node.op)]
        reader.refuse(node, message, hint)
    value = reader.convert(node.operand)
    match value:
        case Literal(value=int() | float() as number) if not isinstance(number, bool):
            return Literal(-number, span=span)
    return Negative(value, span=span)


def _compare(reader: _Reader, node: Any) -> Expr:
    return Compare(
        reader.convert(node.left),
        tuple(reader.operator(op, node) for op in node.ops),
        tuple(reader.convert(part) for part in node.comparators),
        span=reader.span(node),
    )


def _logic(reader: _Reader, node: Any) -> Expr:
    parts = tuple(reader.convert(part) for part in node.values)
    return Logic(reader.operator(node.op, node), parts, span=reader.span(node))


def _item(reader: _Reader, node: Any) -> Expr:
    before = len(reader.errors)
    match reader.convert(node.slice):
        case Literal(value=None) as refused if len(reader.errors) > before:
            return refused
        case Literal(value=int(place)) as index if not isinstance(place, bool):
            return Item(reader.convert(node.value), index, span=reader.span(node))
        case Name() as index:
            return Item(reader.convert(node.value), index, span=reader.span(node))
    reader.refuse(node, "a result is picked with a number or a name", "topk(x, k)[1]")


def _field(reader: _Reader, node: Any) -> Expr:
    if not isinstance(node.value, ast.Name):
        reader.refuse(node, "only an entry of a '**how' is read with a dot", "how.groups")
    return Field(node.value.id, node.attr, span=reader.span(node))


_HANDLERS: dict[type[ast.AST], Callable[[_Reader, Any], Expr]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Tuple: _sequence,
    ast.List: _sequence,
    ast.Call: _call,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _logic,
    ast.Subscript: _item,
    ast.Attribute: _field,
}
