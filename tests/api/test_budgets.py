"""Budgets: set, compared with what is owed and expected, told once a period."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.basics.access import ALL_TEAMS_SCOPES, EVERY_TEAM
from broker.domain.basics.account import Scope
from broker.domain.basics.webhook import ALL_TEAMS
from tests.api.house import DOCUMENT, Home
from tests.fakes.clock import FakeClock
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer

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


async def test_a_budget_holds_with_a_chance_until_it_is_set_without(home: Home) -> None:
    team = await home.team("research")
    assert (await put(team, MONTH, "1000.00", confidence=0.9))["confidence"] == 0.9
    assert (await team.get(MONTH)).json()["confidence"] == 0.9
    assert (await put(team, MONTH, "1000.00"))["confidence"] is None


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
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-12-02T12:00:00Z"}
    assert (await team.post("/v1/reservations", json=body)).status_code == 202
    assert await told(home, team) == []
    await put(team, MONTH, "600.00", thresholds=[50, 80])
    expected = await told(home, team)
    assert expected == [
        "100 % of $600.00 for 2026-11-01 to 2026-12-01: $3,690.00 expected",
        "100 % of $600.00 for 2026-12-01 to 2027-01-01: $738.00 expected",
    ]
    advance(home, hours=15)
    half = await told(home, team)
    assert half[2:] == ["50 % of $600.00 for 2026-11-01 to 2026-12-01: $307.50 spent"]
    assert await told(home, team) == half
    advance(home, hours=10)
    assert len(await told(home, team)) == 4
    await put(team, MONTH, "900.00", thresholds=[50, 80])
    advance(home, hours=11)
    again = await told(home, team)
    assert again[4:] == ["80 % of $900.00 for 2026-11-01 to 2026-12-01: $738.00 spent"]
    advance(home, days=8)
    assert len(await told(home, team)) > 5, "a new month begins anew"


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
        ({"limit_usd": "5", "confidence": 0.3}, "/confidence"),
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
    await home.key("research/vision")
    assert (await client.put(path, json={"limit_usd": "5"})).status_code == 200
    assert (await client.get(path)).json()["team"] == "research/vision"
    assert (await client.delete(path)).status_code == 204
    assert (await client.put("/v1/budgets/%20/month", json={"limit_usd": "5"})).status_code == 422


async def test_a_team_that_does_not_exist_gets_no_budget(home: Home) -> None:
    """A team exists once it has a key; administrators set the budget then."""
    admin, limit = home.client(), {"limit_usd": "5"}
    refused = await admin.put("/v1/budgets/reserch/month", json=limit)
    assert refused.status_code == 422
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/team"]
    await home.key("research")
    refused = await admin.put("/v1/budgets/reserch/month", json=limit)
    assert "nearest: research" in refused.json()["errors"][0]["expected"]
    assert (await admin.get("/v1/budgets")).json()["items"] == []
    assert (await admin.put("/v1/budgets/research/month", json=limit)).status_code == 200
    assert (await admin.put("/v1/budgets/*/month", json=limit)).status_code == 200


async def test_a_lease_without_an_end_is_expected_until_the_period_is_over(home: Home) -> None:
    team = await home.team("research")
    body = {"offer_id": "h100-b", "nodes": 1}
    assert (await team.post("/v1/reservations", json=body)).status_code == 202
    advance(home, hours=12)
    found = await put(team, MONTH, "1050.00")
    assert Decimal(found["owed_usd"]) == Decimal("246")
    assert Decimal(found["expected_usd"]) == Decimal("20.5") * (7 * 24 + 12)
    assert found["until_released_usd"] == found["reserved_usd"] != "0.00"
    assert found["runs_out_on"] == "2026-11-25T00:00:00Z"
    assert [text.split(":")[0] for text in await told(home, team)] == [
        "100 % of $1,050.00 for 2026-11-01 to 2026-12-01",
        "100 % of $1,050.00 for 2026-12-01 to 2027-01-01",
    ]
    (december,) = found["later"]
    assert (december["from"], december["to"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    assert Decimal(december["until_released_usd"]) == Decimal("20.5") * 31 * 24
    assert Decimal(december["left_usd"]) == 1050 - Decimal("20.5") * 31 * 24
    quarter = await put(team, "/v1/budgets/research/quarter", "90000.00")
    assert Decimal(quarter["expected_usd"]) == Decimal("20.5") * (38 * 24 + 12)
    key = (await team.get("/v1/reservations")).json()["items"][0]["reservation_id"]
    assert (await team.delete(f"/v1/reservations/{key}")).status_code in (200, 202)
    after = (await team.get(MONTH)).json()
    assert (after["expected_usd"], after["runs_out_on"]) == ("246.00", None)


async def test_every_form_of_spend_tells_leases_without_an_end_apart(home: Home) -> None:
    team = await home.team("research")
    await team.post("/v1/reservations", json={"offer_id": "h100-b", "nodes": 1})
    advance(home, hours=12)
    span = {"from": "2026-11-23T00:00:00Z", "to": "2026-12-03T00:00:00Z"}
    coming = Decimal("20.5") * 9 * 24

    async def get(path: str, **params: str) -> httpx.Response:
        answer = await team.get(path, params={**span, **params})
        assert answer.status_code == 200, answer.text
        return answer

    found = (await get("/v1/spend/projection", interval="month")).json()
    assert Decimal(found["until_released_usd"]) == coming
    assert Decimal(found["total_usd"]) == coming + 246
    projected = [row for row in found["items"] if row["basis"] == "projected"]
    assert [row["usd"] for row in projected] == [row["until_released_usd"] for row in projected]
    groups = (await get("/v1/spend/projection", group_by="commitment", interval="month")).json()["items"]
    assert {row["group"] for row in groups} == {"committed", "until_released"}
    rows = list(csv.DictReader(io.StringIO((await get("/v1/spend/projection-rows.csv")).text)))
    assert {row["x_CommitState"] for row in rows} == {"Until Released"}
    assert sum(Decimal(row["ProjectedBilledCost"]) for row in rows) == coming
    sums = list(csv.DictReader(io.StringIO((await get("/v1/spend/projection.csv")).text)))
    assert sum(Decimal(row["until_released_usd"]) for row in sums) == coming
    interval = (await get("/v1/spend/interval", interval="month")).json()
    assert Decimal(interval["expected_usd"]) == coming + 246
    assert Decimal(interval["p50_usd"]) > 246
    whole = (await team.get("/v1/spend/projection", params={"interval": "month"})).json()
    to_the_month_s_end = Decimal("20.5") * 7 * 24
    assert Decimal(whole["until_released_usd"]) == to_the_month_s_end, "no period was asked for"


async def test_an_order_without_a_limit_passes_no_budget_at_a_price_that_nobody_saw(home: Home) -> None:
    team = await home.team("research")
    await put(team, MONTH, "505.00")
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-11-24T12:00:00Z"}
    quote = (await team.post("/v1/reservations/quote", json=body)).json()
    assert (quote["cost_usd"], quote["most_usd"]) == ("492.00", "501.84")
    home.house.provider.price_factor = Decimal("1.52")
    refused = await team.post("/v1/reservations", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "price-above-limit"), refused.text
    assert "asks $31.16 per node-hour; the limit was $20.91" in refused.json()["detail"]
    assert home.house.provider.ledger == []
    assert (await team.get(MONTH)).json()["expected_usd"] == "0.00"


async def test_an_order_is_held_against_a_budget_at_its_limit(home: Home) -> None:
    team = await home.team("research")
    await put(team, MONTH, "500.00")
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-11-24T12:00:00Z"}
    for path in ("/v1/reservations/quote", "/v1/reservations"):
        refused = await team.post(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "over-budget"), refused.text
        assert "at its limit of $20.91 per node-hour" in refused.json()["detail"]
    exact = {**body, "max_price_usd_per_node_hour": "20.5"}
    assert (await team.post("/v1/reservations", json=exact)).status_code == 202


EVERYBODY = "/v1/budgets/*/month"
ORDER = {
    "offer_id": "h100-b",
    "nodes": 1,
    "end": "2026-11-24T12:00:00Z",
    "max_price_usd_per_node_hour": "20.5",
}
"""A day at $20.50 an hour and no more: $492."""


async def finance_of(home: Home) -> httpx.AsyncClient:
    return await home.team(ALL_TEAMS, ALL_TEAMS_SCOPES)


async def test_a_budget_of_all_teams_stops_an_order_of_each_of_them(home: Home) -> None:
    """Finance sets it. The second order makes $984 of $983.99; an extension by an hour adds $20.50."""
    ours, theirs, finance = await home.team("research"), await home.team("product"), await finance_of(home)
    await put(finance, EVERYBODY, "983.99")
    held = await ours.post("/v1/reservations", json=ORDER)
    assert held.status_code == 202
    refused = await theirs.post("/v1/reservations", json=ORDER)
    assert (refused.status_code, refused.json()["code"]) == (409, "over-budget")
    words = "the budget of all teams would be exceeded by $0.01 (2026-11-01 to 2026-11-30)"
    assert refused.json()["detail"].startswith(f"{words}: this order adds $492.00 in that time")
    quote = await theirs.post("/v1/reservations/quote", json=ORDER)
    for answer in (refused, quote):
        assert answer.json()["code"] == "over-budget"
        assert not [word for word in ("983.99", "research", "counts already") if word in answer.text]
    key = held.json()["reservation_id"]
    longer = {"end": "2026-11-25T13:00:00Z"}
    extended = await ours.post(f"/v1/reservations/{key}/extend", json=longer)
    assert (extended.status_code, extended.json()["code"]) == (409, "over-budget")
    assert (await ours.get("/v1/budgets")).json()["items"] == [], "it is not the team's"
    assert (await ours.get(EVERYBODY)).status_code == 404
    assert Decimal((await finance.get(EVERYBODY)).json()["left_usd"]) == Decimal("983.99") - 492


async def test_a_refused_order_without_an_end_does_not_tell_how_far_the_leases_of_others_go(
    home: Home,
) -> None:
    """A node at $20.50 an hour is $15,252 in March, when another team holds one; alone it stays within
    $20,000 of each month. The order counts up to March only because of the other team's lease."""
    ours, theirs, finance = await home.team("research"), await home.team("product"), await finance_of(home)
    await put(finance, EVERYBODY, "20000")
    wide = {**ORDER, "start": "2027-03-01T00:00:00Z", "end": "2027-04-01T00:00:00Z"}
    assert (await theirs.post("/v1/reservations", json=wide)).status_code == 202
    open_ended = {key: value for key, value in ORDER.items() if key != "end"}
    refused = await ours.post("/v1/reservations", json=open_ended)
    assert (refused.status_code, refused.json()["code"]) == (409, "over-budget"), refused.text
    assert refused.json()["detail"].startswith(
        "the budget of all teams would be exceeded by $10,504.00 in a later period to which this order adds, "
    )
    assert "2027" not in refused.text


