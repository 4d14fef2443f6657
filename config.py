"""Settings: what `torch.compile(..., mode=, options=)`, `eqsat.options` and `eqsat.config` accept.

Takes keyword settings; gives one frozen `Settings` per compile. An unknown name or a bad
value raises `OptionError` that says which and suggests the nearest one.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .engine.chaos import CHEAPEST, extraction_of
from .packs import RulePack, loaded_packs, unload_all

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
PROFILES = ("bitwise", "default", "fast")


class OptionError(ValueError):
    """A setting that eqsat does not know, or a value it cannot take."""


def _packs(value: Any) -> tuple[RulePack, ...]:
    """Paths and packs, as packs."""
    listed = _listed(value, (str, os.PathLike, RulePack), "a path or an eqsat.RulePack")
    return tuple(item if isinstance(item, RulePack) else RulePack(item) for item in listed)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_listed(value, (str,), "a rule name or glob"))


def _listed(value: Any, kinds: tuple[type, ...], wanted: str) -> list[Any]:
    """One item, or a list or tuple of them."""
    items = [value] if isinstance(value, kinds) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"expected {wanted}, or a list of them")
    for item in items:
        if not isinstance(item, kinds) or item == "":
            raise ValueError(f"{item!r} is not {wanted}")
    return list(items)


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


def _from_environment(name: str, separator: str) -> list[str]:
    """The parts of a variable. Names of rules hold colons, so lists of them have commas."""
    parts = os.environ.get(name, "").split(separator)
    return [part.strip() for part in parts if part.strip()]


def _setting(default: Any, read: Callable[[Any], Any], doc: str, adds: bool = False) -> Any:
    """`adds`: what several places set adds up, environment variables included."""
    metadata = {"read": read, "doc": doc, "adds": adds}
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
    rules: tuple[RulePack, ...] = _setting(
        lambda: _packs(_from_environment("EQSAT_RULES", os.pathsep)),
        _packs,
        "rule files, folders or packs of the user",
        adds=True,
    )
    disable: tuple[str, ...] = _setting(
        lambda: _names(_from_environment("EQSAT_DISABLE", ",")),
        _names,
        "rules switched off: names or globs",
        adds=True,
    )
    enable: tuple[str, ...] = _setting(
        lambda: _names(_from_environment("EQSAT_ENABLE", ",")),
        _names,
        "rules that stay whatever `disable` says: names or globs",
        adds=True,
    )
    extraction: str = _setting(
        lambda: extraction_of(os.environ.get("EQSAT_CHAOS") or CHEAPEST),
        lambda value: extraction_of(str(value)),
        "cheapest, or to test rules: worst, or random:SEED",
    )
    cost: str = _setting(
        "estimated",
        _one_of("estimated", "measured"),
        "how the graph to run is chosen: by the cost model, or by timing good candidates too",
    )
    target: str = _setting(
        lambda: os.environ.get("EQSAT_TARGET", ""),
        lambda value: os.fspath(value),
        "a target file, or the name of a built-in target, in place of what this machine's is",
    )
    fold: bool = _setting(
        True, _flag, "compute expressions of parameters once, in inference, guarded"
    )
    strict: bool = _setting(
        lambda: os.environ.get("EQSAT_STRICT", "0") not in ("", "0"),
        _flag,
        "raise on a compiler failure instead of falling back",
    )
    verify: bool = _setting(
        lambda: os.environ.get("EQSAT_VERIFY", "0") not in ("", "0"),
        _flag,
        "check what every step of a compile made, and the first call of what came of it",
    )

    @property
    def captures(self) -> bool:
        """Whether graphs on a GPU are recorded and replayed as CUDA graphs."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @property
    def picks_kernels(self) -> bool:
        """Whether products may run in whichever library is faster: they round differently."""
        return self.numerics != "bitwise"


def _nearest(word: str, words: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, words, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _apply(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    if not isinstance(changes, Mapping):
        raise OptionError(f"options are a dict of names and values, not {changes!r}")
    known = {entry.name: entry for entry in fields(Settings)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            hint = _nearest(str(name), tuple(known)) or f"; known options: {', '.join(known)}"
            raise OptionError(f"eqsat has no option {name!r}{hint}")
        metadata = known[name].metadata
        try:
            read = metadata["read"](value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"option {name!r}: bad value {value!r}: {error}") from None
        if metadata["adds"]:
            read = tuple(dict.fromkeys((*getattr(settings, name), *read)))
        values[name] = read
    return replace(settings, **values)


# What `with` blocks of this thread change, the innermost last.
_patches: ContextVar[tuple[Mapping[str, Any], ...]] = ContextVar("eqsat_patches", default=())


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
        """The settings now: defaults, environment variables, loaded packs, what was assigned,
        then the `with` blocks around this call."""
        settings = _apply(Settings(), {"rules": loaded_packs()})
        for changes in (dict(self._overrides), *_patches.get()):
            settings = _apply(settings, changes)
        return settings

    @contextlib.contextmanager
    def patch(self, **changes: Any) -> Iterator[None]:
        """Change settings inside a `with` block, for this thread (and asyncio task) alone."""
        _apply(Settings(), changes)
        token = _patches.set((*_patches.get(), changes))
        try:
            yield
        finally:
            _patches.reset(token)

    def reset(self) -> None:
        """Forget everything that was assigned, and unload every pack."""
        self._overrides.clear()
        unload_all()


config = Config()


def resolve(mode: str | None, options: Mapping[str, Any] | None) -> Settings:
    """Settings of one compile: `eqsat.config` first, then `mode`, then `options`.

    The lists (`rules`, `disable`, `enable`) add up. Raises OptionError for an unknown name or
    a bad value.
    """
    settings = config.snapshot()
    if mode is not None:
        settings = _apply(settings, {"mode": mode})
    return _apply(settings, {} if options is None else options)
