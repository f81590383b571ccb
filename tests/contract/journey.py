"""Drives an adapter through all that it does at the sandbox market, and keeps every call and its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import respx

from broker.domain.basics.errors import InsufficientCapacity, LeaseNotFound, ReleaseRefused
from broker.domain.basics.machines import PublicKey
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Lease, Order
from broker.domain.holding.seller_network import NetworkRules
from broker.domain.market.offer import Offer, StockLevel, WindowBegin, WindowKind, WindowTerms
from providers.network_setup import NetworkSetup
from providers.registry import SPECS
from providers.sandbox import create_sandbox
from providers.spec import ProviderAdapter, settings_from_environment
from tests.fakes.market_control import hasty
from tests.fakes.provider import keeping

START = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
HOST = "http://127.0.0.1"
SEED = 11
LATER_S = 1800
REGION_OF_AZURE = "eastus"
KEYS = (
    PublicKey("ann", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICApaeQoxoir3DDcvTFSsiNd0+6fKaZrTd1Hgr8r9n3M"),
    PublicKey("bob", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMDIJYTYvRnkYXhGyjICu5veCMNcmONNlQj0ODdY9bo"),
)
"""They go with every order."""
SCRIPT = "#!/bin/bash\ntrue\n"
WINDOW_HOURS = 24
TRIES = 8


class Market:
    """A sandbox market in memory that keeps what it was asked and what it answered."""

    def __init__(self) -> None:
        self._app = create_sandbox(SEED, clock_start=START, wall=lambda: START)
        self._transport = httpx.ASGITransport(self._app)
        self.heard: list[tuple[httpx.Request, httpx.Response]] = []

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """What the sandbox answers to ``request``."""
        raw = await self._transport.handle_async_request(request)
        answer = httpx.Response(raw.status_code, headers=raw.headers, content=await raw.aread())
        self.heard.append((request, answer))
        return answer

    async def advance(self, seconds: float) -> None:
        """Lets its time pass."""
        async with httpx.AsyncClient(transport=self._transport, base_url=HOST) as control:
            (await control.post("/_sandbox/clock", json={"advance_s": seconds})).raise_for_status()

    def close(self) -> None:
        """Ends it."""
        self._app.close()


async def travelled(name: str) -> list[tuple[httpx.Request, httpx.Response]]:
    """What went over the wire: offers, and for each kind of them an order, reads, a release, reads again."""
    market = Market()
    settings = settings_from_environment(SPECS[name], {}, HOST)
    assert settings is not None
    adapter = SPECS[name].build(settings, hasty)
    try:
        with respx.mock(assert_all_called=False) as router:
            router.route(host="127.0.0.1").mock(side_effect=market.answer)
            offers = (await adapter.list_offers(START)).offers
            assert offers
            if isinstance(adapter, NetworkSetup):
                await _networked(adapter)
            if isinstance(adapter, ProviderAdapter):
                await _hold(adapter, offers, market)
    finally:
        await adapter.aclose()
        market.close()
    return market.heard


async def _networked(adapter: NetworkSetup) -> None:
    """Makes a network, lets in others, and looks at it."""
    regions = adapter.network_regions() or (REGION_OF_AZURE,)
    for sources in (("198.51.100.0/24",), ("203.0.113.0/24",)):
        await adapter.make_network(NetworkRules(sources), regions)
    await adapter.plan_network(NetworkRules(sources), regions)


async def _hold(adapter: ProviderAdapter, offers: Sequence[Offer], market: Market) -> None:
    """Buys one of each kind, reads, lets them begin, reads and releases them, where that may be."""
    leases = [
        await _bought(adapter, f"broker-{adapter.provider}-{number}".replace("_", "-"), alike)
        for number, alike in enumerate(by_kind(offers))
    ]
    await _read(adapter, leases)
    await market.advance(LATER_S)
    await _read(adapter, leases)
    await adapter.drop_keys(keeping())
    for lease in leases:
        with suppress(ReleaseRefused):
            await adapter.release(lease)
    await market.advance(LATER_S)
    await _read(adapter, leases)


async def _bought(adapter: ProviderAdapter, tag: str, offers: Sequence[Offer]) -> Lease:
    """A lease of the first offer that can be had; what lists of prices hold may be sold out."""
    for offer in offers:
        script = SCRIPT if adapter.runs_script(offer) else ""
        with suppress(InsufficientCapacity):
            return await adapter.reserve(replace(order_of(tag, offer), keys=KEYS, script=script))
    raise AssertionError(f"none of {len(offers)} offers like {offers[0].offer_id} could be bought")


async def _read(adapter: ProviderAdapter, leases: Sequence[Lease]) -> None:
    await adapter.list_leases()
    for lease in leases:
        with suppress(LeaseNotFound):
            await adapter.find_lease(lease.reference, lease.region)


def by_kind(offers: Sequence[Offer]) -> list[list[Offer]]:
    """Offers in stock by tier, kind of window and family of machines, a few of each."""
    kinds: dict[object, list[Offer]] = {}
    for offer in offers:
        terms = offer.window
        family = re.split("[-_.0-9]", offer.sku.name)[0]
        if terms is not None:
            product = offer.offer_id.split("/")[1]
            family = "" if product == offer.region else product
        if offer.stock.level is not StockLevel.NONE:
            kinds.setdefault((offer.tier, terms and terms.kind, family), []).append(offer)
    return [alike[:TRIES] for alike in kinds.values()]


def order_of(tag: str, offer: Offer) -> Order:
    terms = offer.window
    if terms is None or terms.kind is WindowKind.LISTED:
        return Order(tag, offer, 1)
    hours = min(terms.durations_hours or (WINDOW_HOURS,))
    start = next((segment.start for segment in terms.segments if segment.hours >= hours), None)
    start = start or _soonest(terms)
    wait_s = int(terms.longest_wait_hours * 3600) if terms.begins is WindowBegin.WHEN_AVAILABLE else 0
    return Order(tag, offer, 1, Window(start, start + timedelta(hours=hours)), wait_s)


def _soonest(terms: WindowTerms) -> datetime:
    """The first time at which a window may start that is asked for."""
    soonest = START + timedelta(hours=terms.lead_hours)
    if terms.anchor_utc is None:
        return soonest
    anchored = datetime.combine(soonest.date(), terms.anchor_utc, UTC)
    return anchored if anchored >= soonest else anchored + timedelta(days=1)
