"""`eqsat schema`: the editor schemas of rule files and the tables of the guide, written anew.

Takes the field tables of the loader; gives `rules/schema/*.json` and the tables in
`rules/README.md`.
"""

from __future__ import annotations

from rich.console import Console

from .engine.load import builtin_folder
from .engine.schema import write_schemas
from .manual import update_manual


def update_schemas() -> int:
    """Write the editor schemas and reference tables that belong to the tables of the loader."""
    folder = builtin_folder() / "schema"
    write_schemas(folder)
    guide = builtin_folder() / "README.md"
    update_manual(guide)
    Console().print(f"schemas written to {folder}, tables to {guide}")
    return 0
