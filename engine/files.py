"""Which files a load reads, and their texts.

Takes paths of files and folders; gives `RuleFile`s in alphabetical order and reports what cannot
be read (E108).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .expr import Span
from .source import Problems

RULES = Path(__file__).resolve().parent.parent / "rules"
# Data under rules/ that is not made of entries.
_OTHER = ("schedule.yaml", "targets", "rule_sets")


@dataclass(frozen=True)
class RuleFile:
    """A rule file: `shown` is its path in messages, `folder` what its rules belong to."""

    shown: str
    folder: str
    text: str


def read_files(paths: Iterable[str | Path], problems: Problems) -> list[RuleFile]:
    """The files at `paths`; of a folder all that is below it and ends in .yaml."""
    found = (_read(path, inner, problems) for path, inner in _listed(paths, problems))
    return [file for file in found if file is not None]


def read_text(path: Path, shown: str, problems: Problems) -> str | None:
    """The text of a file, or None after an error at the place that cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        problems.error(Span(shown, 1, 1), "E108", f"this file cannot be read: {reason.lower()}")
        return None
    try:
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start].split(b"\n")
        span = Span(shown, len(before), len(before[-1].decode(errors="replace")) + 1)
        message = f"the byte 0x{data[error.start]:02x} is no UTF-8"
        problems.error(span, "E108", message, "save the file as UTF-8")
        return None


def _listed(paths: Iterable[str | Path], problems: Problems) -> Iterator[tuple[Path, Path]]:
    """Every file with its path inside of what was given."""
    for given in paths:
        root, span = Path(given), Span(str(given), 1, 1)
        if not root.exists():
            problems.error(span, "E108", "there is no such file or folder")
        elif not root.is_dir():
            yield root, Path(root.name)
        else:
            below = sorted(path for path in root.rglob("*.yaml") if not path.is_dir())
            if not below:
                others = next(root.rglob("*.yml"), None)
                hint = f"rename {others.name}: rule files end in .yaml" if others else None
                problems.warning(span, "W109", "there is no .yaml file in this folder", hint)
            inner = ((path, path.relative_to(root)) for path in below)
            yield from (pair for pair in inner if pair[1].parts[0] not in _OTHER)


def _read(path: Path, inner: Path, problems: Problems) -> RuleFile | None:
    """Built-in files are shown from `rules/` on, so that messages are the same everywhere."""
    shown = str(path)
    if path.is_relative_to(RULES) or _resolved(path).is_relative_to(RULES):
        inner = _resolved(path).relative_to(RULES)
        shown = f"rules/{inner.as_posix()}"
    folder = inner.parts[0] if len(inner.parts) > 1 else path.stem
    text = read_text(path, shown, problems)
    return None if text is None else RuleFile(shown, folder, text)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a link that leads to itself
        return path.absolute()
