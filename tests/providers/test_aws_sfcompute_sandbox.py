"""Both window sellers end to end against the sandbox market, whose ledger is the judge."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import httpx
import pytest

from broker.domain.basics.errors import OutcomeUnknown, PriceAboveLimit, ReleaseRefused
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.billing import days
from broker.domain.market.offer import Offer, Tier
from providers.http import ProviderHttp
from providers.registry import SPECS
from providers.sfcompute.offers import QuoteRequest, read_quote
from providers.spec import ProviderAdapter, settings_from_environment
from tests.fakes.market_control import control, ledger, market_now

SANDBOX_SEED = 7

SETTLED_S = 2.5
"""A little over the sandbox's asynchronous steps."""


def adapter(name: str, url: str) -> ProviderAdapter:
    settings = settings_from_environment(SPECS[name], {}, url)
    assert settings is not None
    built = SPECS[name].build(settings, ProviderHttp)
    assert isinstance(built, ProviderAdapter)
    return built


async def settled(one: ProviderAdapter, lease: Lease, sandbox: str) -> Lease:
    control(sandbox, "clock", advance_s=SETTLED_S)
    return await one.find_lease(lease.reference, lease.region)


def pick(offers: tuple[Offer, ...], tier: Tier, **wanted: str) -> Offer:
    return next(
        offer
        for offer in offers
        if offer.tier is tier
        and "/now/" not in offer.offer_id
        and all(getattr(offer.sku, key) == value for key, value in wanted.items())
    )


async def test_aws_sells_blocks_reservations_and_spot(sandbox: str) -> None:
    aws, now = adapter("aws", sandbox), market_now(sandbox)
    try:
        offers = (await aws.list_offers(now)).offers
        block = pick(offers, Tier.WINDOW, gpu="H100-SXM-80GB", name="p5.48xlarge")
        bought = await aws.reserve(Order("broker-t-block", block, 1))
        spot = await aws.reserve(Order("broker-t-spot", pick(offers, Tier.SPOT), 1))
        hours = Window(now, now + timedelta(hours=6))
        held = await aws.reserve(
            Order("broker-t-od", pick(offers, Tier.ON_DEMAND, name="g6.xlarge"), 2, hours)
        )
        assert (await settled(aws, bought, sandbox)).state is LeaseState.SCHEDULED
        tags = {lease.reference: lease.tag for lease in await aws.list_leases()}
        for lease in (bought, spot, held):
            (entry,) = ledger(sandbox, str(lease.tag))
            assert entry["instance_id"] == lease.reference
            assert tags[lease.reference] == lease.tag
        with pytest.raises(ReleaseRefused) as refused:
            await aws.release(bought)
        assert refused.value.forever
        for lease in (spot, held):
            await aws.release(lease)
            assert (await settled(aws, lease, sandbox)).state is LeaseState.ENDED
            assert ledger(sandbox, str(lease.tag))[0]["released_at"]
            await aws.release(lease)
    finally:
        await aws.aclose()


async def test_a_purchase_whose_answer_was_lost_is_found_by_its_tag(sandbox: str) -> None:
    aws, now = adapter("aws", sandbox), market_now(sandbox)
    try:
        block = pick((await aws.list_offers(now)).offers, Tier.WINDOW, name="p5en.48xlarge")
        fault = {"operation": "create", "kind": "connection_reset", "count": 1, "seconds": 1}
        control(sandbox, "/_sandbox/faults", provider="aws", **fault)
        with pytest.raises(OutcomeUnknown):
            await aws.reserve(Order("broker-t-lost", block, 1))
        listed = [lease.reference for lease in await aws.list_leases() if lease.tag == "broker-t-lost"]
        assert listed == [entry["instance_id"] for entry in ledger(sandbox, "broker-t-lost")]
    finally:
        await aws.aclose()


