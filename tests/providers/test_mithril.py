"""Mithril's windows as read, and both of its ways of selling end to end against the sandbox market."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import (
    InsufficientCapacity,
    OutcomeUnknown,
    PriceAboveLimit,
    ReleaseRefused,
)
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import CancelRule, Offer, Tier, WindowKind
from providers.mithril import SPEC
from providers.mithril.adapter import Mithril
from providers.spec import settings_from_environment
from tests.contract.exchanges import OBSERVED_AT, payloads
from tests.fakes.market_control import control, hasty, ledger, market_now

SANDBOX_SEED = 7

ON_HOUR = datetime(2026, 11, 21, tzinfo=UTC)


def test_overlapping_slots_become_steps_on_whole_hours() -> None:
    offers = SPEC.parse(payloads("mithril"), OBSERVED_AT).offers
    (terms,) = [offer.window for offer in offers if offer.window is not None]
    steps = [((s.start - ON_HOUR) / timedelta(hours=1), s.hours, s.nodes) for s in terms.segments]
    assert steps == [(12, 12, 4), (24, 24, 6), (48, 24, 2)]
    assert (terms.kind, terms.step_hours, terms.cancel) == (WindowKind.SLOTS, 1.0, CancelRule.RESELL)
    assert terms.durations_hours is not None
    assert (terms.durations_hours[0], terms.durations_hours[-1], len(terms.durations_hours)) == (3, 336, 334)


@pytest.mark.parametrize("beyond", ["9999-12-31T23:59:59-08:00", "9999-12-31T23:30:00Z"])
def test_a_slot_beyond_every_calendar_rejects_its_row(beyond: str) -> None:
    start = b'"start_time": "2026-11-22T12:00:00Z"'
    recorded = payloads("mithril")
    assert any(start in body for _, body in recorded)
    late = [(name, body.replace(start, f'"start_time": "{beyond}"'.encode())) for name, body in recorded]
    batch = SPEC.parse(late, OBSERVED_AT)
    assert any("is out of range" in row.reason for row in batch.rejected)
    assert any(offer.window is None for offer in batch.offers)


@pytest.fixture
async def mithril(sandbox: str) -> AsyncIterator[Mithril]:
    settings = settings_from_environment(SPEC, {}, sandbox)
    assert settings is not None
    adapter = Mithril(settings, hasty)
    yield adapter
    await adapter.aclose()


async def offer_of(mithril: Mithril, url: str, tier: Tier) -> Offer:
    offers = (await mithril.list_offers(market_now(url))).offers
    return next(offer for offer in offers if offer.tier is tier and offer.sku.gpus_per_node == 8)


def first_hours(offer: Offer, hours: int) -> Window:
    assert offer.window is not None
    start = next(s.start for s in offer.window.segments if s.hours >= hours)
    return Window(start, start + timedelta(hours=hours))


async def test_a_bid_is_held_found_by_its_tag_and_released(mithril: Mithril, sandbox: str) -> None:
    lease = await mithril.reserve(Order("broker-bid", await offer_of(mithril, sandbox, Tier.SPOT), 1))
    control(sandbox, "/_sandbox/clock", advance_s=60)
    found = {held.tag: held for held in await mithril.list_leases()}["broker-bid"]
    assert (found.reference, found.state) == (lease.reference, LeaseState.ACTIVE)
    await mithril.release(lease)
    await mithril.release(lease)
    assert (await mithril.find_lease(lease.reference, "")).state is LeaseState.ENDED
    (row,) = ledger(sandbox, "broker-bid")
    assert (row["instance_id"], row["released_at"] is not None) == (lease.reference, True)


async def test_a_window_is_reserved_and_returned_for_a_credit(mithril: Mithril, sandbox: str) -> None:
    offer = await offer_of(mithril, sandbox, Tier.WINDOW)
    order = Order("broker-res", offer, 2, first_hours(offer, 6))
    lease = await mithril.reserve(order)
    found = await mithril.find_lease(lease.reference, "")
    assert (found.nodes, found.window, found.tag) == (2, order.window, "broker-res")
    assert lease.billed_usd == found.billed_usd == offer.price_usd_per_node_hour * 12
    assert order.window is not None
    if market_now(sandbox) < order.window.start:
        with pytest.raises(ReleaseRefused) as refused:
            await mithril.release(lease)
        assert not refused.value.forever
    after = order.window.start + timedelta(hours=2) - market_now(sandbox)
    control(sandbox, "/_sandbox/clock", advance_s=after.total_seconds())
    await mithril.release(lease)
    await mithril.release(lease)
    left = await mithril.find_lease(lease.reference, "")
    assert left.state is LeaseState.ENDED
    paid, credit = offer.price_usd_per_node_hour * 12, left.credit_usd
    assert credit is not None
    assert 0 < credit <= paid / 2 * 4 / 6
    (row,) = ledger(sandbox, "broker-res")
    assert Decimal(row["billed_usd"]) == paid - credit


async def test_an_order_is_held_to_its_limit(mithril: Mithril, sandbox: str) -> None:
    offer = await offer_of(mithril, sandbox, Tier.WINDOW)
    price = offer.price_usd_per_node_hour
    limit, window = price * Decimal("1.02"), first_hours(offer, 3)
    control(sandbox, "market", provider="mithril", sku=offer.sku.name, price_usd=str(price + 1))
    try:
        with pytest.raises(PriceAboveLimit, match=r"asks \$.* per node-hour; the limit was \$") as caught:
            await mithril.reserve(Order("broker-dear", offer, 1, window, limit_usd_per_node_hour=limit))
    finally:
        control(sandbox, "market", provider="mithril", sku=offer.sku.name, price_factor=1)
    assert caught.value.asks_usd_per_node_hour == price + 1
    assert ledger(sandbox, "broker-dear") == []


def test_several_instances_at_another_price_are_an_offer_of_their_own() -> None:
    recorded = payloads("mithril")
    named = "pricing__it_a1__us-central2-a.json"
    prices = next(body for name, body in recorded if name.endswith(named))
    many = prices.replace(b'"reserved_price_cents": 2400', b'"reserved_price_cents": 2600')
    assert many != prices
    answers = [*recorded, (named.replace("pricing__", "pricing_of_most__"), many)]
    one, several = [offer for offer in SPEC.parse(answers, OBSERVED_AT).offers if offer.window is not None]
    assert one.window is not None
    assert several.window is not None
    assert (one.price_usd_per_node_hour, one.window.node_counts) == (Decimal(24), (1,))
    assert (several.price_usd_per_node_hour, several.window.node_counts) == (
        Decimal(26),
        (2, 3, 4, 5, 6),
    )
    assert one.stock == several.stock
    assert one.stock.pool is not None
    assert one.stock.pool.gpus == 48


def test_no_more_instances_are_sold_at_a_price_than_it_can_be_asked_for() -> None:
    recorded = dict(payloads("mithril"))
    slots = next(name for name in recorded if "slots__it_a1__us-central2-a" in name)
    rows = [row | {"quantity": 1_000_000} for row in json.loads(recorded[slots])]
    recorded[slots] = json.dumps(rows).encode()
    prices = next(name for name in recorded if "pricing__it_a1__us-central2-a" in name)
    many = recorded[prices].replace(b'"reserved_price_cents": 2400', b'"reserved_price_cents": 2600')
    answers = [*recorded.items(), (prices.replace("pricing__", "pricing_of_most__"), many)]
    windows = [one.window for one in SPEC.parse(answers, OBSERVED_AT).offers if one.window is not None]
    assert [counts and counts[-1] for counts in (one.node_counts for one in windows)] == [1, 256]


@pytest.mark.parametrize("tier", [Tier.SPOT, Tier.WINDOW])
@pytest.mark.parametrize("kind", ["timeout_after", "timeout_before"])
async def test_a_lost_answer_is_settled_by_the_tag(
    mithril: Mithril, sandbox: str, tier: Tier, kind: str
) -> None:
    offer, tag = await offer_of(mithril, sandbox, tier), f"broker-lost-{tier}-{kind}"
    window = first_hours(offer, 3) if tier is Tier.WINDOW else None
    control(
        sandbox, "/_sandbox/faults", provider="mithril", operation="create", kind=kind, count=1, seconds=0.1
    )
    with pytest.raises(OutcomeUnknown):
        await mithril.reserve(Order(tag, offer, 1, window))
    listed = [lease.reference for lease in await mithril.list_leases() if lease.tag == tag]
    assert listed == [row["instance_id"] for row in ledger(sandbox, tag)]
    assert len(listed) == (kind == "timeout_after")


async def test_without_capacity_nothing_is_held(mithril: Mithril, sandbox: str) -> None:
    offer = await offer_of(mithril, sandbox, Tier.WINDOW)
    order = Order("broker-none", offer, 1000, first_hours(offer, 3))
    with pytest.raises(InsufficientCapacity):
        await mithril.reserve(order)
    assert ledger(sandbox, "broker-none") == []


async def test_capacity_that_is_lost_after_the_order_shows_as_failed(mithril: Mithril, sandbox: str) -> None:
    offer = await offer_of(mithril, sandbox, Tier.WINDOW)
    fault = {"provider": "mithril", "operation": "create", "kind": "async_out_of_capacity", "count": 1}
    control(sandbox, "/_sandbox/faults", **fault)
    lease = await mithril.reserve(Order("broker-async", offer, 1, first_hours(offer, 3)))
    control(sandbox, "/_sandbox/clock", advance_s=10)
    assert (await mithril.find_lease(lease.reference, "")).state is LeaseState.FAILED
    await mithril.release(lease)
