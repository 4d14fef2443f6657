"""Editor schemas: the field tables as JSON Schema.

Takes the tables of `fields.py`; gives the text of `rules/schema/*.json`, with which editors
complete and explain fields. What is inside expressions only the loader can check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .fields import KINDS, FieldSpec
from .rule import NUMERICS

# Which kinds of entries a file of each folder holds.
FILES: Mapping[str, tuple[str, ...]] = {
    "rule": ("rule",),
    "fusion": ("fuse", "forbid", "prefer"),
    "scalar": ("scalar",),
    "op": ("op",),
}
_TEXT: Mapping[str, Any] = {"type": ["string", "number", "boolean"]}
_TEXTS: Mapping[str, Any] = {"type": "array", "items": _TEXT}
_VALUES: Mapping[str, Any] = {"type": "object", "additionalProperties": _TEXT}
_TOLERANCES: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "approximate": {
            "type": "object",
            "properties": {"rtol": {"type": "number"}, "atol": {"type": "number"}},
            "additionalProperties": False,
        }
    },
    "required": ["approximate"],
    "additionalProperties": False,
}
_CLASS: Mapping[str, Any] = {
    "anyOf": [{"enum": [word for word in NUMERICS if word != "approximate"]}, _TOLERANCES]
}
_CASE: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "integer"}}]},
}
_FAMILY: Mapping[str, Any] = {
    "anyOf": [
        {"type": "object", "additionalProperties": _TEXTS},
        {"type": "array", "items": _VALUES},
    ]
}
_NUMERICS: Mapping[str, Any] = {
    "anyOf": [
        _CLASS,
        {
            "type": "object",
            "properties": {"int": _CLASS, "float": _CLASS},
            "additionalProperties": False,
        },
    ]
}
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "name": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
    "word": {"type": "string"},
    "text": _TEXT,
    "flag": {"type": "boolean"},
    "number": {"type": "number", "minimum": 0},
    "expression": _TEXT,
    "signature": {"type": "string"},
    "device": {"type": "string"},
    "types": {"type": "object", "additionalProperties": {"type": "string"}},
    "pieces": _VALUES,
    "values": _VALUES,
    "roots": {"anyOf": [_TEXT, _VALUES]},
    "templates": {"anyOf": [_TEXT, _VALUES]},
    "conditions": _TEXTS,
    "words": {"anyOf": [_TEXT, _TEXTS]},
    "assumptions": {"anyOf": [_TEXT, _TEXTS]},
    "cases": {"type": "array", "items": _CASE},
    "family": _FAMILY,
    "numerics": _NUMERICS,
}


def schema_texts() -> dict[str, str]:
    """File name to text, for every schema."""
    return {
        f"{name}.json": json.dumps(_schema(name, kinds), indent=2) + "\n"
        for name, kinds in FILES.items()
    }


def write_schemas(folder: Path) -> None:
    """Writes the schemas to `folder`, which is made where it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")


def _schema(name: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    entries = [_entry(kind) for kind in kinds]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"eqsat: {name} files",
        "type": "array",
        "items": entries[0] if len(entries) == 1 else {"anyOf": entries},
    }


def _entry(kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {spec.name: _field(spec) for spec in KINDS[kind]},
        "required": [spec.name for spec in KINDS[kind] if spec.required],
        "additionalProperties": False,
    }


def _field(spec: FieldSpec) -> dict[str, Any]:
    form = {"enum": list(spec.choices)} if spec.form == "word" and spec.choices else {}
    return {"description": spec.doc, **(form or _FORMS[spec.form])}
