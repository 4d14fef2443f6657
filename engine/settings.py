"""Maps of user-editable data: `rules/schedule.yaml` and `rules/targets/*.yaml`.

Takes a file; gives a reader of its keys that reports every mistake with its place (E11x), as
rule files have it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path

from .document import Items, Mapping, Node, Scalar, read_map
from .expr import Span
from .files import RULES, read_text
from .source import Problems, RuleErrors, did_you_mean, suggestion


class Settings:
    """One map of a file. Reading never raises; `finish` does."""

    def __init__(self, node: Mapping, problems: Problems) -> None:
        self.node = node
        self.problems = problems
        self.values = {key.text: value for key, value in node.pairs}
        self.places = {key.text: key.span for key, _ in node.pairs}
        self.meant: set[str | None] = set()

    def error(self, span: Span, code: str, message: str, hint: str | None = None) -> None:
        self.problems.error(span, code, message, hint)

    def only(self, known: Collection[str], what: str) -> None:
        """Reports keys (E111) that are none of `known`."""
        for key, _ in self.node.pairs:
            if key.text not in known:
                self.meant.add(did_you_mean(key.text, known))
                hint = suggestion(key.text, known) or f"it has: {', '.join(known)}"
                self.error(key.span, "E111", f"{what} has no '{key.text}'", hint)

    def need(self, known: Collection[str], what: str) -> None:
        """Reports keys (E112) that are missing, and that `only` did not find misspelt."""
        missing = [name for name in known if name not in (*self.values, *self.meant)]
        if missing:
            self.error(self.node.span, "E112", f"{what} has no {_quoted(missing)}")

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        if value is None or isinstance(value, Scalar):
            return default if value is None else value.text
        self.error(self.places[name], "E113", f"'{name}' is one word")
        return default

    def number(self, name: str, default: float = 1.0, *, whole: bool = False) -> float:
        """A number above 0; `whole` ones have no fraction."""
        value = self.values.get(name)
        if value is None:
            return default
        number = _number(value)
        if number is None or number <= 0 or (whole and number % 1):
            kind = "a whole number" if whole else "a number"
            self.error(value.span, "E113", f"'{name}' is {kind} above 0")
            return default
        return number

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if isinstance(value, Scalar) and value.text in ("true", "false"):
            return value.text == "true"
        if value is not None:
            self.error(value.span, "E113", f"'{name}' is true or false")
        return False

    def words(self, name: str) -> tuple[Scalar, ...]:
        value = self.values.get(name)
        items = value.items if isinstance(value, Items) else ()
        found = tuple(item for item in items if isinstance(item, Scalar))
        if value is not None and (not isinstance(value, Items) or len(found) < len(items)):
            self.error(self.places[name], "E113", f"'{name}' is a list of words: [a, b]")
        return found

    def map(self, name: str) -> Settings:
        """The map under a key; an empty one where there is none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.error(self.places[name], "E113", f"'{name}' is a map of 'key: value' lines")
        span = self.node.span if value is None else value.span
        return Settings(value if isinstance(value, Mapping) else Mapping((), span), self.problems)

    def maps(self, name: str) -> Iterator[Settings]:
        """The maps of the list under a key."""
        value = self.values[name]
        items = value.items if isinstance(value, Items) else ()
        if not items:
            self.error(self.places[name], "E113", f"'{name}' is a list of maps")
        for item in items:
            if isinstance(item, Mapping):
                yield Settings(item, self.problems)
            else:
                self.error(item.span, "E113", "this is a map: {key: value}")

    def finish(self) -> None:
        """Raises RuleErrors with everything that was reported."""
        if self.problems.failed:
            raise RuleErrors(self.problems.sorted("error"))


def read_settings(path: Path) -> Settings:
    """The map in a file. Raises RuleErrors where it cannot be read at all."""
    problems = Problems()
    inside = path.is_relative_to(RULES)
    shown = f"rules/{path.relative_to(RULES).as_posix()}" if inside else str(path)
    text = read_text(path, shown, problems)
    node = None if text is None else read_map(shown, text, problems)
    if node is None:
        raise RuleErrors(problems.sorted("error"))
    return Settings(node, problems)


def _number(node: Node) -> float | None:
    try:
        number = float(node.text) if isinstance(node, Scalar) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _quoted(words: Collection[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
