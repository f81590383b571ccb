"""The OpenAPI document: what FastAPI derives, plus the bearer key and the form of every error."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.schemas.problem import MEDIA_TYPE, Problem

REF = "#/components/schemas/{model}"
FRAMEWORK_FORMS = ("HTTPValidationError", "ValidationError")
PROBLEM: dict[str, Any] = {
    "description": "A problem document (RFC 9457)",
    "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}},
}


def install(app: FastAPI) -> None:
    """Makes ``app`` describe itself that way."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = build_document(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def build_document(app: FastAPI) -> dict[str, Any]:
    """The whole document as plain data."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = PROBLEM
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in FRAMEWORK_FORMS:
        schemas.pop(name, None)
    schemas.update(models_json_schema([(Problem, "validation")], ref_template=REF)[1]["$defs"])
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    return document
