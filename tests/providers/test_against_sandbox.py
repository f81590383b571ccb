"""The adapters against the market server, over real sockets: hold, find by tag, release, and lost answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from broker.domain.basics.errors import (
    InsufficientCapacity,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderUnavailable,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, StockLevel, Tier
from providers.registry import SPECS, build_adapters, configured, sellers
from providers.spec import Capability, ProviderAdapter
from tests.fakes.market_control import control, fault, hasty, ledger

OF_THEIR_OWN = {"aws", "sfcompute", "mithril"}
NAMES = tuple(
    name
    for name, spec in SPECS.items()
    if Capability.RESERVE in spec.capabilities and name not in OF_THEIR_OWN
)
BOTH_TIERS = [
    (name, tier)
    for name in NAMES
    for tier in (Tier.ON_DEMAND, Tier.SPOT)
    if tier is Tier.ON_DEMAND or Capability.SPOT in SPECS[name].capabilities
]


NO_OFFERS = {
    "gcp": "a fraction of a GPU",
    "gpuhunt": "a cluster of two to eight pods, no single pod",
    "skypilot": "the list names every region of OCI for every type",
}
"""Rows of the sandbox's lists that look like offers."""
HANGS_S = 0.1
"""Then the connection ends. Limits of waiting: ``test_http.py``; the wire's own: ``test_hotaisle.py``."""


@pytest.fixture
async def adapters(sandbox: str) -> AsyncIterator[dict[str, ProviderAdapter]]:
    wanted = {name: found for name, found in configured({}, sandbox).items() if name in NAMES}
    built = sellers(build_adapters(wanted, hasty))
    yield dict(built)
    for adapter in built.values():
        await adapter.aclose()


async def orderable(adapter: ProviderAdapter, tier: Tier = Tier.ON_DEMAND) -> Offer:
    batch = await adapter.list_offers(datetime.now(UTC))
    return next(
        offer for offer in batch.offers if offer.tier is tier and offer.stock.level is not StockLevel.NONE
    )


def advance(sandbox: str, seconds: float) -> None:
    control(sandbox, "clock", advance_s=seconds)


async def by_tag(adapter: ProviderAdapter, tag: str) -> list[Lease]:
    ended = {LeaseState.ENDED, LeaseState.ENDING, LeaseState.FAILED}
    return [lease for lease in await adapter.list_leases() if lease.tag == tag and lease.state not in ended]


@pytest.mark.parametrize("name", NO_OFFERS)
async def test_what_nobody_can_order_as_it_is_listed_is_refused_by_name(sandbox: str, name: str) -> None:
    built = build_adapters({name: configured({}, sandbox)[name]}, hasty)
    try:
        batch = await built[name].list_offers(datetime.now(UTC))
    finally:
        await built[name].aclose()
    assert NO_OFFERS[name] in {row.reason for row in batch.rejected}


@pytest.mark.parametrize(("name", "tier"), BOTH_TIERS)
async def test_what_is_held_is_found_and_released(
    adapters: dict[str, ProviderAdapter], sandbox: str, name: str, tier: Tier
) -> None:
    adapter, tag = adapters[name], f"broker-held-{name}-{tier.replace('_', '-')}"
    lease = await adapter.reserve(Order(tag, await orderable(adapter, tier), 1))
    assert [found.reference for found in await by_tag(adapter, tag)] == [lease.reference]
    advance(sandbox, 1800)
    assert (await adapter.find_lease(lease.reference, lease.region)).state is LeaseState.ACTIVE
    await adapter.release(lease)
    await adapter.release(lease)
    assert await by_tag(adapter, tag) == []
    assert [row["instance_id"] for row in ledger(sandbox, tag)] == [lease.reference]
    assert ledger(sandbox, tag)[0]["released_at"] is not None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["timeout_after", "timeout_before"])
async def test_a_lost_answer_leaves_the_outcome_open_and_the_tag_settles_it(
    adapters: dict[str, ProviderAdapter], sandbox: str, name: str, kind: str
) -> None:
    adapter, tag = adapters[name], f"lost-{name}-{kind.replace('_', '-')}"
    offer = await orderable(adapter)
    fault(sandbox, provider=name, operation="create", kind=kind, count=1, seconds=HANGS_S)
    with pytest.raises(OutcomeUnknown):
        await adapter.reserve(Order(tag, offer, 1))
    assert len(await by_tag(adapter, tag)) == len(ledger(sandbox, tag)) == (kind == "timeout_after")


@pytest.mark.parametrize("name", NAMES)
async def test_an_order_without_capacity_holds_nothing(
    adapters: dict[str, ProviderAdapter], sandbox: str, name: str
) -> None:
    adapter, tag = adapters[name], f"broker-none-{name}"
    offer = await orderable(adapter)
    fault(sandbox, provider=name, operation="create", kind="out_of_capacity", count=1)
    with pytest.raises(InsufficientCapacity):
        await adapter.reserve(Order(tag, offer, 1))
    assert await by_tag(adapter, tag) == []


@pytest.mark.parametrize("name", NAMES)
async def test_a_read_outlives_short_faults(
    adapters: dict[str, ProviderAdapter], sandbox: str, name: str
) -> None:
    for kind in ("http_500", "connection_reset"):
        fault(sandbox, provider=name, operation="list", kind=kind, count=1)
        assert (await adapters[name].list_offers(datetime.now(UTC))).offers


@pytest.mark.parametrize("name", NAMES)
async def test_a_read_that_cannot_succeed_says_why(
    adapters: dict[str, ProviderAdapter], sandbox: str, name: str
) -> None:
    refusals = 1 if name == "runpod" else 3  # RunPod names a wait that is too long to be tried again
    for kind, count, error in (
        ("http_500", 3, ProviderUnavailable),
        ("rate_limited", refusals, RateLimited),
        ("malformed", 1, PayloadUnreadable),
    ):
        fault(sandbox, provider=name, operation="list", kind=kind, count=count)
        with pytest.raises(error):
            await adapters[name].list_offers(datetime.now(UTC))


async def test_capacity_that_is_lost_after_the_order_shows_as_failed(
    adapters: dict[str, ProviderAdapter], sandbox: str
) -> None:
    adapter = adapters["verda"]
    fault(sandbox, provider="verda", operation="create", kind="async_out_of_capacity", count=1)
    lease = await adapter.reserve(Order("broker-async", await orderable(adapter), 1))
    advance(sandbox, 1800)
    found = await adapter.find_lease(lease.reference, lease.region)
    assert (found.state, found.detail) == (LeaseState.FAILED, "no_capacity")


async def test_an_instance_in_provisioning_is_released_later(
    adapters: dict[str, ProviderAdapter], sandbox: str
) -> None:
    adapter = adapters["verda"]
    lease = await adapter.reserve(Order("broker-early", await orderable(adapter), 1))
    with pytest.raises(ReleaseRefused) as caught:
        await adapter.release(lease)
    assert not caught.value.forever
    advance(sandbox, 1800)
    await adapter.release(lease)
