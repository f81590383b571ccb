"""A stored plan is drawn over HTTP, for its own team, with equal answers for equal seeds."""

from __future__ import annotations

from dataclasses import replace

from api.planning.planning_call import plan_call
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Scope
from broker.domain.market.offer import Offer
from tests.api.house import DOCUMENT, Home, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import an_offer, slot_terms


async def test_a_plan_is_drawn_again_alike_with_its_seed(home: Home) -> None:
    team, other = await home.team("research"), await home.team("other")
    path = f"/v1/plans/{(await home.plan(team))['plan_id']}/simulate"
    first, again, longer = [
        (await team.post(path, json=wish)).json()
        for wish in ({"draws": 50, "seed": 3}, {"draws": 50, "seed": 3}, {})
    ]
    assert first == again
    assert (first["draws"], longer["draws"]) == (50, 4000)
    assert {one["workload"] for one in first["workloads"]} == {DOCUMENT["workloads"][0]["name"]}
    assert (await other.post(path)).status_code == 404
    wrong = await team.post(path, json={"draws": 0})
    assert (wrong.status_code, "draws" in wrong.text) == (422, True)


async def test_a_plan_whose_offers_are_gone_is_not_drawn(home: Home) -> None:
    team = await home.team("research")
    plan_id = (await home.plan(team))["plan_id"]
    home.house.provider.offers = ()
    await home.product.offers.refresh()
    refused = await team.post(f"/v1/plans/{plan_id}/simulate")
    assert refused.status_code == 409
    assert "no longer on sale" in refused.json()["detail"]


async def test_a_reserved_plan_is_drawn_with_what_it_holds(home: Home) -> None:
    team = await home.team("research")
    plan_id = (await home.plan(team))["plan_id"]
    reserved = await team.post(f"/v1/plans/{plan_id}/reserve")
    assert reserved.status_code in (200, 201, 202), reserved.text
    home.house.provider.offers = ()
    await home.product.offers.refresh()
    drawn = await team.post(f"/v1/plans/{plan_id}/simulate")
    assert drawn.status_code == 200, drawn.text


async def test_a_plan_is_checked_at_the_prices_of_its_time(house: House) -> None:
    """What the planner itself made keeps every rule, also when prices have changed; a wrong cost is told."""
    house.plan_call = plan_call
    async with house.open() as home:
        team, other = await home.team("research"), await home.team("other")
        plan = await home.plan(team)
        path = f"/v1/plans/{plan['plan_id']}/check"
        kept = {"plan_id": plan["plan_id"], "ok": True, "prices_at": plan["as_of"], "violations": []}
        assert (await team.get(path)).json() == kept
        assert isinstance(house.clock, FakeClock)
        house.clock.advance(hours=30)
        house.provider.offers = tuple(map(dearer, house.provider.offers))
        await home.product.offers.refresh()
        assert (await team.get(path)).json() == kept, "later prices are not those of the plan"
        assert (await other.get(path)).status_code == 404
        async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
            record = await uow.plans.find(plan["plan_id"])
            assert record.plan is not None
            cost_usd = record.plan.cost_usd - 1
            await uow.plans.update(replace(record, plan=replace(record.plan, cost_usd=cost_usd)))
            await uow.commit()
        told = (await team.get(path)).json()
        assert told["ok"] is False
        assert any(f"cost_usd is {cost_usd}" in one for one in told["violations"]), told


async def test_a_plan_that_holds_its_window_is_checked_as_the_window_was_sold(house: House) -> None:
    house.plan_call = plan_call
    async with house.open() as home:
        team = await home.team("research")
        window = an_offer("w", "10", window=slot_terms(NOON, 240), stock=None)
        house.provider.offers = (window,)
        await home.product.offers.refresh()
        hosts = {"policy": {"hosts": ["datacenter", "community"]}}
        plan = await home.plan(team, DOCUMENT | hosts)
        assert [p["offer_id"] for p in plan["placements"]] == ["w"]
        reserved = await team.post(f"/v1/plans/{plan['plan_id']}/reserve")
        assert reserved.status_code == 202, reserved.text
        assert window.window is not None
        house.provider.offers = (replace(window, window=replace(window.window, segments=())),)
        await home.product.offers.refresh()
        answer = (await team.get(f"/v1/plans/{plan['plan_id']}/check")).json()
        assert (answer["ok"], answer["violations"]) == (True, [])


def dearer(offer: Offer) -> Offer:
    return replace(offer, price_usd_per_node_hour=3 * offer.price_usd_per_node_hour)


async def test_the_price_of_confidence_is_computed_once_and_kept_with_the_plan(home: Home) -> None:
    team, other = await home.team("research"), await home.team("other")
    plan_id = (await home.plan(team))["plan_id"]
    path = f"/v1/plans/{plan_id}"
    assert (await team.get(path)).json()["confidence_prices"] == []
    first = await team.get(f"{path}/confidence-prices")
    assert first.status_code == 200, first.text
    rows = first.json()["confidence_prices"]
    assert [row["confidence"] for row in rows] == [0.5, 0.8, 0.9, 0.95]
    assert (await team.get(path)).json()["confidence_prices"] == rows
    home.house.provider.offers = ()
    await home.product.offers.refresh()
    assert (await team.get(f"{path}/confidence-prices")).json()["confidence_prices"] == rows
    assert (await other.get(f"{path}/confidence-prices")).status_code == 404


async def test_who_may_only_read_plans_reads_the_price_of_confidence_once_it_is_known(home: Home) -> None:
    team = await home.team("research")
    reader = await home.team("research", frozenset({Scope.PLANS_READ}))
    path = f"/v1/plans/{(await home.plan(team))['plan_id']}/confidence-prices"
    assert (await reader.get(path)).status_code == 403
    rows = (await team.get(path)).json()
    assert (await reader.get(path)).json() == rows
