"""An order of more disk than the default is what the seller makes, at the price that the offer then has.

The judge of the price is the seller's ledger. After the release nothing is billed: no disk stays behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.basics.errors import InsufficientCapacity
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, StockLevel, Tier
from providers.registry import build_adapters, configured, sellers
from providers.spec import ProviderAdapter
from tests.fakes.market_control import control, market_now

ON_DEMAND = ("cudo", "prime_intellect", "runpod", "scaleway", "tensordock", "vast", "verda")
SPOT = ("gcp", "prime_intellect", "runpod", "vast", "verda")
SIZED = [*((name, Tier.ON_DEMAND) for name in ON_DEMAND), *((name, Tier.SPOT) for name in SPOT)]
HOURS = 10


@asynccontextmanager
async def seller(name: str, sandbox: str) -> AsyncIterator[ProviderAdapter]:
    wanted = {key: found for key, found in configured({}, sandbox).items() if key == name}
    adapter = sellers(build_adapters(wanted))[name]
    try:
        yield adapter
    finally:
        await adapter.aclose()


async def sized_offers(adapter: ProviderAdapter, sandbox: str) -> list[Offer]:
    offers = (await adapter.list_offers(market_now(sandbox))).offers
    return [o for o in offers if o.disk is not None and o.window is None]


def advance(sandbox: str, hours: float) -> None:
    control(sandbox, "clock", advance_s=hours * 3600)


def billed_usd(sandbox: str, name: str) -> Decimal:
    rows: list[dict[str, Any]] = control(sandbox, "ledger")["instances"]
    return sum((Decimal(row["billed_usd"]) for row in rows if row["provider"] == name), Decimal(0))


async def bought(adapter: ProviderAdapter, offers: Sequence[Offer], name: str) -> tuple[Offer, Lease]:
    """The first of ``offers`` that can be had, with a disk of at least 350 GB."""
    for number, offer in enumerate(offers[:5]):
        assert offer.disk is not None
        gb = offer.disk.least(350)
        assert gb is not None
        large = offer.sized(gb, None)
        more = (Decimal(str(gb)) - Decimal(str(offer.disk.default_gb))) * offer.disk.usd_per_gb_hour
        assert more > 0
        dearer = large.price_usd_per_node_hour - offer.price_usd_per_node_hour
        assert float(dearer) == pytest.approx(float(more), abs=1e-6)
        try:
            return large, await adapter.reserve(Order(f"broker-sized-{name}-{number}", large, 1))
        except InsufficientCapacity:
            continue
    raise AssertionError("nothing of this seller could be ordered")


@pytest.mark.parametrize(("name", "tier"), SIZED)
async def test_what_is_ordered_is_what_is_billed_until_it_is_released(
    name: str, tier: Tier, sandbox: str
) -> None:
    async with seller(name, sandbox) as adapter:
        offers = [o for o in await sized_offers(adapter, sandbox) if o.tier is tier]
        stocked = [o for o in offers if o.stock.level is not StockLevel.NONE]
        large, lease = await bought(adapter, stocked, f"{name}-{tier}".replace("_", "-"))
        advance(sandbox, 1)
        found = await adapter.find_lease(lease.reference, large.region)
        assert found.state is LeaseState.ACTIVE
        price = float(large.price_usd_per_node_hour)
        if adapter.tells_price:
            assert float(found.price_usd_per_node_hour or 0) == pytest.approx(price, abs=2e-6)
        before = billed_usd(sandbox, name)
        advance(sandbox, HOURS)
        assert float(billed_usd(sandbox, name) - before) == pytest.approx(HOURS * price, rel=2e-3)
        await adapter.release(found)
        advance(sandbox, 1)
        await adapter.list_leases()
        after = billed_usd(sandbox, name)
        advance(sandbox, 24)
        assert billed_usd(sandbox, name) == after


async def test_every_seller_of_a_disk_of_choice_is_ordered_from_here(sandbox: str) -> None:
    found = set()
    for name in sellers(build_adapters(configured({}, sandbox))):
        async with seller(name, sandbox) as adapter:
            found |= {(name, o.tier) for o in await sized_offers(adapter, sandbox)}
    assert found == set(SIZED)
