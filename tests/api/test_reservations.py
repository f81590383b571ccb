"""Reservations over HTTP: held, seen, given back; each team its own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.market.seller_mode import SellerMode
from tests.api.house import Home
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import an_offer, slot_terms
from tests.fakes.provider import Fault

WISH = {"offer_id": "h100-a", "nodes": 2, "workload": "probe"}


async def held(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.post("/v1/reservations", json=WISH)
    assert answer.status_code == 202, answer.text
    row: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/v1/reservations/{row['reservation_id']}"
    return row


async def test_an_offer_is_held_and_given_back(home: Home) -> None:
    team = await home.team("research")
    row = await held(team)
    assert (row["offer_id"], row["nodes"], row["workload"], row["end"]) == ("h100-a", 2, "probe", None)
    path = f"/v1/reservations/{row['reservation_id']}"
    assert (await team.get(path)).json()["provider_references"] == [
        instance.reference for instance in home.house.provider.open_instances()
    ]
    before = (await team.get(f"{path}/release")).json()
    assert before["text"] == f"Nothing comes back, ${before['stays_usd']} stays owed."
    assert (await team.get(path)).json()["owed_usd"] is None
    for _ in range(2):
        assert (await team.delete(path)).status_code == 202
    await home.product.reconcile.run_once()
    assert home.house.provider.open_instances() == []
    assert (await team.get(path)).json()["state"] in {"releasing", "released"}
    for _ in range(3):
        await home.product.reconcile.run_once()
    after = (await team.get(path)).json()
    assert (after["state"], after["owed_usd"]) == ("released", before["stays_usd"])


@pytest.mark.parametrize(
    ("mode", "market"),
    [
        (SellerMode.REAL, "This order costs money: Fake is a real seller."),
        (SellerMode.SANDBOX, "This is the sandbox market: no money moves."),
    ],
)
async def test_a_quote_says_whether_its_seller_is_real_and_orders_nothing(
    home: Home, mode: SellerMode, market: str
) -> None:
    team = await home.team("research")
    plan = await home.plan(team)
    providers = {placed["provider"] for placed in plan["placements"]}
    modes = {"other": SellerMode.SANDBOX, **dict.fromkeys(providers, mode)}
    object.__setattr__(home.product, "modes", modes)
    own = (await team.get(f"/v1/plans/{plan['plan_id']}/quote")).json()
    assert (own["cost_usd"], own["at_once_usd"]) == (plan["cost_usd"], "0")
    one = (await team.post("/v1/reservations/quote", json=WISH)).json()
    names = " ".join(sorted(providers))
    assert {own["market"], one["market"]} == {market.replace("Fake", names)}
    assert home.house.provider.ledger == []
    assert (await team.post(f"/v1/plans/{plan['plan_id']}/reserve")).status_code == 202
    again = await team.get(f"/v1/plans/{plan['plan_id']}/quote")
    assert (again.status_code, "is already reserved" in again.json()["detail"]) == (409, True)


async def test_times_with_any_zone_are_utc(home: Home) -> None:
    team = await home.team("research")
    start = (NOON + timedelta(days=1)).isoformat().replace("+00:00", "")
    answer = await team.post("/v1/reservations", json={**WISH, "start": start + "+02:00"})
    assert answer.status_code == 202, answer.text
    assert answer.json()["start"] == "2026-11-24T10:00:00Z"
    assert answer.json()["state"] == "scheduled"


async def test_another_teams_reservation_does_not_exist(home: Home) -> None:
    ours, theirs = await home.team("research"), await home.team("product")
    path = f"/v1/reservations/{(await held(ours))['reservation_id']}"
    for answer in (await theirs.get(path), await theirs.delete(path)):
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    assert (await theirs.get("/v1/reservations", params={"team": "research"})).status_code == 403
    assert (await theirs.get("/v1/reservations")).json()["items"] == []
    assert len(home.house.provider.open_instances()) == 2


@pytest.mark.parametrize(
    ("wish", "pointer"),
    [
        ({**WISH, "nodes": 0}, "/nodes"),
        ({**WISH, "nodes": "many"}, "/nodes"),
        ({"nodes": 1}, "/offer_id"),
        ({**WISH, "start": "2026-11-25T00:00:00"}, "/start"),
        ({**WISH, "colour": "blue"}, "/colour"),
        ({**WISH, "start": "2020-01-01T00:00:00Z"}, "/start"),
        ({**WISH, "start": "0001-01-01T00:00:00+14:00"}, "/start"),
        ({**WISH, "end": "9999-12-31T23:59:59-12:00"}, "/end"),
        ({**WISH, "workload": "a\x00b"}, "/workload"),
        ({**WISH, "offer_id": "\ud800"}, "/offer_id"),
    ],
)
async def test_wrong_wishes_are_pointed_at(home: Home, wish: dict[str, object], pointer: str) -> None:
    answer = await home.client().post(
        "/v1/reservations", content=json.dumps(wish), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert home.house.provider.ledger == []


async def test_malformed_json_says_where(home: Home) -> None:
    body = '{"offer_id": "h100-a",\n "nodes": }'
    answer = await home.client().post(
        "/v1/reservations", content=body, headers={"Content-Type": "application/json"}
    )
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["line"], error["column"]) == (422, 2, 11)
    assert "malformed JSON" in error["found"]


async def test_unknown_offers_and_providers_that_refuse(home: Home) -> None:
    client = home.client()
    missing = await client.post("/v1/reservations", json={**WISH, "offer_id": "nothing"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    home.house.provider.fail("reserve", Fault.NO_CAPACITY)
    sold = await client.post("/v1/reservations", json=WISH)
    assert (sold.status_code, sold.json()["code"]) == (409, "insufficient-capacity")
    assert sold.json()["retryable"] is True
    too_many = await client.post("/v1/reservations", json={**WISH, "nodes": 101})
    assert (too_many.status_code, too_many.json()["errors"][0]["pointer"]) == (422, "/nodes")


async def test_a_wish_off_the_grid_is_refused_with_a_way_out_or_snapped_outward(home: Home) -> None:
    terms = replace(slot_terms(NOON, 240), durations_hours=(24.0,), teardown_s=1800)
    home.house.provider.offers = (an_offer("slots", price="10", window=terms, stock=None),)
    await home.product.offers.refresh()
    team = await home.team("research")
    times = {"start": "2026-11-23T14:10:00Z", "end": "2026-11-24T02:10:00Z"}
    wish = {"offer_id": "slots", "nodes": 2, **times}
    refused = await team.post("/v1/reservations", json=wish)
    assert refused.status_code == 422
    assert "2026-11-23T14:00:00Z to 2026-11-24T14:00:00Z covers the requested time" in refused.text
    row = (await team.post("/v1/reservations", json={**wish, "fit": "outward"})).json()
    assert (row["start"], row["end"]) == ("2026-11-23T14:00:00Z", "2026-11-24T14:00:00Z")
    assert row["requested"] == times
    assert row["granted"] == {"start": row["start"], "end": row["end"]}
    assert row["usable"] == {"start": row["start"], "end": "2026-11-24T13:30:00Z"}
    assert (row["unwanted_hours"], row["unwanted_usd"]) == (12.0, "240.00")


def blamed(answer: httpx.Response) -> list[str]:
    """Fields that a problem document names."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    return [error["pointer"] for error in answer.json()["errors"]]


