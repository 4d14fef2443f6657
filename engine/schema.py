"""Editor schemas: the field tables as JSON Schema.

Takes the tables of `fields.py`; gives the text of `rules/schema/*.json`, with which editors
complete and explain fields. What is inside expressions only the loader can check.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .block_choices import BlockChoices
from .fields import KINDS, STAGES, FieldSpec
from .loop_choices import LoopChoices
from .rule import NUMERICS

# Which kinds of entries a file of each folder holds.
# A file of rules may hold any of them: `pack.json` is for the files of users.
FILES: Mapping[str, tuple[str, ...]] = {
    "rule": ("rule",),
    "fusion": ("fuse", "forbid", "avoid", "prefer"),
    "scalar": ("scalar",),
    "op": ("op",),
    "trace": ("rule", "decompose"),
    "pack": ("rule", "fuse", "forbid", "avoid", "prefer", "scalar", "op", "decompose"),
}
_DRAFT = "http://json-schema.org/draft-07/schema#"
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


_NUMBER: Mapping[str, Any] = {"type": "number", "minimum": 0}
_WHOLE_NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 1}


def _section(doc: str, kind: type) -> Mapping[str, Any]:
    return {
        "description": doc,
        "type": "object",
        "properties": {
            one.name: {
                "description": one.metadata["doc"],
                **(_WHOLE_NUMBER if one.metadata["whole"] else _NUMBER),
            }
            for one in fields(kind)
        },
        "additionalProperties": False,
    }


_TARGET: Mapping[str, Any] = {
    "doc": {"description": "What machine this is.", "type": "string"},
    "name": {"description": "The file's name without .yaml.", "type": "string"},
    "device": {"description": "The device type, as torch calls it.", "type": "string"},
    "bandwidth": {"description": "Bytes per second from memory.", **_NUMBER},
    "cache_bandwidth": {"description": "Bytes per second from the cache.", **_NUMBER},
    "cache": {"description": "Bytes that fit into the cache.", **_NUMBER},
    "flops": {
        "description": "Peak of matrix products per dtype; `any` for those not listed.",
        "type": "object",
        "additionalProperties": _NUMBER,
        "required": ["any"],
    },
    "scalar_flops": {"description": "Elementwise operations per second.", **_NUMBER},
    "units": {"description": "Tiles of a product computed at once (cores).", **_WHOLE_NUMBER},
    "tile": {"description": "Elements of a product's result that one unit holds.", **_WHOLE_NUMBER},
    "launch": {"description": "Seconds that a generated kernel costs at least.", **_NUMBER},
    "extern": {"description": "Seconds that a call into ATen costs at least.", **_NUMBER},
    "reduction": {"description": "The share of a launch that a reduction pays.", **_NUMBER},
    "strided": {"description": "Extra share of traffic for rows that lie apart.", **_NUMBER},
    "view": {"description": "Seconds that keeping one more node costs.", **_NUMBER},
    "memory": {"description": "Seconds per byte of a folded constant.", **_NUMBER},
    "base": {"description": "The built-in target that gives what is left out.", "type": "string"},
    "loops": _section("What shapes loops; cpu.yaml gives what is left out.", LoopChoices),
    "blocks": _section("What shapes blocks on a GPU; h200.yaml gives the rest.", BlockChoices),
}
_STAGE: Mapping[str, Any] = {"enum": list(STAGES)}
_PHASE: Mapping[str, Any] = {
    "phase": {"description": "The name of the phase, for reports.", "type": "string"},
    "folders": {
        "description": "Folders whose rules run together, round by round.",
        "type": "array",
        "items": {"type": "string"},
    },
    "iterations": {"description": "Rounds at most.", "type": "integer", "minimum": 1},
    "matches": {"description": "Matches per rule and round.", "type": "integer", "minimum": 1},
    "growth": {"description": "Nodes added, as a multiple of the graph's.", **_NUMBER},
    "least": {"description": "... but at least this many.", "type": "integer", "minimum": 0},
    "others": {
        "description": "This phase also takes folders that are named nowhere.",
        "type": "boolean",
    },
}
_SCHEDULE: Mapping[str, Any] = {
    "default": {"description": "The stage of folders that are not named.", **_STAGE},
    "folders": {
        "description": "The stage that a folder's rules belong to.",
        "type": "object",
        "additionalProperties": _STAGE,
    },
    "stages": {
        "description": "Per stage its phases, in order.",
        "type": "object",
        "additionalProperties": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": _PHASE,
                "required": ["phase"],
                "additionalProperties": False,
            },
        },
    },
}


def schema_texts() -> dict[str, str]:
    """File name to text, for every schema."""
    schemas = {name: _schema(name, kinds) for name, kinds in FILES.items()}
    schemas["target"] = _settings("target", _TARGET, [])
    schemas["schedule"] = _settings("schedule", _SCHEDULE, ["folders", "stages"])
    return {f"{name}.json": json.dumps(one, indent=2) + "\n" for name, one in schemas.items()}


def _settings(name: str, known: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "$schema": _DRAFT,
        "title": f"eqsat: {name} files",
        "type": "object",
        "properties": known,
        "required": required,
        "additionalProperties": False,
    }


def write_schemas(folder: Path) -> None:
    """Writes the schemas to `folder`, which is made where it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")


def _schema(name: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    entries = [_entry(kind) for kind in kinds]
    return {
        "$schema": _DRAFT,
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
