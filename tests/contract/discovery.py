"""Google's discovery documents, as google-api-python-client carries them, in the form of OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from tests.contract.condense import Condenser
from tests.contract.description import Shape

SERVICES = ("compute.v1", "cloudbilling.v1")
OF_EVERY_CALL = ("alt", "fields", "key", "prettyPrint", "quotaUser")


def facts(listed: Mapping[str, Any]) -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Shape]]:
    """Calls and shapes of the calls ``listed`` (method and path). KeyError for one that no service has."""
    condensers = [Condenser(_as_openapi(service), "") for service in SERVICES]
    calls: dict[str, Mapping[str, Any]] = {}
    for key in listed:
        found = [told for each in condensers if (told := each.call(*key.split(" ", 1))) is not None]
        if not found:
            raise KeyError(key)
        calls[key] = found[0]
    return calls, {name: shape for each in condensers for name, shape in each.shapes.items()}


def _as_openapi(service: str) -> dict[str, Any]:
    folder = resources.files("googleapiclient") / "discovery_cache" / "documents"
    document = json.loads((folder / f"{service}.json").read_text())
    paths: dict[str, dict[str, Any]] = {}
    for method in _methods(document):
        path = f"/{document['servicePath']}{method.get('flatPath', method['path'])}"
        common = {
            name: document["parameters"][name] for name in OF_EVERY_CALL if name in document["parameters"]
        }
        told = {**common, **method.get("parameters", {})}
        paths.setdefault(path, {})[method["httpMethod"].lower()] = {
            "parameters": [
                {
                    "name": name,
                    "in": each["location"],
                    "required": each.get("required"),
                    "schema": _linked(each),
                }
                for name, each in told.items()
            ],
            **({"requestBody": _content(method["request"])} if "request" in method else {}),
            "responses": {"200": _content(method.get("response", {}))},
        }
    return {"paths": paths, "schemas": _linked(document["schemas"])}


def _methods(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from part.get("methods", {}).values()
    for inner in part.get("resources", {}).values():
        yield from _methods(inner)


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": _linked(schema)}}}


def _linked(part: Any) -> Any:
    """``part`` with its references as OpenAPI writes them, and repeated parameters as lists."""
    if isinstance(part, list):
        return [_linked(each) for each in part]
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("$ref"), str):
        return {"$ref": f"#/schemas/{part['$ref']}"}
    linked = {key: _linked(each) for key, each in part.items() if key != "required" or isinstance(each, list)}
    if part.get("repeated"):
        return {"type": "array", "items": {key: each for key, each in linked.items() if key != "repeated"}}
    return linked
