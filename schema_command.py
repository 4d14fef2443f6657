"""`eqsat schema`: the editor schemas of rule files, written anew.

Takes the field tables of the loader; gives `rules/schema/*.json`.
"""

from __future__ import annotations

from rich.console import Console

from .engine.load import builtin_folder
from .engine.schema import write_schemas


def update_schemas() -> int:
    """Write the editor schemas that belong to the field tables of the loader."""
    folder = builtin_folder() / "schema"
    write_schemas(folder)
    Console().print(f"schemas written to {folder}")
    return 0
