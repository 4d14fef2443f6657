"""Entries of kind `rule` to `Draft`s: read, families expanded, `both_ways` turned around.

Takes the fields of an entry; gives one `Draft` per member and direction. A draft is a `Rule`
that still knows where its names were written, so that the checks can point at them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .document import Items, Node, Scalar
from .document import Mapping as MappingNode
from .expr import (
    Call,
    Compare,
    Expr,
    Literal,
    Logic,
    Name,
    Not,
    Sequence,
    Span,
    rebuild,
    walk,
)
from .fields import Fields, form
from .rule import NUMERICS, Assumption, Case, Condition, Numerics, Rule, VarType
from .source import suggestion
from .syntax import DTYPES, parse
from .targeting import target_names, unknown_names
from .type_syntax import parse_type

ROOT = "out"
MEMBERS = 200  # of one family
WRITTEN_OUT = 4000  # parts of a right side whose pieces are written out
ASSUMPTIONS = ("no_overflow", "finite", "no_nan", "no_signed_zero")
_DOTTED = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")


@dataclass(frozen=True)
class Draft:
    """A rule under check. `spans` gives the place of a var, root or let by (field, name), also
    of those that could not be read. `broken` names the fields with mistakes and `unread` the
    words of texts that could not be parsed."""

    rule: Rule
    spans: Mapping[tuple[str, str], Span]
    base: str  # the name as written, without member and direction
    family: Mapping[str, Span] = field(default_factory=dict)
    back: bool = False
    broken: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()

    @property
    def lost(self) -> set[str]:
        """Names that could not be read, or of which nothing is known."""
        read = {"vars": self.rule.vars, "match": self.rule.match, "let": self.rule.lets}
        names = {name for field, name in self.spans if name not in read.get(field, {})}
        return {*names, *self.unread} if self.broken else set()


def read_rule(fields: Fields, folder: str, stage: str) -> list[Draft]:
    """The drafts of one entry. Where the entry has mistakes, `broken` says in which fields; the
    others can still be checked."""
    numerics = read_numerics(fields)
    spans: dict[tuple[str, str], Span] = {}
    rule = Rule(
        name=fields.name(),
        doc=fields.text("doc"),
        span=fields.head,
        folder=folder,
        vars=_vars(fields, spans),
        match=_roots(fields, "match", spans),
        make=_roots(fields, "make", spans),
        lets=_roots(fields, "let", spans),
        when=fields.conditions(),
        numerics=numerics or Numerics("exact", "exact"),
        assumes=_assumptions(fields),
        fires=_cases(fields, "fires"),
        misses=_cases(fields, "misses"),
        grad=fields.flag("grad", True),
        device=_device(fields),
        stage=fields.word("stage") or stage,
        text=fields.entry.text,
        ref=fields.text("ref"),
    )
    both_ways = fields.flag("both_ways", False)
    members = _members(fields)
    _check_family(fields, rule, members[0])
    _check_pieces(fields, rule)
    broken, unread = frozenset(fields.broken), frozenset(fields.unread)
    if "for" in broken:
        family = {key.text: key.span for key in _keys(fields.values.get("for"))}
        return [Draft(rule, spans, rule.name, family, broken=broken, unread=unread)]
    drafts: list[Draft] = []
    for member in members:
        one = _expand(rule, member) if member else rule
        family = {key: value.span for key, value in member.items()}
        drafts.append(Draft(one, spans, rule.name, family, broken=broken, unread=unread))
        if both_ways and not broken:
            back = _turn_around(one)
            back_spans = dict(spans) | {
                ("match", root): spans[("make", root)]
                for root in one.make
                if ("make", root) in spans
            }
            drafts.append(Draft(back, back_spans, rule.name, family, back=True))
    return drafts


def _keys(node: Node | None) -> list[Scalar]:
    """The keys of a map, or of all maps of a list."""
    if isinstance(node, MappingNode):
        return [key for key, _ in node.pairs]
    return [key for item in node.items for key in _keys(item)] if isinstance(node, Items) else []


def _vars(fields: Fields, spans: dict[tuple[str, str], Span]) -> dict[str, VarType]:
    found: dict[str, VarType] = {}
    for key, value in fields.pairs("vars"):
        spans[("vars", key.text)] = key.span
        if not isinstance(value, Scalar):
            hint = "float[...], num[m, k], const, dtype, dims"
            fields.error(value.span, "E301", f"a type is a text, not {form(value)}", hint)
            continue
        kind = fields.parsed(value, parse_type)
        if kind is not None:
            found[key.text] = kind
    return found


def _roots(fields: Fields, name: str, spans: dict[tuple[str, str], Span]) -> dict[str, Expr]:
    value = fields.values.get(name)
    if isinstance(value, MappingNode):
        spans.update({(name, key.text): key.span for key, _ in value.pairs})
    return fields.expressions(name, None if name == "let" else ROOT)


def read_numerics(fields: Fields) -> Numerics | None:
    """The class of the field `numerics`; None where it has mistakes."""
    value = fields.values.get("numerics")
    keys = [key.text for key, _ in value.pairs] if isinstance(value, MappingNode) else []
    if isinstance(value, MappingNode) and ("int" in keys or "float" in keys):
        return _numerics_by_kind(fields, value)
    one = _class(fields, value) if value is not None else None
    return Numerics(one.name, one.name, one.rtol, one.atol) if one is not None else None


@dataclass(frozen=True)
class _Class:
    name: str
    rtol: float = 0.0
    atol: float = 0.0


def _numerics_by_kind(fields: Fields, value: MappingNode) -> Numerics | None:
    classes: dict[str, _Class] = {}
    for key, item in value.pairs:
        if key.text not in ("int", "float"):
            message = f"numerics are given for int and float, not '{key.text}'"
            fields.error(key.span, "E313", message)
            continue
        one = _class(fields, item)
        if one is not None:
            classes[key.text] = one
    if not classes:
        return None
    # A kind that is not named has no variables in the rule; it takes the strictest class.
    floats = classes.get("float", _Class("exact"))
    ints = classes.get("int", _Class("exact"))
    return Numerics(
        floats.name, ints.name, max(floats.rtol, ints.rtol), max(floats.atol, ints.atol)
    )


def _class(fields: Fields, node: Node) -> _Class | None:
    if isinstance(node, Scalar):
        if node.text not in NUMERICS:
            hint = suggestion(node.text, NUMERICS) or f"one of: {', '.join(NUMERICS)}"
            fields.error(node.span, "E313", f"unknown numerics class '{node.text}'", hint)
            return None
        if node.text == "approximate":
            hint = "numerics: {approximate: {rtol: 1e-3, atol: 1e-5}}"
            fields.error(node.span, "E314", "'approximate' needs its tolerances", hint)
            return None
        return _Class(node.text)
    if isinstance(node, MappingNode) and len(node.pairs) == 1:
        key, value = node.pairs[0]
        if key.text == "approximate" and isinstance(value, MappingNode):
            return _tolerances(fields, value)
    hint = "numerics: {approximate: {rtol: 1e-3, atol: 1e-5}}"
    fields.error(node.span, "E313", "this is not a numerics class", hint)
    return None


def _tolerances(fields: Fields, node: MappingNode) -> _Class | None:
    found = {"rtol": 0.0, "atol": 0.0}
    for key, value in node.pairs:
        if key.text not in found or not isinstance(value, Scalar):
            fields.error(key.span, "E314", "the tolerances are rtol and atol")
            return None
        found[key.text] = fields.as_number(value, key.text) or 0.0
    return _Class("approximate", found["rtol"], found["atol"])


def _assumptions(fields: Fields) -> tuple[Assumption, ...]:
    witness = {
        key.text: value.text for key, value in fields.pairs("witness") if isinstance(value, Scalar)
    }
    found: list[Assumption] = []
    for item in fields.scalars("assumes"):
        if item.text in ASSUMPTIONS:
            found.append(Assumption(item.text, None, witness))
            continue
        expr = fields.parsed(item, parse)
        if isinstance(expr, Compare | Logic | Not):
            found.append(Assumption(" ".join(item.text.split()), expr, witness))
        elif expr is not None:
            words = f"{', '.join(ASSUMPTIONS)}, or a comparison such as eps > 0"
            hint = suggestion(item.text, ASSUMPTIONS) or words
            fields.error(item.span, "E315", f"'{item.text}' is not an assumption", hint)
    if witness and not found:
        message = "a witness shows why an assumption is needed, but there is none"
        fields.error(fields.span("witness"), "E315", message)
    return tuple(found)


def _cases(fields: Fields, name: str) -> tuple[Case, ...]:
    found: list[Case] = []
    for item in fields.nodes(name):
        if not isinstance(item, MappingNode):
            message = f"a case is a map such as {{n: 512}}, not {form(item)}"
            fields.error(item.span, "E316", message)
            continue
        values = {key.text: _case_value(fields, value) for key, value in item.pairs}
        sound = {key: value for key, value in values.items() if value is not None}
        found.append(Case(sound, item.span))
    return tuple(found)


def _case_value(fields: Fields, node: Node) -> int | float | str | bool | tuple[int, ...] | None:
    if isinstance(node, Items):
        numbers = [item.text for item in node.items if isinstance(item, Scalar)]
        if len(numbers) == len(node.items) and all(re.match(r"^-?\d+$", n) for n in numbers):
            return tuple(int(number) for number in numbers)
        fields.error(node.span, "E316", "a list in a case holds whole numbers")
        return None
    if isinstance(node, Scalar):
        if node.style is not None:
            return node.text
        match fields.parsed(node, parse):
            case Literal(value=bool() | int() | float() | str() as value):
                return value
            case Name(id="true" | "false" as word):
                return word == "true"
            case Name(id=word) if word in DTYPES:
                return word
            case None:
                return None
    hint = "n: 512, x: f64, p: 0.5, dims: [0, 1]"
    fields.error(node.span, "E316", "a case gives a size, a dtype or a constant", hint)
    return None


def _device(fields: Fields) -> Expr | str | None:
    value = fields.scalar("device")
    if value is None or value.text in ("cpu", "cuda"):
        return value.text if value is not None else None
    expr = fields.parsed(value, parse)
    if isinstance(expr, Name | Literal | Sequence):
        hint = suggestion(value.text, ("cpu", "cuda")) or "cpu, cuda, or a condition"
        fields.error(value.span, "E310", f"'{value.text}' is not a device", hint)
        return None
    for part, name in unknown_names(expr) if expr is not None else ():
        hint = suggestion(name, target_names()) or f"it has: {', '.join(target_names())}"
        fields.error(part.span, "E310", f"a target has no '{name}'", hint)
    return expr


def _members(fields: Fields) -> list[dict[str, Scalar]]:
    """`for` to one map per member; a single empty one where there is no family."""
    node = fields.values.get("for")
    if node is None:
        return [{}]
    if isinstance(node, Items):
        return _paired(fields, node)
    choices: list[list[tuple[str, Scalar]]] = []
    for key, value in fields.pairs("for"):
        if isinstance(value, Items) and value.items:
            choices.append([(key.text, item) for item in value.items if isinstance(item, Scalar)])
        if not choices or len(choices[-1]) != len(value.items if isinstance(value, Items) else ()):
            message = f"'{key.text}' needs a list of names or numbers"
            fields.error(value.span, "E317", message, "for: {f: [relu, tanh]}")
            return [{}]
    count = math.prod(map(len, choices))
    if count > MEMBERS:
        message = f"this family has {count} members, and {MEMBERS} are the most"
        fields.error(fields.span("for"), "E317", message, "a list of maps pairs them")
        return [{}]
    return [dict(member) for member in itertools.product(*choices)] or [{}]


def _check_family(fields: Fields, rule: Rule, member: Mapping[str, Scalar]) -> None:
    exprs = (*rule.match.values(), *rule.make.values(), *rule.lets.values())
    nodes = [node for expr in (*exprs, *(c.expr for c in rule.when)) for node in walk(expr)]
    used = {node.fn for node in nodes if isinstance(node, Call)}
    used |= {node.id for node in nodes if isinstance(node, Name)}
    for key in member:
        if fields.sound and key not in used:
            message = f"'{key}' is a key of the family, but the rule never uses it"
            fields.error(fields.span("for"), "E317", message)


def _check_pieces(fields: Fields, rule: Rule) -> None:
    """Pieces that name earlier pieces more than once may double the right side each time."""
    sizes: dict[str, int] = {}

    def size(expr: Expr) -> int:
        return sum(sizes.get(node.id, 1) if isinstance(node, Name) else 1 for node in walk(expr))

    for name, expr in rule.lets.items():
        sizes[name] = size(expr)
    for name in rule.lets:
        if sizes[name] > WRITTEN_OUT:
            message = f"'{name}' has {sizes[name]} parts when its pieces are written out"
            fields.error(rule.lets[name].span, "E321", message, f"{WRITTEN_OUT} are the most")
            return


def _paired(fields: Fields, node: Items) -> list[dict[str, Scalar]]:
    members: list[dict[str, Scalar]] = []
    for item in node.items:
        pairs = item.pairs if isinstance(item, MappingNode) else ()
        member = {key.text: value for key, value in pairs if isinstance(value, Scalar)}
        if not member or len(member) != len(pairs):
            hint = "- {f: relu, g: threshold_backward}"
            fields.error(item.span, "E317", "a member of a family is a map", hint)
            return [{}]
        if members and set(member) != set(members[0]):
            message = f"this member has {', '.join(member)}, the first {', '.join(members[0])}"
            fields.error(item.span, "E317", message, "all members have the same keys")
            return [{}]
        members.append(member)
    return members or [{}]


def _expand(rule: Rule, member: Mapping[str, Scalar]) -> Rule:
    """The rule with the keys of a family replaced by one member's values."""

    def swap(node: Expr) -> Expr:
        if isinstance(node, Call) and node.fn in member:
            value = member[node.fn]
            return replace(node, fn=value.text, span=value.span)
        if isinstance(node, Name) and node.id in member:
            value = member[node.id]
            if _DOTTED.match(value.text):
                # A dotted op name is no expression by itself; it stands as `each`'s first word.
                return Name(value.text, span=value.span)
            return parse(value.text, value)
        return node

    def over(exprs: Mapping[str, Expr]) -> dict[str, Expr]:
        return {name: rebuild(expr, swap) for name, expr in exprs.items()}

    doc = rule.doc
    for key, value in member.items():
        doc = doc.replace(f"{{{key}}}", value.text)
    return replace(
        rule,
        name=f"{rule.name}/{'-'.join(value.text for value in member.values())}",
        doc=doc,
        match=over(rule.match),
        make=over(rule.make),
        lets=over(rule.lets),
        when=tuple(
            Condition(rebuild(condition.expr, swap), condition.text) for condition in rule.when
        ),
    )


def _turn_around(rule: Rule) -> Rule:
    """The rule from right to left; its pieces are written into the new left side."""
    return replace(
        rule,
        name=f"{rule.name}/back",
        match=inlined_make(rule),
        make=dict(rule.match),
        lets={},
    )


def inlined_make(rule: Rule) -> dict[str, Expr]:
    """The right side with its pieces written out."""
    if not rule.lets:
        return dict(rule.make)
    pieces: dict[str, Expr] = {}

    def inline(node: Expr) -> Expr:
        return pieces.get(node.id, node) if isinstance(node, Name) else node

    for name, expr in rule.lets.items():
        pieces[name] = rebuild(expr, inline)
    return {root: rebuild(expr, inline) for root, expr in rule.make.items()}
