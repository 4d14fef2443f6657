"""egglog's engine, without the Python layer around it.

`import egglog.bindings` runs the whole package first, a code formatter and a plotter
included: half a second that no compile needs. The extension module alone loads in
milliseconds. Where it is not found as a file, the plain import does.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egglog.bindings import EGraph

_NAME = "egglog.bindings"


def _load() -> ModuleType:
    loaded = sys.modules.get(_NAME)
    spec = importlib.util.find_spec("egglog") if loaded is None else None
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    files = [Path(place, f"bindings{suffix}") for place in places for suffix in EXTENSION_SUFFIXES]
    for file in files:
        if file.is_file():
            loader = ExtensionFileLoader(_NAME, str(file))
            found = importlib.util.spec_from_file_location(_NAME, file, loader=loader)
            if found is not None:
                loaded = importlib.util.module_from_spec(found)
                loader.exec_module(loaded)
                sys.modules.pop(_NAME, None)  # a later `import egglog` puts it into the package
                return loaded
    return loaded or importlib.import_module(_NAME)


Engine: type[EGraph] = _load().EGraph
