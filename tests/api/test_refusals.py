"""What cannot be reserved: every refusal names the field and the way out, and nothing is held after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.market.offer import Offer
from tests.api.house import DOCUMENT, OFFERS, Home, House, limit
from tests.fakes.clock import NOON
from tests.fakes.examples import an_offer, slot_terms

WISH = {"offer_id": "h100-a", "nodes": 2}


async def sell(home: Home, *offers: Offer) -> None:
    home.house.provider.offers = offers
    await home.product.offers.refresh()


def at_price(factor: str) -> tuple[Offer, ...]:
    return tuple(
        replace(o, price_usd_per_node_hour=o.price_usd_per_node_hour * Decimal(factor)) for o in OFFERS
    )


async def order(home: Home, **changes: Any) -> httpx.Response:
    return await home.client().post("/v1/reservations", json={**WISH, **changes})


async def unknown_offer(home: Home) -> httpx.Response:
    return await order(home, offer_id="nothing")


async def too_many_nodes(home: Home) -> httpx.Response:
    return await order(home, nodes=101)


async def no_nodes(home: Home) -> httpx.Response:
    return await order(home, nodes=0)


async def yes_nodes(home: Home) -> httpx.Response:
    return await order(home, nodes=True)


async def end_in_seconds(home: Home) -> httpx.Response:
    return await order(home, end=1_795_000_000)


async def end_after_the_calendar(home: Home) -> httpx.Response:
    return await order(home, end="9999-12-31T23:59:59-14:00")


async def half_a_character(home: Home) -> httpx.Response:
    body = '{"offer_id": "h100-a", "nodes": 1, "workload": "\\ud83d"}'
    return await home.client().post(
        "/v1/reservations", content=body, headers={"Content-Type": "application/json"}
    )


async def line_break_in_a_name(home: Home) -> httpx.Response:
    return await order(home, workload="a\nb")


async def start_in_the_past(home: Home) -> httpx.Response:
    return await order(home, start="2026-11-20T00:00:00Z")


async def end_before_start(home: Home) -> httpx.Response:
    return await order(home, start="2026-11-25T00:00:00Z", end="2026-11-24T00:00:00Z")


async def dearer_than_the_most(home: Home) -> httpx.Response:
    return await order(home, max_price_usd_per_node_hour="23.99")


async def window_in_the_past(home: Home) -> httpx.Response:
    await sell(home, an_offer("slots", window=slot_terms(NOON - timedelta(days=2), 240), stock=None))
    times = {"start": "2026-11-22T12:00:00Z", "end": "2026-11-23T18:00:00Z"}
    return await order(home, offer_id="slots", **times)


async def window_without_end(home: Home) -> httpx.Response:
    await sell(home, an_offer("slots", window=slot_terms(NOON, 240), stock=None))
    return await order(home, offer_id="slots", start="2026-11-24T12:00:00Z")


async def reserve_plan(home: Home, then: Callable[[], Awaitable[None]] | None = None) -> httpx.Response:
    team = await home.team("research")
    plan = await home.plan(team)
    if then is not None:
        await then()
    return await team.post(f"/v1/plans/{plan['plan_id']}/reserve")


async def dearer_plan(home: Home) -> httpx.Response:
    return await reserve_plan(home, lambda: sell(home, *at_price("2")))


async def plan_of_a_gone_offer(home: Home) -> httpx.Response:
    return await reserve_plan(home, lambda: sell(home))


async def plan_not_approved(home: Home) -> httpx.Response:
    return await reserve_plan(home)


async def plan_over_its_budget(home: Home) -> httpx.Response:
    """Within the tolerance of its prices, over the team's budget."""
    team = await home.team("research")
    cost = Decimal((await home.plan(team))["cost_usd"])
    plan = await home.plan(team, {**DOCUMENT, "budget": {"usd": float(cost)}})
    await sell(home, *at_price("1.01"))
    return await team.post(f"/v1/plans/{plan['plan_id']}/reserve")


CASES = [
    (unknown_offer, 404, "/offer_id", "GET /v1/offers"),
    (too_many_nodes, 422, "/nodes", "stock of 100"),
    (no_nodes, 422, "/nodes", "1"),
    (yes_nodes, 422, "/nodes", "a whole number"),
    (end_in_seconds, 422, "/end", "a time with its zone"),
    (end_after_the_calendar, 422, "/end", "before 2200"),
    (half_a_character, 422, "/workload", "text that can be encoded in UTF-8"),
    (line_break_in_a_name, 422, "/workload", "text without control characters"),
    (start_in_the_past, 422, "/start", "(now) or later"),
    (end_before_start, 422, "/end", "after start"),
    (dearer_than_the_most, 409, "/max_price_usd_per_node_hour", "at least 24"),
    (window_in_the_past, 422, "/start", "(now) or later"),
    (window_without_end, 422, "/end", "an end, because"),
    (dearer_plan, 409, "/placements/0/cost_usd", "plan again"),
    (plan_of_a_gone_offer, 409, "/placements/0/offer_id", "plan again"),
    (plan_not_approved, 409, "/approved_by", "/approve"),
    (plan_over_its_budget, 409, "/cost_usd", "raise it and plan again"),
]


@pytest.mark.parametrize(
    ("refused", "status", "pointer", "way_out"), CASES, ids=[case[0].__name__ for case in CASES]
)
async def test_a_refusal_names_field_and_way_out_and_nothing_is_held(
    house: House,
    refused: Callable[[Home], Awaitable[httpx.Response]],
    status: int,
    pointer: str,
    way_out: str,
) -> None:
    if refused is plan_not_approved:
        house.rules = limit("100")
    async with house.open() as home:
        answer = await refused(home)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.status_code == status, answer.text
        (error,) = [error for error in answer.json()["errors"] if error["pointer"] == pointer]
        assert error["found"]
        assert way_out in error["expected"], error
        assert home.house.provider.ledger == []
        assert (await home.client().get("/v1/reservations")).json()["items"] == []
