"""Rule files as nodes with positions.

Takes the text of a file; gives one `Entry` for each `- ` at the left margin, with its YAML read
into `Scalar`, `Items` and `Mapping`. Scalars stay text: YAML's own reading of `on`, `12:30` and
`1e-5` never happens. Entries are read one by one, so one with broken YAML hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from .expr import Span
from .source import Problems

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
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
        skipped = self._in_raw(offset)
        before = self.raw[:skipped]
        line = self.span.line + before.count("\n")
        start = 1 if "\n" in before else self.span.col
        return Span(self.span.path, line, start + skipped - (before.rfind("\n") + 1), length)

    def _in_raw(self, offset: int) -> int:
        """Walks text and raw text side by side, past quotes, escapes, folds and indentation."""
        place = self.raw.find("\n") + 1 if self.style in ("|", ">") else 0
        if self.style in ("'", '"'):
            place = 1
        for letter in self.text[:offset]:
            place = self._next(place, letter) + 1
        return self._next(place, self.text[offset : offset + 1] or "\n")

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


def read_entries(path: str, text: str, problems: Problems) -> list[Entry]:
    """The entries of a rule file; what cannot be read goes to `problems` (E1xx)."""
    # Not splitlines(): it also breaks at letters that YAML keeps inside a line.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    problems.lines[path] = lines
    entries: list[Entry] = []
    for chunk in _chunks(path, lines, problems):
        node = _read(chunk, problems)
        if node is None:
            continue
        if isinstance(node, Items) and len(node.items) == 1:
            node = node.items[0]
        if isinstance(node, Mapping) and node.pairs:
            entries.append(Entry(node, chunk.text))
        else:
            message = "an entry is a map that starts with its kind and name"
            problems.error(node.span, "E102", message, "- rule: some-name")
    return entries


def _chunks(path: str, lines: list[str], problems: Problems) -> Iterator[_Chunk]:
    starts = [number for number, line in enumerate(lines) if _ENTRY.match(line)]
    head = lines[: starts[0]] if starts else lines
    for number, line in enumerate(head):
        if line.strip() and not line.startswith(("#", "---", "%YAML")):
            span = Span(path, number + 1, 1, len(line))
            message = "a rule file is a list of entries"
            problems.error(span, "E102", message, "start every entry with '- rule: name'")
            break
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
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
    builder = _Builder(chunk, problems)
    builder = _Builder(chunk, problems)
    try:
        return builder.build()
    except yaml.YAMLError as error:
        if builder.sound:  # else this is only what an alias or anchor led to
            _explain(error, chunk, problems)
    except RecursionError:
        problems.error(Span(chunk.path, chunk.first, 1), "E104", "this entry is nested too deeply")
    return None


class _Builder:
    """Builds nodes from YAML events, which unlike YAML nodes still know anchors and tags."""

    def __init__(self, chunk: _Chunk, problems: Problems) -> None:
        self.chunk = chunk
        self.problems = problems
        self.events = yaml.parse(chunk.text, Loader=_LOADER)
        self.sound = True

    def build(self) -> Node | None:
        next(self.events)
        next(self.events)
        node = self._node(next(self.events))
        return node if self.sound else None

    def _span(self, event: Any) -> Span:
        start, end = event.start_mark, event.end_mark
        length = end.column - start.column if start.line == end.line else 1
        line = self.chunk.first + start.line
        return Span(self.chunk.path, line, start.column + 1, max(1, length))

    def _refuse(self, event: Any, code: str, message: str, hint: str) -> Node:
        self.sound = False
        span = self._span(event)
        self.problems.error(span, code, message, hint)
        return Scalar("", span)

    def _node(self, event: Any) -> Node:
        if isinstance(event, yaml.AliasEvent):
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
        lines = self.chunk.lines
        if start.line == end.line:
            raw = lines[start.line][start.column : end.column]
        else:
            last = lines[end.line][: end.column] if end.line < len(lines) else ""
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
            if key.text in seen:
                where = f"it already stands in line {seen[key.text].line}"
                self._refuse(event, "E107", f"'{key.text}' stands here twice", where)
                continue
            seen[key.text] = key.span
            pairs.append((key, value))
        return Mapping(tuple(pairs), self._span(start))


def _explain(error: yaml.YAMLError, chunk: _Chunk, problems: Problems) -> None:
    """Says in the terms of rule files what is wrong with the YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    row = min(mark.line if mark else 0, len(chunk.lines) - 1)
    column = mark.column if mark and mark.line < len(chunk.lines) else 0
    problem = str(getattr(error, "problem", None) or "")
    line = chunk.lines[row]
    span = Span(chunk.path, chunk.first + row, column + 1)
    if "alias" in problem or "anchor" in problem or "tag" in problem:
        start = next((place for place, letter in enumerate(line) if letter in "*&!"), column)
        span = Span(chunk.path, chunk.first + row, start + 1)
        message, hint = f"'{line[start]}' has a meaning in YAML", "quote the expression"
    elif "mapping values are not allowed" in problem:
        message, hint = "': ' makes a map here", "quote a text that holds ': ', as in C++'s ?:"
    elif "cannot start any token" in problem:
        letter = line[column : column + 1]
        message, hint = f"'{letter}' cannot start a value", "quote the expression"
    elif "flow mapping" in problem or "flow mapping" in str(error):
        message = "this does not fit between braces"
        hint = "write 'vars' as a block map, one variable a line"
    elif "quoted scalar" in str(error):
        message, hint = "a quote is not closed, or text follows it", "quote the whole value"
    elif "flow sequence" in str(error):
        message, hint = "this does not fit between brackets", "quote it, or write a block list"
    else:
        message, hint = "this is not YAML", problem or "see https://yaml.org"
    problems.error(span, "E101", message, hint)
