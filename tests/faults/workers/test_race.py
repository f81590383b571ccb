"""A stock that two broker processes sell from at once: all of it is held, nothing twice, nothing leaks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import httpx
import pytest

from tests.e2e.processes import wait_for
from tests.faults.workers.conftest import HEADERS, RACED, STOCK, Pair

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("several")]

REQUESTS = 200
TRULY_THERE = 500
"""What the market has by then: only the broker's own count keeps it from selling more than it was told."""


async def race(pair: Pair, offer_id: str) -> list[httpx.Response]:
    """One node each, all at once, every other one over the other server."""
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(headers=HEADERS, timeout=120, limits=limits) as client:
        wish = {"offer_id": offer_id, "nodes": 1}
        calls = [
            client.post(pair.servers[n % 2].url + "/v1/reservations", json=wish) for n in range(REQUESTS)
        ]
        return await asyncio.gather(*calls)


async def test_two_processes_sell_a_stock_of_fifty_exactly_once(pair: Pair) -> None:
    with pair.client(0) as client:
        offers = client.get("/v1/offers", params={"provider": RACED["provider"], "limit": 200}).json()[
            "items"
        ]
        (offer,) = [o for o in offers if o["sku"] == RACED["sku"] and o["region"] == RACED["region"]]
        assert offer["stock"]["nodes"] == STOCK

        # A leader that changes polls at once; what the broker was told has to stand while they race.
        pair.control("/_sandbox/faults", provider=RACED["provider"], operation="list", kind="http_500")
        pair.control("/_sandbox/market", **RACED, stock=TRULY_THERE)

        began = time.monotonic()
        answers = await race(pair, offer["offer_id"])
        seconds = time.monotonic() - began
        httpx.delete(pair.sandbox.url + "/_sandbox/faults").raise_for_status()

        statuses = Counter(answer.status_code for answer in answers)
        codes = Counter(answer.json()["code"] for answer in answers if answer.status_code != 202)
        held = [answer.json() for answer in answers if answer.status_code == 202]
        assert statuses == {202: STOCK, 409: REQUESTS - STOCK}, (statuses, codes)
        assert codes == {"conflict": REQUESTS - STOCK}

        def all_active() -> bool | None:
            page = client.get("/v1/reservations", params={"limit": 200}).json()["items"]
            return True if Counter(r["state"] for r in page) == {"active": STOCK} else None

        wait_for("every reservation active", 60, all_active)
    open_ = pair.ledger(RACED["provider"])
    assert sum(row["nodes"] for row in open_) == STOCK
    assert len({row["tag"] for row in open_}) == len(open_) == len({r["reservation_id"] for r in held})

    before = pair.writes()
    time.sleep(5)  # five passes of the reconciler
    assert pair.writes() == before
    print(
        f"{REQUESTS} requests, 2 processes, {seconds:.1f} s: {statuses[202]} held, {statuses[409]} refused "
        f"({dict(codes)}), {len(open_) - STOCK} leaked; at rest {pair.writes() - before} provider writes"
    )
