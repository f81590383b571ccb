"""Scaleway's order is two calls: what becomes of it when one of them is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from broker.domain.errors import OutcomeUnknown, ReleaseRefused
from broker.domain.offer import Offer
from broker.domain.reservation import Lease, LeaseState, Order
from providers.registry import build_adapters, configured, sellers
from providers.sandbox import SandboxHandle, start_in_background
from providers.spec import ProviderAdapter

TAG = "broker-two-steps"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[SandboxHandle]:
    handle = start_in_background(0, seed=11)
    yield handle
    handle.stop()


@pytest.fixture
async def adapter(sandbox: SandboxHandle) -> AsyncIterator[ProviderAdapter]:
    environ = {"BROKER_SCALEWAY_TIMEOUT_S": "1", "BROKER_SCALEWAY_ZONES": "fr-par-2"}
    settings = configured(environ, sandbox.url)
    built = sellers(build_adapters({"scaleway": settings["scaleway"]}))["scaleway"]
    yield built
    await built.aclose()


def control(sandbox: SandboxHandle, name: str, **body: Any) -> None:
    httpx.post(f"{sandbox.url}/_sandbox/{name}", json=body, trust_env=False).raise_for_status()


async def offer_of(adapter: ProviderAdapter) -> Offer:
    return (await adapter.list_offers(datetime.now(UTC))).offers[0]


async def found(adapter: ProviderAdapter, tag: str) -> Lease:
    (lease,) = [lease for lease in await adapter.list_leases() if lease.tag == tag]
    return lease


async def test_an_order_whose_first_answer_is_lost_comes_up_all_the_same(
    adapter: ProviderAdapter, sandbox: SandboxHandle
) -> None:
    tag = f"{TAG}-lost"
    offer = await offer_of(adapter)
    control(
        sandbox, "faults", provider="scaleway", operation="create", kind="timeout_after", count=1, seconds=2
    )
    with pytest.raises(OutcomeUnknown):
        await adapter.reserve(Order(tag, offer, 1))
    assert (await found(adapter, tag)).state is LeaseState.PROVISIONING
    control(sandbox, "clock", advance_s=60)
    assert (await found(adapter, tag)).state is LeaseState.ACTIVE


async def test_a_server_that_was_never_started_counts_as_failed_and_can_be_deleted(
    adapter: ProviderAdapter, sandbox: SandboxHandle
) -> None:
    tag = f"{TAG}-crash"
    offer = await offer_of(adapter)
    body = {"name": tag, "commercial_type": offer.sku.name, "image": "ubuntu"}
    path = f"{sandbox.url}/scaleway/instance/v1/zones/fr-par-2/servers"
    httpx.post(path, json=body, headers={"X-Auth-Token": "k"}, trust_env=False).raise_for_status()
    assert (await found(adapter, tag)).state is LeaseState.PROVISIONING
    control(sandbox, "clock", advance_s=301)
    lease = await found(adapter, tag)
    assert lease.state is LeaseState.FAILED
    await adapter.release(lease)
    assert all(each.tag != tag for each in await adapter.list_leases())


async def test_a_starting_server_is_released_later(adapter: ProviderAdapter, sandbox: SandboxHandle) -> None:
    lease = await adapter.reserve(Order(f"{TAG}-early", await offer_of(adapter), 1))
    with pytest.raises(ReleaseRefused) as caught:
        await adapter.release(lease)
    assert not caught.value.forever
    control(sandbox, "clock", advance_s=60)
    await adapter.release(lease)
    assert (await found(adapter, f"{TAG}-early")).state is LeaseState.ENDING