@pytest.mark.parametrize("theirs_end", [None, "2027-06-01T00:00:00Z"])
async def test_what_others_hold_changes_nothing_of_a_team_s_own_budget(
    home: Home, theirs_end: str | None
) -> None:
    """An order without an end costs $20.50 an hour, up to the end of the next month, whoever holds what."""
    ours, theirs, finance = await home.team("research"), await home.team("product"), await finance_of(home)
    await put(ours, MONTH, "100000")
    await put(finance, EVERYBODY, "1000000")
    if theirs_end is not None:
        assert (await theirs.post("/v1/reservations", json={**ORDER, "end": theirs_end})).status_code == 202
    open_ended = {key: value for key, value in ORDER.items() if key != "end"}
    assert (await ours.post("/v1/reservations", json=open_ended)).status_code == 202
    for reader in (ours, finance):
        found = (await reader.get(MONTH)).json()
        later = [(one["from"][:10], one["expected_usd"]) for one in found["later"]]
        assert later == [("2026-12-01", "15252.00")]


async def test_two_orders_at_once_do_not_pass_the_budget_of_all_teams_together(home: Home) -> None:
    clients = [await home.team("research"), await home.team("product"), await home.team("infra")]
    await put(await finance_of(home), EVERYBODY, "983.99")
    answers = await asyncio.gather(*(one.post("/v1/reservations", json=ORDER) for one in clients))
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409]


