"""Random requests made from the OpenAPI document, and whether each answer is as the document says.

``python -m tests.bench.fuzz_api URL KEY [--count N] [--seed N]`` asks a served broker. Three of four values
are of the form that the document states, at its limits or plain; the others are of another form. An answer
is a finding if it is a 5xx, has a status or media type that the document does not have, or a body that its
schema does not allow.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

TEXTS = (
    "a",
    "research",
    "*",
    "é",
    "x" * 300,
    "",
    "null",
    "2026-11-27T12:00:00Z",
    "2026-11",
    "+2d",
    "-1",
    "a/b",
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    "",
    "x",
    [],
    ["x"],
    {},
    {"x": 1},
    [[]],
    "\x00",
    "\ud800",
)
NEVER_SENT = {"GET /v1/plans/{plan_id}/events"}
"""Streams, which have no end while nothing happens."""
JSON_KINDS = ("application/json", "application/problem+json")


@dataclass
class Found:
    """What the answers were: how many of each status, and those that the document does not allow."""

    statuses: Counter[int] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Fuzzer:
    """Makes requests of the document at random. ``known`` has values that exist, by the parameter's name."""

    def __init__(self, document: Mapping[str, Any], seed: int, known: Mapping[str, list[str]]) -> None:
        self._document = document
        self._schemas: Mapping[str, Any] = document["components"]["schemas"]
        self._random = random.Random(seed)
        self._known = known
        self.operations = [
            (method.upper(), path, operation)
            for path, found in document["paths"].items()
            for method, operation in found.items()
            if f"{method.upper()} {path}" not in NEVER_SENT
        ]

    def request(self, method: str, path: str, operation: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one request."""
        params: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for one in operation.get("parameters", ()):
            value = self._parameter(one)
            if one["in"] == "path":
                path = path.replace(f"{{{one['name']}}}", quote(_text(value) or "x", safe=""))
            elif one.get("required") or self._random.random() < 0.4:
                if one["in"] == "header":
                    headers[one["name"]] = f"fuzz-{self._random.randrange(1000)}"
                else:
                    params[one["name"]] = _text(value)
        request: dict[str, Any] = {"method": method, "url": path, "params": params, "headers": headers}
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            request["json"] = _sendable(self.value(schema))
        return request

    def _parameter(self, told: Mapping[str, Any]) -> Any:
        known = self._known.get(told["name"])
        if known and self._random.random() < (1.0 if told["name"] == "wait" else 0.7):
            return self._random.choice(known)
        return self.value(told.get("schema", {}))

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """A value: mostly of the form of ``schema``."""
        if self._random.random() < 0.08:
            return self._random.choice(OTHERS)
        if "$ref" in schema:
            return self.value(self._schemas[schema["$ref"].rsplit("/", 1)[1]], depth)
        for joint in ("anyOf", "oneOf"):
            if joint in schema:
                return self.value(self._random.choice(schema[joint]), depth)
        if "enum" in schema or "const" in schema:
            return self._random.choice(schema.get("enum", [schema.get("const")]))
        if schema.get("examples") and self._random.random() < 0.5:
            return self._random.choice(schema["examples"])
        return self._plain(schema, depth)

    def _plain(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if kind == "object":
            needed = schema.get("required", ())
            return {
                name: self.value(part, depth + 1)
                for name, part in schema.get("properties", {}).items()
                if (name in needed and self._random.random() < 0.95) or self._random.random() < 0.3
            }
        if kind == "array":
            count = self._random.randrange(0 if depth < 4 else 1, 3)
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
        if kind in ("integer", "number"):
            least, most = schema.get("minimum", -3), schema.get("maximum", 10**6)
            figure = self._random.choice(
                (least, most, least - 1, most + 1, self._random.uniform(least, most))
            )
            return int(figure) if kind == "integer" else figure
        if kind == "boolean":
            return self._random.random() < 0.5
        return None if kind == "null" else self._random.choice(TEXTS)

    def check(
        self, method: str, path: str, operation: Mapping[str, Any], answer: httpx.Response
    ) -> Iterator[str]:
        """What the document does not allow of an answer."""
        where = f"{method} {path} {answer.status_code}"
        if answer.status_code >= 500 and answer.status_code != 503:
            yield f"{where}: {answer.text[:300]}"
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        told = operation["responses"].get(str(answer.status_code)) or operation["responses"]["default"]
        if str(answer.status_code) not in operation["responses"] and answer.status_code != 400:
            yield f"{where}: a status without a line: {answer.text[:200]}"
        content = told.get("content", {})
        if answer.content and kind not in content:
            yield f"{where}: {kind} and not {', '.join(content)}"
        elif kind in JSON_KINDS and answer.content:
            whole = {**content[kind].get("schema", {}), "components": self._document["components"]}
            for error in list(Draft202012Validator(whole).iter_errors(answer.json()))[:2]:
                yield f"{where}: {list(error.path)} {error.message[:200]}"
            code = answer.json().get("code") if answer.is_error else None
            if code is not None and code not in operation["x-problems"] and answer.status_code != 400:
                yield f"{where}: the code {code}"


def _text(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.encode("utf-8", "replace").decode()


def _sendable(value: Any) -> Any:
    """``value`` without half characters, which httpx cannot encode."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {name: _sendable(part) for name, part in value.items()}
    return [_sendable(part) for part in value] if isinstance(value, list) else value


def known_names(client: httpx.Client) -> dict[str, list[str]]:
    """Ids and names that exist, by the parameter that takes them."""
    known: dict[str, list[str]] = {
        "team": ["research", "*"],
        "form": ["xlsx", "parquet"],
        "group_by": ["team"],
    }
    for name, path in (
        ("plan_id", "/v1/plans"),
        ("offer_id", "/v1/offers"),
        ("reservation_id", "/v1/reservations"),
        ("key_id", "/v1/keys"),
        ("webhook_id", "/v1/webhooks"),
        ("reoptimization_id", "/v1/reoptimizations"),
    ):
        known[name] = [one[name] for one in client.get(path).json()["items"]][:20]
    return known


def fuzz(client: httpx.Client, document: Mapping[str, Any], count: int, seed: int) -> Found:
    """``count`` requests, operation by operation in turn."""
    fuzzer, found = Fuzzer(document, seed, known_names(client)), Found()
    for number in range(count):
        method, path, operation = fuzzer.operations[number % len(fuzzer.operations)]
        answer = client.request(**fuzzer.request(method, path, operation))
        found.statuses[answer.status_code] += 1
        found.operations[operation["operationId"]] += 1
        found.findings += fuzzer.check(method, path, operation, answer)
        if number % 500 == 499:
            print(f"{number + 1} requests, {len(found.findings)} findings", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Prints the figures; 1 if there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    headers = {"Authorization": f"Bearer {given.key}"}
    with httpx.Client(base_url=given.url, headers=headers, timeout=120) as client:
        found = fuzz(client, client.get("/openapi.json").json(), given.count, given.seed)
    print(f"{given.count} requests to {len(found.operations)} operations, seed {given.seed}")
    print("answers:", ", ".join(f"{status}: {n}" for status, n in sorted(found.statuses.items())))
    for finding, times in Counter(found.findings).most_common():
        print(f"{times} x {finding}")
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
