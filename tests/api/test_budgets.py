"""Budgets: set, compared with what is owed and expected, told once a period."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.account import Scope
from tests.api.house import Home
from tests.fakes.clock import FakeClock

MONTH = "/v1/budgets/research/month"


def advance(home: Home, **step: float) -> None:
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(**step)


async def put(client: httpx.AsyncClient, path: str, usd: str, **fields: Any) -> dict[str, Any]:
    answer = await client.put(path, json={"limit_usd": usd, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def told(home: Home, client: httpx.AsyncClient) -> list[str]:
    await home.product.budgets.watch()
    entries = (await client.get("/v1/audit", params={"limit": 200})).json()["items"]
    return [entry["detail"] for entry in reversed(entries) if entry["action"] == "budget.threshold"]


async def test_a_budget_says_when_it_runs_out(home: Home) -> None:
    team = await home.team("research")
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-11-30T12:00:00Z"}
    assert (await team.post("/v1/reservations", json=body)).status_code == 202
    advance(home, hours=12)
    found = await put(team, MONTH, "1000.00")
    assert (found["from"], found["to"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    assert Decimal(found["owed_usd"]) == Decimal("246")
    assert Decimal(found["expected_usd"]) == Decimal("20.5") * 7 * 24
    assert Decimal(found["reserved_usd"]) == Decimal(found["expected_usd"]) - 246
    assert Decimal(found["left_usd"]) == 1000 - Decimal(found["expected_usd"])
    assert found["runs_out_on"] == "2026-11-25T00:00:00Z"
    half, most, whole = found["thresholds"]
    assert (half["percent"], half["usd"], half["reached_on"]) == (50, "500.00", None)
    assert half["expected_on"] == "2026-11-24T00:00:00Z"
    assert most["expected_on"] == whole["expected_on"] == "2026-11-25T00:00:00Z"
    assert (await put(team, MONTH, "100000"))["runs_out_on"] is None


async def test_each_threshold_is_told_once_a_period(home: Home) -> None:
    team = await home.team("research")
    await put(team, MONTH, "600.00", thresholds=[50, 80])
    assert await told(home, team) == []
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-12-02T12:00:00Z"}
    await team.post("/v1/reservations", json=body)
    expected = await told(home, team)
    assert [text.partition(":")[0] for text in expected] == [
        "100 % of 600.00 USD for 2026-11-01 to 2026-12-01"
    ]
    assert expected[0].endswith("USD expected")
    advance(home, hours=15)
    half = await told(home, team)
    assert half[1:] == ["50 % of 600.00 USD for 2026-11-01 to 2026-12-01: 307.50 USD owed"]
    assert await told(home, team) == half
    advance(home, hours=10)
    assert len(await told(home, team)) == 3
    await put(team, MONTH, "900.00", thresholds=[50, 80])
    advance(home, hours=11)
    again = await told(home, team)
    assert again[3:] == ["80 % of 900.00 USD for 2026-11-01 to 2026-12-01: 738.00 USD owed"]
    advance(home, days=8)
    assert len(await told(home, team)) > 4, "a new month begins anew"


async def test_everybody_together_and_a_span_of_its_own(home: Home) -> None:
    ours, theirs, admin = await home.team("research"), await home.team("product"), home.client()
    for client in (ours, theirs):
        body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-11-24T12:00:00Z"}
        assert (await client.post("/v1/reservations", json=body)).status_code == 202
    whole = await put(admin, "/v1/budgets/*/quarter", "5000")
    assert Decimal(whole["expected_usd"]) == 2 * 24 * Decimal("20.5")
    assert whole["from"] == "2026-10-01T00:00:00Z"
    span = {"from": "2026-11-24T00:00:00Z", "to": "2026-11-25T00:00:00Z"}
    part = await put(ours, "/v1/budgets/research/horizon", "100", **span)
    assert Decimal(part["expected_usd"]) == 12 * Decimal("20.5")
    assert (await ours.put("/v1/budgets/*/month", json={"limit_usd": "1"})).status_code == 404
    listed = (await ours.get("/v1/budgets")).json()["items"]
    assert [one["period"] for one in listed] == ["horizon"]
    assert len((await admin.get("/v1/budgets")).json()["items"]) == 2


async def test_who_may_set_and_end_one(home: Home) -> None:
    team, others = await home.team("research"), await home.team("product")
    reader = await home.team("research", [Scope.SPEND_READ])
    await put(team, MONTH, "10")
    assert (await reader.put(MONTH, json={"limit_usd": "1"})).status_code == 403
    assert (await reader.get(MONTH)).json()["limit_usd"] == "10.00"
    assert (await others.get(MONTH)).status_code == 404
    assert (await others.delete(MONTH)).status_code == 404
    assert (await team.delete(MONTH)).status_code == 204
    assert (await team.delete(MONTH)).status_code == 404
    audit = (await team.get("/v1/audit", params={"object_id": "research/month"})).json()["items"]
    assert [entry["action"] for entry in audit] == ["budget.delete", "budget.set"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit_usd": "0"}, "/limit_usd"),
        ({"limit_usd": "1.001"}, "/limit_usd"),
        ({"limit_usd": "5", "thresholds": [80, 50]}, "/thresholds"),
        ({"limit_usd": "5", "thresholds": []}, "/thresholds"),
        ({"limit_usd": "5", "from": "2026-11-24T00:00:00Z", "to": "2026-11-25T00:00:00Z"}, "/from"),
    ],
)
async def test_what_makes_no_sense_is_named(home: Home, body: dict[str, Any], field: str) -> None:
    team = await home.team("research")
    refused = await team.put(MONTH, json=body)
    assert refused.status_code == 422, refused.text
    assert [error["pointer"] for error in refused.json()["errors"]] == [field]


async def test_a_team_whose_name_has_a_slash_has_budgets_and_spaces_are_no_team(home: Home) -> None:
    client, path = home.client(), "/v1/budgets/research%2Fvision/month"
    assert (await client.put(path, json={"limit_usd": "5"})).status_code == 200
    assert (await client.get(path)).json()["team"] == "research/vision"
    assert (await client.delete(path)).status_code == 204
    assert (await client.put("/v1/budgets/%20/month", json={"limit_usd": "5"})).status_code == 422