async def test_a_plan_over_the_budget_of_all_teams_waits_and_its_team_learns_nothing_of_others(
    home: Home,
) -> None:
    """The plan costs $205, and $492 of another team are held: $697 of $600."""
    ours, theirs, finance = await home.team("research"), await home.team("product"), await finance_of(home)
    assert (await theirs.post("/v1/reservations", json=ORDER)).status_code == 202
    await put(finance, EVERYBODY, "600")
    await put(ours, MONTH, "5000")
    plan = await home.plan(ours)
    assert plan["needs_approval"]
    assert plan["approval_reason"] == (
        "the budget of all teams would be exceeded by $97.00 (2026-11-01 to 2026-11-30): this plan adds "
        "$205.00 in that time"
    )
    (own,) = (await ours.get("/v1/approvals")).json()["items"]
    worst, other = own["effects"]
    assert (worst["team"], worst["limit_usd"], worst["counted_usd"], worst["left_usd"]) == (
        "*", None, None, "-97.00"
    )  # fmt: skip
    assert other["says"].startswith("team research would have $4,795.00 left of its budget")
    assert not [word for word in ("492", "600", "product") if word in str(own["effects"])]
    (seen,) = (await finance.get("/v1/approvals")).json()["items"]
    assert (seen["effects"][0]["limit_usd"], seen["effects"][0]["counted_usd"]) == ("600.00", "492.00")
    assert "all teams together would exceed their budget of $600.00 per month by $97.00" in str(seen)
    assert seen["figures"]["budget_left_usd"] == own["figures"]["budget_left_usd"] == "-97.00"
    await put(finance, EVERYBODY, "900")
    (own,) = (await ours.get("/v1/approvals")).json()["items"]
    assert [one["team"] for one in own["effects"]] == ["research"], "what is left of it is not the team's"
    assert own["figures"]["budget_left_usd"] == "4795.00"


