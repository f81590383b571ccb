"""A reserving that failed, seen on the pages: what stopped it, where, and what can be done next."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.pages.plans.failed_reserve import failed_reserve
from api.pages.plans.plan_view import without_provider
from api.pages.plans.reservation_view import failed_words
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Scope
from broker.domain.basics.errors import Conflict, OrderRejected, StalePlan
from broker.domain.holding.holding_orders import Intent, find_drifts, unplaced_order
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import GateRules
from broker.domain.planning.plan import Alternative, BindingRule, Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions
from broker.services.holding.reserving_requests import PartRelease
from tests.api.house import DOCUMENT, Home, House
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, plan_on_cheapest
from tests.fakes.provider import Fault
from tests.pages.test_forms import HIDDEN, form_of, visitor

NOW = {**DOCUMENT, "horizon": {"start": "now", "days": 7}}
TWO = {**NOW, "workloads": [NOW["workloads"][0], {**NOW["workloads"][0], "name": "tune-again"}]}


def with_next_best(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
) -> Plan:
    """The cheapest offer, and what the second would have cost."""
    plan = plan_on_cheapest(request, offers, as_of, options)
    told = []
    for placement in plan.placements:
        more = placement.cost_usd / 2
        way = Alternative(
            "fake/elsewhere", placement.cost_usd + more, more, None, BindingRule.PRICE, "dearer"
        )
        told.append(replace(placement, why=replace(placement.why, next_best=(way,))))
    return replace(plan, placements=tuple(told))


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    offers = (an_offer("fake/single", "4", stock=2), replace(an_offer("fake/other", "9"), region="us-2"))
    async with House(tmp_path / "broker.db", offers=offers, plan_call=with_next_best).open() as living:
        yield living


async def a_plan_of(home: Home, document: Mapping[str, Any] = NOW) -> str:
    made = await home.plan(await home.team("research"), document)
    return f"/plans/{made['plan_id']}"


async def reserved(client: httpx.AsyncClient, plan: str) -> httpx.Response:
    return await client.post(f"{plan}/reserve", data=await form_of(client, plan, f"{plan}/reserve"))


async def test_a_refused_plan_comes_back_with_the_problem_at_its_row_and_a_way_on(home: Home) -> None:
    client, plan = await visitor(home), await a_plan_of(home)
    home.house.provider.fail("reserve", Fault.NO_CAPACITY)
    page = await reserved(client, plan)
    assert page.status_code == 409
    assert "Not reserved: the provider has no stock" in page.text
    assert page.text.count("no stock") >= 3, "above, in the message, and at the row"
    assert "Its list price is as planned, $40.00." in page.text
    assert "elsewhere, +$20.00." in page.text
    assert f'action="{plan}/reserve"' in page.text
    again = await client.post(f"{plan}/again", data=await _again(page, plan))
    assert again.status_code == 303
    made = await _made(home, again)
    assert {placement.offer_id for placement in made.placements} == {"fake/other"}
    assert "fake/single" in made.notes[0]


async def _again(page: httpx.Response, plan: str) -> dict[str, str]:
    start = page.text.index(f'action="{plan}/again"')
    return dict(HIDDEN.findall(page.text[start : page.text.index("</form>", start)]))


async def _made(home: Home, answer: httpx.Response) -> Plan:
    """The plan that a form asked for, once it is made."""
    plan_id = answer.headers["Location"].split("/")[-1].partition("?")[0]
    client = await home.team("research")
    async with client.stream("GET", f"/v1/plans/{plan_id}/events") as events:
        async for _ in events.aiter_lines():
            pass
    record = await home.product.planning.run(plan_id)
    assert record.plan is not None, record.problem
    return record.plan


async def test_a_refusal_that_planning_does_not_know_of_leaves_the_provider_out(home: Home) -> None:
    client, plan = await visitor(home), await a_plan_of(home)
    home.house.provider.fail("reserve", Fault.REJECTED)
    page = await reserved(client, plan)
    assert page.status_code == 502
    sent = await _again(page, plan)
    assert sent["without"] == "fake"


async def test_stock_of_other_reservations_is_called_so(home: Home) -> None:
    client, plan = await visitor(home), await a_plan_of(home)
    other = await home.team("product")
    taken = {"offer_id": "fake/single", "nodes": 2}
    assert (await other.post("/v1/reservations", json=taken)).status_code in (201, 202)
    page = await reserved(client, plan)
    assert page.status_code == 409
    assert "Not reserved: other reservations of this installation hold it" in page.text
    assert "Its state forbids that" not in page.text
    assert "1 nodes were requested, 0 left" in page.text
    assert "; other reservations hold the rest" in page.text
    assert f'action="{plan}/again"' in page.text
    answer = await (await home.team("research")).post(f"/v1{plan}/reserve")
    assert (answer.status_code, answer.json()["code"], answer.json()["offer_id"]) == (
        409,
        "conflict",
        "fake/single",
    )


async def test_what_was_never_ordered_is_not_called_failed(home: Home) -> None:
    client, plan = await visitor(home), await a_plan_of(home, TWO)
    home.house.provider.fail("reserve", Fault.NO_CAPACITY)
    assert (await reserved(client, plan)).status_code == 409
    page = (await client.get("/reservations")).text
    assert page.count(">not tried</span>") == 1
    assert page.count(">failed</span>") == 1
    (card,) = (part for part in page.split('<div class="card') if "Failed or unclear" in part)
    assert '<dd class="figure bad">1</dd>' in card
    rows = (await (await home.team("research")).get("/v1/reservations")).json()["items"]
    assert sorted((row["state"], row["not_tried"]) for row in rows) == [("failed", False), ("failed", True)]
    untried = next(row for row in rows if row["not_tried"])
    assert ">not tried</span>" in (await client.get(f"/reservations/{untried['reservation_id']}")).text


async def test_a_release_that_is_under_way_is_told_and_not_offered_again(home: Home) -> None:
    client, plan = await visitor(home), await a_plan_of(home)
    assert (await reserved(client, plan)).status_code == 303
    home.house.provider.fail("release", Fault.DOWN)
    form = await form_of(client, plan, f"{plan}/release")
    assert (await client.post(f"{plan}/release", data=form)).status_code == 303
    page = (await client.get(plan)).text
    assert "The release is under way." in page
    assert f'action="{plan}/release"' not in page
    assert "<strong>Reserved.</strong>" not in page


async def test_the_page_of_a_plan_counts_every_node_that_it_holds(home: Home) -> None:
    """A fleet over three weeks is hundreds of reservations, one for each time that a node comes and goes."""
    client, plan = await visitor(home), await a_plan_of(home)
    assert (await reserved(client, plan)).status_code == 303
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        (row,) = await uow.reservations.find_open()
        for number in range(220):
            units = tuple(replace(unit, tag=f"{unit.tag}-{number}") for unit in row.units)
            await uow.reservations.add(replace(row, reservation_id=f"rsv-{number}", units=units, version=0))
        await uow.commit()
    assert f"{221 * row.nodes} nodes" in (await client.get(plan)).text


async def test_a_fleet_is_released_from_the_list_after_a_word(home: Home) -> None:
    client, plan = await visitor(home), await a_plan_of(home, TWO)
    assert (await reserved(client, plan)).status_code == 303
    page = unescape((await client.get("/reservations")).text)
    links = re.findall(rf'href="({plan}/release\?[^"]+)"', page)
    assert len(links) == 2, "one for each fleet"
    link = next(one for one in links if one.endswith("workload=tune-again"))
    asked = (await client.get(link)).text
    assert "Nothing comes back, $4.00 stays owed." in asked
    form = await form_of(client, link, f"{plan}/release")
    assert form["workload"] == "tune-again"
    done = await client.post(f"{plan}/release", data=form)
    assert "Release asked for the whole fleet." in (await client.get(done.headers["Location"])).text
    rows = (await (await home.team("research")).get("/v1/reservations")).json()["items"]
    assert {(row["workload"], row["state"] == "active") for row in rows} == {
        ("tune-again", False),
        (TWO["workloads"][0]["name"], True),
    }
    assert len(re.findall(rf'href="{plan}/release\?', (await client.get("/reservations")).text)) == 1
    assert "Everything of it has been released" in (await client.get(link)).text
    reader = await visitor(home, Scope.PLANS_READ)
    assert f'href="{plan}/release?' not in (await reader.get("/reservations")).text


def test_releases_that_failed_are_named_with_their_reason() -> None:
    row = unplaced_order(Intent(an_offer(), 1, NOON, None), "research", NOON)
    found = PartRelease((row, row), ((replace(row, reservation_id="rsv-9"), Conflict("it was changed")),))
    assert failed_words(found) == "release asked for 2 of 3 reservations; not for rsv-9: it was changed"


def test_a_stale_plan_is_told_at_its_placement_and_planned_again_at_the_price_now() -> None:
    cheap, gone = an_offer("fake/cheap", "4"), an_offer("fake/gone", "5")
    plan = a_plan(a_placement(cheap, [a_segment(0, 10)]), a_placement(gone, [a_segment(0, 10)], "chat"))
    dearer = {"fake/cheap": replace(cheap, price_usd_per_node_hour=cheap.price_usd_per_node_hour * 2)}
    drifts = find_drifts(plan, dearer, 0.02)
    error = StalePlan("moved").naming(*(drift.as_problem() for drift in drifts))
    failed = failed_reserve(plan, error, "The market moved", (), dearer)
    assert [(one.placement, one.now) for one in failed.stopped] == [
        (0, "It costs $80.00 at its list price now, $40.00 as planned."),
        (1, "It is not on sale now."),
    ]
    assert (failed.again, failed.without) == ("at the price now", "")
    refused = failed_reserve(plan, OrderRejected("vast", "no"), "", (), dearer)
    assert (refused.again, refused.without, refused.stopped) == ("without Vast.ai", "vast", ())
    written = json.loads(
        without_provider('{"policy": {"providers": {"only": ["vast"], "exclude": ["aws"]}}}', "vast")
    )
    assert written["policy"]["providers"] == {"only": ["vast"], "exclude": ["aws", "vast"]}


async def test_a_plan_whose_offer_is_in_quarantine_is_not_ready_to_reserve(tmp_path: Path) -> None:
    offers = (an_offer("fake/single", "4", stock=2),)
    rules = GateRules(least_of_before=Decimal("0.4"))
    async with House(tmp_path / "b.db", offers=offers, gate=rules).open() as home:
        client, team, plan = await visitor(home), await home.team("research"), await a_plan_of(home)
        fresh = await team.get(f"/v1{plan}")
        assert fresh.json()["stale_because"] == []
        assert "Ready to reserve" in (await client.get(plan)).text
        home.house.provider.offers = (an_offer("fake/single", "0.4", stock=2),)
        await home.product.offers.refresh()
        stale = await team.get(f"/v1{plan}", headers={"If-None-Match": fresh.headers["ETag"]})
        (why,) = stale.json()["stale_because"]
        assert "fake/single (tune-8b, planned at $40.00) is in quarantine, because $0.40 per node" in why
        assert (await team.get("/v1/plans")).json()["items"][0]["stale_because"] == [why]
        refused = await team.post(f"/v1{plan}/reserve")
        assert (refused.status_code, why in refused.json()["detail"]) == (409, True)
        page = (await client.get(plan)).text
        assert "Ready to reserve" not in page
        assert f'action="{plan}/reserve"' not in page
        assert why.removeprefix("offer ") in unescape(page)
        again = await form_of(client, plan, f"{plan}/again")
        home.house.provider.offers = offers
        await home.product.offers.refresh()
        assert (await client.post(f"{plan}/again", data=again)).status_code == 303
        assert "Ready to reserve" in (await client.get(plan)).text
