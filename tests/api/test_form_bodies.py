"""Every call with a form refuses names that come twice, depth and size, before anything is done."""

from __future__ import annotations

import re

import pytest

from api.http.strict_requests import LARGEST_FORM_BYTES
from tests.api.house import Home

PATHS = {
    ("PUT", "/v1/budgets/{team}/{period}"),
    ("POST", "/v1/webhooks"),
    ("POST", "/v1/calendars"),
    ("POST", "/v1/keys"),
    ("POST", "/v1/ssh-keys"),
    ("POST", "/v1/providers/{provider}/setup"),
    ("POST", "/v1/plans/{plan_id}/release"),
    ("POST", "/v1/plans/{plan_id}/reserve"),
    ("POST", "/v1/reservations"),
    ("POST", "/v1/reservations/quote"),
    ("POST", "/v1/starting-points"),
    ("POST", "/v1/reservations/{reservation_id}/extend"),
    ("POST", "/v1/plans/{plan_id}/intend"),
    ("POST", "/v1/plans/{plan_id}/simulate"),
    ("POST", "/v1/plans/{plan_id}/approve"),
    ("POST", "/v1/plans/{plan_id}/reject"),
}
DOCUMENTS = {("POST", "/v1/plans"), ("POST", "/v1/estimates")}
"""Calls with a workloads document, whose reader has limits of its own."""
HOSTILE = [
    ('{"comment": "a",\n "comment": "b"}', 422, "a second 'comment'"),
    ('{"comment": ' + "[" * 100 + "]" * 100 + "}", 422, "more than 64 levels"),
    ('{"comment": "' + "x" * LARGEST_FORM_BYTES + '"}', 413, f"at most {LARGEST_FORM_BYTES}"),
]


async def test_every_route_with_a_form_is_a_form_route(home: Home) -> None:
    document = (await home.client().get("/openapi.json")).json()
    told = {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method, call in item.items()
        if "requestBody" in call
    }
    assert {(method, re.sub(":path", "", path)) for method, path in PATHS} == told - DOCUMENTS


@pytest.mark.parametrize(("body", "status", "found"), HOSTILE, ids=["twice", "deep", "large"])
async def test_hostile_forms_are_refused(home: Home, body: str, status: int, found: str) -> None:
    client = home.client()
    for method, path in sorted(PATHS):
        address = path.replace("{", "").replace("}", "")
        answer = await client.request(
            method, address, content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, found in answer.text) == (status, True), (path, answer.text)
    assert home.house.provider.ledger == []


async def test_a_sign_in_that_is_no_sign_in_is_not_taken_apart(home: Home) -> None:
    answer = await home.client().post("/signin", content=b"a=1&" * 1_000_000)
    assert answer.status_code == 401
