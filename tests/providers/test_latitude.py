"""What is particular to Latitude.sh: the month as a committed term that ends by schedule."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Offer, Tier
from providers.registry import build_adapters, configured, sellers
from providers.spec import ProviderAdapter
from tests.fakes.market_control import control


@pytest.fixture
async def latitude(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    wanted = {name: found for name, found in configured({}, sandbox).items() if name == "latitude"}
    adapter = sellers(build_adapters(wanted))["latitude"]
    yield adapter
    await adapter.aclose()


async def offer(adapter: ProviderAdapter, tier: Tier) -> Offer:
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    return next(each for each in offers if each.tier is tier)


async def test_a_month_is_scheduled_to_end_and_is_listed_until_then(
    latitude: ProviderAdapter, sandbox: str
) -> None:
    month = await offer(latitude, Tier.COMMITTED)
    assert month.native.amount == (month.price_usd_per_node_hour * 730).quantize(Decimal("0.01"))
    lease = await latitude.reserve(Order("broker-month", month, 1))
    control(sandbox, "clock", advance_s=60)
    assert (await latitude.find_lease(lease.reference, "")).state is LeaseState.ACTIVE
    await latitude.release(lease)
    await latitude.release(lease)
    assert (await latitude.find_lease(lease.reference, "")).state is LeaseState.ENDING
    control(sandbox, "clock", advance_s=730 * 3600)
    assert lease.reference not in [found.reference for found in await latitude.list_leases()]


async def test_a_deployment_that_fails_shows_as_failed(latitude: ProviderAdapter, sandbox: str) -> None:
    control(sandbox, "faults", provider="latitude", operation="create", kind="async_out_of_capacity", count=1)
    lease = await latitude.reserve(Order("broker-async", await offer(latitude, Tier.ON_DEMAND), 1))
    control(sandbox, "clock", advance_s=60)
    found = await latitude.find_lease(lease.reference, "")
    assert (found.state, found.detail) == (LeaseState.FAILED, "failed_deployment")
    await latitude.release(lease)
    assert lease.reference not in [each.reference for each in await latitude.list_leases()]
