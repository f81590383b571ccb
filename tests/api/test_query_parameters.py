"""Query parameters: what no call knows is refused, and every list takes its limit and cursor."""

from __future__ import annotations

import re
import threading
from datetime import datetime
from typing import Any

import pytest

from api.http.openapi import build_document
from tests.api.house import Home

PROBES = ("/healthz", "/readyz", "/metrics", "/signin")


async def test_every_call_refuses_a_parameter_that_it_does_not_know(home: Home) -> None:
    client, paths = home.client(), build_document(home.app)["paths"]
    asked = 0
    for template, operations in paths.items():
        for method, operation in operations.items():
            path = re.sub(r"\{\w+\}", "x", template)
            answer = await client.request(method, path, params={"limt": "5"}, json={})
            assert answer.status_code == 422, (method, template, answer.text)
            assert answer.headers["Content-Type"] == "application/problem+json"
            (error,) = (one for one in answer.json()["errors"] if one["pointer"] == "/limt")
            assert error["found"] == 'an unknown parameter, "5"'
            known = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
            assert all(name in error["expected"] for name in known), error
            asked += 1
    assert asked > 50
    await home.key("research")
    assert (await client.get("/v1/plans?limit=5&team=research")).status_code == 200


async def test_a_body_with_the_month_to_close_is_not_dropped(home: Home) -> None:
    closed = await home.client().post(
        "/v1/spend/close?month=2026-10", json={"comment": "all invoices are in"}
    )
    assert closed.status_code == 422
    (error,) = closed.json()["errors"]
    assert error["expected"] == "no body: its values are parameters of the address, ?month=2026-10&comment=…"


async def test_the_nearest_parameter_is_told(home: Home) -> None:
    answer = await home.client().get("/v1/plans?limt=5&tem=a")
    expected = {one["pointer"]: one["expected"] for one in answer.json()["errors"]}
    assert expected == {
        "/limt": "the parameter 'limit' (there are team, limit, cursor)",
        "/tem": "the parameter 'team' (there are team, limit, cursor)",
    }
    nothing = await home.client().get("/v1/comparisons/x?team=a")
    assert nothing.json()["errors"][0]["expected"] == "no parameter: this call takes none"


async def test_pages_and_probes_take_what_others_hang_on_an_address(home: Home) -> None:
    for path in PROBES:
        assert (await home.client().get(path, params={"utm_source": "mail"})).status_code in {200, 503}, path


def lists_of(document: dict[str, Any]) -> list[str]:
    """The calls that answer a part of a list."""
    found = []
    for path, operations in document["paths"].items():
        schemas = str(operations.get("get", {}).get("responses", {}).get("200", {}))
        if "PageForm" in schemas or re.search(r"schemas/\w+Page\b", schemas):
            found.append(path)
    return found


async def test_every_list_is_paged(home: Home) -> None:
    document = build_document(home.app)
    lists = lists_of(document)
    assert len(lists) >= 12, lists
    for path in lists:
        names = {one["name"] for one in document["paths"][path]["get"]["parameters"]}
        assert names >= {"limit", "cursor"}, path


async def test_budgets_come_in_parts(home: Home) -> None:
    client = home.client()
    for team in ("b", "a", "c"):
        await home.key(team)
        made = await client.put(f"/v1/budgets/{team}/month", json={"limit_usd": "10.00"})
        assert made.status_code == 200, made.text
    seen, asked = [], {"limit": "2"}
    while True:
        page = (await client.get("/v1/budgets", params=asked)).json()
        seen.append([one["team"] for one in page["items"]])
        if page["next_cursor"] is None:
            break
        asked["cursor"] = page["next_cursor"]
    assert seen == [["a", "b"], ["c"]]
    assert len((await client.get("/v1/budgets")).json()["items"]) == 3


async def test_the_document_is_derived_while_others_are_answered(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive, threads = home.app.openapi, []

    def noted() -> dict[str, Any]:
        threads.append(threading.get_ident())
        return derive()

    monkeypatch.setattr(home.app, "openapi", noted)
    monkeypatch.setattr(home.app, "openapi_schema", None)
    assert (await home.client().get("/v1/plans?limit=5")).status_code == 200
    assert threads
    assert threading.get_ident() not in threads


async def test_times_in_errors_are_whole_seconds_and_can_be_given_back(home: Home) -> None:
    client = home.client()
    for method, path in (
        ("GET", "/v1/market?at=2030-01-01T00:00:00Z"),
        ("POST", "/v1/spend/close?month=2030-01"),
    ):
        (problem,) = (await client.request(method, path)).json()["errors"]
        told = re.findall(r"\d{4}-\d\d-\d\dT\S*", problem["expected"])
        assert [datetime.fromisoformat(one).microsecond for one in told] == [0], problem
        assert told[0].endswith("Z")


async def test_an_unknown_address_and_method_are_told_in_a_sentence(home: Home) -> None:
    client = home.client()
    missing = await client.get("/v1/nothing")
    assert missing.json()["detail"] == "there is no /v1/nothing; /docs/api lists every operation"
    refused = await client.put("/v1/plans")
    assert refused.json()["detail"] == "PUT is not taken at /v1/plans; GET, POST are"
