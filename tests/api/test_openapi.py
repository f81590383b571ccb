"""The OpenAPI document: everything that is answered has a form, and answers have theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from api.client import BrokerClient
from api.http.errors import ALL_KINDS
from api.http.openapi import TAGS, build_document
from api.http.reference import Operation, build_reference, client_examples
from api.schemas.base.field_descriptions import COMMON, load_descriptions, load_examples
from broker.catalogue import load_events
from broker.domain.basics.account import Scope
from broker.domain.basics.errors import BrokerError
from broker.domain.spend.approvals import Verdict
from broker.domain.spend.budgets import BudgetPeriod
from broker.domain.spend.spend import Interval
from tests.api.house import DOCUMENT, Home, api_document

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


def schemas() -> dict[str, Any]:
    found: dict[str, Any] = api_document()["components"]["schemas"]
    return found


def test_every_field_has_a_description() -> None:
    silent = [
        f"{name}.{field}"
        for name, schema in schemas().items()
        for field, part in schema.get("properties", {}).items()
        if not part.get("description")
    ]
    assert silent == [], "write what they mean in api/schemas/fields.toml"


def test_nothing_is_described_that_no_schema_has() -> None:
    told = load_descriptions()
    unknown = [
        f"{name}.{field}"
        for name, fields in told.items()
        if name != COMMON
        for field in fields
        if field not in schemas().get(name, {}).get("properties", {})
    ]
    everywhere = {field for schema in schemas().values() for field in schema.get("properties", {})}
    assert unknown + sorted(set(told[COMMON]) - everywhere) == [], "take them out of api/schemas/fields.toml"


def test_every_schema_has_an_example_of_its_form() -> None:
    documents = {name for name, schema in schemas().items() if "enum" not in schema}
    assert documents ^ set(load_examples()) == set(), "python -m tests.api.record_examples"
    for name, example in load_examples().items():
        whole = {"$ref": f"#/components/schemas/{name}", "components": api_document()["components"]}
        assert [error.message for error in Draft202012Validator(whole).iter_errors(example)] == [], name


def test_examples_hold_no_secret() -> None:
    text = str(load_examples())
    assert re.findall(r"(?:broker_live_|whsec_)(?!EXAMPLE|…)\w+", text) == []


def test_names_and_sentences_of_operations_read_well() -> None:
    found = [operation for _, _, operation in operations(api_document())]
    names = [operation["operationId"] for operation in found]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name)] == []
    unfinished = [one["summary"] for one in found if not re.fullmatch(r"[A-Z].*\.", one["summary"])]
    assert unfinished == []
    assert {tag for operation in found for tag in operation["tags"]} == set(TAGS)


async def test_each_operation_needs_the_scope_that_is_told(home: Home) -> None:
    clients = {scope: await home.team("research", [scope]) for scope in Scope}
    for method, path, operation in operations(api_document()):
        (needed,) = operation["security"][0].values()
        others = [scope for scope in Scope if scope != Scope.ADMIN and str(scope) not in needed]
        if needed:
            without = await home.team("research", others)
            answer = await without.request(method, re.sub(r"\{\w+\}", "x", path))
            assert answer.status_code == 403, (method, path)
        enough = clients[Scope(needed[0])] if needed else clients[Scope.PLANS_READ]
        answer = await enough.request(method, re.sub(r"\{\w+\}", "x", path), content=b"[]")
        assert answer.status_code not in (401, 403), (method, path, answer.text)


def test_every_event_is_a_webhook_of_the_document() -> None:
    assert set(api_document()["webhooks"]) == set(load_events())


@pytest.mark.parametrize("name", sorted(client_examples()))
def test_the_python_of_the_reference_makes_the_call(name: str) -> None:
    asked: list[tuple[str, str]] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path))
        return httpx.Response(418, json={"title": "refused", "status": 418})

    (operation,) = (one for one in all_operations() if one.name == name)
    names = {"Verdict": Verdict, "BudgetPeriod": BudgetPeriod, "Interval": Interval}
    client = BrokerClient("http://broker", "key", transport=httpx.MockTransport(refuse))
    with client as broker, pytest.raises(BrokerError, match="418"):
        exec(operation.python, {"broker": broker, **names})
    pattern = re.sub(r"\\{\w+\\}", ".+", re.escape(operation.path))
    ((method, path),) = asked
    assert method == operation.method
    assert re.fullmatch(pattern, path), path


def all_operations() -> list[Operation]:
    return [one for group in build_reference(api_document()).groups for one in group.operations]


async def test_the_reference_names_everything(home: Home) -> None:
    page = await home.client(None).get("/docs/api")
    assert page.status_code == 200
    ids = re.findall(r'\bid="([^"]+)"', page.text)
    assert len(ids) == len(set(ids))
    told = {operation["operationId"] for _, _, operation in operations(api_document())}
    told |= {f"problem-{kind.code}" for kind in ALL_KINDS}
    told |= {f"schema-{name}" for name in schemas()} | {f"event-{name}" for name in load_events()}
    assert told - set(ids) == set()
    assert {link[1:] for link in re.findall(r'href="(#[^"]+)"', page.text)} - {"#content"[1:]} <= set(ids)


async def test_a_problem_says_where_it_is_described(home: Home) -> None:
    problem = (await home.client().get("/v1/plans/none")).json()
    page, _, place = problem["type"].partition("#")
    assert f'id="{place}"' in (await home.client(None).get(page)).text
