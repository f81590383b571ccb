"""Which sellers' descriptions are at hand, and how a seller's calls over the wire are read.

A table (``api.json``) either holds the facts of its calls, or names under ``carrier`` the installed package
whose own description holds them: then they are read from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import httpx

from tests.contract import botocore_api, discovery, generated
from tests.contract.description import TABLE, Call, Description, Heard, Shape
from tests.contract.exchanges import FIXTURES

Facts = tuple[Mapping[str, Mapping[str, Any]], Mapping[str, Shape]]
"""Calls and shapes, as a table holds them."""
CARRIERS: Mapping[str, Callable[[Mapping[str, Any]], Facts]] = {
    "botocore": botocore_api.facts,
    "google-api-python-client": discovery.facts,
}
"""Gives the facts of the calls that a table names; other packages carry generated models."""


def described() -> tuple[str, ...]:
    """Names of the sellers of whose calls a description is at hand."""
    names = sorted(path.parent.name for path in FIXTURES.glob(f"*/{TABLE}"))
    return tuple(name for name in names if table_of(name)["calls"])


@cache
def table_of(name: str) -> Mapping[str, Any]:
    """The table of the seller ``name``, as it stands."""
    read: Mapping[str, Any] = json.loads((FIXTURES / name / TABLE).read_text())
    return read


@cache
def description_of(name: str) -> Description:
    """The description of the seller ``name``."""
    table = table_of(name)
    calls, shapes = table["calls"], table.get("shapes", {})
    if "carrier" in table["source"]:
        calls, shapes = CARRIERS.get(table["source"]["carrier"], generated.facts)(calls)
    return Description(
        table["source"],
        tuple(_call(key, told) for key, told in calls.items()),
        shapes,
        table.get("differs", {}),
        table.get("unchecked", {}),
    )


def _call(key: str, told: Mapping[str, Any]) -> Call:
    method, _, path = key.partition(" ")
    return Call(method, path, told.get("query", {}), told.get("body"), told["answers"])


def heard(name: str, request: httpx.Request, answer: httpx.Response) -> Heard:
    """A call and its answer without the market's prefix for the seller."""
    if table_of(name)["source"].get("carrier") == "botocore":
        found = botocore_api.heard(request, answer)
        if found is not None:
            return found
    query = parse_qsl(request.url.query.decode(), keep_blank_values=True)
    path = request.url.path.removeprefix(f"/{name}")
    sent, answered = _read(request.headers, request.content), _read(answer.headers, answer.content)
    return Heard(request.method, path, query, sent, answer.status_code, answered)


def _read(headers: httpx.Headers, content: bytes) -> Any:
    """JSON, a form's fields, or a text of another kind; None for no body."""
    kind = headers.get("content-type", "")
    if not content:
        return None
    if "form-urlencoded" in kind:
        return dict(parse_qsl(content.decode(), keep_blank_values=True))
    return json.loads(content) if "json" in kind else content.decode()
