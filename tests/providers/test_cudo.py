"""What is particular to CUDO: the buyer's own id, and states from which nothing is terminated."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import httpx
import pytest

from broker.domain.errors import OutcomeUnknown, ReleaseRefused
from broker.domain.reservation import LeaseState, Order
from providers.registry import build_adapters, configured, sellers
from providers.sandbox.server import start_in_background
from providers.spec import ProviderAdapter


@pytest.fixture(scope="module")
def sandbox_url() -> Iterator[str]:
    handle = start_in_background(0, seed=11)
    yield handle.url
    handle.stop()


@pytest.fixture
async def cudo(sandbox_url: str) -> AsyncIterator[ProviderAdapter]:
    wanted = {name: found for name, found in configured({}, sandbox_url).items() if name == "cudo"}
    adapter = sellers(build_adapters(wanted))["cudo"]
    yield adapter
    await adapter.aclose()


def advance(sandbox_url: str, seconds: float) -> None:
    body = {"advance_s": seconds}
    httpx.post(f"{sandbox_url}/_sandbox/clock", json=body, trust_env=False).raise_for_status()


async def test_an_id_buys_once_and_its_machine_ends_when_its_state_allows(
    cudo: ProviderAdapter, sandbox_url: str
) -> None:
    offer = (await cudo.list_offers(datetime.now(UTC))).offers[0]
    order = Order("Broker_Odd.Tag-1", offer, 1)
    lease = await cudo.reserve(order)
    with pytest.raises(OutcomeUnknown):
        await cudo.reserve(order)
    (found,) = await cudo.list_leases()
    assert (found.reference, found.tag) == (lease.reference, order.tag)
    advance(sandbox_url, 1)
    with pytest.raises(ReleaseRefused) as caught:
        await cudo.release(lease)
    assert not caught.value.forever
    advance(sandbox_url, 60)
    await cudo.release(lease)
    await cudo.release(lease)
    assert (await cudo.find_lease(lease.reference, "")).state is LeaseState.ENDING
