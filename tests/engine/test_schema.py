"""The editor schemas take every file under rules/ and refuse what the loader refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eqsat.engine.schema import schema_texts

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
SETTINGS = json.loads((ROOT / ".vscode" / "settings.json").read_text())["yaml.schemas"]
SCHEMAS = {name: json.loads(text) for name, text in schema_texts().items()}


class _Loader(yaml.SafeLoader):
    """YAML 1.2, as editors read it: `on` is a text and 1e-3 a number."""


_Loader.yaml_implicit_resolvers = {
    key: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:bool"]
    for key, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))
_FLOAT = re.compile(r"^-?[0-9.]+e[-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-0123456789"))


def is_type(value: Any, name: str) -> bool:
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, TYPES[name]) and (name != "integer" or not isinstance(value, bool))


def problems(value: Any, schema: dict[str, Any], place: str = "") -> Iterator[str]:
    """What JSON Schema says against `value`, for the words that our schemas use."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_type(value, kind) for kind in kinds):
        yield f"{place}: {value!r} is no {kinds}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{place}: {value!r} does not match"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{place}: {value!r} is too small"
    if "anyOf" in schema and all(list(problems(value, one)) for one in schema["anyOf"]):
        yield f"{place}: {value!r} fits none"
    for at, item in enumerate(value if isinstance(value, list) else ()):
        yield from problems(item, schema.get("items", {}), f"{place}[{at}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (
            f"{place}: no {name}" for name in schema.get("required", ()) if name not in value
        )
        for name, item in value.items():
            other = schema.get("additionalProperties", True)
            if name not in known and other is False:
                yield f"{place}: unknown {name}"
            rest = other if isinstance(other, dict) else {}
            yield from problems(item, known.get(name, rest), f"{place}.{name}")


def mapped() -> Iterator[tuple[Path, str]]:
    for schema, globs in SETTINGS.items():
        for glob in [globs] if isinstance(globs, str) else globs:
            for path in ROOT.glob(glob) if glob.startswith("rules/") else ():
                yield path, Path(schema).name


def test_every_rule_file_has_a_schema_that_takes_it() -> None:
    found = dict(mapped())
    files = set((ROOT / "rules").glob("**/*.yaml"))
    sets = set((ROOT / "rules" / "rule_sets").glob("**/*.yaml"))  # what others have, no rules
    assert set(found) == files - sets
    for path, name in found.items():
        value = yaml.load(path.read_text(), _Loader)
        assert list(problems(value, SCHEMAS[name], path.name)) == []


def test_every_schema_is_mapped_and_every_field_explained() -> None:
    assert {Path(name).name for name in SETTINGS} == set(SCHEMAS)
    for schema in SCHEMAS.values():
        entry = schema.get("items", schema)
        for one in entry.get("anyOf", [entry]):
            assert all(field.get("description") for field in one["properties"].values())


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "Not_Kebab"},
        {"numerics": "exakt"},
        {"stage": "later"},
        {"docs": "A typo in a field."},
        {"grad": "maybe"},
    ],
)
def test_a_wrong_field_is_refused(change: dict[str, Any]) -> None:
    rule = {
        "rule": "double",
        "doc": "Twice is a sum.",
        "vars": {"x": "float[...]"},
        "match": "x * 2",
        "make": "x + x",
        "numerics": "exact",
    }
    assert list(problems([rule], SCHEMAS["rule.json"])) == []
    assert list(problems([{**rule, **change}], SCHEMAS["rule.json"]))
