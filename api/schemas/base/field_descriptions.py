"""Descriptions and examples of the fields of documents, for the OpenAPI document.

``fields.toml`` describes each field once, and ``examples.json`` has recorded documents by schema. Both are
read when the OpenAPI document is derived, and at no other time.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
COMMON = "common"


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
