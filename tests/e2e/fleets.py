"""A price falls and a running fleet follows it; the price returns and it stays. Through real processes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx

from tests.e2e.asking import document, planned
from tests.e2e.conftest import World
from tests.e2e.processes import wait_for

HOUR = timedelta(hours=1)
LISTED, PRICED = "crusoe", "digitalocean"
SELLERS = [LISTED, PRICED]
"""Their machines stay on the list when some are held. What the first asks is a published list, which no feed
moves: the fleet starts there, and follows the second."""
DEARER, CHEAPER = 1.25, 0.625
"""Of the second's first prices: half of what it asked before is no jump that the broker holds back."""


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def service(team: str, reoptimize: dict[str, Any], sellers: list[str]) -> dict[str, Any]:
    """A document of one service, on demand at ``sellers``, from in ten seconds on for two days."""
    body = document(team)
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
    body["horizon"] = {"start": begin.strftime("%Y-%m-%dT%H:%M:%SZ"), "days": 2}
    (chat,) = [w for w in body["workloads"] if w["kind"] == "serving"]
    chat["traffic"] = {**chat["traffic"], "shape": "flat"}
    body["policy"] = {"tiers": ["on_demand"], "providers": {"only": sellers}, "reoptimize": reoptimize}
    return {**body, "workloads": [chat]}


