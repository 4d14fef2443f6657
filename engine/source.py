"""Places in rule files, and the only printer of messages about them.

Takes spans; gives `Diagnostic` (one message about one place), `Problems` (collects them while a
file is read, so that an author sees every mistake at once) and `RuleErrors`, the one exception
that rule authors ever see.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from .expr import Span

# How alike a word must be to be offered as a correction; lower values offer nonsense.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what would move a terminal's cursor
LINE = 120  # of a longer line only the part around the place is printed
SIMILARITY = 0.7


class Place(Protocol):
    """Where a text stands in a file: maps offsets in the text to spans."""

    def at(self, offset: int, length: int) -> Span: ...


@dataclass(frozen=True)
class LinePlace:
    """A text that stands unbroken on one line, from `start` on."""

    start: Span

    def at(self, offset: int, length: int) -> Span:
        return self.start._replace(col=self.start.col + offset, length=length)


@dataclass(frozen=True)
class Diagnostic:
    """One message about one place. `severity` is "error" or "warning", `code` is E101, W701, ...

    `hint` is a correction ("did you mean 'softmax'?") and `line` the text of the line.
    """

    span: Span
    severity: str
    code: str
    message: str
    hint: str | None = None
    line: str = ""

    def __str__(self) -> str:
        """The message, and below it the line with a caret under the place."""
        tail = f" ({self.hint})" if self.hint else ""
        head = f"{self.span}: {self.severity}: {self.message}{tail} [{self.code}]"
        if not self.line.strip():
            return head
        number = str(self.span.line).rjust(5)
        first = max(0, self.span.col - LINE) if self.span.col > LINE else 0
        line = _CONTROL.sub(
            "\N{REPLACEMENT CHARACTER}", self.line[first : first + LINE + 40]
        ).rstrip()
        # Tabs are kept in the padding, so that the caret stands right at any tab width.
        before = line[: self.span.col - 1 - first]
        padding = "".join("\t" if letter == "\t" else " " for letter in before)
        room = max(1, len(line) - len(before))
        marks = "^" + "~" * (min(self.span.length, room) - 1)
        return f"{head}\n{number} | {line}\n{' ' * len(number)} | {padding}{marks}"


class RuleErrors(Exception):
    """Everything that is wrong with the rule files of one load."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        return "\n".join(str(diagnostic) for diagnostic in self.diagnostics)


def fail(span: Span, code: str, message: str, hint: str | None = None) -> RuleErrors:
    """A `RuleErrors` with a single error, to be raised."""
    return RuleErrors([Diagnostic(span, "error", code, message, hint)])


@dataclass
class Problems:
    """Collects diagnostics; `lines` holds the text of every file read so far, by path."""

    lines: dict[str, Sequence[str]] = field(default_factory=dict)
    found: dict[Diagnostic, None] = field(default_factory=dict)
    errors: int = 0  # how often `error` and `take` were called, repetitions included

    def error(self, span: Span, code: str, message: str, hint: str | None = None) -> None:
        self._add(Diagnostic(span, "error", code, message, hint))

    def warning(self, span: Span, code: str, message: str, hint: str | None = None) -> None:
        self._add(Diagnostic(span, "warning", code, message, hint))

    def take(self, errors: RuleErrors) -> None:
        """Adds what a parser raised."""
        for diagnostic in errors.diagnostics:
            self._add(diagnostic)

    def _add(self, diagnostic: Diagnostic) -> None:
        self.errors += diagnostic.severity == "error"
        # The members of a family share their text, so the same message may come many times.
        text = self.lines.get(diagnostic.span.path, ())
        number = diagnostic.span.line - 1
        line = text[number] if number < len(text) else ""
        self.found.setdefault(replace(diagnostic, line=line))

    @property
    def failed(self) -> bool:
        return self.errors > 0

    def sorted(self, severity: str) -> tuple[Diagnostic, ...]:
        """All diagnostics of one severity, by file, line and column."""
        chosen = [diagnostic for diagnostic in self.found if diagnostic.severity == severity]
        return tuple(
            sorted(chosen, key=lambda found: (found.span.path, found.span.line, found.span.col))
        )


def did_you_mean(word: str, words: Iterable[str]) -> str | None:
    """The member of `words` most like `word`, or None where none is close."""
    known = {candidate.lower(): candidate for candidate in words}
    close = difflib.get_close_matches(word.lower(), known, n=5, cutoff=SIMILARITY)
    # Swapped letters (`tahn`) are the likeliest slip, and difflib ranks them too low.
    swapped = [other for other in close if sorted(other) == sorted(word.lower())]
    return known[(swapped or close)[0]] if close else None


def suggestion(word: str, words: Iterable[str]) -> str | None:
    """`did_you_mean` as a hint, with the letters that only look like those of ASCII."""
    close = did_you_mean(word, words)
    hints = [f"did you mean '{close}'?"] if close else []
    return " ".join((*hints, *look_alikes(word))) or None


def look_alikes(word: str) -> list[str]:
    """The letters of a word that are not ASCII, in words."""
    letters = [letter for letter in word if not letter.isascii()]
    return [f"'{letters[0]}' is {unicodedata.name(letters[0], 'no letter')}"] if letters else []
