"""Rule packs: rule files of users and of installed packages, and the names they go by.

Takes paths and entry points; gives `RulePack`s, which only say where files are. Nothing is read
here: files are read at each compile, so that an edit counts from the next one on.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "eqsat_rules"
_UNUSABLE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, init=False)
class RulePack:
    """Rule files and folders under one name: its rules are called `name:rule`.

    Give it to `options={"rules": [pack]}`, or switch it on for every later compile: `load()`
    and `unload()`, or a `with` block. Graphs that are compiled already stay as they are.
    """

    name: str
    paths: tuple[str, ...]

    def __init__(self, *paths: str | os.PathLike[str], name: str | None = None) -> None:
        """`name` is by default that of the first folder, or of the first file without its
        suffix. Raises TypeError for what is no path, ValueError for an unusable name."""
        texts = tuple(_path(path) for path in paths)
        if not texts:
            raise ValueError("a rule pack needs a file or a folder")
        if name is not None and (not name or _UNUSABLE.search(name)):
            raise ValueError(
                f"a pack's name has letters, digits, '_', '-' and '.' only, not {name!r}"
            )
        object.__setattr__(self, "name", name or _name_of(texts[0]))
        object.__setattr__(self, "paths", texts)

    def load(self) -> RulePack:
        """Use these rules in every compile of this process from now on; gives the pack.

        A pack that is loaded twice is used until it is unloaded twice.
        """
        with _lock:
            _loaded.append(self)
        return self

    def unload(self) -> None:
        """Undo one `load` of this pack; nothing happens where it is not loaded."""
        with _lock:
            for place, pack in enumerate(_loaded):
                if pack is self:
                    del _loaded[place]
                    return

    @property
    def loaded(self) -> bool:
        return any(pack is self for pack in loaded_packs())

    def __enter__(self) -> RulePack:
        """Inside the block the pack is loaded. The one of `load_rules` is so already."""
        return self if self.loaded else self.load()

    def __exit__(self, *error: object) -> None:
        self.unload()


_loaded: list[RulePack] = []
_lock = threading.Lock()


def load_rules(path: str | os.PathLike[str], name: str | None = None) -> RulePack:
    """Use the rules of a file or folder in every later compile of this process.

    Gives the pack: `pack.unload()`, or `with eqsat.load_rules(path): ...`. The files are read
    at each compile; what is wrong with them is a warning there.
    """
    return RulePack(os.path.abspath(_path(path)), name=name).load()


def loaded_packs() -> tuple[RulePack, ...]:
    """The packs that are on for every compile, in the order of loading."""
    with _lock:
        return tuple(_loaded)


def unload_all() -> None:
    """Forget every loaded pack, and which packages were looked at."""
    with _lock:
        _loaded.clear()
    _find_packages.cache_clear()


def package_packs(warn: Callable[[str], None]) -> tuple[RulePack, ...]:
    """The packs of installed packages, by entry points of group `eqsat_rules`.

    An entry point names a path, a package whose folder holds the rules, or a function that
    gives paths. `warn` hears by name of those that fail; the others are used.
    """
    packs, failures = _find_packages(tuple(sys.path))
    for failure in failures:
        warn(failure)
    return packs


def distinct(packs: Iterable[RulePack]) -> tuple[RulePack, ...]:
    """Each pack once, under a name of its own: the second `rules` is `rules-2`."""
    found: dict[tuple[str, ...], RulePack] = {}
    names: set[str] = set()
    for pack in packs:
        places = (pack.name, *map(os.path.realpath, pack.paths))
        if places in found:
            continue
        name, number = pack.name, 1
        while name in names:
            number += 1
            name = f"{pack.name}-{number}"
        names.add(name)
        found[places] = RulePack(*pack.paths, name=name)
    return tuple(found.values())


@functools.lru_cache(maxsize=4)
def _find_packages(_: tuple[str, ...]) -> tuple[tuple[RulePack, ...], tuple[str, ...]]:
    """Packs and failures; looked for once per search path, as it takes milliseconds."""
    packs: list[RulePack] = []
    failures: list[str] = []
    try:
        points = tuple(entry_points(group=GROUP))
    except Exception as error:  # one damaged package spoils the whole listing
        told = f"{type(error).__name__}: {error}"
        return (), (f"the entry points of group '{GROUP}' cannot be listed: {told}",)
    for point in points:
        try:
            packs.append(RulePack(*_paths_of(point), name=_UNUSABLE.sub("-", point.name)))
        except Exception as error:  # whatever a package does when it is imported
            told = f"{type(error).__name__}: {error}"
            failures.append(
                f"the rules of entry point '{point.name}' ({point.value}) are left out: {told}"
            )
    return tuple(packs), tuple(failures)


def _paths_of(point: EntryPoint) -> Iterator[Path]:
    """Where the files of an entry point are; relative paths start at its package."""
    value = point.load()
    if isinstance(value, ModuleType):
        yield from _folders(value)
        return
    if callable(value):
        value = value()
    listed = [value] if isinstance(value, str | os.PathLike) else list(value)
    base = _folders(importlib.import_module(point.module))[0] if listed else Path()
    for path in listed:
        yield base / _path(path)


def _folders(module: ModuleType) -> list[Path]:
    """The folders of a package, or the one of the package that a module is in."""
    if hasattr(module, "__path__"):
        return [Path(folder) for folder in module.__path__]
    if not module.__package__ or module.__file__ is None:
        raise ValueError(f"'{module.__name__}' is in no package, so it has no folder of its own")
    return [Path(module.__file__).parent]


def _path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise TypeError(f"expected a path, not {value!r}")
    return os.path.expanduser(path)


def _name_of(path: str) -> str:
    place = Path(os.path.abspath(path))
    stem = place.name if place.is_dir() else place.stem
    return _UNUSABLE.sub("-", stem) or "rules"
