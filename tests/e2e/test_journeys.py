"""The three journeys of the product through real processes: a team, the scheduler, finance."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.chromium import launched
from tests.e2e.asking import document, planned
from tests.e2e.conftest import ADMIN_KEY, World
from tests.e2e.fleets import a_fleet_follows_a_price
from tests.e2e.processes import wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("e2e")]


def test_a_team_plans_reserves_and_releases(world: World) -> None:
    plan = planned(world, document())
    assert plan["status"] in {"optimal", "feasible"}
    assert not plan["unplaced"]
    placed = {p["workload"]: p for p in plan["placements"]}
    assert placed.keys() == {"tune-8b", "chat-8b"}
    assert Decimal(plan["cost_usd"]) == sum(Decimal(p["cost_usd"]) for p in plan["placements"])
    counted = ("cost_usd", "penalty_usd", "delay_usd", "recourse_usd", "relaunch_usd")
    assert Decimal(plan["bound_usd"]) <= sum(Decimal(plan[part]) for part in counted)

    before = {row["instance_id"] for row in world.ledger()}
    answer = world.client.post(
        f"/v1/plans/{plan['plan_id']}/reserve", headers={"Idempotency-Key": plan["plan_id"]}
    )
    assert answer.status_code == 202, answer.text
    reservations = answer.json()["reservations"]
    assert reservations
    again = world.client.post(
        f"/v1/plans/{plan['plan_id']}/reserve", headers={"Idempotency-Key": plan["plan_id"]}
    )
    assert again.json() == answer.json()

    # Nothing on demand starts before tomorrow, so only windows are bought today.
    bought = {row["instance_id"] for row in world.open_instances()} - before
    told = {ref for r in reservations for ref in r["provider_references"]}
    assert told == bought

    for reservation in reservations:
        path = f"/v1/reservations/{reservation['reservation_id']}"
        assert world.client.delete(path).status_code in {200, 202, 204}
        assert world.client.delete(path).status_code in {200, 202, 204}


@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_a_plan_that_starts_now_is_held_in_the_ledger_and_ends_there(world: World) -> None:
    body = document("starts-now")
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=20)
    # One day: after its first day a service counts on medians, and part of its fleet may start only then.
    body["horizon"] = {"start": begin.strftime("%Y-%m-%dT%H:%M:%SZ"), "days": 1}
    body["policy"] = {"tiers": ["on_demand"]}
    (service,) = [w for w in body["workloads"] if w["kind"] == "serving"]
    service["traffic"] = {**service["traffic"], "shape": "flat"}
    body["workloads"] = [service]
    plan = planned(world, body)
    before = {row["instance_id"] for row in world.ledger()}
    answer = world.client.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert answer.status_code == 202, answer.text
    paths = [f"/v1/reservations/{r['reservation_id']}" for r in answer.json()["reservations"]]

    def all_active() -> list[dict[str, Any]] | None:
        rows = [world.client.get(path).json() for path in paths]
        assert not [r for r in rows if r["state"] == "failed"], rows
        return rows if all(r["state"] == "active" for r in rows) else None

    rows = wait_for("the whole fleet", 90, all_active)
    told = sorted(ref for row in rows for ref in row["provider_references"])
    held = [r for r in world.open_instances() if r["instance_id"] not in before]
    assert told == sorted(r["instance_id"] for r in held)
    assert sum(r["nodes"] for r in held) == sum(p["nodes"] for p in plan["placements"])

    for path in paths:
        assert world.client.delete(path).status_code == 202
    still_open = set(told)

    def ended() -> bool | None:
        return True if not still_open & {r["instance_id"] for r in world.open_instances()} else None

    wait_for("the end of every instance in the ledger", 90, ended)
    assert all(r["released_at"] for r in world.ledger() if r["instance_id"] in still_open)


def test_one_node_is_held_seen_in_the_ledger_and_ended(world: World) -> None:
    offers = world.client.get(
        "/v1/offers", params={"tier": "on_demand", "provider": "lambda", "limit": 200}
    ).json()["items"]
    offer = offers[0]
    answer = world.client.post(
        "/v1/reservations", json={"offer_id": offer["offer_id"], "nodes": 1, "workload": "probe"}
    )
    assert answer.status_code == 202, answer.text
    path = f"/v1/reservations/{answer.json()['reservation_id']}"

    def active() -> dict[str, Any] | None:
        row: dict[str, Any] = world.client.get(path).json()
        assert row["state"] != "failed", row
        return row if row["state"] == "active" else None

    row = wait_for("the active reservation", 60, active)
    held = {r["instance_id"]: r for r in world.open_instances()}
    assert set(row["provider_references"]) <= set(held)
    assert all(held[ref]["sku"] == offer["sku"] for ref in row["provider_references"])

    assert world.client.delete(path).status_code in {200, 202, 204}
    wait_for(
        "the end in the ledger",
        60,
        lambda: (
            True
            if not set(row["provider_references"]) & {r["instance_id"] for r in world.open_instances()}
            else None
        ),
    )
    wait_for("released", 60, lambda: True if world.client.get(path).json()["state"] == "released" else None)
    assert world.client.delete(path).status_code in {200, 202, 204}


@dataclass(frozen=True)
class Watched:
    """A plan that later tests read, and what was streamed while it was made."""

    plan: dict[str, Any]
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def watched(world: World) -> Watched:
    """A plan of a team of its own, made once for all that only read it."""
    answer = world.client.post("/v1/plans?intended=true", json=document("finance-view"))
    with world.client.stream("GET", f"{answer.headers['Location']}/events") as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("data:")]
    events = [json.loads(line.removeprefix("data:")) for line in lines]
    return Watched(world.client.get(answer.headers["Location"]).json(), events)


def test_progress_of_a_solve_streams(watched: Watched) -> None:
    events = watched.events
    assert events[-1]["state"] == "done"
    solving = [event for event in events if "stage" in event]
    assert solving
    assert any(event["bound_usd"] is not None for event in solving)


def test_finance_reads_spend_by_team_and_month_and_exports_it(world: World, watched: Watched) -> None:
    plan = watched.plan
    start = datetime.now(UTC).date()
    window = {"from": f"{start}T00:00:00Z", "to": f"{start + timedelta(days=62)}T00:00:00Z"}
    answer = world.client.get(
        "/v1/spend/projection", params={**window, "interval": "month", "group_by": "team"}
    )
    assert answer.status_code == 200, answer.text
    mine = [row for row in answer.json()["items"] if row["group"] == "finance-view"]
    assert sum(Decimal(row["usd"]) for row in mine) == Decimal(plan["cost_usd"])

    text = world.client.get(
        "/v1/spend/projection.csv", params={**window, "interval": "day", "group_by": "team"}
    ).text
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["group"] == "finance-view"]
    assert sum(Decimal(row["usd"]) for row in rows) == Decimal(plan["cost_usd"])


def test_finance_reads_the_same_figure_on_the_page_in_a_browser(world: World, watched: Watched) -> None:
    plan = watched.plan
    expected = f"${Decimal(plan['cost_usd']):,.2f}"
    with launched() as browser:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(world.server.url + "/spend?interval=month&group_by=team")
        page.get_by_label("API key").fill(ADMIN_KEY)
        page.get_by_role("button", name="Sign in").click()
        page.goto(world.server.url + "/spend?interval=month&group_by=team")
        table = page.get_by_role("table").last
        column = table.get_by_role("columnheader").all_inner_texts().index("finance-view")
        sums = table.locator("tfoot tr").last.locator("td, th").all_inner_texts()
        assert sums[column] == expected
        assert page.locator("svg[role=img] rect").count() > 0
        assert complaints == []


def test_errors_are_problem_documents(world: World) -> None:
    bad = document()
    bad["workloads"][0]["model"] = "Lama-3.1-8B"
    answer = world.client.post("/v1/plans", json=bad)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["pointer"] == "/workloads/0/model"
    assert "Llama-3.1-8B" in answer.text
    assert world.client.get("/v1/plans/nothing").status_code == 404
    assert httpx.get(world.server.url + "/v1/plans").status_code == 401


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_a_price_change_leads_to_a_proposal_with_its_saving(world: World, watched: Watched) -> None:
    plan = watched.plan
    placed = next(p for p in plan["placements"] if p["workload"] == "chat-8b")
    change = {"provider": placed["provider"], "sku": placed["sku"], "price_factor": 3.0}
    httpx.post(world.sandbox.url + "/_sandbox/market", json=change).raise_for_status()

    def look() -> dict[str, Any] | None:
        rows = world.client.get("/v1/reoptimizations", params={"limit": 100}).json()["items"]
        return next((r for r in rows if r["plan_id"] == plan["plan_id"] and r["state"] == "proposed"), None)

    try:
        proposal = wait_for("a proposal", 90, look)
    finally:
        httpx.post(
            world.sandbox.url + "/_sandbox/market", json={**change, "price_factor": 1.0}
        ).raise_for_status()
    assert Decimal(proposal["saving_usd"]) > 0
    assert any(move["workload"] == "chat-8b" for move in proposal["moves"])


@pytest.mark.slow
@pytest.mark.parametrize("world", ["postgresql"], indirect=True)
def test_a_fleet_follows_a_price_and_does_not_run_after_it(world: World) -> None:
    a_fleet_follows_a_price(world)
