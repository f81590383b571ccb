"""The OpenAPI document: what FastAPI derives, completed.

The server adds the scopes and errors of operations (``operation_details``), descriptions and examples of
fields (``field_descriptions``), the events of webhooks, and the schemas of errors and workloads documents.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from threading import Lock
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic.json_schema import models_json_schema

from api.http.dependencies import IDEMPOTENCY_HEADER, LONGEST_KEY
from api.http.errors import REFERENCE
from api.http.operation_details import PROBLEM_SCHEMA, camel, complete
from api.schemas.accounts.webhooks import EventForm
from api.schemas.base.field_descriptions import describe_fields
from api.schemas.base.problem import Problem
from api.schemas.workloads.document_form import WorkloadsForm
from api.schemas.workloads.what_if import WhatIfForm
from broker.catalogue import load_events

REF = "#/components/schemas/{model}"
WORKLOAD = "Workloads.{model}"
"""Forms of a workloads document have names of their own: some of them have the names of others."""
WORKLOADS = REF.format(model=WORKLOAD.format(model="WorkloadsForm"))
WHAT_IF = REF.format(model=WORKLOAD.format(model="WhatIfForm"))
FRAMEWORK_FORMS = ("HTTPValidationError", "ValidationError")
PROBLEM: dict[str, Any] = {"description": "A problem document (RFC 9457)", "content": PROBLEM_SCHEMA}
TAGS = {
    "plans": "Plans for workloads documents, their variants and comparisons",
    "approvals": "Decisions of finance on plans",
    "reservations": "Capacity that is ordered from providers, until it is released",
    "reoptimizations": "Proposals to change plans as the market changes",
    "market": "Offers, providers, GPUs and models as they are now",
    "prices": "Histories and forecasts of prices",
    "spend": "Projected and actual costs, their causes, and exports",
    "budgets": "What teams may spend in a period, and how much is used",
    "calendars": "Reserved windows for calendar programs",
    "webhooks": "Addresses to which events are sent",
    "keys": "API keys and their scopes",
    "operations": "The audit trail, and what the reconciler would do next",
}
"""Tags in the order of the reference, with their descriptions."""
EVENTS = "events"
SIGNATURE = tuple(
    {"name": name, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
    for name, text in (
        ("webhook-id", "Id of the message, the same in all attempts"),
        ("webhook-timestamp", "When the attempt was made, in seconds since 1970"),
        ("webhook-signature", "`v1,` and the HMAC-SHA256 of id, timestamp and body, in base64"),
    )
)
"""Headers of Standard Webhooks."""
IDEMPOTENCY: dict[str, Any] = {
    "name": IDEMPOTENCY_HEADER,
    "in": "header",
    "required": False,
    "description": "Names the request: sent again with the same body it has one effect and one answer",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
}
SECURITY_SCHEMES: dict[str, Any] = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key (`broker_live_…`), made with `POST /v1/keys` or `broker keys --new`",
    },
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "An access token of the identity provider, where `BROKER_OIDC_AUDIENCE` is set: "
        "team and scopes follow from its claims",
    },
}


def install(app: FastAPI) -> None:
    """Makes ``app`` serve that document. Its text is cached, because anybody may ask for it."""
    deriving = Lock()

    def describe() -> dict[str, Any]:
        with deriving:
            if app.openapi_schema is None:
                app.openapi_schema = build_document(app)
            return app.openapi_schema

    @lru_cache(maxsize=1)
    def written() -> bytes:
        return json.dumps(describe(), separators=(",", ":")).encode()

    def answer(_: Request) -> Response:  # on a thread: to derive it takes a second or two
        return Response(written(), media_type="application/json")

    app.openapi = describe  # type: ignore[method-assign]
    app.add_route("/openapi.json", answer, include_in_schema=False)


def build_document(app: FastAPI) -> dict[str, Any]:
    """The whole document as plain data."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=[{"url": "/", "description": "This server"}],
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    document["externalDocs"] = {
        "url": REFERENCE,
        "description": "The reference, with examples and all errors",
    }
    _complete_operations(app, document["paths"])
    components = document.setdefault("components", {})
    components["schemas"] = _schemas(components.get("schemas", {}))
    components["securitySchemes"] = SECURITY_SCHEMES
    document["security"] = [{name: []} for name in SECURITY_SCHEMES]
    document["webhooks"] = {name: {"post": _webhook(name, says)} for name, says in load_events().items()}
    return cast("dict[str, Any]", _plain_code(document))


def _complete_operations(app: FastAPI, paths: dict[str, Any]) -> None:
    for route in iter_route_contexts(app.routes):
        for method in route.methods or ():
            operation = paths.get(str(route.path_format), {}).get(method.lower())
            if operation is None:
                continue
            if method == "POST":
                operation.setdefault("parameters", []).append(IDEMPOTENCY)
            complete(operation, str(route.name), method.lower(), route.dependant)
            operation["responses"]["default"] = PROBLEM


def _schemas(derived: dict[str, Any]) -> dict[str, Any]:
    schemas = {name: schema for name, schema in derived.items() if name not in FRAMEWORK_FORMS}
    schemas.update(models_json_schema([(Problem, "validation")], ref_template=REF)[1]["$defs"])
    schemas.update(models_json_schema([(EventForm, "serialization")], ref_template=REF)[1]["$defs"])
    workloads = models_json_schema(
        [(WorkloadsForm, "validation"), (WhatIfForm, "validation")],
        ref_template=REF.format(model=WORKLOAD),
    )[1]["$defs"]
    schemas.update({WORKLOAD.format(model=name): schema for name, schema in workloads.items()})
    describe_fields(schemas)
    return schemas


def _webhook(name: str, says: str) -> dict[str, Any]:
    only = {"properties": {"type": {"const": name}}}
    return {
        "operationId": camel(re.sub(r"\W", "_", f"on_{name}")),
        "summary": f"{says}.",
        "tags": [EVENTS],
        "security": [],
        "parameters": list(SIGNATURE),
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"allOf": [{"$ref": REF.format(model="EventForm")}, only]}}
            },
        },
        "responses": {
            "2XX": {"description": "The message was taken"},
            "410": {"description": "Nothing more is to be sent: the webhook is disabled"},
            "default": {"description": "The message is sent again later"},
        },
    }


def _plain_code(part: Any) -> Any:
    """``part`` with code in descriptions marked as Markdown does."""
    if isinstance(part, dict):
        return {
            name: value.replace("``", "`")
            if name == "description" and isinstance(value, str)
            else _plain_code(value)
            for name, value in part.items()
        }
    return [_plain_code(one) for one in part] if isinstance(part, list) else part
