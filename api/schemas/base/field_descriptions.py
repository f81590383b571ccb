"""Descriptions and examples of the fields of documents, for the OpenAPI document.

``fields.toml`` describes each field once, and ``examples.json`` has recorded documents by schema. Both are
read when the OpenAPI document is derived, and at no other time.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
COMMON = "common"
LONGEST_LIST = 2
"""Entries of a list that an example shows."""


@cache
def load_descriptions() -> Mapping[str, Mapping[str, str]]:
    """Descriptions by schema and field; COMMON has those of fields that mean the same in every schema.

    A section of the file may name several schemas, and a schema may stand in several sections.
    """
    found: dict[str, dict[str, str]] = {}
    for names, fields in tomllib.loads((FOLDER / "fields.toml").read_text(encoding="utf-8")).items():
        for name in names.split():
            found.setdefault(name, {}).update(fields)
    return found


@cache
def load_examples() -> Mapping[str, Any]:
    """Recorded documents by the name of their schema."""
    examples: dict[str, Any] = json.loads((FOLDER / "examples.json").read_text(encoding="utf-8"))
    return examples


def describe_fields(schemas: Mapping[str, Any]) -> None:
    """Adds to each field its description, unless it has one, and to each schema its example."""
    examples = load_examples()
    for name, schema in schemas.items():
        for field, part in schema.get("properties", {}).items():
            text = part.get("description") or description_of(name, field)
            if text is not None:
                part["description"] = text
        if name in examples:
            add_example(schema, examples[name])


def description_of(schema: str, field: str) -> str | None:
    """The description of a field; None if there is none."""
    told = load_descriptions()
    return told.get(schema, {}).get(field) or told[COMMON].get(field)


def add_example(schema: dict[str, Any], example: Any) -> None:
    """Adds ``example`` to a schema, and its plain values to the fields."""
    schema["examples"] = [example]
    if not isinstance(example, dict):
        return
    for field, part in schema.get("properties", {}).items():
        value = example.get(field)
        if value is not None and not isinstance(value, dict | list):
            part["examples"] = [value]


def parts_of(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every named part of a document: the name of its schema, and the part itself."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        yield name, value
        yield from parts_of(value, schemas[name], schemas)
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        if _may_be(value, one, schemas):
            yield from parts_of(value, one, schemas)
            break
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from parts_of(item, schema["items"], schemas)
    if isinstance(value, dict):
        rest = schema.get("additionalProperties")
        for field, part in value.items():
            inner = schema.get("properties", {}).get(field, rest)
            if isinstance(inner, dict):
                yield from parts_of(part, inner, schemas)


def _may_be(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> bool:
    """Whether ``value`` has the JSON type of ``schema`` and, for an object, all that the schema requires."""
    if "$ref" in schema:
        return _may_be(value, schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    if isinstance(value, dict):
        fits = all(field in value for field in schema.get("required", ()))
        told = schema.get("properties", {})
        consts = {name: part["const"] for name, part in told.items() if "const" in part}
        return schema.get("type") == "object" and fits and all(value[n] == c for n, c in consts.items())
    kinds: dict[type, tuple[str, ...]] = {
        str: ("string",), list: ("array",), bool: ("boolean",), int: ("integer", "number"),
        float: ("number",), type(None): ("null",),
    }  # fmt: skip
    return schema.get("type") in kinds.get(type(value), ()) and value in schema.get("enum", (value,))


def shortened(value: Any) -> Any:
    """``value`` with at most LONGEST_LIST entries of each list."""
    if isinstance(value, list):
        return [shortened(one) for one in value[:LONGEST_LIST]]
    if isinstance(value, dict):
        return {name: shortened(part) for name, part in value.items()}
    return value