async def test_sf_compute_sells_a_window_and_buys_it_back(sandbox: str) -> None:
    sfc, now = adapter("sfcompute", sandbox), market_now(sandbox)
    try:
        offer = (await sfc.list_offers(now)).offers[0]
        assert offer.window is not None
        start = next(s.start for s in offer.window.segments if s.hours >= 24)
        order = Order("broker-t-sfc", offer, 2, Window(start, start + timedelta(hours=24)))
        lease = await sfc.reserve(order)
        again = await sfc.reserve(order)
        assert again.reference == lease.reference
        (entry,) = ledger(sandbox, "broker-t-sfc")
        assert (entry["instance_id"], entry["nodes"]) == (lease.reference, 2)
        assert (await settled(sfc, lease, sandbox)).state is LeaseState.SCHEDULED
        await sfc.release(lease)
        assert ledger(sandbox, "broker-t-sfc")[0]["released_at"]
        ended = await sfc.find_lease(lease.reference, "")
        assert ended.state is LeaseState.ENDED
        assert ended.billed_usd is not None
        assert ended.credit_usd is not None
        billed = Decimal(ledger(sandbox, "broker-t-sfc")[0]["billed_usd"])
        assert ended.billed_usd - ended.credit_usd == billed, "what was paid less what the sale brought"
        await sfc.release(lease)
    finally:
        await sfc.aclose()


async def test_sf_compute_does_not_pay_more_than_the_limit(sandbox: str) -> None:
    sfc, now = adapter("sfcompute", sandbox), market_now(sandbox)
    try:
        offer = (await sfc.list_offers(now)).offers[0]
        assert offer.window is not None
        start = next(s.start for s in offer.window.segments if s.hours >= 24)
        control(
            sandbox,
            "/_sandbox/market",
            provider="sfcompute",
            sku=offer.sku.name,
            region=offer.zone,
            price_factor=2.0,
        )
        with pytest.raises(PriceAboveLimit, match=r"asks \$.* per node-hour for .* UTC; the limit was \$"):
            await sfc.reserve(Order("broker-t-dear", offer, 1, Window(start, start + timedelta(hours=24))))
        assert ledger(sandbox, "broker-t-dear") == []
    finally:
        await sfc.aclose()


async def test_no_day_of_sfcompute_costs_more_than_its_offer_says(sandbox: str) -> None:
    sfcompute, now = adapter("sfcompute", sandbox), market_now(sandbox)
    try:
        offers = (await sfcompute.list_offers(now)).offers
    finally:
        await sfcompute.aclose()
    asked = 0
    for offer in offers:
        assert offer.window is not None
        soon = Window(now, now + timedelta(days=13))
        parts = [part for segment in offer.window.segments if (part := segment.window.intersection(soon))]
        for day in (day for part in parts for day in days(part) if day.hours >= 1):
            request = QuoteRequest(offer.zone or "", offer.sku.name, 1, day.start, int(day.hours))
            answer = httpx.get(
                f"{sandbox}/sfcompute/v0/quote",
                params=request.query(),
                headers={"Authorization": "Bearer sandbox"},
                timeout=30,
            )
            quote = read_quote(answer.content).quote
            assert quote is not None, (offer.offer_id, day)
            asks = Decimal(quote.price) / 100 / int(day.hours)
            assert asks <= offer.price_usd_per_node_hour + Decimal("0.01"), (offer.offer_id, day)
            asked += 1
    assert asked > len(offers)


async def test_sfcompute_is_not_asked_again_for_young_quotes(sandbox: str) -> None:
    def calls() -> int:
        counts = httpx.get(f"{sandbox}/_sandbox/requests").json()["requests"].get("sfcompute", {})
        return int(sum(counts.values()))

    seller, now = adapter("sfcompute", sandbox), market_now(sandbox)
    try:
        before = calls()
        first = (await seller.list_offers(now)).offers
        quotes = calls() - before - 1
        again = (await seller.list_offers(now + timedelta(seconds=1))).offers
        assert calls() - before == quotes + 2, "the zones alone"
        prices = {one.offer_id: one.price_usd_per_node_hour for one in first}
        assert {one.offer_id: one.price_usd_per_node_hour for one in again} == prices
        await seller.list_offers(now + timedelta(minutes=6))
        assert calls() - before > quotes + 12
    finally:
        await seller.aclose()