def running_fleet(world: World, body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A service that holds what its plan says; the plan, and its reservations."""
    plan = planned(world, body)
    answer = world.client.post(f"/v1/plans/{plan['plan_id']}/reserve")
    assert answer.status_code == 202, answer.text
    paths = [f"/v1/reservations/{r['reservation_id']}" for r in answer.json()["reservations"]]

    def all_active() -> list[dict[str, Any]] | None:
        rows = [world.client.get(path).json() for path in paths]
        assert not [r for r in rows if r["state"] == "failed"], rows
        return rows if all(r["state"] == "active" for r in rows) else None

    return plan, wait_for("the whole fleet", 90, all_active)


def looks(world: World, plan_id: str) -> list[dict[str, Any]]:
    rows = world.client.get("/v1/reoptimizations", params={"limit": 200}).json()["items"]
    return [row for row in rows if row["plan_id"] == plan_id]


def price(world: World, rival: dict[str, Any], factor: float) -> None:
    change = {"provider": rival["provider"], "sku": rival["sku"], "price_factor": factor}
    httpx.post(world.sandbox.url + "/_sandbox/market", json=change).raise_for_status()


def offers_of(world: World, provider: str) -> list[dict[str, Any]]:
    params: dict[str, str | int] = {"limit": 200, "provider": provider}
    found: list[dict[str, Any]] = []
    while True:
        page = world.client.get("/v1/offers", params=params).json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        params["cursor"] = page["next_cursor"]


def offer_of(world: World, offer_id: str) -> dict[str, Any]:
    (found,) = [o for o in offers_of(world, offer_id.split("/", 1)[0]) if o["offer_id"] == offer_id]
    return found


def prices_of(world: World, provider: str) -> dict[str, str]:
    return {offer["offer_id"]: offer["price_usd_per_node_hour"] for offer in offers_of(world, provider)}


def price_all(world: World, provider: str, factor: float) -> None:
    """Every price of the provider, ``factor`` times what it was at first, as the broker shows it."""
    before = prices_of(world, provider)
    for offer in {offer["sku"]: offer for offer in offers_of(world, provider)}.values():
        price(world, offer, factor)
    wait_for("the prices", 60, lambda: not before.items() & prices_of(world, provider).items() or None)


def rival_of(world: World, plan: dict[str, Any]) -> dict[str, Any]:
    """What is best for the same service elsewhere; clearly cheaper at half its price."""
    here = {p["provider"] for p in plan["placements"]}
    elsewhere = [seller for seller in SELLERS if seller not in here]
    other = planned(world, service(f"{plan['team']}-elsewhere", {"mode": "never"}, elsewhere))
    assert Decimal(other["cost_usd"]) < Decimal(plan["cost_usd"]) * Decimal("1.6"), "no rival is near"
    (placed,) = other["placements"]
    return offer_of(world, placed["offer_id"])


def rest_usd(row: dict[str, Any], offer: dict[str, Any], at: datetime) -> Decimal:
    """What a reservation costs from ``at`` on, by its seller's increments: worked out here, not asked."""
    held, now = instant(row["end"]) - instant(row["start"]), at - instant(row["start"])
    step = timedelta(seconds=max(1, offer["billing_increment_s"]))
    least = offer["min_hours"] * HOUR
    whole, begun = (-(-max(span, least) // step) * step for span in (held, now))
    hours = Decimal((whole - min(whole, begun)) // timedelta(seconds=1)) / 3600
    price_usd = Decimal(offer["price_usd_per_node_hour"])
    return price_usd * int(row["nodes"]) * hours


def a_fleet_follows_a_price(world: World) -> None:
    """The story: a proposal with the right money, an overlap and no gap, and no way back."""
    price_all(world, PRICED, DEARER)
    plan, rows = running_fleet(world, service("followers", {"mode": "auto"}, SELLERS))
    assert {placed["provider"] for placed in plan["placements"]} == {LISTED}
    mine = {reference for row in rows for reference in row["provider_references"]}
    held = {row["offer_id"]: offer_of(world, row["offer_id"]) for row in rows}
    rival = rival_of(world, plan)
    began = time.monotonic()
    price(world, rival, CHEAPER)
    try:
        (look,) = wait_for(
            "a proposal", 60, lambda: [r for r in looks(world, plan["plan_id"]) if r["new_plan_id"]] or None
        )
        seconds = time.monotonic() - began
        (move,) = look["moves"]
        new = world.client.get(f"/v1/plans/{look['new_plan_id']}").json()
        stay = sum(
            (rest_usd(row, held[row["offer_id"]], instant(look["started_at"])) for row in rows), Decimal(0)
        )
        assert abs(Decimal(move["stay_usd"]) - stay) < Decimal("0.02"), (move, stay)
        assert Decimal(move["saving_usd"]) == Decimal(move["stay_usd"]) - Decimal(new["cost_usd"])
        assert Decimal(move["net_usd"]) == Decimal(look["net_usd"]) > 10
        assert any(p["offer_id"] == rival["offer_id"] for p in move["prices"])

        def applied() -> dict[str, Any] | None:
            row: dict[str, Any] = world.client.get(f"/v1/reoptimizations/{look['reoptimization_id']}").json()
            assert row["state"] in {"proposed", "accepted", "applied"}, row
            return row if row["state"] == "applied" else None

        wait_for("the move", 90, applied)
        ledger = world.ledger()
        old = [row for row in ledger if row["instance_id"] in mine]
        bought = [
            r for r in ledger if r["sku"] == rival["sku"] and r["provider"] == rival["provider"]
            and r["released_at"] is None
        ]  # fmt: skip
        assert all(row["released_at"] for row in old)
        broken, made = (
            min(instant(r["released_at"]) for r in old),
            max(instant(r["created_at"]) for r in bought),
        )
        assert made <= broken, "the last of the new is there before the first of the old goes"
        print(f"proposal after {seconds:.1f} s, both held for {(broken - made).total_seconds():.0f} s")
    finally:
        price(world, rival, DEARER)
    cheap = Decimal(rival["price_usd_per_node_hour"]) * Decimal("0.75")

    def returned() -> bool | None:
        """The rival may be sold out to this fleet: what is still listed of its SKU has its old price."""
        listed = [o for o in offers_of(world, rival["provider"]) if o["sku"] == rival["sku"]]
        return all(Decimal(o["price_usd_per_node_hour"]) > cheap for o in listed) or None

    wait_for("the old price", 60, returned)
    wait_for("a look at it", 60, lambda: looks(world, new["plan_id"]) or None)
    assert {row["state"] for row in looks(world, new["plan_id"])} <= {"unchanged", "rejected"}
    still = {row["instance_id"] for row in world.open_instances()}
    assert {row["instance_id"] for row in bought} <= still
