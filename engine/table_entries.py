"""Entries of the kinds `fuse`, `forbid`, `avoid`, `prefer`, `scalar` and `op`.

Takes the fields of an entry; gives the frozen entry, which is whole where the fields are sound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .document import Items, Scalar
from .document import Mapping as MappingNode
from .expr import Compare, Expr, Logic, Name, Not, walk
from .fields import Fields, form
from .rule import DTYPE_WORDS, FuseRule, OpEntry, ScalarEntry
from .source import suggestion
from .syntax import DTYPES, parse_signature

OPERANDS = ("x", "y", "z", "w")
PAIR = ("producer", "consumer")
_TYPE_WORDS = (*DTYPE_WORDS, *DTYPES, "same", "first", "second", "third")
_PLACEHOLDER = re.compile(r"\$(\$|[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")


def read_fuse(fields: Fields) -> FuseRule | None:
    """A pair rule; its expressions may name `producer` and `consumer` only."""
    entry = FuseRule(
        kind=fields.kind,
        name=fields.name(),
        doc=fields.text("doc"),
        span=fields.head,
        producer=fields.word("producer") or "any",
        consumer=fields.word("consumer") or "any",
        when=fields.conditions(),
        gain=fields.expression("gain") if fields.kind in ("fuse", "prefer") else None,
        text=fields.entry.text,
        worth=fields.conditions("worth") if fields.kind == "fuse" else (),
    )
    for expr in (*(condition.expr for condition in entry.conditions), entry.gain):
        if expr is not None:
            check_names(fields, expr, (*PAIR, *DTYPES))
    if entry.gain is not None:
        refuse_comparisons(fields, entry.gain, "a gain")
    return entry if fields.sound else None


def read_scalar(fields: Fields) -> ScalarEntry:
    """The spellings of a scalar op; its operands are x, y, z in order."""
    args = _operands(fields)
    means = fields.expression("means")
    if means is not None:
        check_names(fields, means, (*args, *DTYPES))
        refuse_comparisons(fields, means, "a meaning")
    widen = fields.scalars("widen")
    for word in widen:
        if word.text not in DTYPES:
            hint = suggestion(word.text, DTYPES)
            fields.error(word.span, "E301", f"unknown dtype '{word.text}'", hint)
    cost = fields.number("cost")
    return ScalarEntry(
        name=fields.name(),
        doc=fields.text("doc"),
        span=fields.head,
        args=args,
        type=fields.text("type"),
        means=means,
        cpp=_templates(fields, "cpp", args),
        triton=_templates(fields, "triton", args),
        widen=tuple(word.text for word in widen),
        ulp=fields.number("ulp") or 0.0,
        cost=1.0 if cost is None else cost,
        text=fields.entry.text,
    )


def _operands(fields: Fields) -> tuple[str, ...]:
    """Checks `float, any -> same` and names its operands."""
    value = fields.scalar("type")
    if value is None:
        return OPERANDS
    left, arrow, right = value.text.partition("->")
    words = [word.strip() for word in left.split(",")] if left.strip() else []
    if not arrow or not right.strip() or len(words) > len(OPERANDS):
        message = "a type is written 'float, float -> same'"
        fields.error(value.span, "E318", message, f"at most {len(OPERANDS)} operands")
        return OPERANDS
    for word in (*words, right.strip()):
        if word not in _TYPE_WORDS:
            span = value.at(value.text.index(word), max(1, len(word)))
            fields.error(span, "E301", f"unknown type '{word}'", suggestion(word, _TYPE_WORDS))
    return OPERANDS[: len(words)]


def _templates(fields: Fields, name: str, args: tuple[str, ...]) -> Mapping[str, str]:
    value = fields.values.get(name)
    found: dict[str, Scalar] = {}
    if isinstance(value, Scalar):
        found["any"] = value
    elif isinstance(value, MappingNode):
        for key, item in value.pairs:
            if key.text not in (*DTYPE_WORDS, *DTYPES):
                hint = suggestion(key.text, (*DTYPE_WORDS, *DTYPES))
                fields.error(key.span, "E301", f"unknown dtype '{key.text}'", hint)
            elif isinstance(item, Scalar):
                found[key.text] = item
            else:
                fields.error(item.span, "E308", f"a template is a text, not {form(item)}")
    elif isinstance(value, Items):
        fields.error(value.span, "E308", f"'{name}' is a text or a map, not a list")
    for template in found.values():
        for place in _PLACEHOLDER.finditer(template.text):
            word = place.group(1).strip("{}")
            if word != "$" and word not in args:
                hint = f"it has: {', '.join(f'${arg}' for arg in args)}"
                span = template.at(place.start(), len(place.group()))
                fields.error(span, "E319", f"'${word}' is no operand of this op", hint)
    return {key: template.text for key, template in found.items()}


def read_op(fields: Fields) -> OpEntry:
    """What a tensor op is. Its meaning may name its arguments and dtypes only."""
    signature = fields.scalar("args")
    args = fields.parsed(signature, parse_signature) if signature is not None else ()
    known = [name.removeprefix("**") for name, _ in args or ()]
    scalar, as_ = fields.expression("scalar"), fields.expression("as")
    for expr in (scalar, as_):
        if expr is not None:
            check_names(fields, expr, (*known, *DTYPES))
            refuse_comparisons(fields, expr, "a meaning")
    given = [name for name in ("scalar", "as") if name in fields.values]
    if len(given) > 1:
        message = f"an op has one meaning, not '{given[0]}' and '{given[1]}'"
        fields.error(fields.keys[given[1]], "E320", message)
    return OpEntry(
        name=fields.name(),
        doc=fields.text("doc"),
        span=fields.head,
        aten=fields.words("aten"),
        torch=fields.words("torch"),
        args=args or (),
        commutes=fields.flag("commutes", False),
        scalar=scalar,
        as_=as_,
        layout=fields.word("layout") or "any",
        flops=fields.number("flops"),
        text=fields.entry.text,
    )


def check_names(fields: Fields, expr: Expr, known: Iterable[str]) -> None:
    """Reports names (E402) that are none of `known`."""
    if "args" in fields.broken:
        return
    words = tuple(known)
    for node in walk(expr):
        if isinstance(node, Name) and node.id not in words:
            hint = suggestion(node.id, words)
            fields.error(node.span, "E402", f"'{node.id}' is not known here", hint)


def refuse_comparisons(fields: Fields, expr: Expr, what: str) -> None:
    """Reports comparisons and logic (E411): they belong to conditions."""
    for node in walk(expr):
        if isinstance(node, Compare | Logic | Not):
            hint = "write the op: gt(x, y), logical_and(x, y), where(c, x, y)"
            fields.error(node.span, "E411", f"{what} holds no comparison", hint)
            return