async def test_every_refusal_names_the_field_and_the_way_out(home: Home) -> None:
    client = home.client()
    unknown = await client.post("/v1/reservations", json={**WISH, "offer_id": "nothing"})
    assert (unknown.status_code, blamed(unknown)) == (404, ["/offer_id"])
    assert "GET /v1/offers" in unknown.text
    past = await client.post("/v1/reservations", json={**WISH, "start": "2026-11-20T00:00:00Z"})
    assert (past.status_code, blamed(past)) == (422, ["/start"])
    over = await client.post("/v1/reservations", json={**WISH, "nodes": 101})
    assert (over.status_code, blamed(over)) == (422, ["/nodes"])
    assert (await client.post("/v1/reservations", json={**WISH, "nodes": 60})).status_code == 202
    left = await client.post("/v1/reservations", json={**WISH, "nodes": 60})
    assert (left.status_code, left.json()["code"], blamed(left)) == (409, "conflict", ["/nodes"])
    assert "at most 40" in left.text
    assert len(home.house.provider.open_instances()) == 60


async def test_windows_in_the_past_name_their_start(home: Home) -> None:
    home.house.provider.offers = (
        an_offer("slots", window=slot_terms(NOON - timedelta(days=2), 240), stock=None),
    )
    await home.product.offers.refresh()
    wish = {"offer_id": "slots", "nodes": 1, "start": "2026-11-22T12:00:00Z", "end": "2026-11-23T18:00:00Z"}
    answer = await home.client().post("/v1/reservations", json=wish)
    assert (answer.status_code, blamed(answer)) == (422, ["/start"])
    assert "(now) or later" in answer.text
    assert home.house.provider.ledger == []


