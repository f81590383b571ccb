"""What is particular to Hot Aisle: a virtual machine gets its tag only after it was bought."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from broker.domain.basics.errors import OutcomeUnknown
from broker.domain.holding.reservation import Idempotency, Order
from broker.domain.market.offer import Offer
from broker.domain.market.sku import Form
from providers.registry import build_adapters, configured, sellers
from providers.spec import ProviderAdapter


@pytest.fixture
async def hotaisle(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    environ = {"BROKER_HOTAISLE_TIMEOUT_S": "3"}
    wanted = {name: found for name, found in configured(environ, sandbox).items() if name == "hotaisle"}
    adapter = sellers(build_adapters(wanted))["hotaisle"]
    yield adapter
    await adapter.aclose()


def fault(sandbox: str, **wish: Any) -> None:
    body = {"provider": "hotaisle", "operation": "create", **wish}
    httpx.post(f"{sandbox}/_sandbox/faults", json=body, trust_env=False).raise_for_status()


async def virtual_machine(adapter: ProviderAdapter) -> Offer:
    offers = (await adapter.list_offers(datetime.now(UTC))).offers
    return next(offer for offer in offers if offer.sku.form is Form.VM)


async def test_a_virtual_machine_is_found_by_its_tag_and_released(hotaisle: ProviderAdapter) -> None:
    lease = await hotaisle.reserve(Order("broker-vm", await virtual_machine(hotaisle), 1))
    assert [found.reference for found in await hotaisle.list_leases() if found.tag == "broker-vm"] == [
        lease.reference
    ]
    await hotaisle.release(lease)
    await hotaisle.release(lease)
    assert lease.reference not in [found.reference for found in await hotaisle.list_leases()]


async def test_a_lost_answer_leaves_a_machine_that_no_tag_finds(
    hotaisle: ProviderAdapter, sandbox: str
) -> None:
    offer = await virtual_machine(hotaisle)
    tagged = await hotaisle.reserve(Order("broker-known", offer, 1))
    fault(sandbox, kind="timeout_after", seconds=30)
    with pytest.raises(OutcomeUnknown) as caught:
        await hotaisle.reserve(Order("broker-lost", offer, 1))
    (lost,) = [found for found in await hotaisle.list_leases() if found.tag is None]
    assert f"virtual machines without a description: {lost.reference}" in str(caught.value)
    assert tagged.reference not in str(caught.value)
    assert hotaisle.idempotency is Idempotency.NEITHER
    await hotaisle.release(lost)
    await hotaisle.release(tagged)


async def test_a_lost_order_that_made_nothing_says_so(hotaisle: ProviderAdapter, sandbox: str) -> None:
    offer = await virtual_machine(hotaisle)
    fault(sandbox, kind="timeout_before", seconds=30)
    with pytest.raises(OutcomeUnknown, match="without a description: none yet"):
        await hotaisle.reserve(Order("broker-never", offer, 1))
    assert await hotaisle.list_leases() == ()
