"""What is particular to CUDO: the buyer's own id, and states from which nothing is terminated."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest

from broker.domain.basics.errors import OutcomeUnknown, ReleaseRefused
from broker.domain.holding.reservation import LeaseState, Order
from providers.registry import build_adapters, configured, sellers
from providers.spec import ProviderAdapter


@pytest.fixture
async def cudo(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    wanted = {name: found for name, found in configured({}, sandbox).items() if name == "cudo"}
    adapter = sellers(build_adapters(wanted))["cudo"]
    yield adapter
    await adapter.aclose()


def advance(sandbox: str, seconds: float) -> None:
    body = {"advance_s": seconds}
    httpx.post(f"{sandbox}/_sandbox/clock", json=body, trust_env=False).raise_for_status()


async def test_an_id_buys_once_and_its_machine_ends_when_its_state_allows(
    cudo: ProviderAdapter, sandbox: str
) -> None:
    offer = (await cudo.list_offers(datetime.now(UTC))).offers[0]
    order = Order("Broker_Odd.Tag-1", offer, 1)
    lease = await cudo.reserve(order)
    with pytest.raises(OutcomeUnknown):
        await cudo.reserve(order)
    (found,) = await cudo.list_leases()
    assert (found.reference, found.tag) == (lease.reference, order.tag)
    advance(sandbox, 1)
    with pytest.raises(ReleaseRefused) as caught:
        await cudo.release(lease)
    assert not caught.value.forever
    advance(sandbox, 60)
    await cudo.release(lease)
    await cudo.release(lease)
    assert (await cudo.find_lease(lease.reference, "")).state is LeaseState.ENDING
