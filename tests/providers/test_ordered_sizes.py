"""An order of more disk than the default is what the seller makes, at the price that the offer then has."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from broker.domain.basics.errors import InsufficientCapacity
from broker.domain.holding.reservation import Order
from broker.domain.market.offer import StockLevel, Tier
from providers.registry import build_adapters, configured, sellers

ON_DEMAND = [(name, Tier.ON_DEMAND) for name in ("cudo", "prime_intellect", "runpod", "tensordock", "vast")]
SPOT = [(name, Tier.SPOT) for name in ("prime_intellect", "runpod", "vast")]


@pytest.mark.parametrize(("name", "tier"), [*ON_DEMAND, *SPOT])
async def test_what_is_ordered_is_what_is_billed(name: str, tier: Tier, sandbox: str) -> None:
    wanted = {key: found for key, found in configured({}, sandbox).items() if key == name}
    adapter = sellers(build_adapters(wanted))[name]
    offers = [
        offer
        for offer in (await adapter.list_offers(datetime.now(UTC))).offers
        if offer.disk is not None and offer.tier is tier and offer.stock.level is not StockLevel.NONE
    ]
    for number, offer in enumerate(offers[:5]):
        assert offer.disk is not None
        gb = offer.disk.least(350)
        assert gb is not None
        large = offer.sized(gb, None)
        more = (Decimal(str(gb)) - Decimal(str(offer.disk.default_gb))) * offer.disk.usd_per_gb_hour
        assert more > 0
        assert float(large.price_usd_per_node_hour - offer.price_usd_per_node_hour) == pytest.approx(
            float(more), abs=1e-6
        )
        try:
            lease = await adapter.reserve(Order(f"broker-sized-{number}", large, 1))
        except InsufficientCapacity:
            continue
        found = await adapter.find_lease(lease.reference, offer.region)
        assert found.price_usd_per_node_hour is not None
        assert float(found.price_usd_per_node_hour) == pytest.approx(
            float(large.price_usd_per_node_hour), abs=2e-6
        )
        break
    else:
        pytest.fail("nothing of this seller could be ordered")
    await adapter.aclose()
