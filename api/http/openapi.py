"""The OpenAPI document: what FastAPI derives, with the bearer key and the schemas of errors and workloads."""

from __future__ import annotations

import json
from functools import lru_cache
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.http.dependencies import IDEMPOTENCY_HEADER, LONGEST_KEY
from api.schemas.base.problem import MEDIA_TYPE, Problem
from api.schemas.workloads.what_if import WhatIfForm
from api.schemas.workloads.workload_forms import WorkloadsForm

REF = "#/components/schemas/{model}"
WORKLOAD = "Workloads.{model}"
"""Forms of a workloads document have names of their own: some of them have the names of others."""
WORKLOADS = REF.format(model=WORKLOAD.format(model="WorkloadsForm"))
WHAT_IF = REF.format(model=WORKLOAD.format(model="WhatIfForm"))
FRAMEWORK_FORMS = ("HTTPValidationError", "ValidationError")
PROBLEM: dict[str, Any] = {
    "description": "A problem document (RFC 9457)",
    "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}},
}


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
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for operations in document["paths"].values():
        for method, operation in operations.items():
            if method == "post":
                operation.setdefault("parameters", []).append(IDEMPOTENCY)
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = PROBLEM
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in FRAMEWORK_FORMS:
        schemas.pop(name, None)
    schemas.update(models_json_schema([(Problem, "validation")], ref_template=REF)[1]["$defs"])
    workloads = models_json_schema(
        [(WorkloadsForm, "validation"), (WhatIfForm, "validation")],
        ref_template=REF.format(model=WORKLOAD),
    )[1]["$defs"]
    schemas.update({WORKLOAD.format(model=name): schema for name, schema in workloads.items()})
    components["securitySchemes"] = SECURITY_SCHEMES
    document["security"] = [{name: []} for name in SECURITY_SCHEMES]
    return document