async def test_an_extension_past_a_budget_is_refused_as_an_order_is(home: Home) -> None:
    team, finance = await home.team("research"), home.client()
    row = (await team.post("/v1/reservations", json={**WISH, "end": "2026-11-23T14:00:00Z"})).json()
    path = f"/v1/reservations/{row['reservation_id']}"
    held = Decimal(row["price_usd_per_node_hour"]) * 2 * 2
    limit = {"limit_usd": str(held + 1)}
    assert (await finance.put("/v1/budgets/research/month", json=limit)).status_code == 200
    refused = await team.post(f"{path}/extend", json={"end": "2026-11-23T16:00:00Z"})
    assert (refused.status_code, refused.json()["code"]) == (409, "over-budget"), refused.text
    assert "this extension adds" in refused.json()["detail"]
    assert refused.json()["errors"][0]["pointer"] == "/end"
    assert (await team.get(path)).json()["end"] == "2026-11-23T14:00:00Z"
    assert (await finance.put("/v1/budgets/research/month", json={"limit_usd": "100000"})).status_code == 200
    longer = await team.post(f"{path}/extend", json={"end": "2026-11-23T16:00:00Z"})
    assert (longer.status_code, longer.json()["end"]) == (200, "2026-11-23T16:00:00Z")


async def test_orders_at_once_cannot_pass_a_budget_together(home: Home) -> None:
    """Each of four would fit alone, and only one fits."""
    team, finance = await home.team("research"), home.client()
    wish = {**WISH, "nodes": 1, "end": "2026-11-23T14:00:00Z"}
    price = Decimal((await team.get("/v1/offers/h100-a")).json()["price_usd_per_node_hour"])
    limit = {"limit_usd": str(price * 2 * Decimal("1.5"))}
    assert (await finance.put("/v1/budgets/research/month", json=limit)).status_code == 200
    answers = await asyncio.gather(*(team.post("/v1/reservations", json=wish) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409, 409]
    assert len(home.house.provider.open_instances()) == 1


async def test_a_holding_is_extended_once_under_one_key(home: Home) -> None:
    team = await home.team("research")
    times = {"start": "2026-11-23T12:00:00Z", "end": "2026-11-23T14:00:00Z"}
    row = (await team.post("/v1/reservations", json={**WISH, **times})).json()
    path, key = f"/v1/reservations/{row['reservation_id']}", {"Idempotency-Key": "longer"}
    for _ in range(2):
        answer = await team.post(f"{path}/extend", json={"end": "2026-11-23T16:00:00Z"}, headers=key)
        assert (answer.status_code, answer.json()["end"]) == (200, "2026-11-23T16:00:00Z")
    assert answer.headers["Idempotency-Replayed"] == "true"
    early = await team.post(f"{path}/extend", json={"end": "2026-11-23T13:00:00Z"})
    assert (early.status_code, blamed(early)) == (422, ["/end"])


async def test_the_trail_of_one_reservation_is_for_its_own_team(home: Home) -> None:
    ours, theirs = await home.team("research"), await home.team("product")
    row = await held(ours)
    trail = (await ours.get("/v1/audit", params={"object_id": row["reservation_id"]})).json()["items"]
    assert [entry["action"] for entry in trail][::-1][:3] == [
        "reservation.intend",
        "reservation.order",
        "reservation.held",
    ]
    assert all(entry["actor"] and entry["detail"] for entry in trail)
    hidden = await theirs.get("/v1/audit", params={"object_id": row["reservation_id"]})
    assert hidden.json()["items"] == []


async def test_hours_that_sellers_refuse_are_told_with_the_next_try(home: Home) -> None:
    team, other = await home.team("research"), await home.team("product")
    start = NOON + timedelta(hours=1)
    wish = {**WISH, "start": start.isoformat(), "end": (start + timedelta(hours=3)).isoformat()}
    row = (await team.post("/v1/reservations", json=wish)).json()
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(hours=1)
    home.house.provider.fail("reserve", Fault.NO_CAPACITY)
    await home.product.reconcile.run_once()
    assert (await team.get("/v1/reservations/shortfalls")).json()["items"] == [
        {
            "team": "research",
            "plan_id": None,
            "workload": "probe",
            "start": "2026-11-23T13:00:00Z",
            "end": "2026-11-23T16:00:00Z",
            "nodes_short": 2,
            "nodes": 2,
            "reservation_ids": [row["reservation_id"]],
            "refused_by": [{"provider": "fake", "said": "no stock"}],
            "next_try_at": "2026-11-23T13:00:30Z",
            "text": "probe is short of 2 of 2 nodes from 23 Nov 13:00 UTC to 16:00 UTC: "
            "refused at fake (no stock)",
        }
    ]
    assert (await other.get("/v1/reservations/shortfalls")).json()["items"] == []
    seen = (await team.get(f"/v1/reservations/{row['reservation_id']}")).json()
    assert (seen["tries"], seen["next_try_at"]) == (1, "2026-11-23T13:00:30Z")


async def test_a_release_names_the_key_as_people_know_it(home: Home) -> None:
    team = await home.team("research")
    row = await held(team)
    await team.delete(f"/v1/reservations/{row['reservation_id']}")
    trail = (await team.get("/v1/audit", params={"object_id": row["reservation_id"]})).json()["items"]
    told = {entry["action"]: entry["detail"] for entry in trail}
    assert told["reservation.release"] == "releasing: released by test", "the name that its key was given"
    assert told["reservation.gone"] == "released: 2 of 2 nodes gone"


async def test_all_errors_of_an_order_are_told_at_once(home: Home) -> None:
    team = await home.team("research")
    answer = await team.post("/v1/reservations", json={"offer_id": "nowhere", "start": "soon"})
    found = {error["pointer"]: error["found"] for error in answer.json()["errors"]}
    assert (answer.status_code, found) == (
        422,
        {"/nodes": "nothing", "/start": "soon", "/offer_id": "nowhere"},
    )
    far = {"offer_id": "nowhere", "nodes": 1, "start": "2040-01-01T00:00:00Z", "end": "2041-01-01T00:00:00Z"}
    answer = await team.post("/v1/reservations", json=far)
    pointers = [error["pointer"] for error in answer.json()["errors"]]
    assert (answer.status_code, pointers) == (422, ["/start", "/end", "/offer_id"])
    known = {"offer_id": "h100-a", "start": "soon"}
    answer = await team.post("/v1/reservations", json=known)
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/nodes", "/start"]
