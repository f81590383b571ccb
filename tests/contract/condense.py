"""Makes a seller's table of facts (``api.json``, see ``description.py``) from the document that it publishes.

``python -m tests.contract.condense NAME DOCUMENT...``: the calls that the table of NAME lists are looked up
in the documents (OpenAPI 2 or 3, or OVH's own form; JSON or YAML), and their fields are written anew. A call
that no document has is named and left as it was.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.contract.description import TABLE, Shape
from tests.contract.exchanges import FIXTURES

MOST_WORDS = 40
"""Longer enumerations are lists of what is sold or of regions, which change: a text is said of them."""


class Condenser:
    """Reads one document. ``shapes``: what the calls that were read refer to by name."""

    def __init__(self, document: Mapping[str, Any], prefix: str) -> None:
        self._document, self._prefix = document, prefix
        self._names: dict[str, str] = {}
        self.shapes: dict[str, Shape] = {}

    def call(self, method: str, path: str) -> dict[str, Any] | None:
        """The facts of a call; None where the document has none such."""
        bare = path.removeprefix(self._prefix)
        place = next((p for p in self._document["paths"] if _plain(p) == _plain(bare)), None)
        found = None if place is None else self._followed(self._document["paths"][place])
        if found is None or method.lower() not in found:
            return None
        operation = self._followed(found[method.lower()])
        parameters = [
            self._followed(each) for each in (*found.get("parameters", ()), *operation.get("parameters", ()))
        ]
        told: dict[str, Any] = {}
        query = {
            each["name"].removesuffix("[]") + ("!" if each.get("required") else ""): self._shape(
                each.get("schema") or each
            )
            for each in parameters
            if each["in"] == "query"
        }
        body = self._body(operation, parameters)
        if query:
            told["query"] = query
        if body is not None:
            told["body"] = body
        told["answers"] = {
            str(status): self._answer(self._followed(answer))
            for status, answer in operation["responses"].items()
        }
        return told

    def condensed(self, schema: Mapping[str, Any]) -> Shape:
        """The shape of one schema of the document."""
        return self._shape(schema)

    def _body(self, operation: Mapping[str, Any], parameters: list[Any]) -> Shape | None:
        if "requestBody" in operation:
            return self._content(self._followed(operation["requestBody"]).get("content", {}))
        return next((self._shape(each["schema"]) for each in parameters if each["in"] == "body"), None)

    def _answer(self, answer: Mapping[str, Any]) -> Shape:
        if "content" in answer:
            return self._content(answer["content"])
        return self._shape(answer["schema"]) if "schema" in answer else "nothing"

    def _content(self, content: Mapping[str, Any]) -> Shape:
        told = next((kind for name, kind in content.items() if "json" in name), None)
        return "any" if told is None else self._shape(told.get("schema", {}))

    def _followed(self, part: Any) -> Any:
        while isinstance(part, Mapping) and "$ref" in part:
            part = self._at(part["$ref"])
        return part

    def _at(self, reference: str) -> Any:
        part: Any = self._document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name.replace("~1", "/").replace("~0", "~")]
        return part

    def _name(self, reference: str) -> str:
        """A short name for what ``reference`` leads to, the same each time."""
        if reference not in self._names:
            last = reference.rpartition("/")[2].rpartition("~1")[2]
            name = re.sub(r"\.(yml|yaml|json)$", "", last)
            alike = sum(taken.partition("~")[0] == name for taken in self._names.values())
            self._names[reference] = f"{name}~{alike}" if alike else name
        return self._names[reference]

    def _shape(self, schema: Mapping[str, Any] | bool) -> Shape:
        if isinstance(schema, bool):
            return "any"
        if "$ref" in schema:
            name = self._name(schema["$ref"])
            if name not in self.shapes:
                self.shapes[name] = "any"
                self.shapes[name] = self._shape(self._at(schema["$ref"]))
            return f"@{name}"
        shape = self._bare(schema)
        may_lack = schema.get("nullable") or schema.get("x-nullable")
        return _choice([shape, "null"]) if may_lack and shape != "any" else shape

    def _bare(self, schema: Mapping[str, Any]) -> Shape:
        if "allOf" in schema:
            rest = {key: value for key, value in schema.items() if key not in {"allOf", "nullable"}}
            parts = [self._shape(part) for part in schema["allOf"]]
            return self._joined([*parts, *([self._shape(rest)] if "properties" in rest else [])])
        for word in ("oneOf", "anyOf"):
            if word in schema:
                choice = _choice([self._shape(part) for part in schema[word]])
                own = {key: value for key, value in schema.items() if key != word}
                return self._joined([self._bare(own), choice]) if "properties" in own else choice
        kind = schema.get("type")
        if isinstance(kind, list):
            return _choice([self._bare({**schema, "type": each}) for each in kind])
        words = [word for word in schema.get("enum", ()) if word is not None]
        if words and len(words) <= MOST_WORDS and kind in {None, "string"}:
            return _choice([{"$words": words}, *(["null"] if None in schema["enum"] else [])])
        if "const" in schema:
            return {"$words": [schema["const"]]}
        if kind == "array":
            return [self._shape(schema.get("items", {}))]
        if kind == "object" or "properties" in schema:
            return self._fields(schema)
        return kind if kind in {"string", "integer", "number", "boolean", "null"} else "any"

    def _fields(self, schema: Mapping[str, Any]) -> Shape:
        needed = schema.get("required", ())
        needed = needed if isinstance(needed, list | tuple) else ()
        fields = {
            name + ("!" if name in needed else ""): self._shape(inner)
            for name, inner in schema.get("properties", {}).items()
        }
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping) and more:
            fields["*"] = self._shape(more)
        elif more is True or (more == {} and not fields):
            fields["*"] = "any"
        return fields or "object"

    def _joined(self, parts: list[Shape]) -> Shape:
        """All of ``parts`` at once."""
        followed = [self.shapes[part[1:]] if _is_name(part) else part for part in parts]
        followed = [part for part in followed if part not in ("any", "object")]
        if len(followed) == 1:
            return parts[0] if len(parts) == 1 else followed[0]
        choice = next((part for part in followed if isinstance(part, dict) and "$any" in part), None)
        if choice is not None:
            others = [part for part in followed if part is not choice]
            return _choice([self._joined([*others, each]) for each in choice["$any"]])
        if not all(isinstance(part, dict) for part in followed):
            return followed[0] if followed else "any"
        return {name: shape for part in followed for name, shape in part.items()}


def loaded(path: Path) -> dict[str, Any]:
    """The document at ``path``, with the files that it refers to under ``files``."""
    files: dict[str, Any] = {}
    root = path.parent.resolve()

    def read(file: Path) -> Any:
        text = file.read_text()
        return rewritten(json.loads(text) if file.suffix == ".json" else yaml.safe_load(text), file)

    def rewritten(part: Any, file: Path) -> Any:
        if isinstance(part, list):
            return [rewritten(each, file) for each in part]
        if not isinstance(part, dict):
            return part
        if isinstance(part.get("$ref"), str):
            return {"$ref": led(part["$ref"], file)}
        return {key: rewritten(each, file) for key, each in part.items()}

    def led(reference: str, file: Path) -> str:
        other, _, inner = reference.partition("#")
        target = (file.parent / other).resolve() if other else file
        if target == path.resolve():
            return f"#{inner}"
        key = str(target.relative_to(root))
        if key not in files:
            files[key] = {}
            files[key].update(read(target))
        return f"#/files/{key.replace('/', '~1')}{inner.rstrip('/')}"

    document: dict[str, Any] = read(path.resolve())
    return from_ovh(document) if "apis" in document else document | {"files": files}


OVH_TYPES = {"long": "integer", "double": "number", "boolean": "boolean", "string": "string"}


def from_ovh(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of OVH's own form as OpenAPI; types that are neither plain nor a model are texts there."""
    models = document["models"]

    def schema(word: str) -> dict[str, Any]:
        if word.endswith("[]"):
            return {"type": "array", "items": schema(word[:-2])}
        if word.startswith("map[string]"):
            return {"type": "object", "additionalProperties": schema(word.removeprefix("map[string]"))}
        return {"$ref": f"#/models/{word}"} if word in models else {"type": OVH_TYPES.get(word, "string")}

    def model(told: Mapping[str, Any]) -> dict[str, Any]:
        if "enum" in told:
            return {"type": "string", "enum": told["enum"]}
        fields = {
            name: _or_null(schema(each["type"])) if each.get("canBeNull") else schema(each["type"])
            for name, each in told.get("properties", {}).items()
        }
        return {"type": "object", "properties": fields}

    def operation(told: Mapping[str, Any]) -> dict[str, Any]:
        parts = {
            kind: [each for each in told["parameters"] if each["paramType"] == kind]
            for kind in ("query", "body")
        }
        named = [each for each in parts["body"] if "name" in each]
        body = {
            "type": "object",
            "properties": {each["name"]: schema(each["dataType"]) for each in named},
            "required": [each["name"] for each in named if each["required"]],
        }
        if parts["body"] and not named:
            body = schema(parts["body"][0]["dataType"])
        answer = told["responseType"]
        described = {} if answer == "void" else {"schema": schema(answer)}
        query = [
            {
                "name": each["name"],
                "in": "query",
                "required": each["required"],
                "schema": schema(each["dataType"]),
            }
            for each in parts["query"]
        ]
        whole = [{"in": "body", "schema": body}] if parts["body"] else []
        return {"parameters": [*query, *whole], "responses": {"200": described}}

    return {
        "paths": {
            api["path"]: {each["httpMethod"].lower(): operation(each) for each in api["operations"]}
            for api in document["apis"]
        },
        "models": {name: model(told) for name, told in models.items()},
    }


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _is_name(part: Shape) -> bool:
    return isinstance(part, str) and part.startswith("@")


