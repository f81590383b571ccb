"""Doubted prices in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import NotFound
from broker.domain.market.price_gate import Doubt, Quarantined, quarantine_news
from broker.store import Store
from tests.store.examples import HOUR, NOON, offer
from tests.store.test_offers import poll, record


def entry(name: str, provider: str = "aws", hours: int = 0) -> Quarantined:
    return Quarantined(offer(name, provider=provider), Doubt.JUMP, "0.1 times", NOON + hours * HOUR)


async def put(store: Store, provider: str, *entries: Quarantined) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        before = {one.offer.offer_id: one for one in await unit.quarantine.find(provider)}
        await unit.quarantine.change(*quarantine_news(before, entries))
        await unit.commit()


async def test_entries_of_one_provider_are_replaced_and_the_others_stay(store: Store) -> None:
    await put(store, "aws", entry("a", hours=1), entry("b"))
    await put(store, "vast", entry("v", "vast", 2))
    await put(store, "aws", entry("b"), entry("c", hours=3))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert [one.offer.offer_id for one in await unit.quarantine.find(None)] == ["b", "v", "c"]
        assert [one.offer.offer_id for one in await unit.quarantine.find("vast")] == ["v"]


async def test_an_entry_comes_back_as_it_was_put(store: Store) -> None:
    released = replace(entry("a"), released_at=NOON + HOUR, released_by="key-1")
    await put(store, "aws", entry("a"))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.quarantine.put(released)
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.quarantine.find_one("a") == released
        with pytest.raises(NotFound):
            await unit.quarantine.find_one("b")


async def test_peers_are_every_seller(store: Store) -> None:
    await record(store, poll(1), [offer("a", "24")])
    await record(store, poll(1, provider="vast"), [offer("v", "16", provider="vast")])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_peer_prices()
    assert [(price.provider, float(price.usd_per_gpu_hour)) for price in found] == [
        ("aws", 3.0),
        ("vast", 2.0),
    ]
