"""Scaleway's order is two calls: what becomes of it when one of them is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from broker.domain.basics.errors import OutcomeUnknown, ReleaseRefused
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer
from providers.registry import build_adapters, configured, sellers
from providers.sandbox import start_in_background
from providers.spec import ProviderAdapter
from tests.fakes.market_control import control

TAG = "broker-two-steps"
KEY = {"X-Auth-Token": "k"}


@pytest.fixture
def sandbox() -> Iterator[str]:
    handle = start_in_background(0, seed=11)
    yield handle.url
    handle.stop()


@pytest.fixture
async def adapter(sandbox: str) -> AsyncIterator[ProviderAdapter]:
    environ = {"BROKER_SCALEWAY_ZONES": "fr-par-2"}
    settings = configured(environ, sandbox)
    built = sellers(build_adapters({"scaleway": settings["scaleway"]}))["scaleway"]
    yield built
    await built.aclose()


async def offer_of(adapter: ProviderAdapter) -> Offer:
    return (await adapter.list_offers(datetime.now(UTC))).offers[0]


def make_stopped(sandbox: str, name: str, offer: Offer, *tags: str) -> None:
    """What an order leaves when its broker dies before the second call."""
    body = {"name": name, "commercial_type": offer.sku.name, "image": "ubuntu", "tags": tags}
    path = f"{sandbox}/scaleway/instance/v1/zones/fr-par-2/servers"
    httpx.post(path, json=body, headers=KEY, trust_env=False).raise_for_status()


def block_volumes(sandbox: str) -> list[dict[str, Any]]:
    path = f"{sandbox}/scaleway/block/v1/zones/fr-par-2/volumes"
    volumes: list[dict[str, Any]] = httpx.get(path, headers=KEY, trust_env=False).json()["volumes"]
    return volumes


async def found(adapter: ProviderAdapter, tag: str) -> Lease:
    (lease,) = [lease for lease in await adapter.list_leases() if lease.tag == tag]
    return lease


async def test_a_larger_root_volume_is_billed_in_euros_by_the_gigabyte(adapter: ProviderAdapter) -> None:
    offer = await offer_of(adapter)
    large = offer.sized(1100, None)
    usual, more = offer.native.exchange, large.native.exchange
    assert usual is not None
    assert more is not None
    assert usual.billed_per_node_hour is not None
    assert more.billed_per_node_hour is not None
    besides = Decimal("0.0118") + Decimal("0.004")  # 100 GB x 0.000118, and the address
    assert usual.billed_per_node_hour == offer.native.amount + besides
    assert more.billed_per_node_hour == usual.billed_per_node_hour + Decimal("0.118")
    rate = usual.rates[0].usd_per_unit
    assert abs(large.price_usd_per_node_hour - more.billed_per_node_hour * rate) < Decimal("0.000002")


async def test_an_order_whose_first_answer_is_lost_comes_up_all_the_same(
    adapter: ProviderAdapter, sandbox: str
) -> None:
    tag = f"{TAG}-lost"
    offer = await offer_of(adapter)
    control(
        sandbox, "faults", provider="scaleway", operation="create", kind="timeout_after", count=1, seconds=0.1
    )
    with pytest.raises(OutcomeUnknown):
        await adapter.reserve(Order(tag, offer, 1))
    assert (await found(adapter, tag)).state is LeaseState.PROVISIONING
    control(sandbox, "clock", advance_s=60)
    assert (await found(adapter, tag)).state is LeaseState.ACTIVE


async def test_a_server_stopped_by_hand_counts_as_failed_and_can_be_deleted(
    adapter: ProviderAdapter, sandbox: str
) -> None:
    tag = f"{TAG}-crash"
    offer = await offer_of(adapter)
    make_stopped(sandbox, tag, offer)
    assert (await found(adapter, tag)).state is LeaseState.PROVISIONING
    control(sandbox, "clock", advance_s=301)
    lease = await found(adapter, tag)
    assert lease.state is LeaseState.FAILED
    await adapter.release(lease)
    assert all(each.tag != tag for each in await adapter.list_leases())


async def test_a_starting_server_is_released_later(adapter: ProviderAdapter, sandbox: str) -> None:
    lease = await adapter.reserve(Order(f"{TAG}-early", await offer_of(adapter), 1))
    with pytest.raises(ReleaseRefused) as caught:
        await adapter.release(lease)
    assert not caught.value.forever
    control(sandbox, "clock", advance_s=60)
    await adapter.release(lease)
    assert (await found(adapter, f"{TAG}-early")).state is LeaseState.ENDING


async def test_a_termination_leaves_no_block_volume(adapter: ProviderAdapter, sandbox: str) -> None:
    offer = await offer_of(adapter)
    make_stopped(sandbox, "a colleague's", offer)
    (other,) = block_volumes(sandbox)
    lease = await adapter.reserve(Order(f"{TAG}-block", offer, 1))
    control(sandbox, "clock", advance_s=60)
    await adapter.release(lease)
    marked = [row for row in block_volumes(sandbox) if row["tags"] == ["broker-ended"]]
    assert [row["status"] for row in marked] == ["in_use"]
    await adapter.list_leases()
    assert len(block_volumes(sandbox)) == 2, "attached until the server is gone"
    control(sandbox, "clock", advance_s=60)
    assert [one.tag for one in await adapter.list_leases()] == ["a colleague's"]
    assert [row["id"] for row in block_volumes(sandbox)] == [other["id"]]


async def test_a_server_of_a_broker_that_died_is_deleted_by_the_list(
    adapter: ProviderAdapter, sandbox: str
) -> None:
    offer, tag = await offer_of(adapter), f"{TAG}-died"
    make_stopped(sandbox, tag, offer, tag)
    make_stopped(sandbox, "broker-by-hand", offer)
    assert {one.state for one in await adapter.list_leases()} == {LeaseState.PROVISIONING}
    control(sandbox, "clock", advance_s=301)
    assert {one.state for one in await adapter.list_leases()} == {LeaseState.FAILED}
    assert [one.tag for one in await adapter.list_leases()] == ["broker-by-hand"]
    assert len(block_volumes(sandbox)) == 1


async def test_capacity_lost_on_the_way_up_leaves_nothing(adapter: ProviderAdapter, sandbox: str) -> None:
    wish = {"operation": "create", "kind": "async_out_of_capacity", "count": 1}
    control(sandbox, "faults", provider="scaleway", **wish)
    await adapter.reserve(Order(f"{TAG}-lost-later", await offer_of(adapter), 1))
    control(sandbox, "clock", advance_s=400)
    assert (await found(adapter, f"{TAG}-lost-later")).state is LeaseState.FAILED
    assert await adapter.list_leases() == ()
    assert block_volumes(sandbox) == []
