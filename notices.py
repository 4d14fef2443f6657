"""What the user has been told already: each compile of a program with many graphs finds the
same mistakes in rule files and settings, and one warning about each is enough.

Takes subjects and texts; calls a `warn` function for what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

_told: dict[Hashable, str] = {}


def tell(subject: Hashable, text: str, warn: Callable[[str], None]) -> None:
    """Warn about a subject, unless the last that was told about it is the same. An empty
    text says that all is well, so that the next mistake is told again."""
    if not text:
        _told.pop(subject, None)
    elif _told.get(subject) != text:
        _told[subject] = text
        warn(text)


def forget() -> None:
    """Tell everything anew."""
    _told.clear()