def _plain(path: str) -> str:
    """A path without the names of its variables and without a slash at its end."""
    return "/".join("{}" if piece.startswith("{") else piece for piece in path.rstrip("/").split("/"))


def _choice(parts: list[Shape]) -> Shape:
    flat: list[Shape] = []
    for part in parts:
        for each in part["$any"] if isinstance(part, dict) and "$any" in part else [part]:
            if each not in flat:
                flat.append(each)
    return "any" if "any" in flat else flat[0] if len(flat) == 1 else {"$any": flat}


def written(table: Mapping[str, Any]) -> str:
    """The table as a file: one line for each call and each shape."""
    lines = [f' "source": {json.dumps(table["source"], ensure_ascii=False)}']
    for part in ("unchecked", "differs", "calls", "shapes"):
        if part not in table:
            continue
        rows = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in table[part].items()]
        lines.append(f' "{part}": {{\n' + ",\n".join(rows) + ("\n }" if rows else "}"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(name: str, *documents: str) -> int:
    """0 when every call of the table stands in a document."""
    path = FIXTURES / name / TABLE
    table = json.loads(path.read_text())
    prefix = table["source"].get("prefix", "")
    condensers = [Condenser(loaded(Path(document)), prefix) for document in documents]
    missing = []
    for key in table["calls"]:
        found = [told for each in condensers if (told := each.call(*key.split(" ", 1))) is not None]
        if found:
            table["calls"][key] = found[0]
        else:
            missing.append(key)
    shapes = {shape: told for each in condensers for shape, told in each.shapes.items()}
    table["shapes"] = dict(sorted(shapes.items()))
    path.write_text(written(table))
    for key in missing:
        print(f"{name}: {key} is in no document", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
