"""The types of variables in rule files: text to `VarType`.

Takes a text such as `float[..., n]` and its place; gives the type, or raises RuleErrors (E3xx).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .expr import Binary, Expr, Literal, Name, Span
from .rule import DTYPE_WORDS, ConstType, TensorType, VarType
from .source import LinePlace, Place, RuleErrors, fail, suggestion
from .syntax import DTYPES, parse

CONST_WORDS = ("const", "const:int", "const:float", "const:bool", "dtype", "dims")
_TYPE = re.compile(r"^([A-Za-z_]\w*)\s*\[(.*)\]$", re.DOTALL)
_LEAD = re.compile(r"^\.\.\.\s*([A-Za-z_]\w*)?$")


def parse_type(text: str, place: Span | Place) -> VarType:
    """The type of a variable: `float[..., n]`, `list[num[m, k]]`, `const:int`, `dims`, ...

    Raises RuleErrors (E3xx).
    """
    where = LinePlace(place) if isinstance(place, Span) else place
    if text in CONST_WORDS:
        return ConstType(text.removeprefix("const:") if text != "const" else "any")
    found = _TYPE.match(text)
    if found is None:
        raise _unknown_type(text, where)
    word, inside = found.groups()
    start = found.start(2)
    if word == "list" and inside.strip() in DTYPE_WORDS:
        return TensorType(DTYPE_WORDS[inside.strip()], (), None, is_list=True, any_sizes=True)
    if word == "list":
        element = parse_type(inside.strip(), _Shifted(where, start + _indent(inside)))
        if not isinstance(element, TensorType) or element.is_list:
            raise fail(where.at(start, len(inside)), "E302", "a list holds tensors: list[num[n]]")
        return TensorType(element.dtypes, element.dims, element.lead, is_list=True)
    dtypes = DTYPE_WORDS.get(word) or ((word,) if word in DTYPES else None)
    if dtypes is None:
        raise _unknown_type(word, where)
    lead, dims = _dims(inside, _Shifted(where, start))
    return TensorType(dtypes, dims, lead)


def _unknown_type(text: str, where: Place) -> RuleErrors:
    word = text.split("[")[0]
    words = (*DTYPE_WORDS, *DTYPES, *CONST_WORDS, "list")
    if word in words and word not in CONST_WORDS:
        message = f"type '{text}' has no dims"
        number = f"const:{word}"
        hint: str | None = f"write {word}[...] for any sizes, {word}[m, n] for two" + (
            f"; {number} for a Python number" if number in CONST_WORDS else ""
        )
    else:
        message = f"unknown type '{word}'"
        hint = suggestion(word, words) or "float[...], num[m, k], int[n], const, dtype, dims"
    return fail(where.at(0, max(1, len(word))), "E301", message, hint)


def _dims(text: str, where: Place) -> tuple[str | None, tuple[Expr, ...]]:
    """`...a, m, 2 * n` to ("a", (m, 2 * n))."""
    lead: str | None = None
    dims: list[Expr] = []
    offset = 0
    parts = text.split(",") if text.strip() else []
    for position, part in enumerate(parts):
        place = _Shifted(where, offset + _indent(part))
        offset += len(part) + 1
        part = part.strip()
        found = _LEAD.match(part)
        if found is not None:
            if position:
                raise fail(place.at(0, len(part)), "E303", "'...' stands for leading sizes only")
            lead = found.group(1) or ""
            continue
        dims.append(_size(parse(part, place)))
    return lead, tuple(dims)


def _size(size: Expr) -> Expr:
    match size:
        case Name():
            return size
        case Literal(value=int(value)) if not isinstance(value, bool) and value >= 0:
            return size
        case Binary(op="+" | "-" | "*" | "//", left=left, right=right):
            _size(left)
            _size(right)
            return size
    raise fail(size.span, "E304", "a size is a letter, a number, or sums and products of these")


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


@dataclass(frozen=True)
class _Shifted:
    """A text that starts `by` letters after another place."""

    place: Place
    by: int

    def at(self, offset: int, length: int) -> Span:
        return self.place.at(self.by + offset, length)
