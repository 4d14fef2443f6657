"""Settings: what `torch.compile(..., mode=, options=)`, `eqsat.options` and `eqsat.config` accept.

Takes keyword settings; gives one frozen `Settings` per compile. An unknown name or a bad
value raises `OptionError` that says which and suggests the nearest one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
PROFILES = ("bitwise", "default", "fast")


class OptionError(ValueError):
    """A setting that eqsat does not know, or a value it cannot take."""


def _paths(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | os.PathLike):
        return (os.fspath(value),)
    return tuple(os.fspath(path) for path in value)


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}{_nearest(str(value), allowed)}")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected True or False")
    return value


def _environment_paths(name: str) -> tuple[str, ...]:
    return tuple(part for part in os.environ.get(name, "").split(os.pathsep) if part)


def _setting(default: Any, read: Callable[[Any], Any], doc: str) -> Any:
    metadata = {"read": read, "doc": doc}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """All settings of one compile."""

    mode: str = _setting("default", _one_of(*MODES), "as in torch.compile")
    numerics: str = _setting(
        "default", _one_of(*PROFILES), "which numerics classes of rules are loaded"
    )
    rules: tuple[str, ...] = _setting(
        lambda: _environment_paths("EQSAT_RULES"), _paths, "rule files or folders of the user"
    )
    disable: tuple[str, ...] = _setting(
        lambda: _environment_paths("EQSAT_DISABLE"), _paths, "rules switched off: names or globs"
    )
    fold: bool = _setting(
        True, _flag, "compute expressions of parameters once, in inference, guarded"
    )
    strict: bool = _setting(
        lambda: os.environ.get("EQSAT_STRICT", "0") not in ("", "0"),
        _flag,
        "raise on a compiler failure instead of falling back",
    )


def _nearest(word: str, words: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, words, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _apply(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    known = {entry.name: entry for entry in fields(Settings)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            hint = _nearest(name, tuple(known)) or f"; known options: {', '.join(known)}"
            raise OptionError(f"eqsat has no option {name!r}{hint}")
        try:
            values[name] = known[name].metadata["read"](value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"option {name!r}: bad value {value!r}: {error}") from None
    return replace(settings, **values)


class Config:
    """The process-wide settings: `eqsat.config.numerics = "fast"`.

    Reading or setting an unknown name raises `OptionError` (an `AttributeError` on reads).
    """

    def __init__(self) -> None:
        object.__setattr__(self, "_overrides", {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        settings = self.snapshot()
        if not hasattr(settings, name):
            known = tuple(entry.name for entry in fields(Settings))
            raise AttributeError(f"eqsat.config has no setting {name!r}{_nearest(name, known)}")
        return getattr(settings, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _apply(Settings(), {name: value})
        self._overrides[name] = value

    def snapshot(self) -> Settings:
        """The settings now: defaults, environment variables, then what was assigned."""
        return _apply(Settings(), self._overrides)

    @contextlib.contextmanager
    def patch(self, **changes: Any) -> Iterator[None]:
        """Change settings inside a `with` block."""
        _apply(Settings(), changes)
        before = dict(self._overrides)
        self._overrides.update(changes)
        try:
            yield
        finally:
            self._overrides.clear()
            self._overrides.update(before)

    def add_rules(self, path: str | os.PathLike[str]) -> None:
        """Append a rule file or folder to `rules` for every later compile."""
        self._overrides["rules"] = (*self.snapshot().rules, os.fspath(path))

    def reset(self) -> None:
        """Forget everything that was assigned."""
        self._overrides.clear()


config = Config()


def resolve(mode: str | None, options: Mapping[str, Any] | None) -> Settings:
    """Settings of one compile: `eqsat.config` first, then `mode`, then `options`.

    Raises OptionError for an unknown name or a bad value.
    """
    settings = config.snapshot()
    if mode is not None:
        settings = _apply(settings, {"mode": mode})
    return _apply(settings, options or {})