async def test_budgets_of_a_past_and_of_a_coming_month_are_read(home: Home) -> None:
    """36 hours in December, and the rest of November; read in January, and before."""
    team = await home.team("research")
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-12-02T12:00:00Z"}
    assert (await team.post("/v1/reservations", json=body)).status_code == 202
    span = {"from": "2026-11-24T00:00:00Z", "to": "2026-11-25T00:00:00Z"}
    await put(team, MONTH, "700")
    await put(team, "/v1/budgets/research/quarter", "9000")
    await put(team, "/v1/budgets/research/horizon", "100", **span)

    async def of(month: str) -> dict[str, tuple[str, str]]:
        found = (await team.get("/v1/budgets", params={"period": month})).json()["items"]
        return {one["period"]: (one["from"][:10], one["expected_usd"]) for one in found}

    assert await of("2026-12") == {"month": ("2026-12-01", "738.00"), "quarter": ("2026-10-01", "4428.00")}
    advance(home, days=45)
    november = await of("2026-11")
    assert november["month"] == ("2026-11-01", "3690.00")
    assert november["horizon"] == ("2026-11-24", "492.00")
    assert (await of("2026-10"))["month"] == ("2026-10-01", "0.00")
    refused = await team.get("/v1/budgets", params={"period": "2026-13"})
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/period"]


