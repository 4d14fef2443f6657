"""Rule files as nodes with positions.

Takes the text of a file; gives one `Entry` for each `- ` at the left margin, with its YAML read
into `Scalar`, `Items` and `Mapping`. Scalars stay text: YAML's own reading of `on`, `12:30` and
`1e-5` never happens. Entries are read one by one, so one with broken YAML hides no other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from .expr import Span
from .source import Problems

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_START = "start every entry with '- rule: name'"
_NAMED = re.compile(r"-[ ]+(?:op|scalar)[ ]*:[ ]*([\w.]+)")
_DOCUMENT = re.compile(r"^(---|\.\.\.)(?=\s|$)")
_UNSEEN = re.compile(
    r"[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_ENTRY = re.compile(r"^-(?=[ \t\r]|$)")


@dataclass(frozen=True)
class Scalar:
    """A text. `raw` is what stands in the file from `span` on, quotes and line breaks included."""

    text: str
    span: Span
    raw: str = field(default="", compare=False, repr=False)
    style: str | None = field(default=None, compare=False)

    def at(self, offset: int, length: int) -> Span:
        """The span of `length` letters of `text` from `offset` on."""
        if self.style is None and self.raw == self.text:
            return Span(self.span.path, self.span.line, self.span.col + offset, length)
        skipped = self._in_raw[min(offset, len(self.text))]
        before = self.raw[:skipped]
        line = self.span.line + before.count("\n")
        start = 1 if "\n" in before else self.span.col
        return Span(self.span.path, line, start + skipped - (before.rfind("\n") + 1), length)

    @cached_property
    def _in_raw(self) -> list[int]:
        """The place in `raw` of every letter of `text`, and of its end: walks both side by
        side, past quotes, escapes, folds and indentation."""
        place = self.raw.find("\n") + 1 if self.style in ("|", ">") else 0
        if self.style in ("'", '"'):
            place = 1
        places: list[int] = []
        for letter in self.text:
            places.append(self._next(place, letter))
            place = places[-1] + 1
        return [*places, min(place, len(self.raw))]

    def _next(self, place: int, letter: str) -> int:
        if letter.isspace():
            return min(place, len(self.raw))
        found = self.raw.find(letter, place)
        return found if found >= 0 else min(place, len(self.raw))


@dataclass(frozen=True)
class Items:
    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True)
class Mapping:
    pairs: tuple[tuple[Scalar, Node], ...]
    span: Span


Node = Scalar | Items | Mapping


@dataclass(frozen=True)
class Entry:
    """One entry of a file: its first key says what kind it is. `text` is its YAML."""

    fields: Mapping
    text: str


@dataclass(frozen=True)
class _Chunk:
    path: str
    first: int  # line number of the first line, from 1
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class Unread:
    """An entry whose YAML is broken, if it begins with the name of an op or a scalar op."""

    name: str


def read_entries(path: str, text: str, problems: Problems) -> list[Entry | Unread]:
    """The entries of a rule file; what cannot be read goes to `problems` (E1xx)."""
    lines = _lines(path, text, problems)
    entries: list[Entry | Unread] = []
    chunks = list(_chunks(path, lines, problems))
    if not chunks and not problems.failed:
        problems.warning(Span(path, 1, 1), "W109", "there is no entry in this file", _START)
    for chunk in chunks:
        node = _read(chunk, problems)
        if node is None:
            named = _NAMED.match(chunk.text)
            entries += [Unread(named.group(1))] if named is not None else []
            continue
        if isinstance(node, Items) and len(node.items) == 1:
            node = node.items[0]
        if isinstance(node, Mapping) and node.pairs:
            entries.append(Entry(node, chunk.text))
        else:
            message = "an entry is a map that starts with its kind and name"
            problems.error(node.span, "E102", message, "- rule: some-name")
    return entries


def read_map(path: str, text: str, problems: Problems) -> Mapping | None:
    """A file that is one map, such as a schedule; None after errors."""
    chunk = _Chunk(path, 1, tuple(_lines(path, text, problems)))
    if all(not line.strip() or line.lstrip().startswith("#") for line in chunk.lines):
        problems.error(Span(path, 1, 1), "E102", "this file is empty", "'key: value' lines")
        return None
    node = _read(chunk, problems)
    if node is not None and not isinstance(node, Mapping):
        problems.error(node.span, "E102", "this file is one map", "'key: value' lines")
        return None
    return node


def _lines(path: str, text: str, problems: Problems) -> list[str]:
    # Not splitlines(): it also breaks at letters that YAML keeps inside a line.
    lines = text.removeprefix("\ufeff").split("\n")
    problems.lines[path] = lines
    return lines


def _chunks(path: str, lines: list[str], problems: Problems) -> Iterator[_Chunk]:
    starts = [number for number, line in enumerate(lines) if _ENTRY.match(line)]
    head = lines[: starts[0]] if starts else lines
    for number, line in enumerate(head):
        if line.strip() and not line.startswith(("#", "---", "%YAML")):
            span = Span(path, number + 1, 1, len(line))
            message = "a rule file is a list of entries"
            problems.error(span, "E102", message, _START)
            break
    for start, end in itertools.pairwise((*starts, len(lines))):
        own = lines[start:end]
        while own and (not own[-1].strip() or own[-1].startswith("#")):
            own.pop()
        yield _Chunk(path, start + 1, tuple(own))


def _read(chunk: _Chunk, problems: Problems) -> Node | None:
    for number, line in enumerate(chunk.lines):
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent:
            span = Span(chunk.path, chunk.first + number, indent.index("\t") + 1)
            problems.error(span, "E103", "a tab indents this line", "YAML wants spaces")
            return None
        unseen = _UNSEEN.search(line)
        if unseen is not None:
            span = Span(chunk.path, chunk.first + number, unseen.start() + 1)
            message = f"the letter U+{ord(unseen.group()):04X} cannot be seen"
            problems.error(span, "E109", message, "delete it")
            return None
        if number and _DOCUMENT.match(line):
            span = Span(chunk.path, chunk.first + number, 1, 3)
            message = f"'{line[:3]}' ends a YAML document, and a file is only one"
            problems.error(span, "E110", message, "delete this line")
            return None
    builder = _Builder(chunk, problems)
    try:
        return builder.build()
    except yaml.YAMLError as error:
        if builder.sound:  # else this is only what an alias or anchor led to
            _explain(error, chunk, problems)
    except RecursionError:
        span = Span(chunk.path, chunk.first, 1)
        problems.error(span, "E104", "this entry is nested too deeply", "write it flat")
    return None


class _Builder:
    """Builds nodes from YAML events, which unlike YAML nodes still know anchors and tags."""

    def __init__(self, chunk: _Chunk, problems: Problems) -> None:
        self.chunk = chunk
        self.problems = problems
        self.events = yaml.parse(chunk.text, Loader=_LOADER)
        self.sound = True
        self.refused_line = -1

    def build(self) -> Node | None:
        next(self.events)
        next(self.events)
        node = self._node(next(self.events))
        return node if self.sound else None

    def _span(self, event: Any) -> Span:
        start, end = event.start_mark, event.end_mark
        length = end.column - start.column if start.line == end.line else 1
        line = self.chunk.first + min(start.line, len(self.chunk.lines) - 1)
        return Span(self.chunk.path, line, start.column + 1, max(1, length))

    def _refuse(self, event: Any, code: str, message: str, hint: str) -> Node:
        self.sound = False
        span = self._span(event)
        self.refused_line = span.line
        self.problems.error(span, code, message, hint)
        return Scalar("", span)

    def _node(self, event: Any) -> Node:
        if isinstance(event, yaml.AliasEvent):
            if self.refused_line == self._span(event).line:
                return Scalar("", self._span(event))  # one message a line is enough
            hint = "quote an expression that starts with '*'"
            return self._refuse(event, "E105", "'*' starts a YAML alias", hint)
        if event.anchor is not None:
            hint = "quote an expression that starts with '&'"
            self._refuse(event, "E105", "'&' starts a YAML anchor", hint)
        if event.tag is not None:
            hint = "quote an expression that starts with '!'"
            self._refuse(event, "E105", "'!' starts a YAML tag", hint)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(event)
        return self._mapping(event)

    def _scalar(self, event: Any) -> Scalar:
        start, end = event.start_mark, event.end_mark
        lines = (*self.chunk.lines, "")  # an empty value may stand behind the last line
        if start.line == end.line:
            raw = lines[start.line][start.column : end.column]
        else:
            last = lines[end.line][: end.column]
            raw = "\n".join(
                (lines[start.line][start.column :], *lines[start.line + 1 : end.line], last)
            )
        style = event.style if event.style in ("|", ">", "'", '"') else None
        return Scalar(event.value, self._span(event), raw, style)

    def _items(self, start: Any) -> Items:
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._node(event))
        return Items(tuple(items), self._span(start))

    def _mapping(self, start: Any) -> Mapping:
        pairs: list[tuple[Scalar, Node]] = []
        seen: dict[str, Span] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._node(event)
            value = self._node(next(self.events))
            if not isinstance(key, Scalar):
                self._refuse(event, "E106", "a key is a plain word", "quote it, or use a list")
                continue
            if key.text == "<<" and key.style is None:
                hint = "write the fields of each entry out"
                self._refuse(event, "E105", "'<<' would merge maps in YAML", hint)
                continue
            if key.text in seen:
                where = f"it already stands in line {seen[key.text].line}"
                self._refuse(event, "E107", f"'{key.text}' stands here twice", where)
                continue
            seen[key.text] = key.span
            pairs.append((key, value))
        return Mapping(tuple(pairs), self._span(start))


def _explain(error: yaml.YAMLError, chunk: _Chunk, problems: Problems) -> None:
    """Says in the terms of rule files what is wrong with the YAML."""
    problem = str(getattr(error, "problem", None) or "")
    context = str(getattr(error, "context", None) or "")
    mark = getattr(error, "problem_mark", None)
    opened = getattr(error, "context_mark", None)
    if "flow mapping" in context and opened and mark and mark.line > opened.line:
        problem = "open brace"
    if "flow sequence" in context or "quoted scalar" in context or problem == "open brace":
        mark = opened or mark
    row = min(mark.line if mark else 0, len(chunk.lines) - 1)
    column = mark.column if mark and mark.line < len(chunk.lines) else 0
    line = chunk.lines[row]
    span = Span(chunk.path, chunk.first + row, column + 1)
    code, (message, hint) = "E101", _reason(problem, context, line, column)
    if "nesting depth" in problem:
        code, message, hint = "E104", "this entry is nested too deeply", "write it flat"
    problems.error(span, code, message, hint)


def _reason(problem: str, context: str, line: str, column: int) -> tuple[str, str]:
    before, here = line[:column], line[column : column + 1]
    if "alias" in problem or "anchor" in problem or "tag" in problem:
        return f"'{here}' has a meaning in YAML", "quote the expression"
    if "mapping values are not allowed" in problem and re.match(r"^[\s-]*[\w-]+$", before):
        return "this line is indented wrongly", "fields of one entry stand below each other"
    if "mapping values are not allowed" in problem:
        return "': ' makes a map here", "quote a text that holds ': ', as in C++'s ?:"
    if "cannot start any token" in problem:
        return f"'{here}' cannot start a value", "quote the expression"
    if problem == "open brace":
        return "this brace is not closed", "close it, or write one 'key: value' a line"
    if "flow mapping" in problem or "flow mapping" in context:
        hint = "write 'vars' as a block map, one variable a line"
        return "this does not fit between braces", hint
    if "quoted scalar" in context:
        return "this quote is not closed", "double a quote inside: ''"
    if before.rstrip().endswith(("'", '"')):
        return "text follows a quoted value", "quote the whole value"
    if "flow sequence" in context:
        return "this bracket is not closed, or holds what does not fit", "write a block list"
    if "expected key" in problem or "block" in problem:
        return "this line does not fit the lines above", "fields of one entry start in one column"
    return "this is not YAML", problem or "see https://yaml.org"
