"""What an entry of a rule file may hold: one table of fields per kind, and a reader of them.

Takes one `Entry`; gives typed values and reports every field that is unknown, missing or of the
wrong form. The editor schemas are made from the same tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .document import Entry, Items, Node, Scalar
from .document import Mapping as MappingNode
from .expr import Expr, Span
from .rule import NUMERICS, Condition
from .source import Problems, RuleErrors, did_you_mean, suggestion
from .syntax import parse

Result = TypeVar("Result")

STAGES = ("pre_grad", "trace", "joint", "post_grad")
LAYOUTS = ("any", "rows", "traced")
NEST_KINDS = ("pointwise", "reduction", "template", "extern", "any")


@dataclass(frozen=True)
class FieldSpec:
    """`form` says how the value is written: word, text, flag, number, expression, list, ..."""

    name: str
    form: str
    doc: str
    required: bool = False
    choices: tuple[str, ...] = ()


_DOC = FieldSpec("doc", "text", "One sentence in plain words.", True)
_REF = FieldSpec("ref", "text", "A paper, a link or an issue.")
_WHEN = FieldSpec("when", "conditions", "Conditions; all of them must hold.")
_NESTS = (
    FieldSpec("producer", "word", "The kind of nest that writes.", True, NEST_KINDS),
    FieldSpec("consumer", "word", "The kind of nest that reads.", True, NEST_KINDS),
)
_WORTH = FieldSpec("worth", "conditions", "When it pays; results are right either way.")
_GAIN = FieldSpec("gain", "expression", "Bytes saved, as an expression over the pair.", True)

KINDS: Mapping[str, tuple[FieldSpec, ...]] = {
    "rule": (
        FieldSpec("rule", "name", "Unique kebab-case name: what-how.", True),
        _DOC,
        _REF,
        FieldSpec("vars", "types", "The type of every free name.", True),
        FieldSpec("for", "family", "A family of rules: {f: [relu, tanh]}."),
        FieldSpec("stage", "word", "When the rule runs, if not as its folder.", False, STAGES),
        FieldSpec("match", "roots", "The left side: an expression, or named roots.", True),
        _WHEN,
        FieldSpec("let", "pieces", "Named pieces of the right side, in order."),
        FieldSpec("make", "roots", "The right side, with the same roots.", True),
        FieldSpec("both_ways", "flag", "Also from right to left, as name/back."),
        FieldSpec("numerics", "numerics", "What may differ in the result.", True, NUMERICS),
        FieldSpec("assumes", "assumptions", "Inputs for which alone the rule is meant."),
        FieldSpec("witness", "values", "Inputs that show why the assumptions are needed."),
        FieldSpec("fires", "cases", "Sizes, dtypes and constants for which it must fire."),
        FieldSpec("misses", "cases", "Sizes, dtypes and constants for which it must not fire."),
        FieldSpec("grad", "flag", "false: not in graphs that are differentiated again."),
        FieldSpec("device", "device", "cpu, cuda, or a condition on the target."),
    ),
    "fuse": (
        FieldSpec("fuse", "name", "Unique kebab-case name.", True),
        _DOC,
        _REF,
        *_NESTS,
        _WHEN,
        _WORTH,
        _GAIN,
    ),
    "forbid": (
        FieldSpec("forbid", "name", "Unique kebab-case name.", True),
        _DOC,
        _REF,
        *_NESTS,
        _WHEN,
    ),
    "avoid": (
        FieldSpec("avoid", "name", "Unique kebab-case name.", True),
        _DOC,
        _REF,
        *_NESTS,
        _WHEN,
    ),
    "prefer": (
        FieldSpec("prefer", "name", "Unique kebab-case name.", True),
        _DOC,
        _REF,
        *_NESTS,
        _WHEN,
        _GAIN,
    ),
    "scalar": (
        FieldSpec("scalar", "word", "The name of the scalar op.", True),
        _DOC,
        _REF,
        FieldSpec("type", "text", "Operand and result types: 'float -> same'.", True),
        FieldSpec("means", "expression", "The meaning, in other scalar ops."),
        FieldSpec("cpp", "templates", "C++ text with $x, $y, $z; or a map by dtype."),
        FieldSpec("triton", "templates", "Triton text with $x, $y, $z; or a map by dtype."),
        FieldSpec("widen", "words", "Dtypes that are computed in f32."),
        FieldSpec("ulp", "number", "The error of the templates, in units of the last place."),
        FieldSpec("cost", "number", "The cost in floating-point operations."),
    ),
    "op": (
        FieldSpec("op", "word", "The name of the op in rules.", True),
        _DOC,
        _REF,
        FieldSpec("aten", "words", "The ATen overloads it stands for."),
        FieldSpec("torch", "words", "The torch functions it stands for."),
        FieldSpec("args", "signature", "Arguments with defaults: 'x, dim, keepdim=False'.", True),
        FieldSpec("commutes", "flag", "The first two operands may be swapped."),
        FieldSpec("scalar", "expression", "The pointwise meaning, in scalar ops."),
        FieldSpec("as", "expression", "The meaning through another op."),
        FieldSpec("layout", "word", "Which strides its operands may have.", False, LAYOUTS),
        FieldSpec("flops", "number", "Floating-point operations per element of the result."),
    ),
    "decompose": (
        FieldSpec("decompose", "name", "Unique kebab-case name.", True),
        _DOC,
        _REF,
        FieldSpec("aten", "words", "The ATen overloads that torch decomposes.", True),
        FieldSpec("numerics", "numerics", "What may differ in the results.", True, NUMERICS),
    ),
}

_KEBAB = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
_WORD = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_DOTTED = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_TRUE = {"true": True, "false": False}


class Fields:
    """The fields of one entry. Reading never raises; what is wrong goes to `problems`, and
    the reader then gives None or an empty value.

    `broken` names the fields with a mistake, and `unread` holds the words of texts that could
    not be parsed: what such a text says about a name is not known, so nothing else is either.
    """

    def __init__(self, entry: Entry, kind: str, problems: Problems) -> None:
        self.entry = entry
        self.kind = kind
        self.problems = problems
        self.broken: set[str] = set()
        self.unread: set[str] = set()
        self.head = entry.fields.pairs[0][0].span
        self.values: dict[str, Node] = {}
        self.keys: dict[str, Span] = {}
        self._check_names()

    @property
    def sound(self) -> bool:
        return not self.broken

    def error(self, span: Span, code: str, message: str, hint: str | None = None) -> None:
        self.broken.add(self._field_at(span))
        self.problems.error(span, code, message, hint)

    def take(self, errors: RuleErrors) -> None:
        for found in errors.diagnostics:
            self.error(found.span, found.code, found.message, found.hint)

    def _field_at(self, span: Span) -> str:
        before = [
            (key.line, key.col, name)
            for name, key in self.keys.items()
            if (key.line, key.col) <= (span.line, span.col)
        ]
        return max(before)[2] if before else self.kind

    def _check_names(self) -> None:
        specs = {spec.name: spec for spec in KINDS[self.kind]}
        written = {key.text for key, _ in self.entry.fields.pairs}
        for key, value in self.entry.fields.pairs:
            name = key.text
            if key.span == self.head:
                name = self.kind  # a misspelt kind was reported already
            elif name not in specs:
                close = did_you_mean(name, [spec for spec in specs if spec not in written])
                hint = suggestion(name, specs) or f"it has: {', '.join(specs)}"
                self.error(key.span, "E305", f"a {self.kind} has no field '{name}'", hint)
                if close is None or close in self.keys:
                    continue
                name = close  # its content is read, and it is not missing
            self.keys[name] = key.span
            if _is_empty(value, specs[name]):
                self.error(key.span, "E306", f"'{name}' is empty")
                continue
            self.values[name] = value
        for spec in specs.values():
            if spec.required and spec.name not in self.keys:
                message = f"this {self.kind} has no '{spec.name}'"
                self.error(self.head, "E307", message, spec.doc.lower().rstrip("."))
                self.broken.add(spec.name)

    def span(self, name: str) -> Span:
        """Where the field's value stands, or the head of the entry."""
        value = self.values.get(name)
        return value.span if value is not None else self.head

    def scalar(self, name: str) -> Scalar | None:
        value = self.values.get(name)
        if value is None or isinstance(value, Scalar):
            return value
        self.error(value.span, "E308", f"'{name}' is one value, not {form(value)}")
        return None

    def text(self, name: str) -> str:
        value = self.scalar(name)
        return " ".join(value.text.split()) if value is not None else ""

    def name(self) -> str:
        """The entry's own name: kebab-case for rules, a word for ops."""
        value = self.scalar(self.kind)
        if value is None:
            return ""
        pattern, wanted = _KEBAB, "lower-case words joined by '-'"
        if self.kind in ("scalar", "op"):
            pattern, wanted = _WORD, "letters, digits and '_'"
        if self.kind == "op":
            pattern, wanted = _DOTTED, "letters, digits and '_', joined by '.'"
        if not pattern.match(value.text):
            self.error(value.span, "E309", f"'{value.text}' is not a name", f"write {wanted}")
        return value.text

    def word(self, name: str) -> str | None:
        """One word; where the table lists choices, one of these."""
        value = self.scalar(name)
        spec = next(spec for spec in KINDS[self.kind] if spec.name == name)
        if value is None:
            return None
        if spec.choices and value.text not in spec.choices:
            hint = suggestion(value.text, spec.choices) or f"one of: {', '.join(spec.choices)}"
            self.error(value.span, "E310", f"'{value.text}' is not a {name}", hint)
            return None
        return value.text

    def flag(self, name: str, default: bool) -> bool:
        value = self.scalar(name)
        if value is None:
            return default
        if value.text not in _TRUE:
            self.error(value.span, "E311", f"'{name}' is true or false, not '{value.text}'")
        return _TRUE.get(value.text, default)

    def number(self, name: str) -> float | None:
        value = self.scalar(name)
        return self.as_number(value, name) if value is not None else None

    def as_number(self, value: Scalar, name: str) -> float | None:
        """A finite number that is not negative."""
        try:
            number = float(value.text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < 0:
            self.error(value.span, "E312", f"'{name}' is a number, not '{value.text}'")
            return None
        return number

    def scalars(self, name: str) -> tuple[Scalar, ...]:
        """A list of texts; a single text stands for a list of one."""
        value = self.values.get(name)
        if isinstance(value, Scalar):
            return (value,)
        return self._only_scalars(self.nodes(name), name)

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(item.text for item in self.scalars(name))

    def nodes(self, name: str) -> tuple[Node, ...]:
        """The items of a list."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, Items):
            hint = f"write '- ' before each, or [a, b], below '{name}:'"
            self.error(value.span, "E308", f"'{name}' is a list, not {form(value)}", hint)
            return ()
        return value.items

    def pairs(self, name: str) -> tuple[tuple[Scalar, Node], ...]:
        """The entries of a map."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, MappingNode):
            message = f"'{name}' is a map, not {form(value)}"
            self.error(value.span, "E308", message, "one 'key: value' a line")
            return ()
        return value.pairs

    def _only_scalars(self, items: Iterable[Node], name: str) -> tuple[Scalar, ...]:
        found: list[Scalar] = []
        for item in items:
            if isinstance(item, Scalar):
                found.append(item)
                continue
            hint = "quote a text that holds ': '" if isinstance(item, MappingNode) else None
            self.error(item.span, "E308", f"'{name}' holds texts, not {form(item)}", hint)
        return tuple(found)

    def parsed(self, value: Scalar, parser: Callable[[str, Scalar], Result]) -> Result | None:
        """What `parser` makes of the text, or None after an error."""
        self._warn_of_comment(value)
        try:
            return parser(value.text, value)
        except RuleErrors as errors:
            self.take(errors)
            self.unread.update(re.findall(r"[^\W\d]\w*", value.text))
        return None

    def _warn_of_comment(self, value: Scalar) -> None:
        if value.style is not None:
            return
        last = value.at(max(0, len(value.text) - 1), 1)
        line = self.problems.lines[last.path][last.line - 1]
        rest = line[last.col :]
        if re.match(r"\s+#", rest):
            span = Span(last.path, last.line, last.col + 1 + rest.index("#"))
            hint = "quote the expression if '#' belongs to it, else move the comment up"
            self.problems.warning(span, "W701", "a comment ends this expression", hint)

    def expression(self, name: str) -> Expr | None:
        value = self.scalar(name)
        return self.parsed(value, parse) if value is not None else None

    def expressions(self, name: str, single: str | None = None) -> dict[str, Expr]:
        """A map of expressions; with `single`, one expression alone gets that name."""
        value = self.values.get(name)
        if single is not None and isinstance(value, Scalar):
            expr = self.parsed(value, parse)
            return {single: expr} if expr is not None else {}
        found: dict[str, Expr] = {}
        for key, item in self.pairs(name):
            for text in self._only_scalars([item], name):
                expr = self.parsed(text, parse)
                if expr is not None:
                    found[key.text] = expr
        return found

    def conditions(self, name: str = "when") -> tuple[Condition, ...]:
        found: list[Condition] = []
        for item in self._only_scalars(self.nodes(name), name):
            expr = self.parsed(item, parse)
            if expr is not None:
                found.append(Condition(expr, " ".join(item.text.split())))
        return tuple(found)


def _is_empty(value: Node, spec: FieldSpec) -> bool:
    match value:
        case Scalar(text=text, style=style):
            return not text.strip() and (style is None or spec.form == "text")
        case Items(items=()) | MappingNode(pairs=()):
            return spec.required
    return False


def form(node: Node) -> str:
    """`a list`, `a map`, or the text in quotes, for messages."""
    match node:
        case Scalar(text=text):
            return f"'{text}'"
        case Items():
            return "a list"
    return "a map"