async def test_a_mistyped_team_of_an_administrator_is_no_new_team(home: Home) -> None:
    """A team that is like none begins with its first plan; one that is like another is said to be new."""
    admin = home.client()
    await home.plan(admin)
    mistyped = {**DOCUMENT, "team": "reserach"}
    refused = await admin.post("/v1/plans", json=mistyped)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert (error["pointer"], error["found"]) == ("/team", "'reserach'")
    assert "nearest: research" in error["expected"]
    assert (await admin.post("/v1/plans", json={**DOCUMENT, "team": "payments"})).status_code == 202
    named = {"op": "replace", "path": "/team", "value": "reserach"}
    what_if = {"based_on": (await home.plan(admin))["plan_id"], "changes": [{"name": "n", "patch": [named]}]}
    for query, status in (("", 422), ("?new_team=true", 202)):
        assert (await admin.post(f"/v1/plans{query}", json=what_if)).status_code == status
    assert (await admin.post("/v1/plans?new_team=true", json=mistyped)).status_code == 202
    assert (await admin.post("/v1/plans", json=mistyped)).status_code == 202, "it exists now"
    await home.key("paymentz")
    assert (await admin.post("/v1/plans", json={**DOCUMENT, "team": "paymentz"})).status_code == 202


async def test_approvals_show_every_period_that_is_over_and_not_the_harmless_one(home: Home) -> None:
    """$240 in November, $200 in December: told where more is over than was said when the plan was made."""
    finance = await finance_of(home)
    plan = a_plan(a_placement(an_offer("h100-b", "10"), [a_segment(7 * 24, 7 * 24 + 22, 2)], "chat"))
    said = (
        "team research would exceed its budget of $220.00 per month by $20.00 (2026-11-01 to 2026-11-30): "
        "$0.00 counts already, and this plan adds $240.00 in that time"
    )
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        record = replace(a_record(plan, needs_approval=True), approval_reason=said)
        await uow.plans.add(replace(record, document=json.dumps(DOCUMENT)))
        await uow.commit()
    await finance.post("/signin", data={"key": finance.headers["Authorization"].split()[1]})
    await put(finance, MONTH, "220.00")
    page = (await finance.get("/approvals")).text
    assert "by $20.00 (2026-11-01 to 2026-11-30)" in page
    assert "Now:" not in page, "it is as it was said, and December is within the budget"
    assert "$20.00 left" not in page
    await put(finance, MONTH, "150.00")
    page = (await finance.get("/approvals")).text
    november = page.index("by $90.00 (2026-11-01 to 2026-11-30)")
    december = page.index("by $50.00 (2026-12-01 to 2026-12-31)")
    assert page.index("Now:") < november < december, "the worst first"
    await put(finance, MONTH, "1000.00")
    page = (await finance.get("/approvals")).text
    assert "would have $760.00 left of its budget" in page


async def test_finance_reads_a_past_month_and_closes_it_on_the_page(home: Home) -> None:
    finance, team = await finance_of(home), await home.team("research")
    await put(finance, EVERYBODY, "5000")
    assert (await team.post("/v1/reservations", json=ORDER)).status_code == 202
    for client in (finance, team):
        await client.post("/signin", data={"key": client.headers["Authorization"].split()[1]})
    assert "Close 2026-10" not in (await team.get("/spend")).text, "a team closes nothing"
    page = (await finance.get("/spend?budget_month=2026-10")).text
    assert "2026-10-01 to 2026-10-31" in page
    assert (await finance.get("/spend?budget_month=never")).status_code == 422
    assert "Close 2026-10" in page
    fields = {name: value for name, value in re.findall(r'name="(proof|once)" value="([^"]*)"', page)}
    sent = {**fields, "once": f"{fields['once']}-close", "month": "2026-10", "comment": "done"}
    answer = await finance.post("/spend/close", data=sent)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/spend?done=closed&unconfirmed=")
    (closed,) = (await finance.get("/v1/spend/closed")).json()["items"]
    assert (closed["month"], closed["comment"]) == ("2026-10", "done")
    after = (await finance.get("/spend?done=closed&unconfirmed=fake,nobody")).text
    assert "The month is closed" in after
    assert "did not confirm its leases" in after
    assert "nobody</strong>" not in after
    assert "Close 2026-1" not in after, "November is not over"
