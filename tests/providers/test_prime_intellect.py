"""Prime Intellect's whole configurations, bought from the market server over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.basics.errors import OrderRejected
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Offer, StockLevel, Tier
from providers.prime_intellect.adapter import PrimeIntellect
from providers.registry import build_adapters, configured

SANDBOX_SEED = 5

NAME = "prime_intellect"


@pytest.fixture
async def adapter(sandbox: str) -> AsyncIterator[PrimeIntellect]:
    wanted = {NAME: configured({}, sandbox)[NAME]}
    built = build_adapters(wanted)[NAME]
    assert isinstance(built, PrimeIntellect)
    yield built
    await built.aclose()


async def in_stock(adapter: PrimeIntellect) -> list[Offer]:
    batch = await adapter.list_offers(datetime.now(UTC))
    assert len({offer.offer_id for offer in batch.offers}) == len(batch.offers)
    return [offer for offer in batch.offers if offer.stock.level is not StockLevel.NONE]


def entry(sandbox: str, tag: str) -> dict[str, Any]:
    rows = httpx.get(f"{sandbox}/_sandbox/ledger", trust_env=False).json()["instances"]
    (found,) = [row for row in rows if row["tag"] == tag]
    return dict(found)


async def test_a_cluster_is_one_order_and_one_lease(adapter: PrimeIntellect, sandbox: str) -> None:
    offers = [offer for offer in await in_stock(adapter) if offer.max_nodes_in_one_run >= 4]
    cluster = offers[0]
    assert adapter.nodes_per_order(cluster) == cluster.stock.nodes == cluster.max_nodes_in_one_run
    with pytest.raises(OrderRejected, match="sold whole"):
        await adapter.reserve(Order("broker-large", cluster, cluster.max_nodes_in_one_run + 1))
    lease = await adapter.reserve(Order("broker-cluster", cluster, 3))
    (listed,) = [found for found in await adapter.list_leases() if found.tag == "broker-cluster"]
    assert (listed.reference, listed.nodes, lease.nodes) == (lease.reference, 3, 3)
    left = [offer for offer in await in_stock(adapter) if offer.offer_id == cluster.offer_id]
    assert [offer.max_nodes_in_one_run for offer in left] in ([], [cluster.max_nodes_in_one_run - 3])
    await adapter.release(lease)
    assert (await adapter.find_lease(lease.reference, "")).state is LeaseState.ENDING
    bought = entry(sandbox, "broker-cluster")
    assert (bought["nodes"], bought["released_at"] is not None) == (3, True)


async def test_one_node_of_a_cluster_is_the_single_machine(adapter: PrimeIntellect, sandbox: str) -> None:
    cluster = next(offer for offer in await in_stock(adapter) if offer.max_nodes_in_one_run > 1)
    lease = await adapter.reserve(Order("broker-one", cluster, 1))
    bought = entry(sandbox, "broker-one")
    assert (bought["nodes"], bought["sku"].endswith("-nodes")) == (1, False)
    await adapter.release(lease)


async def test_a_spot_order_buys_spot(adapter: PrimeIntellect, sandbox: str) -> None:
    spot = next(offer for offer in await in_stock(adapter) if offer.tier is Tier.SPOT)
    lease = await adapter.reserve(Order("broker-spot", spot, 1))
    assert entry(sandbox, "broker-spot")["tier"] == "spot"
    await adapter.release(lease)


async def test_a_pod_is_ordered_and_billed_with_the_disk_that_is_asked_for(
    adapter: PrimeIntellect, sandbox: str
) -> None:
    """400 GB are 300 more than the default, at 0.00014 USD an hour each: 0.042."""
    single = next(
        offer for offer in await in_stock(adapter) if offer.disk is not None and offer.tier is not Tier.SPOT
    )
    large = single.sized(400.0, None)
    assert large.price_usd_per_node_hour - single.price_usd_per_node_hour == Decimal("0.042")
    lease = await adapter.reserve(
        Order("broker-disk", large, 1, limit_usd_per_node_hour=large.price_usd_per_node_hour)
    )
    (listed,) = [found for found in await adapter.list_leases() if found.tag == "broker-disk"]
    assert listed.price_usd_per_node_hour == large.price_usd_per_node_hour
    again = await adapter.quote(large, datetime.now(UTC))
    assert again is not None
    assert again.price_usd_per_node_hour == large.price_usd_per_node_hour
    await adapter.release(lease)
    with pytest.raises(OrderRejected, match="diskSize"):
        await adapter.reserve(Order("broker-huge", single.sized(5000.0, None), 1))
