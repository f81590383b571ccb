"""Orders that a provider takes and cannot keep: the lease says so, in the list and alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Tier
from providers.registry import build_adapters, configured, sellers
from tests.fakes.market_control import control

WORDS = {"vultr": "failed", "digitalocean": "create errored", "scaleway": "stopped"}


@pytest.mark.parametrize("name", WORDS)
async def test_capacity_that_is_lost_after_the_order_shows_as_failed(sandbox: str, name: str) -> None:
    settings = {name: configured({}, sandbox)[name]}
    adapter = sellers(build_adapters(settings))[name]
    try:
        batch = await adapter.list_offers(datetime.now(UTC))
        offer = next(offer for offer in batch.offers if offer.tier is Tier.ON_DEMAND)
        control(sandbox, "faults", provider=name, operation="create", kind="async_out_of_capacity", count=1)
        lease = await adapter.reserve(Order(f"broker-async-{name}", offer, 1))
        assert lease.state is LeaseState.PROVISIONING
        control(sandbox, "clock", advance_s=1800)
        found = await adapter.find_lease(lease.reference, lease.region)
        assert (found.state, found.detail) == (LeaseState.FAILED, WORDS[name])
        assert [each for each in await adapter.list_leases() if each.tag == lease.tag] == [found]
        await adapter.release(found)
        assert all(each.tag != lease.tag for each in await adapter.list_leases())
    finally:
        await adapter.aclose()
