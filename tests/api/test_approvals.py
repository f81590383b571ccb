"""Finance's word: asked for, given on figures that are kept, taken back when they no longer hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from broker.domain.basics.access import default_scopes
from broker.domain.basics.account import Scope
from broker.domain.basics.webhook import ALL_TEAMS
from broker.settings import Settings
from tests.api.house import ADMIN_KEY, OFFERS, Home, House, limit
from tests.fakes.clock import FakeClock

FINANCE = [Scope.SPEND_READ, Scope.SPEND_APPROVE, Scope.PLANS_READ]


async def waiting(client: httpx.AsyncClient, *states: str) -> list[dict[str, Any]]:
    answer = await client.get("/v1/approvals", params={"state": list(states)})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def reprice(home: Home, **prices: str) -> None:
    """Polls again, with other prices."""
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(minutes=1)
    home.house.provider.offers = tuple(
        replace(o, price_usd_per_node_hour=Decimal(prices.get(o.offer_id, o.price_usd_per_node_hour)))
        for o in OFFERS
    )
    await home.product.offers.refresh()


async def test_what_was_seen_is_kept_with_who_and_when(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team, finance = await home.team("research"), await home.team("research", FINANCE)
        assert (await team.put("/v1/budgets/research/month", json={"limit_usd": "1000"})).status_code == 200
        plan = await home.plan(team)
        (asked,) = await waiting(finance, "waiting")
        assert asked["plan_id"] == plan["plan_id"]
        assert asked["may_decide"]
        assert asked["is_current"], "what waits is the plan that may be reserved"
        figures = asked["figures"]
        assert figures["cost_usd"] == figures["cost_now_usd"] == plan["cost_usd"]
        assert Decimal(figures["budget_left_usd"]) == 1000 - Decimal(plan["cost_usd"])
        word = {"comment": "go", "plan_sha256": figures["plan_sha256"], "cost_now_usd": "205.00"}
        approved = await finance.post(f"/v1/plans/{plan['plan_id']}/approve", json=word)
        assert approved.status_code == 200, approved.text
        assert approved.json()["approval"] == "approved"
        assert await waiting(finance, "waiting") == []
        (decided,) = await waiting(finance, "approved", "rejected")
        (decision,) = decided["decisions"]
        assert (decision["comment"], decision["seen"]) == ("go", figures)
        again = await finance.post(f"/v1/plans/{plan['plan_id']}/approve", json={"comment": "twice"})
        assert len(again.json()["decisions"]) == 1
        audit = (await finance.get("/v1/audit", params={"object_id": plan["plan_id"]})).json()["items"]
        said = next(entry for entry in audit if entry["action"] == "plan.approve")
        for word_ in ("go; seen: cost $205.00", "budget left $795.00", figures["plan_sha256"][:16]):
            assert word_ in said["detail"]


async def test_a_rejected_plan_is_not_reserved_and_is_no_spend(home: Home) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    before = (await team.get("/v1/spend/projection")).json()["total_usd"]
    assert Decimal(before) == Decimal(plan["cost_usd"])
    no = await team.post(f"/v1/plans/{plan['plan_id']}/reject", json={"comment": "too dear"})
    assert no.json()["approval"] == "rejected"
    refused = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval-required")
    assert "too dear" in refused.json()["detail"]
    assert Decimal((await team.get("/v1/spend/projection")).json()["total_usd"]) == 0
    yes = await team.post(f"/v1/plans/{plan['plan_id']}/approve")
    assert [one["verdict"] for one in yes.json()["decisions"]] == ["rejected", "approved"]
    assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code == 202
    late = await team.post(f"/v1/plans/{plan['plan_id']}/reject", json={"comment": "sorry"})
    assert late.status_code == 409


async def test_a_dearer_plan_needs_a_second_word_and_a_cheaper_one_does_not(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team = await home.team("research")
        plan = await home.plan(team)
        path = f"/v1/plans/{plan['plan_id']}"
        assert (await team.post(f"{path}/approve")).status_code == 200
        await reprice(home, **{"h100-b": "20.6"})
        refused = await team.post(f"{path}/reserve")
        assert refused.json()["code"] == "approval-required"
        assert "$206.00 now and $205.00 was approved" in refused.json()["detail"]
        (asked,) = await waiting(team, "waiting")
        assert asked["figures"]["cost_now_usd"] == "206.00"
        assert [one["verdict"] for one in asked["decisions"]] == ["approved", "lapsed"]
        stale = await team.post(f"{path}/approve", json={"cost_now_usd": "205.00"})
        assert stale.status_code == 409
        assert (await team.post(f"{path}/approve", json={"cost_now_usd": "206"})).status_code == 200
        await reprice(home, **{"h100-b": "19"})
        assert (await team.post(f"{path}/reserve")).status_code == 202


@pytest.mark.parametrize("needs", [True, False])
async def test_an_approval_within_the_budgets_lapses_where_one_would_be_exceeded_since(
    house: House, needs: bool
) -> None:
    house.rules = limit("100") if needs else house.rules
    async with house.open() as home:
        team = await home.team("research")
        path = f"/v1/plans/{(await home.plan(team))['plan_id']}"
        assert (await team.post(f"{path}/approve")).status_code == 200
        small = {"limit_usd": "1"}
        assert (await home.client().put("/v1/budgets/research/month", json=small)).status_code == 200
        refused = await team.post(f"{path}/reserve")
        assert (refused.status_code, refused.json()["code"]) == (409, "approval-required")
        assert "would exceed its budget of $1.00" in refused.json()["detail"]
        assert home.house.provider.open_instances() == []
        assert (await team.post(f"{path}/reserve")).status_code == 409
        assert (await team.post(f"{path}/approve")).status_code == 200, "who approves sees what is exceeded"
        assert (await team.post(f"{path}/reserve")).status_code == 202


async def test_a_second_word_is_kept_where_the_price_has_passed_the_first(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team = await home.team("research")
        path = f"/v1/plans/{(await home.plan(team))['plan_id']}/approve"
        for price, words in (("20.5", 1), ("20.5", 1), ("20.6", 2), ("20.6", 2), ("19", 2)):
            await reprice(home, **{"h100-b": price})
            assert len((await team.post(path)).json()["decisions"]) == words


async def test_four_eyes_where_the_setting_says_so(house: House) -> None:
    house.rules = limit("100")
    house.settings = Settings(admin_key=SecretStr(ADMIN_KEY), poll_seconds=3600, four_eyes=True)
    async with house.open() as home:
        team, finance = await home.team("research"), await home.team("research", FINANCE)
        plan = await home.plan(team)
        own = await team.post(f"/v1/plans/{plan['plan_id']}/approve")
        assert (own.status_code, own.json()["code"]) == (403, "not-permitted")
        assert [one["may_decide"] for one in await waiting(team)] == [False]
        assert (await finance.post(f"/v1/plans/{plan['plan_id']}/approve")).status_code == 200


async def test_others_neither_see_nor_decide(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team, others = await home.team("research"), await home.team("product")
        reader = await home.team("research", [Scope.SPEND_READ])
        early = await team.post("/v1/plans/nothing/approve")
        assert early.status_code == 404
        plan = await home.plan(team)
        assert await waiting(others) == []
        for verb in ("approve", "reject"):
            path = f"/v1/plans/{plan['plan_id']}/{verb}"
            assert (await others.post(path, json={"comment": "x"})).status_code == 404
            assert (await reader.post(path, json={"comment": "x"})).status_code == 403
        assert [one["may_decide"] for one in await waiting(reader)] == [False]
        other = await team.post(f"/v1/plans/{plan['plan_id']}/approve", json={"plan_sha256": "0" * 64})
        assert other.status_code == 409


async def test_a_plan_over_a_budget_waits_whatever_it_costs(home: Home) -> None:
    team, finance = await home.team("research"), await home.team("research", FINANCE)
    budget = "/v1/budgets/research/month"
    assert (await team.put(budget, json={"limit_usd": "100"})).status_code == 200
    plan = await home.plan(team)
    (asked,) = await waiting(finance, "waiting")
    assert asked["plan_id"] == plan["plan_id"]
    told = (await team.get(f"/v1/plans/{plan['plan_id']}")).json()
    assert told["needs_approval"]
    assert "research would exceed its budget of $100.00 per month by $105.00" in told["approval_reason"]
    refused = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert refused.json()["code"] == "approval-required"
    assert told["approval_reason"] in refused.json()["detail"]
    assert (await finance.post(f"/v1/plans/{plan['plan_id']}/approve", json={})).status_code == 200
    assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code < 300


async def test_an_approval_says_who_asked_what_is_bought_and_what_it_leaves_of_the_budget(home: Home) -> None:
    """The reason and the figures are one arithmetic: limit less what counts less what the plan adds."""
    team = await home.team("research")
    key, secret = await home.product.keys.create_key("ada", ALL_TEAMS, default_scopes(ALL_TEAMS))
    finance = home.client(secret)
    assert (await team.put("/v1/budgets/research/month", json={"limit_usd": "100"})).status_code == 200
    plan = await home.plan(team)
    (asked,) = await waiting(finance, "waiting")
    assert asked["requested_by_name"] == "test", "the name of the team's key"
    bought = asked["purchases"]
    assert sum(Decimal(one["usd"]) for one in bought) == Decimal(plan["cost_usd"])
    assert {one["workload"] for one in bought} == {one["workload"] for one in plan["placements"]}
    assert {one["provider"] for one in bought} == {one["provider"] for one in plan["placements"]}
    hours = sum(
        s["nodes"] * one["gpus"] / one["nodes"] * (_at(s["end"]) - _at(s["start"])).total_seconds() / 3600
        for one in plan["placements"]
        for s in one["segments"]
    )
    assert sum(one["gpu_hours"] for one in bought) == pytest.approx(hours)
    (effect,) = asked["effects"]
    limit_usd, counted, added, left = (
        Decimal(effect[f"{name}_usd"]) for name in ("limit", "counted", "added", "left")
    )
    assert limit_usd - counted - added == left == Decimal(asked["figures"]["budget_left_usd"]) == -105
    assert effect["says"] == asked["reason"]
    assert "$0.00 counts already, and this plan adds $205.00" in effect["says"]

    await finance.post(f"/v1/plans/{plan['plan_id']}/reject", json={"comment": "no"})
    (no,) = await waiting(finance, "rejected")
    assert (no["decisions"][0]["by"], no["decisions"][0]["by_name"]) == (key.key_id, "ada")
    trail = (await team.get("/v1/audit", params={"object_id": plan["plan_id"]})).json()["items"]
    acted = {one["action"]: one["actor_name"] for one in trail}
    assert acted["plan.reject"] == "ada", "a team is told who decided, though the key is of all teams"
    assert acted["plan.done"] == "", "the planner is no key"


async def test_a_plan_that_a_newer_one_replaced_asks_for_no_word(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team, finance = await home.team("research"), await home.team("research", FINANCE)
        assert isinstance(house.clock, FakeClock)
        first = await home.plan(team)
        house.clock.advance(minutes=1)
        second = await home.plan(team)
        asked = {one["plan_id"]: one for one in await waiting(finance, "waiting")}
        old, new = asked[first["plan_id"]], asked[second["plan_id"]]
        assert (old["is_current"], old["may_decide"], old["replaced_by"]) == (False, False, second["plan_id"])
        assert (new["is_current"], new["may_decide"], new["replaced_by"]) == (True, True, None)
        refused = await finance.post(f"/v1/plans/{first['plan_id']}/approve", json={})
        assert refused.status_code == 409
        assert f"replaced by plan {second['plan_id']}" in refused.json()["detail"]
        assert (await team.post(f"/v1/plans/{first['plan_id']}/intend")).status_code == 200
        assert (await finance.post(f"/v1/plans/{first['plan_id']}/approve", json={})).status_code == 200


async def test_a_plan_of_what_is_reserved_says_that_it_is_bought_a_second_time(house: House) -> None:
    house.rules = limit("100")
    async with house.open() as home:
        team, finance = await home.team("research"), await home.team("research", FINANCE)
        held = await home.plan(team)
        assert (await finance.post(f"/v1/plans/{held['plan_id']}/approve", json={})).status_code == 200
        assert (await team.post(f"/v1/plans/{held['plan_id']}/reserve")).status_code == 202
        again = await home.plan(team)
        (asked,) = await waiting(finance, "waiting")
        assert (asked["plan_id"], asked["beside"]) == (again["plan_id"], held["plan_id"])
        assert (await finance.post(f"/v1/plans/{again['plan_id']}/approve", json={})).status_code == 200
        assert (await team.post(f"/v1/plans/{again['plan_id']}/reserve")).status_code == 202
        stands = {one["plan_id"]: one["standing"] for one in (await team.get("/v1/plans")).json()["items"]}
        assert stands == {held["plan_id"]: "reserved", again["plan_id"]: "reserved"}, "a second time, as said"


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_budget_set_after_the_plan_is_looked_at_when_it_is_reserved(home: Home) -> None:
    team, finance = await home.team("research"), await home.team("research", FINANCE)
    plan = await home.plan(team)
    assert await waiting(finance, "waiting") == []
    await team.put("/v1/budgets/research/quarter", json={"limit_usd": "100"})
    refused = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert refused.json()["code"] == "approval-required"
    assert [one["plan_id"] for one in await waiting(finance, "waiting")] == [plan["plan_id"]]
    await finance.post(f"/v1/plans/{plan['plan_id']}/approve", json={})
    assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code < 300


async def test_within_a_budget_no_word_is_needed_and_what_is_held_counts_beside_the_next_plan(
    home: Home,
) -> None:
    team, finance = await home.team("research"), await home.team("research", FINANCE)
    assert (await team.put("/v1/budgets/research/month", json={"limit_usd": "300"})).status_code == 200
    first = await home.plan(team)
    assert await waiting(finance, "waiting") == []
    assert (await team.post(f"/v1/plans/{first['plan_id']}/reserve")).status_code == 202
    again = await home.plan(team)
    told = (await team.get(f"/v1/plans/{again['plan_id']}")).json()
    assert "by $110.00" in told["approval_reason"], "205 are held and 205 would be bought, of 300"
