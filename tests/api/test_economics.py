"""What changed, what units cost, what plans save: through the API, on a real store."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.planning.plan import Baseline
from tests.api.house import DOCUMENT, OFFERS, Home
from tests.fakes.clock import FakeClock
from tests.fakes.examples import a_placement, a_plan, a_record, a_segment, an_offer


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def reprice(home: Home, **prices: str) -> None:
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(minutes=1)
    home.house.provider.offers = tuple(
        replace(o, price_usd_per_node_hour=Decimal(prices.get(o.offer_id, o.price_usd_per_node_hour)))
        for o in OFFERS
    )
    await home.product.offers.refresh()


async def test_the_market_and_the_planner_are_told_apart(home: Home) -> None:
    team = await home.team("research")
    old = await home.plan(team)
    await reprice(home, **{"h100-b": "30", "h100-a": "22"})
    new = await home.plan(team)
    found = await get(team, "/v1/spend/changes", **{"from": old["plan_id"], "to": new["plan_id"]})
    assert (found["before_usd"], found["after_usd"]) == (old["cost_usd"], new["cost_usd"])
    assert (found["market_usd"], found["reoptimization_usd"]) == ("95.00", "-80.00")
    assert found["unpriced"] == []
    assert [line["offer_id"] for line in found["items"]] == ["h100-a", "h100-b"]
    effects = [Decimal(found[name]) for name in ("price_usd", "volume_usd", "mix_usd")]
    assert effects == [-20, 0, 35], "h100-a was 24 then, and 3.5 dearer than h100-b"
    assert sum(effects) == Decimal(found["change_usd"]) == 15


async def test_months_are_compared_with_what_is_expected_in_them(home: Home) -> None:
    team = await home.team("research")
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-12-11T00:00:00Z"}
    assert (await team.post("/v1/reservations", json=body)).status_code == 202
    found = await get(team, "/v1/spend/changes", **{"from": "2026-11", "to": "2026-12"})
    hours = 7 * 24 + 12, 10 * 24
    assert [Decimal(found[k]) for k in ("before_usd", "after_usd")] == [h * Decimal("20.5") for h in hours]
    assert Decimal(found["volume_usd"]) == Decimal(found["change_usd"])
    assert Decimal(found["price_usd"]) == Decimal(found["mix_usd"]) == 0


@pytest.mark.parametrize(("before", "after"), [("2026-11", "plan-1"), ("2026-13", "2026-11")])
async def test_only_like_is_compared_with_like(home: Home, before: str, after: str) -> None:
    team = await home.team("research")
    refused = await team.get("/v1/spend/changes", params={"from": before, "to": after})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/to"


async def test_units_of_a_run(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    found = await get(team, "/v1/spend/units")
    assert (found["runs"], found["usd_per_run"]) == (1, plan["cost_usd"])
    assert found["tokens_trained"] == DOCUMENT["workloads"][0]["tokens"]
    per_trillion = Decimal(plan["cost_usd"]) * 500
    assert Decimal(found["usd_per_trillion_tokens_trained"]) == per_trillion
    assert (found["used_gpu_hours"], found["idle_gpu_hours"]) == (80, 0)
    assert Decimal(found["usd_per_used_gpu_hour"]) == Decimal("20.5") / 8
    assert found["usd_per_million_tokens_served"] is None
    assert (found["committed_usd"], found["flexible_usd"]) == ("0", plan["cost_usd"])
    energy = found["energy"]
    assert energy["kwh"] == pytest.approx(80 * 0.7 * 1.5 * 1.54, abs=0.01)
    assert energy["kwh_without_grid"] == energy["kwh"]
    assert "estimate" in energy["note"]


SERVICE = {
    "name": "chat-8b",
    "kind": "serving",
    "model": "Llama-3.1-8B",
    "traffic": {"input_tokens": 800, "output_tokens": 200, "peak_requests_per_s": 3, "shape": "flat"},
    "slo": {"ttft_p95_ms": 2000, "itl_p95_ms": 60},
}
SERVED = 3 * 1000 * 2 * 86_400
"""Tokens of two days of three requests a second, of 1,000 tokens each."""
UNITS = ("tokens_served", "usd_per_million_tokens_served", "tokens_trained", "runs", "usd_per_run")


async def test_the_tokens_of_a_period_are_the_same_whenever_it_is_asked(home: Home) -> None:
    """While the plan runs, after its horizon, after the month, and after it was closed."""
    team, admin = await home.team("research"), home.client()
    run = DOCUMENT["workloads"][0] | {"deadline": "+2d"}
    document = DOCUMENT | {"horizon": DOCUMENT["horizon"] | {"days": 2}, "workloads": [run, SERVICE]}
    plan = await home.plan(team, document)
    assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code == 202
    november = {"from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"}
    before = await get(team, "/v1/spend/units", **november)
    # 48 hours of the service at $20.50: 984 / 518.4.
    assert (before["tokens_served"], before["tokens_trained"]) == (SERVED, 2e9)
    assert before["usd_per_million_tokens_served"].startswith("1.898148")
    clock = home.house.clock
    assert isinstance(clock, FakeClock)
    for hours in (12, 10, 38, 1, 24, 24 * 10):
        clock.advance(hours=hours)
        await home.product.reconcile.run_once()
        await home.product.reconcile.run_once()
        await home.product.spend.roll_up()
        found = await get(team, "/v1/spend/units", **november)
        assert [found[name] for name in UNITS] == [before[name] for name in UNITS], clock.now()
    done = await admin.post("/v1/spend/close", params={"month": "2026-11"})
    assert done.status_code == 200, done.text
    november_after = await get(team, "/v1/spend/units", **november)
    assert [november_after[name] for name in UNITS] == [before[name] for name in UNITS]
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        for row in (await uow.reservations.find_page(10, None, None)).items:
            gone_at = row.units[0].gone_at
            assert gone_at is not None
            unit = replace(row.units[0], gone_at=gone_at - timedelta(hours=5))
            await uow.reservations.update(row.with_unit(unit))
        await uow.commit()
    closed = await get(team, "/v1/spend/units", **november)
    assert [closed[name] for name in UNITS] == [before[name] for name in UNITS], "frozen with the month"
    since = await get(
        team, "/v1/spend/units", **{"from": "2026-11-01T00:00:00Z", "to": "2027-01-01T00:00:00Z"}
    )
    assert since["tokens_served"] == SERVED


async def test_a_plan_whose_horizon_is_over_is_not_made_nor_reserved(home: Home) -> None:
    team = await home.team("research")
    old = await home.plan(team)
    clock = home.house.clock
    assert isinstance(clock, FakeClock)
    clock.advance(days=9)
    await home.product.offers.refresh()
    refused = await team.post(f"/v1/plans/{old['plan_id']}/reserve")
    assert (refused.status_code, refused.json()["code"]) == (409, "stale-plan")
    assert "ended at 2026-12-01 00:00 UTC" in refused.json()["detail"]
    asked = {"based_on": old["plan_id"], "changes": [{"name": "longer", "set": ["horizon.days+=1"]}]}
    no_plan = await team.post("/v1/plans", json=asked)
    assert (no_plan.status_code, no_plan.json()["errors"][0]["pointer"]) == (422, "/changes/0")
    assert "a horizon that ended at" in no_plan.json()["detail"]


async def test_savings_are_of_strategies_that_could_run(home: Home) -> None:
    team = await home.team("research")
    await home.plan(team)
    found = await get(team, "/v1/spend/savings")
    assert found["items"] == []
    assert [one["why"] for one in found["not_compared"]] == ["no simpler strategy was tried for it"]


async def test_a_draft_that_nobody_intends_to_buy_saves_nothing(home: Home) -> None:
    """It counts once somebody intends to buy it, and not any more when they do not."""
    team = await home.team("research")
    plan = a_plan(a_placement(an_offer("h100-b", "20.5"), [a_segment(0, 10)], "train"))
    plan = replace(plan, baselines=(Baseline("single_shape", plan.cost_usd + 45, "one shape"),))
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        draft = replace(a_record(plan), document=json.dumps(DOCUMENT), intended_by=None)
        await uow.plans.add(draft)
        await uow.commit()
    found = await get(team, "/v1/spend/savings")
    assert found["items"] == []
    assert found["not_compared"] == [
        {"plan_id": plan.plan_id, "why": "it is a draft that nobody intends to buy"}
    ]
    assert (await team.post(f"/v1/plans/{plan.plan_id}/intend")).status_code == 200
    (saving,) = (await get(team, "/v1/spend/savings"))["items"]
    assert (saving["plans"], saving["saved_usd"]) == (1, "45.00")
    answer = await team.post(f"/v1/plans/{plan.plan_id}/intend", json={"intended": False})
    assert answer.status_code == 200
    assert (await get(team, "/v1/spend/savings"))["items"] == []


async def test_plans_have_no_bills_to_compare(home: Home) -> None:
    team = await home.team("research")
    plan = (await home.plan(team))["plan_id"]
    refused = await team.get("/v1/spend/changes", params={"from": plan, "to": plan, "view": "cash"})
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/view"]


async def test_views_by_tier_week_and_cash(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    for view in ("amortized", "cash"):
        for interval in ("day", "week", "month"):
            for group in ("tier", "commitment", "gpu", "region"):
                wanted = {"view": view, "interval": interval, "group_by": group}
                found = await get(team, "/v1/spend/projection", **wanted)
                assert found["total_usd"] == plan["cost_usd"]
    assert [row["period"] for row in found["items"]] == ["2026-11-01T00:00:00Z"]


async def test_an_interval_holds_what_is_owed_for_certain(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    found = await get(team, "/v1/spend/interval", interval="month")
    assert found["expected_usd"] == plan["cost_usd"]
    assert [row["period"][:7] for row in found["items"]] == ["2026-11", "2026-12", "2027-01"]
    assert Decimal(found["p10_usd"]) <= Decimal(found["p50_usd"]) <= Decimal(found["p90_usd"])
    span = {"from": "2026-11-23T00:00:00Z", "to": "2026-12-01T00:00:00Z"}
    assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code == 202
    assert isinstance(home.house.clock, FakeClock)
    for _ in range(144):
        home.house.clock.advance(minutes=30)
        await home.product.reconcile.run_once()
    done = await get(team, "/v1/spend/interval", **span)
    assert done["p10_usd"] == done["p90_usd"] == done["expected_usd"] != "0"
    assert done["items"][-1]["running"]["p50_usd"] == done["expected_usd"]


async def test_a_month_is_closed_by_an_administrator_of_finance(home: Home) -> None:
    team, admin = await home.team("research"), home.client()
    body = {"offer_id": "h100-b", "nodes": 1, "end": "2026-11-24T12:00:00Z"}
    assert (await team.post("/v1/reservations", json=body)).status_code == 202
    early = await admin.post("/v1/spend/close", params={"month": "2026-11"})
    assert early.status_code == 422
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(days=10)
    for _ in range(3):
        await home.product.reconcile.run_once()
    assert await home.product.spend.roll_up() == 1
    assert await home.product.spend.roll_up() == 0
    assert (await team.post("/v1/spend/close", params={"month": "2026-11"})).status_code == 403
    key = {"Idempotency-Key": "close-1"}
    done = await admin.post("/v1/spend/close", params={"month": "2026-11", "comment": "ok"}, headers=key)
    assert done.status_code == 200, done.text
    assert Decimal(done.json()["usd"]) == 180 * Decimal("20.5"), "nobody looked before December"
    again = await admin.post("/v1/spend/close", params={"month": "2026-11", "comment": "ok"}, headers=key)
    assert again.json() == done.json()
    assert (await admin.post("/v1/spend/close", params={"month": "2026-11"})).status_code == 409
    assert [one["month"] for one in (await get(team, "/v1/spend/closed"))["items"]] == ["2026-11"]
    span = {"from": "2026-11-01", "to": "2026-12-01"}
    for group in ("team", "tier", "commitment"):
        shown = await get(team, "/v1/spend/projection", group_by=group, **span)
        assert Decimal(shown["total_usd"]) == 180 * Decimal("20.5")
    rows = (await team.get("/v1/spend/focus.csv", params=span)).text.splitlines()
    assert len(rows) == 181
