"""egglog's engine, without the Python layer around it.

`import egglog.bindings` runs the whole package first, a code formatter and a plotter
included: half a second that no compile needs. The extension module alone loads in
milliseconds, when it is first used. Where it is not found as a file, the plain import does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egglog.bindings import EGraph

_NAME = "egglog.bindings"
_classes: dict[int, type[EGraph]] = {}  # by process: a forked one has those of its parents too


def engine_class() -> type[EGraph]:
    """`egglog.bindings.EGraph` for this process.

    The library keeps threads, which do not survive a fork: it would wait for them for ever. So a
    process forked off one that has loaded it loads a copy, which starts with threads of its own.
    """
    process = os.getpid()
    found = _classes.get(process)
    if found is None:
        file = _library()
        if file is None:
            module = importlib.import_module(_NAME)
        elif _classes:
            module = _load_copy(file)
        else:
            module = sys.modules.get(_NAME) or _load(file)
        found = _classes[process] = module.EGraph
    return found


def _library() -> Path | None:
    loaded = sys.modules.get(_NAME)
    if loaded is not None:
        return Path(str(loaded.__file__))
    spec = importlib.util.find_spec("egglog")
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    files = (Path(place, f"bindings{suffix}") for place in places for suffix in EXTENSION_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def _load(file: Path) -> ModuleType:
    loader = ExtensionFileLoader(_NAME, str(file))
    spec = importlib.util.spec_from_file_location(_NAME, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules.pop(_NAME, None)  # a later `import egglog` puts it into the package
    return module


def _load_copy(file: Path) -> ModuleType:
    """The same library from another file, as a library is loaded once per file."""
    with tempfile.TemporaryDirectory(prefix="eqsat-") as folder:
        return _load(Path(shutil.copy(file, folder)))
