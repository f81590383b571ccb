"""The OpenAPI document: everything that is answered has a form, and answers have theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from api.http.openapi import build_document
from tests.api.house import DOCUMENT, Home

JSON = "application/json"


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in document["paths"].items():
        for method, operation in found.items():
            yield method, path, operation


async def test_every_answer_has_a_form_and_every_post_takes_a_name(home: Home) -> None:
    document = build_document(home.app)
    formless = [
        (method, path, status)
        for method, path, operation in operations(document)
        for status, answer in operation["responses"].items()
        if JSON in answer.get("content", {}) and not answer["content"][JSON].get("schema")
    ]
    assert formless == []
    unnamed = [
        path
        for method, path, operation in operations(document)
        if method == "post"
        and not any(p["name"] == "Idempotency-Key" for p in operation.get("parameters", []))
    ]
    assert unnamed == []


async def test_every_reference_leads_somewhere(home: Home) -> None:
    document = build_document(home.app)

    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            for value in part.values():
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) - known == set()


async def test_answers_have_the_form_that_is_told(home: Home) -> None:
    document = build_document(home.app)
    team = await home.team("research")
    queued = await team.post("/v1/plans", json=DOCUMENT)
    require_form(document, "/v1/plans", "post", queued)
    plan = await home.plan(team)
    hook = await team.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"})
    require_form(document, "/v1/webhooks", "post", hook)
    offer = (await team.get("/v1/offers")).json()["items"][0]["offer_id"]
    asked: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("/v1/plans", "", {}),
        ("/v1/plans/{plan_id}", plan["plan_id"], {}),
        ("/v1/offers", "", {}),
        ("/v1/offers/{offer_id}", offer, {}),
        ("/v1/offers/{offer_id}/prices", offer, {"interval": "point"}),
        ("/v1/offers/{offer_id}/prices", offer, {"interval": "day"}),
        ("/v1/offers/{offer_id}/forecast", offer, {}),
        ("/v1/prices", "", {"gpu": "H100-SXM-80GB", "tier": "on_demand"}),
        ("/v1/market", "", {"at": "2026-11-23T12:00:00Z"}),
        ("/v1/providers", "", {}),
        ("/v1/quarantine", "", {}),
        ("/v1/keys", "", {}),
        ("/v1/webhooks", "", {}),
        ("/v1/webhooks/{webhook_id}", hook.json()["webhook_id"], {}),
        ("/v1/audit", "", {}),
        ("/v1/spend/focus.manifest.json", "", {}),
    )
    for template, name, params in asked:
        answer = await team.get(re.sub(r"\{\w+\}", name, template), params=params)
        require_form(document, template, "get", answer)


def require_form(document: dict[str, Any], template: str, method: str, answer: httpx.Response) -> None:
    """Fails unless ``answer`` is as the document says."""
    assert answer.is_success, (template, answer.text)
    told = document["paths"][template][method]["responses"][str(answer.status_code)]["content"][JSON]
    whole = {**told["schema"], "components": document["components"]}
    errors = [error.message for error in Draft202012Validator(whole).iter_errors(answer.json())]
    assert errors == [], template
