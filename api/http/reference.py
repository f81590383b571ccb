"""The reference of the HTTP API as a page shows it, made from the OpenAPI document alone.

The server's page and the documentation's site render the same objects.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from api.http.operation_details import CODES, kinds_by_code

METHODS = ("get", "post", "put", "patch", "delete")
CLIENT_EXAMPLES = Path(__file__).with_name("client_examples.toml")
SECOND = "-2"
"""Marks a second example of an id."""
_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Field:
    """A field or a parameter. ``schema`` names the schema of its parts; ``place`` is that of a parameter."""

    name: str
    kind: str
    schema: str
    is_needed: bool
    says: str
    example: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """A named document: its fields, or its words, and an example as JSON."""

    name: str
    says: str
    fields: tuple[Field, ...]
    words: tuple[str, ...]
    example: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer without error. ``schemas`` are the documents that it can have, ``kinds`` its media types."""

    status: str
    says: str
    schemas: tuple[str, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of error that an operation can answer, or that the server knows."""

    status: int
    code: str
    title: str
    advice: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One call. ``scope`` is empty where any key will do; ``body`` names the documents that it takes."""

    name: str
    method: str
    path: str
    summary: str
    says: str
    scope: str
    parameters: tuple[Field, ...]
    body: tuple[str, ...]
    body_is_needed: bool
    answers: tuple[Answer, ...]
    problems: tuple[Problem, ...]
    curl: str
    python: str


@dataclass(frozen=True, slots=True)
class Group:
    """The operations of one noun."""

    name: str
    says: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """Everything that a page shows."""

    version: str
    groups: tuple[Group, ...]
    schemas: Mapping[str, Schema]
    events: tuple[tuple[str, str], ...]
    event_schema: str
    signature: tuple[Field, ...]
    problems: tuple[Problem, ...]

    def fields_of(self, names: Sequence[str]) -> tuple[Field, ...]:
        """The fields of the first of several documents."""
        return self.schemas[names[0]].fields if names else ()


def build_reference(document: Mapping[str, Any]) -> Reference:
    """The reference of an OpenAPI document of this server."""
    reader = _Reader(document)
    operations = [
        (operation.get("tags", ["other"])[0], reader.operation(method, path, operation))
        for path, found in document["paths"].items()
        for method, operation in found.items()
        if method in METHODS
    ]
    hook = next(iter(document["webhooks"].values()))["post"]
    return Reference(
        version=document["info"]["version"],
        groups=tuple(
            Group(
                tag["name"], tag["description"], tuple(one for name, one in operations if name == tag["name"])
            )
            for tag in document["tags"]
        ),
        schemas={name: reader.schema(name) for name in reader.schemas},
        events=tuple((name, found["post"]["summary"]) for name, found in document["webhooks"].items()),
        event_schema="EventForm",
        signature=tuple(reader.parameter(one) for one in hook["parameters"]),
        problems=tuple(problem for code in kinds_by_code() for problem in _problems(code)),
    )


class _Reader:
    """Reads parts of the document, with examples of values by the name of a field."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.schemas: Mapping[str, Any] = document["components"]["schemas"]
        self._values: dict[str, Any] = {}
        for schema in self.schemas.values():
            for name, part in schema.get("properties", {}).items():
                for value in part.get("examples", ()):
                    self._values.setdefault(name, value)

    def schema(self, name: str) -> Schema:
        found = self.schemas[name]
        needed = found.get("required", ())
        return Schema(
            name,
            found.get("description", ""),
            tuple(
                Field(
                    field,
                    kind_of(part),
                    next(references(part), ""),
                    field in needed,
                    part.get("description", ""),
                    _written(part.get("examples", [None])[0]),
                )
                for field, part in found.get("properties", {}).items()
            ),
            tuple(str(word) for word in found.get("enum", ())),
            json.dumps(found["examples"][0], indent=2, ensure_ascii=False) if "examples" in found else "",
        )

    def parameter(self, told: Mapping[str, Any]) -> Field:
        schema = told.get("schema", {})
        example = self._example(told) if told["in"] != "header" else None
        return Field(
            told["name"],
            kind_of(schema),
            next(references(schema), ""),
            told.get("required", False),
            told.get("description", ""),
            _written(example),
            told["in"],
        )

    def operation(self, method: str, path: str, told: Mapping[str, Any]) -> Operation:
        parameters = told.get("parameters", ())
        content = told.get("requestBody", {}).get("content", {})
        body = tuple(references(next(iter(content.values()))["schema"])) if content else ()
        scopes = [scope for scheme in told["security"] for scope in next(iter(scheme.values()))]
        return Operation(
            name=told["operationId"],
            method=method.upper(),
            path=path,
            summary=told["summary"],
            says=told.get("description", ""),
            scope=next(iter(scopes), ""),
            parameters=tuple(self.parameter(one) for one in parameters),
            body=body,
            body_is_needed=told.get("requestBody", {}).get("required", False),
            answers=tuple(_answers(told["responses"])),
            problems=tuple(
                problem
                for code in told[CODES]
                for problem in _problems(code)
                if str(problem.status) in told["responses"]
            ),
            curl=self._curl(method, path, parameters, body),
            python=self._python(method, path, told, body),
        )

    def _example(self, told: Mapping[str, Any]) -> Any:
        schema = told.get("schema", {})
        if "examples" in schema:
            return schema["examples"][0]
        name = next(references(schema), "")
        words = self.schemas.get(name, schema).get("enum", schema.get("enum"))
        return words[0] if words else self._values.get(told["name"])

    def _address(self, path: str, parameters: Sequence[Mapping[str, Any]]) -> str:
        values = {one["name"]: self._example(one) for one in parameters}
        filled = _NAME.sub(lambda found: quote(str(values.get(found[1]) or found[1]), safe="/:*"), path)
        asked = {
            one["name"]: values[one["name"]] or ""
            for one in parameters
            if one["in"] == "query" and one.get("required", False)
        }
        return f"{filled}?{urlencode(asked, doseq=True, safe=':')}" if asked else filled

    def _body(self, body: Sequence[str]) -> Any:
        return self.schemas[body[0]].get("examples", [{}])[0] if body else None

    def _curl(
        self, method: str, path: str, parameters: Sequence[Mapping[str, Any]], body: Sequence[str]
    ) -> str:
        verb = "" if method == "get" else f"-X {method.upper()} "
        lines = [f'curl {verb}"$BROKER_URL{self._address(path, parameters)}"']
        lines.append('  -H "Authorization: Bearer $BROKER_KEY"')
        if body:
            text = json.dumps(self._body(body), indent=2, ensure_ascii=False).replace("'", "'\\''")
            lines += ['  -H "Content-Type: application/json"', f"  -d '{text}'"]
        return " \\\n".join(lines)

    def _python(self, method: str, path: str, told: Mapping[str, Any], body: Sequence[str]) -> str:
        call = client_examples().get(told["operationId"])
        if call is not None:
            return _NAME.sub(lambda found: self._value(found[1]), call)
        given = f", json={_python_value(self._body(body))}" if body else ""
        address = self._address(path, told.get("parameters", ()))
        return f'answer = http.{method}("{address}"{given})\nanswer.raise_for_status()'

    def _value(self, name: str) -> str:
        if name == "document":
            return json.dumps(self._body(["Workloads.WorkloadsForm"]), indent=2, ensure_ascii=False)
        if name.startswith("other_"):
            return f"{self._values[name.removeprefix('other_')]}{SECOND}"
        return str(self._values.get(name, f"{{{name}}}"))


@cache
def client_examples() -> Mapping[str, str]:
    """An example call of the Python client, by the name of its operation."""
    calls: dict[str, str] = tomllib.loads(CLIENT_EXAMPLES.read_text(encoding="utf-8"))
    return calls


def _answers(responses: Mapping[str, Any]) -> Iterator[Answer]:
    for status, told in responses.items():
        content = told.get("content", {})
        if status == "default" or int(status) >= 400:
            continue
        names = dict.fromkeys(
            name for media in content.values() for name in references(media.get("schema", {}))
        )
        yield Answer(status, told.get("description", ""), tuple(names), tuple(content))


def _problems(code: str) -> tuple[Problem, ...]:
    return tuple(
        Problem(kind.status, kind.code, kind.title, kind.advice, kind.retryable)
        for kind in kinds_by_code()[code]
        if kind.status
    )


def references(schema: Mapping[str, Any]) -> Iterator[str]:
    """The names of the schemas that a schema refers to, the first first."""
    if "$ref" in schema:
        yield schema["$ref"].rsplit("/", 1)[1]
    for joint in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(joint, ()):
            yield from references(one)
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from references(schema[inner])


def kind_of(schema: Mapping[str, Any]) -> str:
    """The type of a field in words, with its limits."""
    for joint in ("anyOf", "oneOf"):
        if joint in schema:
            return " or ".join(dict.fromkeys(kind_of(one) for one in schema[joint]))
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema or "enum" in schema:
        return ", ".join(str(word) for word in schema.get("enum", (schema.get("const"),)))
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object by name of {kind_of(schema['additionalProperties'])}"
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    limits = [f"{sign} {schema[word]:,.10g}" for word, sign in signs if word in schema]
    if "maxLength" in schema:
        limits.append(f"{schema['maxLength']} characters at most")
    return ", ".join([schema.get("type", "any value"), *limits])


def _written(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _python_value(value: Any) -> str:
    """``value`` as Python writes it, one field on a line."""
    text = json.dumps(value, indent=4, ensure_ascii=False)
    words = {"true": "True", "false": "False", "null": "None"}
    return re.sub(r'("(?:[^"\\]|\\.)*")|\b(true|false|null)\b', lambda m: m[1] or words[m[2]], text)
