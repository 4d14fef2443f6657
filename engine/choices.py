"""Numbers of a target file that shape kernels: sections of it, each a frozen dataclass.

`choice` declares a field with its one line of documentation; `read_choices` reads a section.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, TypeVar

from .settings import Settings

Section = TypeVar("Section")


def choice(doc: str, *, whole: bool = True) -> Any:
    """A number; `whole` where it counts something."""
    return field(metadata={"doc": doc, "whole": whole})


def read_choices(
    kind: type[Section], settings: Settings, name: str, base: Section | None
) -> Section:
    """The section `name` in a map; what it leaves out is that of `base`, where there is one.
    Mistakes are reported to the settings."""
    listed: Any = fields(kind)  # type: ignore[arg-type]
    known = [one.name for one in listed]
    settings.only(known, f"'{name}'")
    if base is None:
        settings.need(known, f"'{name}'")
    values: dict[str, Any] = {}
    for one in listed:
        whole = one.metadata["whole"]
        default = 1.0 if base is None else getattr(base, one.name)
        number = settings.number(one.name, default, whole=whole)
        values[one.name] = int(number) if whole else number
    return kind(**values)
